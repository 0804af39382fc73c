"""The fit of a hidden Markov model: by expectation and maximisation, or by gradient steps on unconstrained parameters,
which is the training loop of every task on batches of sequences; and hmmlearn's monitor, which may end either.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from elman import kernels, progress
from elman.data import Batch, Position, Shuffled
from elman.errors import FitError, InputError, TrainingError
from elman.state import State
from elman.tasks.hmm.emissions import Emission
from elman.tasks.hmm.model import HiddenMarkov, Priors
from elman.tasks.hmm.sequences import Rows, Sequences, rows
from elman.tasks.hmm.steps import steps
from elman.training import optim
from elman.training.average import Average
from elman.training.loop import LoopState, Supervisor, TrainingConfig, train
from elman.training.loss import Loss, LossModule
from elman.training.optim import OptimConfig, Schedule
from elman.training.scores import Scores

OPTIMISERS = {"adam": "adamw", "sgd": "sgd"}  # without weight decay, AdamW is Adam
Report = Callable[[int, float], bool]  # told the number of a step and what it will raise: is it the last?


class FitWarning(UserWarning):
    """A fit that was finished, but not as one would wish."""


@dataclass(frozen=True)
class Fit:
    """How a fit went: what it maximised, log-likelihood + log prior, before each step and after the last; the
    log-likelihoods alone; and whether it stopped by itself."""

    history: list[float]
    log_likelihoods: list[float]
    converged: bool

    @property
    def objective(self) -> float:
        """What the fit reached."""
        return self.history[-1]


def posterior(x: Tensor, start: Tensor, transition: Tensor, where: Rows) -> tuple[float, Tensor]:
    """Log-likelihood and posterior (N, K) alone: the counts of `steps.expected` cost as much again."""
    total, gx = kernels.hmm_posterior(where.pack(x), start, transition, where.lengths, where.reset)
    return float(total), where.unpack(gx)


@torch.no_grad()
def em(
    emission: Emission,
    start: Tensor,
    transition: Tensor,
    data: Sequences,
    priors: Priors,
    *,
    n_iter: int,
    tol: float,
    frozen: frozenset[str],
    report: Report,
) -> tuple[Fit, Tensor, Tensor]:
    """Climb log-likelihood + log prior, a step at a time, until a step gains less than `tol`: how it went, and the
    start and transition that it ends with. The emission is fitted in place."""
    emission.begin(data.o)
    climb = steps(emission, start, transition, data.o, rows(data.lengths), priors, frozen)
    history: list[float] = []
    log_likelihoods: list[float] = []
    before, last = -math.inf, n_iter
    for i in range(n_iter + 1):
        log_likelihood, log_prior = climb.expect()
        objective = log_likelihood + log_prior
        history.append(objective)
        log_likelihoods.append(log_likelihood)
        check_progress(before, objective, i)
        if i < last and report(i, objective):
            last = i + 1
        if objective - before < tol or i == last:
            converged = objective - before < tol or last < n_iter
            break
        before = objective
        climb.maximise()
    climb.finish()
    _warn_of_dead_states(climb.weight.tolist(), len(data.o))
    if not converged and n_iter > 0:
        warnings.warn(
            f"EM stopped after n_iter = {n_iter} steps, the last of which gained {objective - before:.3g} (tol = "
            f"{tol:g}): it has not converged. Raise n_iter or tol.",
            FitWarning,
            stacklevel=3,
        )
    return Fit(history, log_likelihoods, converged), climb.start, climb.transition


def check_progress(before: float, objective: float, i: int) -> None:
    if math.isnan(objective):
        raise FitError(
            f"the log-likelihood is NaN at step {i}: a parameter is not a number. Check X for extreme values; scale it "
            "to unit variance."
        )
    if objective == -math.inf:
        raise FitError(
            f"the model gives these data probability zero at step {i}. Start from parameters without zeros where the "
            "data need them, or use a prior above 1 (transmat_prior, emissionprob_prior), which keeps every event "
            "possible."
        )
    # Rounding of a sum of many terms; a real fall would be a wrong gradient or a wrong M step.
    if objective < before - 1e-8 * (1 + abs(before)):
        raise FitError(
            f"EM lowered its objective from {before:.10g} to {objective:.10g} at step {i}, which it cannot do; "
            "please report this with the data"
        )


def _warn_of_dead_states(weight: list[float], N: int) -> None:
    """weight (K,): how many of the N observations each state explains."""
    dead = [k for k, explained in enumerate(weight) if explained < 1e-3]
    if dead and N:
        warnings.warn(
            f"states {dead} explain no observation (total posterior {[f'{weight[k]:.2g}' for k in dead]} of {N}): they "
            "have kept the parameters that they had when they lost their last, which mean nothing. Use fewer "
            "components, other starting values, or n_init > 1.",
            FitWarning,
            stacklevel=4,
        )


# Gradient steps


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
    training = TrainingConfig(steps=n_iter * passes, evaluate_every=passes)
    supervisor.evaluate(0)
    module = LossModule(PosteriorLoss(priors, len(data.o)), model)
    state = LoopState(module, batches, optim.optimiser(how, model), Schedule(how, training.steps), Average(model))
    try:
        train(state, training, how, supervisor)
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


# What a fit reports


class ConvergenceMonitor:
    """Is told what a fit climbs, before each of its steps. To end fits by a rule of your own, derive from it, override
    `converged`, and set an instance as a model's `monitor_`.

    >>> monitor = ConvergenceMonitor(tol=0.01, n_iter=10, verbose=False)
    >>> for value in (-5.0, -4.0, -3.995):
    ...     monitor.report(value)
    >>> monitor.iter, monitor.history, monitor.converged
    (3, [-5.0, -4.0, -3.995], True)
    """

    _template: ClassVar[str] = "step {iter}  log-likelihood {log_prob:.6f}  gain {delta:.6g}"

    def __init__(self, tol: float, n_iter: int, verbose: bool) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self._reset()

    def _reset(self) -> None:
        self.history: list[float] = []
        self.iter = 0

    def report(self, log_prob: float) -> None:
        """Take note of the objective before a step, and say it on standard error if `verbose`."""
        if self.verbose:
            delta = log_prob - self.history[-1] if self.history else math.nan
            progress.say(self._template.format(iter=self.iter + 1, log_prob=log_prob, delta=delta))
        self.history.append(log_prob)
        self.iter += 1

    @property
    def converged(self) -> bool:
        """Whether the fit should end: no step is left, or the last one gained less than `tol`."""
        still = len(self.history) > 1 and self.history[-1] - self.history[-2] < self.tol
        return self.iter == self.n_iter or still
