"""Fitting by gradient steps on unconstrained parameters: the training loop of every task, on batches of sequences."""

from __future__ import annotations

import math
import signal
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elman.data import Position
from elman.errors import FitError, InputError, TrainingError
from elman.hmm.em import Fit, FitWarning, HiddenMarkov, Priors, Report, check_progress
from elman.hmm.sequences import Rows, Sequences, rows
from elman.training import optim
from elman.training.checkpoint import Advance
from elman.training.distributed import Ranks
from elman.training.interrupt import Interrupted
from elman.training.loop import Run, TrainingConfig, train
from elman.training.optim import OptimConfig, Schedule
from elman.training.record import Recorder

OPTIMISERS = {"adam": "adamw", "sgd": "sgd"}  # without weight decay, AdamW is Adam


class Batch(NamedTuple):
    o: Tensor  # (n, D)
    where: Rows


class Batches:
    """`batch_size` sequences at a time, in an order of its own for each pass."""

    def __init__(self, data: Sequences, batch_size: int, seed: int) -> None:
        self.sequences = [o for o in data.o.split(data.lengths) if len(o)]
        self.batch_size, self.seed = batch_size, seed
        self.number = -(-len(self.sequences) // batch_size)

    def batch(self, at: Position) -> Batch:
        order = torch.randperm(len(self.sequences), generator=torch.Generator().manual_seed(self.seed + at.epoch))
        chosen = order[at.window * self.batch_size : (at.window + 1) * self.batch_size]
        parts = [self.sequences[i] for i in chosen.tolist()]
        return Batch(torch.cat(parts), rows(tuple(map(len, parts))))

    def after(self, at: Position) -> Position:
        return Position(at.epoch, at.window + 1) if at.window + 1 < self.number else Position(at.epoch + 1, 0)


class Unit(nn.Module):
    """loss = - log p(o) - log prior * n / N, for n of N observations: the prior counts once per pass."""

    def __init__(self, model: HiddenMarkov, priors: Priors, N: int) -> None:
        super().__init__()
        self.model, self.priors, self.N = model, priors, N

    def forward(self, batch: Batch, state: Any) -> tuple[Tensor, int, Any]:
        n = len(batch.o)
        objective = self.model.log_prob(batch.o, batch.where).sum() + self.model.log_prior(self.priors) * (n / self.N)
        return -objective, n, state


class Settled(Exception):
    """A pass that changed less than the tolerance."""


def gradient(
    model: HiddenMarkov,
    data: Sequences,
    priors: Priors,
    *,
    method: str,
    n_iter: int,
    tol: float,
    learning_rate: float,
    batch_size: int,
    generator: torch.Generator,
    report: Report,
) -> Fit:
    """`n_iter` passes over the sequences, until one changes the log-likelihood by less than `tol`."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("params names nothing that a gradient step could change; name something, or use method='em'")
    seed = int(torch.randint(2**31, (), generator=generator))
    where, batches = rows(data.lengths), Batches(data, batch_size, seed)
    history: list[float] = []

    def evaluate(step: int) -> dict[str, float]:
        history.append(model.score(data.o, where))
        if step and not math.isfinite(history[-1]):
            raise TrainingError(f"the log-likelihood is {history[-1]} after step {step}")
        check_progress(-math.inf, history[-1], 0)
        report(len(history) - 1, history[-1])
        if len(history) > 1 and abs(history[-1] - history[-2]) < tol:
            raise Settled
        return {"valid": -history[-1]}

    how = OptimConfig(
        name=OPTIMISERS[method], lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.999), schedule="constant", warmup=0,
        clip_norm=0.0,
    )  # fmt: skip
    steps = TrainingConfig(steps=n_iter * batches.number, evaluate_every=batches.number)
    evaluate(0)
    run = Run(
        Unit(model, priors, len(data.o)), batches, optim.optimiser(how, model), Schedule(how, steps.steps), (),
        Advance(), Recorder(None), Ranks(), evaluate, lambda name, run: None, shown=False,
    )  # fmt: skip
    converged = _turn(run, steps, how)
    if not converged and n_iter > 0:
        warnings.warn(
            f"gradient steps stopped after n_iter = {n_iter} passes without settling to tol = {tol:g}. Raise n_iter "
            "or tol.",
            FitWarning,
            stacklevel=3,
        )
    with torch.no_grad():
        return Fit(history, converged, history[-1] + float(model.log_prior(priors)))


def _turn(run: Run, steps: TrainingConfig, how: OptimConfig) -> bool:
    """Turn the loop; whether it settled."""
    try:
        train(run, steps, how)
    except Settled:
        return True
    except TrainingError as error:
        raise FitError(f"a gradient step led to no number (learning_rate = {how.lr:g}); lower it. {error}") from error
    except Interrupted as stop:
        if stop.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt from stop
        raise
    return False
