"""A run: open the data, build the model, train or fit it, test it. What each of these is, its task says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from elman import kernels, lens, tasks
from elman import progress as progress_line
from elman.data.text import MEMORY
from elman.errors import InputError, UnknownNameError
from elman.files import artifact, config
from elman.options import flag
from elman.progress import quiet
from elman.tasks import load, open_source
from elman.tasks.predictor import Predictor
from elman.tasks.task import AnyTask, Data, Evaluation, Settings, Task, TrainedSettings
from elman.training import checkpoint, loop, optim, threads
from elman.training.alone import alone, seed
from elman.training.average import Average
from elman.training.distributed import Ranks, ranks
from elman.training.interrupt import Interrupted
from elman.training.lock import locked
from elman.training.record import Recorder, begin, change_config, read_metrics
from elman.training.scores import Scores
from elman.training.unit import Unit

Opened = Callable[[Any, Any], Any]  # a config and a model that was saved -> data
Callback = Callable[[int, Scores], None] | None


def train(
    settings: Settings, data: Any = None, callback: Callback = None, *, progress: bool = True
) -> tuple[Any, list[dict[str, float]]]:
    """Run a config: the best model, and the lines of its metrics. `elman train` is a thin layer on this.

    `data` in memory takes the place of what the config names: a text, a list of documents or an array (a list of them
    for several sequences), whatever the task reads; or a mapping with several of train, valid and test.
    `callback(step, scores)` is called after each evaluation on the validation data; what it raises ends the run, which
    can be resumed. With `progress` false nothing is said on standard error but warnings.

    A process trains one model at a time: a second call, from another thread, waits. Torch's random numbers are
    afterwards where they were. Ctrl-C raises `Interrupted`, a KeyboardInterrupt, once the checkpoint is written.

    >>> import tempfile
    >>> from elman.tasks.text.markov import MarkovConfig
    >>> config = MarkovConfig(out=tempfile.mkdtemp() + "/run")
    >>> model, history = train(config, data="to be or not to be, " * 99, progress=False)
    >>> model.generate("to be or", max_new_tokens=7)
    ' not to'
    """
    task = tasks.of_settings(settings)
    settings = replace(settings, out=os.path.expanduser(settings.out))
    with (
        nullcontext() if flag("progress", progress) else quiet(),
        alone(),
        ranks() as processes,
        locked(Path(settings.out)) if processes.first else nullcontext(),
        threads.of_run(settings) as counted,
    ):
        named, opened = given(task, counted, data)
        (_fit if task.fits(named) else _train)(task, named, processes, opened, callback)
        return load(settings.out), read_metrics(Path(settings.out))


def given(task: AnyTask, settings: Any, data: Any) -> tuple[Any, Opened]:
    """The settings of a run to which `data` were given, or None; and how its data are opened."""
    if data is None:
        return settings, task.open
    parts = _parts(settings, data)
    named = replace(settings, data=replace(settings.data, **dict.fromkeys(parts, MEMORY)))
    return named, lambda config, saved: task.open_in_memory(config, saved, parts)


def _parts(settings: Settings, data: Any) -> dict[str, Any]:
    """The parts of the data by name."""
    parts = dict(data) if isinstance(data, Mapping) else {"train": data}
    known = [name for name in ("train", "valid", "test") if hasattr(getattr(settings, "data", None), name)]
    for name in parts:
        if name not in known:
            raise UnknownNameError("part of the data", name, known)
    if "train" not in parts:
        raise InputError(f"data has {', '.join(parts) or 'nothing'}; it needs train")
    return parts


def _train(task: AnyTask, settings: TrainedSettings, processes: Ranks, opened: Opened, callback: Callback) -> None:
    """By the loop. A run that was killed goes on from its checkpoint, to the same bytes."""
    loop.check(settings.training, settings.device)
    if settings.training.lens and type(task).inspect_inputs is Task.inspect_inputs:
        raise InputError(
            f"training.lens is true, and {task.title} cannot be looked into: its task has no inspect_inputs"
        )
    optim.check(settings.optim)
    out = Path(settings.out)
    last = checkpoint.latest(out, settings.resume)
    seed(settings.seed)
    saved = task.load(last) if last else None
    begins_with = "" if last else str(getattr(settings, "init_from", ""))  # the config of a task need not have it
    source = open_source(begins_with, task) if begins_with else None
    data = opened(settings, saved or source)
    with threads.one():  # of several, LAPACK makes other orthogonal matrices
        predictor = task.unfinished(saved) if saved else task.build(settings, data)
    batches = data.batches(processes.rank, processes.world)
    settings = threads.settled(settings, threads.work(predictor.model, batches))
    identity = config.identity(settings, data.fingerprint)
    stored = checkpoint.load(last, lambda: predictor.model.init_state(0)) if last else None
    changes = config.resumed(stored.identity, settings, data.fingerprint, out) if stored else {}
    part, watched = data.watched(settings.training.evaluate_tokens)
    run = loop.Run(
        processes.wrap(Unit(task, predictor.model.train())),
        batches,
        optim.optimiser(settings.optim, predictor.model),
        optim.Schedule(settings.optim, settings.training.steps),
        ranks=processes, counted=data.unit, describe=data.describe_loss, watched=watched,
        average=Average(predictor.model, settings.training.average),
    )  # fmt: skip
    introduce(processes, task, predictor, data)
    if source:
        words = ", ".join(task.copy_weights(predictor, source))
        say(processes, f"Taken from {begins_with}: {words}. Optimiser, schedule and steps begin anew.")
    seed(settings.seed + 1 + processes.rank)
    if stored:
        checkpoint.resume(stored, run)
        say(processes, continued(settings, run, changes))
    if processes.first and (changes or not stored):
        (change_config if stored else begin)(out, settings)
    lengths, board = stored.lengths if stored else None, settings.training.tensorboard
    run.recorder = Recorder(out if processes.first else None, lengths, board, run.advance.step)

    def evaluate(step: int) -> Scores:
        predictor.model.eval()
        evaluation = task.evaluate(predictor, part)
        if settings.training.lens and processes.first:
            looked = task.inspect_inputs(predictor, part, *lens.WATCHED)
            run.recorder.metrics(step, **lens.watched(looked.model, looked.sample))
        run.recorder.preview(step, task.preview(predictor, settings, step, evaluation))
        predictor.model.train()
        if callback:
            callback(step, evaluation.scores)
        return evaluation.scores

    def save(name: str) -> None:
        taken = checkpoint.take(run, identity) if name == "last" else None  # by all processes
        if not processes.first:
            return
        over = run.advance.step == settings.training.steps or loop.over(run.advance, settings.training)
        kept = task.finish(predictor, data) if name == "best" or over else predictor
        if taken is None:
            artifact.write(out / name, kept.write_to)
        else:
            checkpoint.save(out / name, kept.write_to, taken)

    run.evaluate, run.save = evaluate, save
    try:
        loop.train(run, settings.training, settings.optim)
        if processes.first:
            whole = {"valid_whole": data.valid if watched else None, "test": data.test}
            test(task, load(out), whole, run.recorder, run.advance.step)
            if said := task.closing(read_metrics(out)):
                say(processes, said)
    except Interrupted as stop:
        stop.args = (f"{stop}; its checkpoint is in {out / 'last'}. To go on: elman train --out {out} --resume auto",)
        raise
    finally:
        run.recorder.close()


def _fit(task: AnyTask, settings: Settings, processes: Ranks, opened: Opened, callback: Callback) -> None:
    """In one go: what was killed is begun again, and comes to the same end."""
    if processes.world > 1:
        raise InputError(f"{task.title} is fitted by one process; there are {processes.world}")
    out = Path(settings.out)
    checkpoint.latest(out, settings.resume)
    data = opened(settings, None)
    identity = config.identity(settings, data.fingerprint)
    if best := artifact.find(out / "best"):
        config.resumed(checkpoint.read_identity(best), settings, data.fingerprint, out)
        return
    predictor, settings = task.build(settings, data), threads.settled(settings, threads.WORTH)
    introduce(processes, task, predictor, data)
    history = task.fit(predictor, settings, data)
    begin(out, settings)
    recorder, step = Recorder(out), len(history) - 1
    for number, line in enumerate(history):
        recorder.metrics(number, **line)
    found = test(task, predictor, {"valid": data.valid, "test": data.test}, recorder, step)
    if callback and "valid" in found:
        callback(step, found["valid"].scores)
    recorder.preview(step, task.preview(predictor, settings, step, next(reversed(found.values()), None)))
    recorder.close()
    judged = next((evaluation.scores for evaluation in found.values()), None)
    advance = loop.Advance(
        step, best=judged.value if judged else None, decides=judged.decides if judged else "",
        larger_is_better=judged.larger_is_better if judged else False,
    )  # fmt: skip
    checkpoint.save_fitted(out / "best", task.finish(predictor, data).write_to, identity, advance)


def introduce(processes: Ranks, task: AnyTask, predictor: Predictor[Any], data: Data) -> None:
    """What was read, what is trained on it, and by what."""
    threads, kernel = torch.get_num_threads(), kernels.active()
    using = f"{threads} thread{'s' if threads > 1 else ''}, {kernel} kernels"
    for line in (*data.summary(), f"model: {task.summary(predictor)}", f"computing: {using}"):
        say(processes, line)


def continued(settings: TrainedSettings, run: loop.Run, changes: dict[str, config.Change]) -> str:
    """What a resumed run does: what has changed, how its schedule goes on, and why it does nothing if it does not."""
    step, training = run.advance.step, settings.training
    if training.steps < step:
        raise InputError(
            f"training.steps is {training.steps}; {settings.out} has done {step} already. Give at least as many."
        )
    parts = [f"{name} was {change.before}, is now {change.now}." for name, change in changes.items()]
    if loop.over(run.advance, training) and step < training.steps:
        why = "the task saw no use in going on" if run.advance.settled else "the last evaluations were no better"
        hint = "" if run.advance.settled else " To go on: --training.patience 0, or more than it was."
        return " ".join([*parts, f"{settings.out} ended early, after step {step}: {why}.{hint}"])
    if step < training.steps and "training.steps" in changes:
        parts.append(run.schedule.continued(int(str(changes["training.steps"].before)), step) + ".")
    return " ".join([*parts, f"Going on with {settings.out} after step {step} of {training.steps}."])


def test(
    task: AnyTask, predictor: Predictor[Any], parts: dict[str, Any], recorder: Recorder, step: int
) -> dict[str, Evaluation]:
    """Evaluate a model that is done on whole parts of the data; note and say how good it is."""
    found = {name: task.evaluate(predictor, part) for name, part in parts.items() if part is not None}
    for name, scores in ((name, evaluation.scores) for name, evaluation in found.items()):
        recorder.metrics(step, **scores.recorded(name))
        remark = f"  ({scores.remark})" if scores.remark else ""
        progress_line.say(f"{name.replace('_', ' ')}  {scores.spelt()}{remark}")
    return found


def say(processes: Ranks, text: str) -> None:
    """Of several processes, one says it."""
    if processes.first:
        progress_line.say(text)
