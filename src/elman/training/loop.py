"""The loop. It fits one screen; everything in it has its own file."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from elman import state as states
from elman.data import Position
from elman.errors import TrainingError
from elman.training import optim
from elman.training.checkpoint import Advance
from elman.training.distributed import Ranks
from elman.training.interrupt import Interrupted, listening
from elman.training.optim import OptimConfig, Schedule
from elman.training.record import Progress, Recorder


@dataclass(frozen=True)
class TrainingConfig:
    """How long, and what is kept.

    Args:
        steps: updates of the weights
        accumulate: windows whose gradients make one update
        log_every: steps between lines in metrics.jsonl
        evaluate_every: steps between evaluations on the validation text; each also writes a checkpoint and a sample
        checkpoint_every: steps between further checkpoints; 0 for none
        patience: stop after so many evaluations without improvement; 0 for never
        sample_tokens: length of the sample written at each evaluation
        sample_prompt: what it begins with
        tensorboard: write TensorBoard files too
    """

    steps: int = 1000
    accumulate: int = 1
    log_every: int = 10
    evaluate_every: int = 250
    checkpoint_every: int = 0
    patience: int = 0
    sample_tokens: int = 200
    sample_prompt: str = ""
    tensorboard: bool = False


def check(config: TrainingConfig) -> None:
    """Raise an InputError that names the first setting that is out of its range."""
    positive = dict.fromkeys(("steps", "accumulate", "log_every", "evaluate_every"), 1)
    optim.at_least("training", config, {**positive, "checkpoint_every": 0, "patience": 0, "sample_tokens": 0})


class Batches(Protocol):
    """Where the next batch is, is a value: what `unit` takes at a position, and the position that follows."""

    def batch(self, at: Position) -> Any: ...
    def after(self, at: Position) -> Position: ...


@dataclass
class Run:
    """The parts that the loop turns. `evaluate(step)` gives metrics, `valid` among them; `save(name, run)` keeps it."""

    unit: nn.Module
    streams: Batches
    optimiser: torch.optim.Optimizer
    schedule: Schedule
    state: Any
    advance: Advance
    recorder: Recorder
    ranks: Ranks
    evaluate: Callable[[int], dict[str, float]]
    save: Callable[[str, Run], None]
    characters_per_token: float = 1.0
    shown: bool = True  # on standard error


def train(run: Run, config: TrainingConfig, optim_config: OptimConfig) -> None:
    """Turn the loop until the steps are done, validation stops improving, or someone asks it to stop."""
    advance, ranks = run.advance, run.ranks
    progress = Progress(config.steps, advance.step, ranks.first and run.shown, run.characters_per_token)
    norms: list[float] = []
    with listening() as request:
        while advance.step < config.steps and not (config.patience and advance.bad >= config.patience):
            lr = run.schedule.lr(advance.step)
            loss, count, stop = ranks.sum(*_gradients(run, config.accumulate), request.number)
            norm = _update(run, optim_config, lr, ranks.world / count)
            norms = [*norms[-4:], norm]
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise _not_finite(advance.step + 1, loss / count, norms, lr)
            run.optimiser.step()
            advance.step, advance.tokens = advance.step + 1, advance.tokens + int(count)
            progress.step(advance.step, loss / count, int(count))
            if advance.step % config.log_every == 0:
                run.recorder.metrics(advance.step, tokens=advance.tokens, loss=loss / count, lr=lr, gradient_norm=norm)
            evaluated = advance.step % config.evaluate_every == 0 or advance.step == config.steps
            if evaluated:
                progress.say(_evaluate(run))
            if evaluated or stop or (config.checkpoint_every and advance.step % config.checkpoint_every == 0):
                run.save("last", run)
            if stop and advance.step < config.steps:
                raise Interrupted(request.number or signal.SIGTERM, f"stopped after step {advance.step}")


def _gradients(run: Run, parts: int) -> tuple[float, float]:
    """Add up the gradients of some windows: the sum of their losses, and the number of tokens."""
    run.optimiser.zero_grad()
    total, count = 0.0, 0
    for part in range(parts):
        batch = run.streams.batch(run.advance.position)
        with run.ranks.apart(run.unit, part < parts - 1):
            loss, n, state = run.unit(batch, run.state)
            loss.backward()
        run.state = states.detach(state)
        run.advance.position = run.streams.after(run.advance.position)
        total, count = total + loss.item(), count + n
    return total, count


def _update(run: Run, config: OptimConfig, lr: float, scale: float) -> float:
    """Scale the gradients to the mean over all tokens, clip them, set the learning rate; the norm before clipping."""
    parameters: list[Tensor] = [p for group in run.optimiser.param_groups for p in group["params"]]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
    for group in run.optimiser.param_groups:
        group["lr"] = lr
    return optim.clip(config, parameters)


def _evaluate(run: Run) -> str:
    """Evaluate, note it, keep the best; what to say about it."""
    advance = run.advance
    metrics = run.evaluate(advance.step)
    run.recorder.metrics(advance.step, **metrics)
    improved = advance.best is None or metrics["valid"] < advance.best
    run.schedule.observe(improved)
    advance.bad = 0 if improved else advance.bad + 1
    if improved:
        advance.best = metrics["valid"]
        run.save("best", run)
    numbers = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    return f"step {advance.step}  {numbers}{'  (best so far)' if improved else ''}"


def _not_finite(step: int, loss: float, norms: list[float], lr: float) -> TrainingError:
    last = ", ".join(f"{norm:.3g}" for norm in norms)
    return TrainingError(
        f"the loss of step {step} is {loss} (learning rate {lr:.3g}; the last gradient norms were {last}). "
        "The last checkpoint is as it was. Try a smaller --optim.lr, a longer --optim.warmup or a smaller "
        "--optim.clip_norm."
    )
