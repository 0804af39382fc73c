"""The loop. It fits one screen; everything in it has its own file."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from elman import state as states
from elman.data import Batches, Position
from elman.errors import InputError, TrainingError
from elman.options import whole
from elman.progress import Steps
from elman.state import State
from elman.training import optim
from elman.training.average import Average
from elman.training.distributed import Ranks
from elman.training.interrupt import Interrupted, listening
from elman.training.optim import OptimConfig, Schedule
from elman.training.record import Recorder, summary_writer
from elman.training.scores import Scores


@dataclass(frozen=True)
class TrainingConfig:
    """How long, and what is kept.

    Args:
        steps: updates of the weights
        accumulate: batches whose gradients make one update
        log_every: steps between lines in metrics.jsonl
        evaluate_every: steps between evaluations on the validation data; each also writes a checkpoint and a preview
        evaluate_tokens: evaluate so many tokens (or rows) from the start of the validation data at most while training,
            by which the best is chosen; 0 for all. What is evaluated at the end is always whole
        checkpoint_every: steps between further checkpoints; 0 for none
        average: evaluate, and keep as the best, the mean of the weights at so many of the last evaluations
        patience: stop after so many evaluations without improvement; 0 for never
        tensorboard: write TensorBoard files too
        lens: note at each evaluation how far gradients reach back and how saturated gates are, for `elman inspect`
    """

    steps: int = 1000
    accumulate: int = 1
    log_every: int = 10
    evaluate_every: int = 250
    evaluate_tokens: int = 0
    checkpoint_every: int = 0
    average: int = 1
    patience: int = 0
    tensorboard: bool = False
    lens: bool = False


def check(config: TrainingConfig, device: str) -> None:
    """Raise an InputError that names the first setting that is out of its range, before any work is done."""
    for name in ("steps", "accumulate", "log_every", "evaluate_every", "average"):
        whole(f"training.{name}", getattr(config, name))
    for name in ("evaluate_tokens", "checkpoint_every", "patience"):
        whole(f"training.{name}", getattr(config, name), least=0)
    if config.tensorboard:
        summary_writer()
    if device not in ("auto", "cpu"):
        raise InputError(
            f"device is {device}; runs are trained on the CPU, which the kernels are written for: leave it at auto. "
            "In a loop of your own a Core can be moved to any device, where it runs on the reference kernels."
        )


@dataclass
class Advance:
    """How far a run has come. Everything in it is a number, so JSON keeps it to the last bit."""

    step: int = 0
    count: int = 0  # tokens, rows or whatever the task counts
    position: Position = field(default_factory=Position)
    best: float | None = None
    bad: int = 0  # evaluations since the best
    settled: bool = False  # the task sees no use in going on
    decides: str = ""  # the name of the score by which the best is chosen; none before the first evaluation
    larger_is_better: bool = False  # of that score


@dataclass
class Run:
    """The parts that the loop turns. `evaluate(step)` gives scores; `save(name)` keeps the best or the last."""

    unit: nn.Module
    batches: Batches
    optimiser: torch.optim.Optimizer
    schedule: Schedule
    evaluate: Callable[[int], Scores] = lambda step: Scores({"nothing": 0.0}, "nothing")
    save: Callable[[str], None] = lambda name: None
    state: State | None = None  # carried from batch to batch; None before the first, and where nothing is carried
    advance: Advance = field(default_factory=Advance)
    recorder: Recorder = field(default_factory=lambda: Recorder(None))
    ranks: Ranks = field(default_factory=Ranks)
    average: Average = field(default_factory=lambda: Average(nn.Identity()))
    shown: bool = True  # on standard error
    counted: str = "rows"  # what the progress line counts
    watched: str = ""  # what part of the validation data is evaluated, if it is not all
    describe: Callable[[float], str] = "loss {:.4f}".format


def train(run: Run, config: TrainingConfig, optim_config: OptimConfig) -> None:
    """Turn the loop until the steps are done, it is time to stop early, or someone asks it to stop."""
    advance, ranks = run.advance, run.ranks
    progress = Steps(
        config.steps, advance.step, unit=run.counted, describe=run.describe, shown=ranks.first and run.shown
    )
    norms: list[float] = []
    with listening() as request, optim.by_rows(run.optimiser, ranks.world == 1):
        while advance.step < config.steps and not over(advance, config):
            lr = run.schedule.lr(advance.step)
            loss, count, stop = ranks.sum(*_gradients(run, config.accumulate), request.number)
            norm = _update(run, optim_config, lr, ranks.world / count)
            norms = [*norms[-4:], norm]
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise _not_finite(advance.step + 1, loss / count, norms, lr)
            evaluated = (advance.step + 1) % config.evaluate_every == 0 or advance.step + 1 == config.steps
            ratio = optim.step(run.optimiser, measured=evaluated)
            advance.step, advance.count = advance.step + 1, advance.count + int(count)
            progress.step(advance.step, loss / count, int(count))
            if advance.step % config.log_every == 0:
                seen = {run.counted: advance.count}
                run.recorder.metrics(advance.step, **seen, loss=loss / count, lr=lr, gradient_norm=norm)
            if evaluated:
                with progress.paused(), run.average.taken():
                    progress.say(_evaluate(run, ratio))
            if evaluated or stop or (config.checkpoint_every and advance.step % config.checkpoint_every == 0):
                run.save("last")
            if stop and advance.step < config.steps:
                raise Interrupted(request.number or signal.SIGTERM, f"stopped after step {advance.step}")


def over(advance: Advance, config: TrainingConfig) -> bool:
    """Whether there is no use in going on: the task says so, or it has not improved for long enough."""
    return advance.settled or (config.patience > 0 and advance.bad >= config.patience)


def _gradients(run: Run, parts: int) -> tuple[float, float]:
    """Add up the gradients of some batches: the sum of their losses, and the number of terms."""
    run.optimiser.zero_grad()
    total, count = 0.0, 0
    for part in range(parts):
        batch = run.batches.batch(run.advance.position)
        with run.ranks.unsynchronised(run.unit, part < parts - 1):
            loss, n, state = run.unit(batch, run.state)
            loss.backward()
        run.state = None if state is None else states.detach(state)
        run.advance.position = run.batches.after(run.advance.position)
        total, count = total + loss.item(), count + n
    return total, count


def _update(run: Run, config: OptimConfig, lr: float, scale: float) -> float:
    """Scale the gradients to the mean over all terms, clip them, set the learning rate; the norm before clipping."""
    parameters: list[Tensor] = [p for group in run.optimiser.param_groups for p in group["params"]]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
    optim.set_lr(run.optimiser, lr)
    return optim.clip(config, parameters)


def _evaluate(run: Run, ratio: float) -> str:
    """Evaluate in the first process, note it, keep the best; what to say about it."""
    advance, line, improved = run.advance, "", False
    if run.ranks.first:
        scores = run.evaluate(advance.step)
        run.recorder.metrics(advance.step, **scores.recorded("valid"), update_ratio=ratio)
        improved, advance.settled = scores.better_than(advance.best), scores.settled
        advance.best = scores.value if improved else advance.best
        advance.decides, advance.larger_is_better = scores.decides, scores.larger_is_better
        part = "".join(f"  ({said})" for said in (scores.remark, run.watched) if said)
        line = f"step {advance.step}  valid {scores.spelt()}{part}{'  (best so far)' if improved else ''}"
    better, settled = run.ranks.from_first(improved, advance.settled)
    run.schedule.observe(bool(better))
    advance.bad, advance.settled = (0 if better else advance.bad + 1), bool(settled)
    if better:
        run.save("best")
    return line


def _not_finite(step: int, loss: float, norms: list[float], lr: float) -> TrainingError:
    last = ", ".join(f"{norm:.3g}" for norm in norms)
    return TrainingError(
        f"the loss of step {step} is {loss} (learning rate {lr:.3g}; the last gradient norms were {last}). "
        "The last checkpoint is as it was. Try a smaller --optim.lr, a longer --optim.warmup or a smaller "
        "--optim.clip_norm."
    )
