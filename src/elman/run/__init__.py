"""A run: open the data, build the model, train or fit it, test it. What each of these is, its task says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import nn

from elman import kernels, lens, tasks
from elman.data.names import names_of
from elman.data.text import MEMORY, Document
from elman.errors import InputError, UnknownNameError
from elman.files import artifact, config
from elman.files.config import Identity
from elman.options import flag
from elman.progress import quiet, say
from elman.tasks import load, open_source
from elman.tasks.predictor import AnyPredictor
from elman.tasks.task import AnySettings, AnyTask, Data, Evaluation, Settings, Task, TrainedSettings
from elman.training import checkpoint, logs, loop, optim, threads
from elman.training.alone import Undisturbed, alone, seed
from elman.training.average import Average
from elman.training.distributed import Ranks, ranks
from elman.training.interrupt import Interrupted
from elman.training.lock import lock
from elman.training.logs import Logs
from elman.training.loop import LoopState, Progress, Supervisor
from elman.training.loss import LossModule
from elman.training.only import freeze_others
from elman.training.record import Recorder, begin, change_config, read_metrics
from elman.training.scores import Scores

Callback = Callable[[int, Scores], None] | None
AnyTrained = TrainedSettings[Any]
Opener = Callable[[Any, Any], Any]  # a config, and the model that was saved -> Data
LONGEST_NAME = 255  # of a file
ENDING = re.compile(r"[\w*?\]]\.[A-Za-z]\w{1,6}$|^embedded(:\w+)?$")  # .txt, .csv, .npz, *.parquet; embedded:stdlib
P = TypeVar("P", bound=AnyPredictor)
S = TypeVar("S", bound=AnySettings)


def train(
    settings: Settings[P],
    data: object = None,
    callback: Callback = None,
    *,
    out: str | Path | None = None,
    progress: bool = True,
) -> tuple[P, list[dict[str, float]]]:
    """Run a config: the best model, and the lines of its metrics. `elman train` is a thin layer on this.

    `data` in memory takes the place of what the config names: a text or a list of documents; pairs of words and their
    tags, or of an input and its label; a frame or a mapping of columns; an array, or a list of them: whatever the task
    reads. A file is a pathlib.Path, or a list of them. Or a mapping of such, with several of train, valid and test;
    a mapping of columns must not be called so.

    `out`, here or in the config, is the run directory, which keeps the config, the metrics and the checkpoints. Without
    it nothing is kept but what is returned, and such a run cannot be resumed.

    `callback(step, scores)` is called after each evaluation on the validation data, once its checkpoint is written;
    what it raises ends the run, which can be resumed from there. With `progress` false nothing is said on standard
    error but warnings.

    A process trains one model at a time: a second call, from another thread, waits. Torch's random numbers are
    afterwards where they were. Ctrl-C raises `Interrupted`, a KeyboardInterrupt, once the checkpoint is written.

    >>> text = "to be or not to be, " * 99
    >>> model, history = train(elman.MarkovConfig(), text, progress=False)
    >>> model.generate("to be or", max_new_tokens=7)
    ' not to'

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> model, history = train(elman.MarkovConfig(), text, out=folder, progress=False)
    >>> load(folder).generate("to be or", max_new_tokens=7)
    ' not to'
    """
    task = tasks.of_settings(settings)
    logs.check(settings.log)
    if callback is not None and not callable(callback):
        raise InputError(f"callback is {callback!r}; it must be a function of a step and its scores. A folder is `out`")
    settings = replace(settings, out=os.path.expanduser(settings.out if out is None else out))
    with (
        nullcontext() if flag("progress", progress) else quiet(),
        alone(),
        ranks() as processes,
        _in_folder(settings, processes) as settings,
        lock(Path(settings.out)) if processes.first else nullcontext(),
        threads.of_run(settings) as counted,
    ):
        named, opener = _opener(task, counted, data)
        (_fit if task.fits(named) else _train)(task, named, processes, opener, callback)
        return load(settings.out), read_metrics(Path(settings.out))


def check(settings: AnySettings, data: object = None, opened: dict[str, Any] | None = None) -> None:
    """Raise what is wrong with a config, and train nothing: its data are opened and its model is built.

    Of several configs, `opened` keeps the data for those that name the same.

    >>> check(elman.LMConfig(model={"cell": "gruu"}), "to be or not to be, " * 99)
    Traceback (most recent call last):
    elman.errors.UnknownNameError: unknown cell 'gruu'; there are ... Did you mean 'gru'?
    """
    task, opened = tasks.of_settings(settings), {} if opened is None else opened
    if isinstance(settings, TrainedSettings):
        _check(task, settings)
    named, opener = _opener(task, settings, data)
    section = repr(getattr(named, "data", None))
    if section not in opened:
        opened.clear()  # one at a time: data may be large
        opened[section] = opener(named, None)
    with Undisturbed():
        task.build(named, opened[section])


@contextmanager
def _in_folder(settings: S, processes: Ranks) -> Iterator[S]:
    """The settings with the run directory that they name; or with a temporary one, which is gone afterwards."""
    if settings.out:
        yield settings
        return
    if settings.resume != "never":
        raise InputError(f"resume is {settings.resume}, and there is no run directory to resume: name it by out")
    if processes.world > 1:
        raise InputError(f"{processes.world} processes need one run directory that all of them see: name it by out")
    with TemporaryDirectory(prefix="elman-") as folder:
        try:
            yield replace(settings, out=f"{folder}/run")
        except Interrupted as stop:
            stop.args = ("stopped; the run has no directory (out), so nothing of it is kept",)
            raise


def _opener(task: AnyTask, settings: Any, data: Any) -> tuple[Any, Opener]:
    """How a run opens its data, and its settings: these name the files that `data` are, and say so where data are in
    memory."""
    if data is None:
        return settings, task.open
    known = [name for name in ("train", "valid", "test") if hasattr(getattr(settings, "data", None), name)]
    if not known:
        raise InputError(f"{task.title} reads files only; name them in the data section of its config")
    parts = _parts(task, data, known)
    files = {name: names for name, part in parts.items() if (names := _file_names(name, part))}
    rows = {name: part for name, part in parts.items() if name not in files}
    named = replace(settings, data=replace(settings.data, **dict.fromkeys(rows, MEMORY), **files))
    return named, (lambda config, saved: task.open_in_memory(config, saved, rows)) if rows else task.open


def _parts(task: AnyTask, data: Any, known: Sequence[str]) -> dict[str, Any]:
    """What each part of the data is: a mapping with train has parts; what has not may be columns by name."""
    if not isinstance(data, Mapping):
        return {"train": data}
    others = [name for name in data if name not in known]
    if task.reads_columns and len(others) == len(data) > 0:
        return {"train": data}
    if others and task.reads_columns:
        raise InputError(
            f"data has {', '.join(map(str, data))}: {', '.join(name for name in data if name in known)} would be a "
            f"part of the data, and {others[0]} a column. Give the columns as {{'train': columns}}."
        )
    if others:
        raise UnknownNameError("part of the data", str(others[0]), known)
    if "train" not in data:
        raise InputError(f"data has {', '.join(data) or 'nothing'}; it needs train")
    return dict(data)


def _file_names(name: str, part: Any) -> list[str]:
    """The names of the files that a part of the data is: one Path or a list of them; none of what is in memory."""
    some = part if isinstance(part, list | tuple) else [part]
    if some and all(isinstance(one, Path) for one in some):
        return [str(one.expanduser()) for one in some]
    if any(isinstance(one, Path) for one in some):
        others = sorted({type(one).__name__ for one in some if not isinstance(one, Path)})
        raise InputError(
            f"the {name} data are a list of Path and {', '.join(others)}; give files alone, each a pathlib.Path, or "
            "data in memory alone"
        )
    if some and all(isinstance(one, str) and _is_file_name(one) for one in some):
        raise InputError(
            f"the {name} data are the text {some[0]!r}, which looks like the name of a file; a text stands for itself. "
            f"Give a file as pathlib.Path({some[0]!r}), or name it in data.{name} of the config."
        )
    return []


def _is_file_name(text: str) -> bool:
    """Whether a text is the name of a file that is there, or looks like one: short, one line, and it ends as names of
    files do or has a slash and no space."""
    if isinstance(text, Document) or len(text) > LONGEST_NAME or "\n" in text or not text.strip():
        return False
    slash = ("/" in text or "\\" in text) and not any(map(str.isspace, text))
    return slash or bool(ENDING.search(text)) or os.path.exists(os.path.expanduser(text))


# By the loop


@dataclass(frozen=True, kw_only=True)
class _Run(Supervisor):
    """A run that the loop trains: what it has, how it is evaluated and what is kept of it."""

    task: AnyTask
    settings: AnyTrained
    data: Data
    part: Any  # of the data, on which the model is evaluated while it trains
    predictor: AnyPredictor
    state: LoopState
    recorder: Recorder
    identity: Identity
    callback: Callback
    unreported: list[tuple[int, Scores]] = field(default_factory=list)  # evaluations that the callback is to hear of

    def describe_loss(self, loss: float) -> str:
        return self.data.describe_loss(loss)

    def record(self, step: int, **values: float) -> None:
        self.recorder.metrics(step, **values)

    def evaluate(self, step: int) -> Scores:
        task, predictor = self.task, self.predictor
        with _evaluation_mode(predictor.model):
            evaluation = task.evaluate(predictor, self.part)
            if self.settings.training.lens:
                inspection = task.inspect_inputs(predictor, self.part, *lens.RUN_SAMPLE)
                self.record(step, **lens.run_metrics(inspection.model, inspection.sample))
            self.recorder.preview(step, task.preview(predictor, self.settings, step, evaluation))
        self.unreported.append((step, evaluation.scores))
        return evaluation.scores

    def save(self, name: str) -> None:
        self._save(name)
        while name == "last" and self.unreported:  # now what a callback raises costs no step
            step, scores = self.unreported.pop(0)
            if self.callback:
                self.callback(step, scores)

    def _save(self, name: str) -> None:
        snapshot = None
        if name == "last":  # by all processes
            snapshot = checkpoint.snapshot(self.state, self.identity, self.recorder.flush())
        if not self.state.ranks.first:
            return
        progress, training = self.state.progress, self.settings.training
        if name == "best" and progress.best is not None:
            self.recorder.logs.metrics(progress.step, {"best": progress.best})
        over = progress.step == training.steps or loop.over(progress, training)
        folder = Path(self.settings.out) / name
        with _evaluation_mode(self.predictor.model):
            kept = self.task.finish(self.predictor, self.data) if name == "best" or over else self.predictor
            if snapshot is None:
                artifact.write(folder, kept.write_to)
            else:
                checkpoint.save(folder, kept.write_to, snapshot)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The network that a run trains, without dropout for a while; no other thread has it."""
    model.eval()
    try:
        yield
    finally:
        model.train()


def _train(task: AnyTask, settings: AnyTrained, processes: Ranks, opener: Opener, callback: Callback) -> None:
    """A run that was killed continues from its checkpoint, to the same bytes."""
    run, out = _open(task, settings, processes, opener, callback), Path(settings.out)
    finished = False
    try:
        loop.train(run.state, run.settings.training, run.settings.optim, run)
        if processes.first:
            whole = {"valid_whole": run.data.valid if run.watched else None, "test": run.data.test}
            _test(task, load(out), whole, run.recorder, run.state.progress.step)
            if remark := task.closing(read_metrics(out)):
                say(remark)
        finished = True
    except Interrupted as stop:
        stop.args = (f"{stop}; its checkpoint is in {out / 'last'}. To resume: elman train --out {out} --resume auto",)
        raise
    finally:
        run.recorder.close(finished)


def _open(task: AnyTask, settings: AnyTrained, processes: Ranks, opener: Opener, callback: Callback) -> _Run:
    """All that a run needs, new or as its checkpoint has it; and its folder."""
    _check(task, settings)
    out = Path(settings.out)
    last = checkpoint.latest(out, settings.resume)
    seed(settings.seed)
    saved = task.load(last) if last else None
    init_from = "" if last else str(getattr(settings, "init_from", ""))  # the config of a task need not have it
    source = open_source(init_from, task) if init_from else None
    data = opener(settings, saved or source)
    with threads.one():  # of several, LAPACK makes other orthogonal matrices
        predictor = task.unfinished(saved) if saved else task.build(settings, data)
    batches = data.batches(processes.rank, processes.world)
    part, watched = data.watched(settings.training.evaluate_tokens)
    settings = threads.resolve_threads(settings, threads.work(predictor.model, batches))
    stored = checkpoint.load(last, lambda: predictor.model.init_state(0)) if last else None
    changes = config.resumed(stored.identity, settings, data.fingerprint, out) if stored else {}
    freeze_others(predictor.model, names_of(settings.training.only))
    state = LoopState(
        processes.wrap(LossModule(task, predictor.model.train())),
        batches,
        optim.optimiser(settings.optim, predictor.model),
        optim.Schedule(settings.optim, settings.training.steps),
        Average(predictor.model, settings.training.average),
        processes,
    )
    _introduce(processes, task, predictor, data)
    if source:
        copied = ", ".join(task.copy_weights(predictor, source))
        processes.say(f"Copied from {init_from}: {copied}. Optimiser, schedule and steps start afresh.")
    seed(settings.seed + 1 + processes.rank)
    if stored:
        checkpoint.resume(stored, state)
        processes.say(_resumed(settings, state, changes))
    if processes.first and (changes or not stored):
        (change_config if stored else begin)(out, settings)
    lengths = stored.lengths if stored else None
    recorder = Recorder(out, lengths, _logs(settings, state.progress.step)) if processes.first else Recorder(None)
    return _Run(
        unit=data.unit, watched=watched, task=task, settings=settings, data=data, part=part, predictor=predictor,
        state=state, recorder=recorder,
        identity=config.identity(settings, data.fingerprint), callback=callback,
    )  # fmt: skip


def _logs(settings: AnySettings, step: int = 0) -> Logs:
    return Logs().start(logs.names_of(settings.log), Path(settings.out), config.settings_of(settings), step)


def _check(task: AnyTask, settings: AnyTrained) -> None:
    """Raise an error that names the first setting that is out of its range, before any work is done."""
    loop.check(settings.training, settings.device)
    if settings.training.lens and type(task).inspect_inputs is Task.inspect_inputs:
        raise InputError(f"training.lens is true, and {task.title} cannot be inspected: its task has no inspect_inputs")
    optim.check(settings.optim)


def _resumed(settings: AnyTrained, state: LoopState, changes: dict[str, config.Change]) -> str:
    """What a resumed run does: what has changed, how its schedule continues, and why it does nothing if it does not."""
    progress, training = state.progress, settings.training
    step = progress.step
    if training.steps < step:
        raise InputError(
            f"training.steps is {training.steps}; {settings.out} has done {step} already. Give at least as many."
        )
    parts = [f"{name} was {change.before}, is now {change.now}." for name, change in changes.items()]
    if loop.over(progress, training) and step < training.steps:
        why = "the task saw no use in more steps" if progress.stop_early else "the last evaluations were no better"
        hint = "" if progress.stop_early else " To continue: --training.patience 0, or more than it was."
        return " ".join([*parts, f"{settings.out} ended early, after step {step}: {why}.{hint}"])
    if step < training.steps and "training.steps" in changes:
        parts.append(state.schedule.describe_change(int(str(changes["training.steps"].before)), step) + ".")
    return " ".join([*parts, f"Continuing {settings.out} after step {step} of {training.steps}."])


# In one go


def _fit(task: AnyTask, settings: AnySettings, processes: Ranks, opener: Opener, callback: Callback) -> None:
    """What was killed is started again, and comes to the same end."""
    if processes.world > 1:
        raise InputError(f"{task.title} is fitted by one process; there are {processes.world}")
    if isinstance(settings, TrainedSettings):  # a baseline of a task that the loop trains
        _check(task, settings)
    out = Path(settings.out)
    checkpoint.latest(out, settings.resume)
    data = opener(settings, None)
    identity = config.identity(settings, data.fingerprint)
    if best := artifact.find(out / "best"):
        config.resumed(checkpoint.read_identity(best), settings, data.fingerprint, out)
        return
    predictor, settings = task.build(settings, data), threads.resolve_threads(settings, threads.WORTH)
    _introduce(processes, task, predictor, data)
    history = task.fit(predictor, settings, data)
    begin(out, settings)
    recorder, step = Recorder(out, logs=_logs(settings)), len(history) - 1
    for number, line in enumerate(history):
        recorder.metrics(number, **line)
    evaluations = _test(task, predictor, {"valid": data.valid, "test": data.test}, recorder, step)
    if callback and "valid" in evaluations:
        callback(step, evaluations["valid"].scores)
    recorder.preview(step, task.preview(predictor, settings, step, next(reversed(evaluations.values()), None)))
    progress = Progress(step)
    if first := next(iter(evaluations.values()), None):
        scores = first.scores
        recorder.logs.metrics(step, {"best": scores.value})
        progress = Progress(step, best=scores.value, primary=scores.primary, larger_is_better=scores.larger_is_better)
    recorder.close()
    checkpoint.save_fitted(out / "best", task.finish(predictor, data).write_to, identity, progress)


# Either way


def _introduce(processes: Ranks, task: AnyTask, predictor: AnyPredictor, data: Data) -> None:
    """What was read, what is trained on it, and by what."""
    threads, kernel = torch.get_num_threads(), kernels.active()
    using = f"{threads} thread{'s' if threads > 1 else ''}, {kernel} kernels"
    for line in (*data.summary(), f"model: {task.summary(predictor)}", f"computing: {using}"):
        processes.say(line)


def _test(
    task: AnyTask, predictor: AnyPredictor, parts: dict[str, Any], recorder: Recorder, step: int
) -> dict[str, Evaluation]:
    """Evaluate a model that is done on whole parts of the data; note and say how good it is."""
    evaluations = {name: task.evaluate(predictor, part) for name, part in parts.items() if part is not None}
    for name, evaluation in evaluations.items():
        scores = evaluation.scores
        recorder.metrics(step, **scores.metrics(name))
        remark = f"  ({scores.remark})" if scores.remark else ""
        say(f"{name.replace('_', ' ')}  {scores.summary()}{remark}")
    return evaluations
