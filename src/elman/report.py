"""What a run says of itself: what it read and is, how it goes on, how good it has become."""

from __future__ import annotations

from typing import Any

import torch

from elman import config, kernels, progress
from elman.errors import InputError
from elman.tasks.predictor import Predictor
from elman.tasks.settings import TrainedSettings
from elman.tasks.task import AnyTask, Data, Evaluation
from elman.training import loop
from elman.training.distributed import Ranks
from elman.training.record import Recorder


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
        progress.say(f"{name.replace('_', ' ')}  {scores.spelt()}{remark}")
    return found


def say(processes: Ranks, text: str) -> None:
    """Of several processes, one says it."""
    if processes.first:
        progress.say(text)
