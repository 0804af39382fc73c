"""Fitting by gradient steps on unconstrained parameters: the training loop of every task, on batches of sequences."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from elman.data import Batch, Position, Shuffled
from elman.errors import FitError, InputError, TrainingError
from elman.state import State
from elman.tasks.hmm.em import Fit, FitWarning, Report, check_progress
from elman.tasks.hmm.model import HiddenMarkov, Priors
from elman.tasks.hmm.sequences import Rows, Sequences, rows
from elman.training import optim
from elman.training.average import Average
from elman.training.loop import LoopState, Supervisor, TrainingConfig, train
from elman.training.loss import Loss, LossModule
from elman.training.optim import OptimConfig, Schedule
from elman.training.scores import Scores

OPTIMISERS = {"adam": "adamw", "sgd": "sgd"}  # without weight decay, AdamW is Adam


class SequenceBatches:
    """Some of the sequences at a time, in an order of its own for each pass, laid into rows."""

    def __init__(self, data: Sequences, batch_size: int, seed: int) -> None:
        self.sequences = [o for o in data.o.split(data.lengths) if len(o)]
        self.order = Shuffled(len(self.sequences), batch_size, seed)
        self.after = self.order.after

    def batch(self, at: Position) -> Batch:
        parts = [self.sequences[i] for i in self.order.rows(at)]
        where = rows(tuple(map(len, parts)))
        return Batch(where.pack(torch.cat(parts)), (), where.reset, where.lengths)


class PosteriorLoss:
    """loss = - log p(o) - log prior * n / N, for n of N observations: the prior counts once per pass."""

    def __init__(self, priors: Priors, N: int) -> None:
        self.priors, self.N = priors, N

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss:
        assert isinstance(model, HiddenMarkov) and isinstance(batch.x, Tensor)
        n = int(batch.lengths.sum())
        objective = model.log_prob(batch.x, batch).sum() + model.log_prior(self.priors) * (n / self.N)
        return -objective, n, None


@dataclass(frozen=True, kw_only=True)
class Passes(Supervisor):
    """How good the model is after each pass, and whether that is the last."""

    model: HiddenMarkov
    o: Tensor  # (N, D)
    where: Rows
    priors: Priors
    tol: float
    report: Report
    log_likelihoods: list[float] = field(default_factory=list)
    log_priors: list[float] = field(default_factory=list)

    def evaluate(self, step: int) -> Scores:
        totals = self.log_likelihoods
        totals.append(self.model.score(self.o, self.where))
        with torch.no_grad():
            self.log_priors.append(float(self.model.log_prior(self.priors)))
        if step and not math.isfinite(totals[-1]):
            raise TrainingError(f"the log-likelihood is {totals[-1]} after step {step}")
        check_progress(-math.inf, totals[-1], 0)
        stop = self.report(len(totals) - 1, totals[-1]) or (len(totals) > 1 and abs(totals[-1] - totals[-2]) < self.tol)
        return Scores({"log_likelihood": totals[-1]}, "log_likelihood", larger_is_better=True, stop_early=stop)


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
    where, batches = rows(data.lengths), SequenceBatches(data, batch_size, seed)
    model.emission.begin(data.o)
    supervisor = Passes(verbose=False, model=model, o=data.o, where=where, priors=priors, tol=tol, report=report)
    how = OptimConfig(
        name=OPTIMISERS[method], lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.999), schedule="constant", warmup=0,
        clip_norm=0.0,
    )  # fmt: skip
    passes = batches.order.number
    steps = TrainingConfig(steps=n_iter * passes, evaluate_every=passes)
    supervisor.evaluate(0)
    module = LossModule(PosteriorLoss(priors, len(data.o)), model)
    state = LoopState(module, batches, optim.optimiser(how, model), Schedule(how, steps.steps), Average(model))
    try:
        train(state, steps, how, supervisor)
    except TrainingError as error:
        raise FitError(
            f"a gradient step led to something that is not a number (learning_rate = {how.lr:g}); lower it. {error}"
        ) from error
    converged = state.progress.stop_early
    if not converged and n_iter > 0:
        warnings.warn(
            f"gradient steps stopped after n_iter = {n_iter} passes without settling to tol = {tol:g}. Raise n_iter "
            "or tol.",
            FitWarning,
            stacklevel=3,
        )
    totals = supervisor.log_likelihoods
    return Fit([a + b for a, b in zip(totals, supervisor.log_priors, strict=True)], totals, converged)
