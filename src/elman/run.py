"""A run: open the data, build the model, train or fit it, test it. What each of these is, its task says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from elman import artifact, config, extensions, kernels, progress, tasks
from elman.data import Batches, Position
from elman.data.text import MEMORY
from elman.errors import FileError, InputError, UnknownNameError
from elman.tasks.task import AnyTask, Data, Settings, TrainedSettings
from elman.training import checkpoint, loop, optim, threads
from elman.training.distributed import Ranks, ranks
from elman.training.interrupt import Interrupted
from elman.training.lock import locked
from elman.training.record import Recorder, begin, change_config, read_metrics
from elman.training.scores import Scores
from elman.training.unit import Unit

Opened = Callable[[Any, Any], Any]  # a config and a model that was saved -> data
Callback = Callable[[int, Scores], None]


def load(path: str | Path) -> Any:
    """The model of a run (its best, or its last), or one that was saved: the face that its task has for it.

    >>> import tempfile
    >>> from elman.data import VOCABULARIES
    >>> from elman.tasks.lm import LanguageModel, ModelConfig, build
    >>> lm = LanguageModel(build(ModelConfig(size=8), 257), VOCABULARIES["byte"](), ModelConfig(size=8))
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> lm.save(folder)
    >>> load(folder).score("any text")[0] == lm.score("any text")[0]
    True
    """
    return open_model(path)[1]


def open_model(path: str | Path) -> tuple[AnyTask, Any]:
    """The task of a run or of a saved model, and the model."""
    folder = _folder(path)
    try:
        task = tasks.of_folder(folder)
        return task, task.load(folder)
    except UnknownNameError as error:
        missing = extensions.missing(imports(path))
        if not missing:
            raise
        raise FileError(f"{path} needs what {', '.join(missing)} adds: import it first. ({error})") from error


def imports(path: str | Path) -> list[str]:
    """The modules of its own that a model was trained with, by --import."""
    folder = _folder(path)
    return extensions.noted(artifact.read_model_json(folder), str(folder / "model.json"))


def _folder(path: str | Path) -> Path:
    """The folder of the model of a run, or of one that was saved."""
    root = Path(path)
    if not root.is_dir() and artifact.find(root) is None:
        raise FileError(f"there is no folder {root}; give a run directory, or what a model was saved to")
    return artifact.find(root / "best") or artifact.find(root / "last") or artifact.find(root) or root


def train(settings: Settings, data: Any = None, callback: Callback | None = None) -> tuple[Any, list[dict[str, float]]]:
    """Run a config: the best model, and the lines of its metrics. `elman train` is a thin face on this.

    `data` in memory takes the place of what the config names: a text, a list of documents or an array (a list of them
    for several sequences), whatever the task reads; or a mapping with several of train, valid and test.
    `callback(step, scores)` is called after each evaluation on the validation data; what it raises ends the run, which
    can be resumed.

    >>> import tempfile
    >>> from elman.tasks.markov import ModelConfig, RunConfig
    >>> model, history = train(RunConfig(model=ModelConfig(order=3), out=tempfile.mkdtemp() + "/run"))
    >>> history[1]["valid"] < 2  # nats per character of English about Python
    True
    >>> model, history = train(RunConfig(out=tempfile.mkdtemp() + "/run"), data="to be or not to be, " * 99)
    >>> model.generate("to be or", max_new_tokens=7)
    ' not to'
    """
    task = tasks.find(settings.task)
    if not isinstance(settings, task.Config):
        wanted, given = (f"{kind.__module__}.{kind.__name__}" for kind in (task.Config, type(settings)))
        raise InputError(f"the task {settings.task} needs a {wanted}, not a {given}")
    if settings.resume not in ("never", "auto"):
        raise UnknownNameError("way to resume", settings.resume, ("never", "auto"))
    if not 0 <= settings.seed < 2**62:  # Torch takes 64 bits, and each process adds a little
        raise InputError(f"seed is {settings.seed}; it must be a whole number of at least 0 and below 2**62")
    with (
        ranks() as processes,
        locked(Path(settings.out)) if processes.first else nullcontext(),
        threads.of_run(settings) as counted,
    ):
        held = _held(counted, data)
        named = replace(counted, data=replace(counted.data, **dict.fromkeys(held, MEMORY))) if held else counted
        opened = partial(task.open_held, given=held) if held else task.open
        (_fit if task.fitted else _train)(task, named, processes, opened, callback or _ignore)
    return load(settings.out), read_metrics(Path(settings.out))


def _held(settings: Any, data: Any) -> dict[str, Any]:
    """The parts of the data that are in memory."""
    if data is None:
        return {}
    parts = dict(data) if isinstance(data, Mapping) else {"train": data}
    known = [name for name in ("train", "valid", "test") if hasattr(getattr(settings, "data", None), name)]
    for name in parts:
        if name not in known:
            raise UnknownNameError("part of the data", name, known)
    if "train" not in parts:
        raise InputError(f"data has {', '.join(parts) or 'nothing'}; it needs train")
    return parts


def _ignore(step: int, scores: Scores) -> None:
    """For who does not ask."""


def _train(task: AnyTask, settings: TrainedSettings, processes: Ranks, opened: Opened, callback: Callback) -> None:
    """By the loop. A run that was killed goes on from its checkpoint, to the same bytes."""
    loop.check(settings.training, settings.device)
    optim.check(settings.optim)
    out = Path(settings.out)
    last = checkpoint.latest(out, settings.resume)
    torch.manual_seed(settings.seed)
    saved = task.load(last) if last else None
    source = None if last else _source(task, settings)
    data = opened(settings, saved or source)
    with threads.one():  # of several, LAPACK makes other orthogonal matrices
        face = saved or task.build(settings, data)
    batches = data.batches(processes.rank, processes.world)
    settings = threads.settled(settings, _work(face.model, batches))
    identity = config.identity(settings, data.fingerprint)
    stored = checkpoint.load(last, lambda: face.model.init_state(0)) if last else None
    changes = config.resumed(stored.identity, settings, data.fingerprint, out) if stored else {}
    watched = _watched(data, settings.training.evaluate_tokens)
    run = loop.Run(
        processes.wrap(Unit(task, face.model.train())),
        batches,
        optim.optimiser(settings.optim, face.model),
        optim.Schedule(settings.optim, settings.training.steps),
        ranks=processes, counted=data.unit, describe=data.describe_loss, watched=watched.what,
    )  # fmt: skip
    _introduce(processes, task, face, data)
    if source:
        taken = ", ".join(task.take(face, source))
        _say(processes, f"Taken from {_init_from(settings)}: {taken}. Optimiser, schedule and steps begin anew.")
    torch.manual_seed(settings.seed + 1 + processes.rank)
    if stored:
        checkpoint.resume(stored, run)
        _say(processes, _continued(settings, run, changes))
    if processes.first and (changes or not stored):
        (change_config if stored else begin)(out, settings)
    lengths, board = stored.lengths if stored else None, settings.training.tensorboard
    run.recorder = Recorder(out if processes.first else None, lengths, board, run.advance.step)

    def evaluate(step: int) -> Scores:
        face.model.eval()
        scores = task.evaluate(face, watched.part)
        run.recorder.preview(step, task.preview(face, settings, step))
        face.model.train()
        callback(step, scores)
        return scores

    def save(name: str) -> None:
        write = partial(artifact.write, out / name, face.fill)
        if name == "last":
            write = partial(checkpoint.save, out / name, face.fill, checkpoint.take(run, identity))
        if processes.first:
            write()

    run.evaluate, run.save = evaluate, save
    try:
        loop.train(run, settings.training, settings.optim)
        if processes.first:
            whole = {"valid_whole": data.valid if watched.what else None, "test": data.test}
            _test(task, load(out), whole, run.recorder, run.advance.step)
    except Interrupted as stop:
        stop.args = (f"{stop}; its checkpoint is in {out / 'last'}. To go on: elman train --out {out} --resume auto",)
        raise
    finally:
        run.recorder.close()


class Watched(NamedTuple):
    """What is evaluated while a model trains; and which part of the validation data that is, unless it is all."""

    part: Any
    what: str


def _watched(data: Data, most: int) -> Watched:
    part = data.first(data.valid, most) if most else data.valid
    return Watched(part, "" if part is data.valid else f"first {most:,} {data.unit}")


def _introduce(processes: Ranks, task: AnyTask, face: Any, data: Data) -> None:
    """What was read, what is trained on it, and by what."""
    threads, kernel = torch.get_num_threads(), kernels.active()
    using = f"{threads} thread{'s' if threads > 1 else ''}, {kernel} kernels"
    for line in (*data.summary(), f"model: {task.summary(face)}", f"computing: {using}"):
        _say(processes, line)


def _test(task: AnyTask, face: Any, parts: dict[str, Any], recorder: Recorder, step: int) -> dict[str, Scores]:
    """Evaluate a model that is done on whole parts of the data; note and say how good it is."""
    found = {name: task.evaluate(face, part) for name, part in parts.items() if part is not None}
    for name, scores in found.items():
        recorder.metrics(step, **scores.recorded(name))
        numbers = {scores.decides: scores.value, **{shown: scores.numbers[shown] for shown in scores.shown}}
        said = "  ".join(f"{number.replace('_', ' ')} {value:.4f}" for number, value in numbers.items())
        progress.say(f"{name.replace('_', ' ')}  {said}")
    return found


def _source(task: AnyTask, settings: TrainedSettings) -> Any:
    """The model that a new run begins with, if it names one."""
    path = _init_from(settings)
    return open_source(path, task) if path else None


def _init_from(settings: TrainedSettings) -> str:
    return str(getattr(settings, "init_from", ""))  # the config of a task need not have it


def open_source(path: str, task: AnyTask) -> Any:
    """The model that a run of a task is to begin with."""
    if task.fitted:
        raise InputError(
            f"init_from is {path}; {task.title} is fitted in one go, to its data alone, and cannot begin with another "
            "model. Fit it to the old data and the new together."
        )
    other, source = open_model(path)
    if other is not task:
        raise InputError(f"init_from is {path}, which is {other.title}; a run of {task.title} needs one of its kind")
    return source


def _continued(settings: TrainedSettings, run: loop.Run, changes: dict[str, config.Change]) -> str:
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


def _say(processes: Ranks, text: str) -> None:
    """Of several processes, one says it."""
    if processes.first:
        progress.say(text)


def _work(model: torch.nn.Module, batches: Batches) -> int:
    """The multiply-adds of a step, about: each parameter meets each term once."""
    terms = int(batches.batch(Position()).lengths.sum())
    return terms * sum(parameter.numel() for parameter in model.parameters())


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
    face, settings = task.build(settings, data), threads.settled(settings, threads.WORTH)
    _introduce(processes, task, face, data)
    history = task.fit(face, settings, data)
    begin(out, settings)
    recorder, step = Recorder(out), len(history) - 1
    for number, line in enumerate(history):
        recorder.metrics(number, **line)
    found = _test(task, face, {"valid": data.valid, "test": data.test}, recorder, step)
    if "valid" in found:
        callback(step, found["valid"])
    recorder.preview(step, task.preview(face, settings, step))
    recorder.close()
    judged = next(iter(found.values()), None)
    advance = loop.Advance(
        step, best=judged.value if judged else None, decides=judged.decides if judged else "",
        larger_is_better=judged.larger_is_better if judged else False,
    )  # fmt: skip
    checkpoint.save_fitted(out / "best", face.fill, identity, advance)
