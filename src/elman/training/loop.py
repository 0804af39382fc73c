"""The loop. It fits one screen; everything in it has its own file."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from elman import state as states
from elman.data import Batches, Position
from elman.data.names import Names
from elman.errors import InputError, TrainingError
from elman.options import flag, whole
from elman.progress import Steps
from elman.state import State
from elman.training import optim
from elman.training.average import Average
from elman.training.distributed import Ranks
from elman.training.interrupt import Interrupted, catch_signals
from elman.training.optim import OptimConfig, Schedule
from elman.training.scores import Scores


@dataclass(frozen=True)
class TrainingConfig:
    """How long, and what is kept.

    Args:
        steps: updates of the weights
        accumulate: batches whose gradients make one update
        log_every: steps between lines in metrics.jsonl
        evaluate_every: steps between evaluations on the validation data; each also writes a checkpoint and a preview
        evaluate_tokens: how many tokens (or rows) of the validation data an evaluation during training reads; 0 for
            all. The final evaluation always reads all
        checkpoint_every: steps between further checkpoints; 0 for none
        average: how many of the last evaluations to average the weights over; that average is evaluated
            and kept as the best
        patience: stop after so many evaluations without improvement; 0 for never
        autocast: multiply in bfloat16 where the backward pass uses Torch's products, on a processor that has
            instructions for it: faster for linear recurrences and attention, of no effect for gated cells
        lens: note at each evaluation how far gradients reach back and how saturated gates are, for `elman inspect`
        only: the parameters that are trained, by parts of their names such as initial_state or readout, with * and ?;
            all others stay as they are. Empty for all
    """

    steps: int = 1000
    accumulate: int = 1
    log_every: int = 10
    evaluate_every: int = 250
    evaluate_tokens: int = 0
    checkpoint_every: int = 0
    average: int = 1
    patience: int = 0
    autocast: bool = False
    lens: bool = False
    only: Names = field(default_factory=list)


def check(config: TrainingConfig, device: str) -> None:
    """Raise an InputError that names the first setting that is out of its range, before any work is done."""
    for name in ("steps", "accumulate", "log_every", "evaluate_every", "average"):
        whole(f"training.{name}", getattr(config, name))
    for name in ("evaluate_tokens", "checkpoint_every", "patience"):
        whole(f"training.{name}", getattr(config, name), least=0)
    if flag("training.autocast", config.autocast) and not has_bfloat16():
        raise InputError(
            "training.autocast is true, and this processor has no instructions for bfloat16 (avx512_bf16 or amx_bf16), "
            "or Torch may not use them: it would take twice as long. Leave it at false."
        )
    if device not in ("auto", "cpu"):
        raise InputError(
            f"device is {device}; runs are trained on the CPU, which the kernels are written for: leave it at auto. "
            "In a loop of your own a Core can be moved to any device, where it runs on the reference kernels."
        )


def has_bfloat16() -> bool:
    """Whether the processor multiplies numbers of bfloat16, and Torch is free to use that."""
    known = torch.cpu.get_capabilities()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and bool(known.get("avx512_bf16") or known.get("amx_bf16"))


@dataclass
class Progress:
    """How far a run has come. Everything in it is a number, so JSON keeps it to the last bit."""

    step: int = 0
    count: int = 0  # tokens, rows or whatever the task counts
    position: Position = field(default_factory=Position)
    best: float | None = None
    evals_since_best: int = 0
    stop_early: bool = False  # the task sees no use in more steps
    primary: str = ""  # the name of the score by which the best is chosen; none before the first evaluation
    larger_is_better: bool = False  # of that score


@dataclass
class LoopState:
    """The parts that the loop turns, and all that a checkpoint has of them."""

    module: nn.Module  # a `LossModule`, wrapped where there are several processes
    batches: Batches
    optimiser: torch.optim.Optimizer
    schedule: Schedule
    average: Average
    ranks: Ranks = field(default_factory=Ranks)
    state: State | None = None  # carried from batch to batch; None before the first, and where nothing is carried
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class Supervisor:
    """What the loop reports to and asks how good the model is. This one records, evaluates and saves nothing."""

    verbose: bool = True  # on standard error
    unit: str = "rows"  # what the progress line counts
    watched: str = ""  # what part of the validation data is evaluated, if it is not all

    def describe_loss(self, loss: float) -> str:
        """The loss, as the progress line shows it."""
        return f"loss {loss:.4f}"

    def record(self, step: int, **values: float) -> None:
        """Write a line of metrics."""

    def evaluate(self, step: int) -> Scores | None:
        """How good the model is; only the first process is asked."""
        return None

    def save(self, name: str) -> None:
        """Keep the model as the `best`, or all that there is to resume as the `last`. All processes call it."""


def train(state: LoopState, config: TrainingConfig, optim_config: OptimConfig, supervisor: Supervisor) -> None:
    """Turn the loop until the steps are done, it is time to stop early, or someone asks it to stop."""
    progress, ranks = state.progress, state.ranks
    line = Steps(
        config.steps, progress.step, unit=supervisor.unit, describe=supervisor.describe_loss,
        verbose=ranks.first and supervisor.verbose,
    )  # fmt: skip
    norms: list[float] = []
    with catch_signals() as request, optim.by_rows(state.optimiser, ranks.world == 1):
        while progress.step < config.steps and not over(progress, config):
            lr = state.schedule.lr(progress.step)
            loss, count, stop = ranks.sum(*_gradients(state, config.accumulate, config.autocast), request.number)
            norm = _update(state, optim_config, lr, ranks.world / count)
            norms = [*norms[-4:], norm]
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise _not_finite(progress.step + 1, loss / count, norms, lr)
            evaluated = (progress.step + 1) % config.evaluate_every == 0 or progress.step + 1 == config.steps
            ratio = optim.step(state.optimiser, measured=evaluated)
            progress.step, progress.count = progress.step + 1, progress.count + int(count)
            line.step(progress.step, loss / count, int(count))
            if progress.step % config.log_every == 0:
                seen = {supervisor.unit: progress.count}
                supervisor.record(progress.step, **seen, loss=loss / count, lr=lr, gradient_norm=norm)
            if evaluated:
                with line.paused(), state.average.weights():
                    line.say(_evaluate(state, supervisor, ratio))
            if evaluated or stop or (config.checkpoint_every and progress.step % config.checkpoint_every == 0):
                supervisor.save("last")
            if stop and progress.step < config.steps:
                raise Interrupted(request.number or signal.SIGTERM, f"stopped after step {progress.step}")


def over(progress: Progress, config: TrainingConfig) -> bool:
    """Whether there is no use in more steps: the task says so, or it has not improved for long enough."""
    return progress.stop_early or (config.patience > 0 and progress.evals_since_best >= config.patience)


def _gradients(state: LoopState, parts: int, autocast: bool = False) -> tuple[float, float]:
    """Add up the gradients of some batches: the sum of their losses, and the number of terms."""
    state.optimiser.zero_grad()
    total, count = 0.0, 0
    for part in range(parts):
        batch = state.batches.batch(state.progress.position)
        with state.ranks.unsynchronised(state.module, part < parts - 1):
            loss, n, after = state.module(batch, state.state)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):  # our kernels take float32, and are not asked
                loss.backward()
        state.state = None if after is None else states.detach(after)
        state.progress.position = state.batches.after(state.progress.position)
        total, count = total + loss.item(), count + n
    return total, count


def _update(state: LoopState, config: OptimConfig, lr: float, scale: float) -> float:
    """Scale the gradients to the mean over all terms, clip them, set the learning rate; the norm before clipping."""
    parameters: list[Tensor] = [p for group in state.optimiser.param_groups for p in group["params"]]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
    optim.set_lr(state.optimiser, lr)
    return optim.clip(config, parameters)


def _evaluate(state: LoopState, supervisor: Supervisor, ratio: float) -> str:
    """Evaluate in the first process, note it, keep the best; what to say about it, if anything."""
    progress, line, improved = state.progress, "", False
    scores = supervisor.evaluate(progress.step) if state.ranks.first else None
    if scores is not None:
        supervisor.record(progress.step, **scores.metrics("valid"), update_ratio=ratio)
        improved, progress.stop_early = scores.better_than(progress.best), scores.stop_early
        progress.best = scores.value if improved else progress.best
        progress.primary, progress.larger_is_better = scores.primary, scores.larger_is_better
        part = "".join(f"  ({said})" for said in (scores.remark, supervisor.watched) if said)
        line = f"step {progress.step}  valid {scores.summary()}{part}{'  (best so far)' if improved else ''}"
    better, stop_early = state.ranks.from_first(improved, progress.stop_early)
    state.schedule.observe(bool(better))
    progress.evals_since_best = 0 if better else progress.evals_since_best + 1
    progress.stop_early = bool(stop_early)
    if better:
        supervisor.save("best")
    return line


def _not_finite(step: int, loss: float, norms: list[float], lr: float) -> TrainingError:
    last = ", ".join(f"{norm:.3g}" for norm in norms)
    return TrainingError(
        f"the loss of step {step} is {loss} (learning rate {lr:.3g}; the last gradient norms were {last}). "
        "The last checkpoint is as it was. Try a smaller --optim.lr, a longer --optim.warmup or a smaller "
        "--optim.clip_norm."
    )
