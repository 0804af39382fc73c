"""The fit of a hidden Markov model by expectation and maximisation. gradient.py has the other way.

The expected counts of EM are gradients of the log-likelihood through the filter: there is no other
forward-backward pass.

    posterior[t, k] = d log p / d x[t, k],   counts = start * d log p / d start,   transition * d log p / d transition
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from elman import kernels
from elman.errors import FitError
from elman.tasks.hmm.emissions import probabilities, with_prior
from elman.tasks.hmm.model import HiddenMarkov, Priors
from elman.tasks.hmm.sequences import Rows, Sequences, rows

Report = Callable[[int, float], bool]  # told the number of a step and what it will raise: is it the last?


class FitWarning(UserWarning):
    """A fit that was finished, but not as one would wish."""


class Expected(NamedTuple):
    log_likelihood: float
    posterior: Tensor  # (N, K)
    start: Tensor  # (K,) expected number of sequences that begin in each state
    transition: Tensor  # (K, K) expected number of transitions


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


def expected(x: Tensor, start: Tensor, transition: Tensor, where: Rows) -> Expected:
    """Log-likelihood, posterior and expected counts of log-likelihoods x (N, K), all from one gradient."""
    total, gx, gs, gt = kernels.hmm_expected(where.pack(x), start, transition, where.lengths, where.reset)
    return Expected(float(total), where.unpack(gx), start.detach() * gs, transition.detach() * gt)


def posterior(x: Tensor, start: Tensor, transition: Tensor, where: Rows) -> tuple[float, Tensor]:
    """Log-likelihood and posterior (N, K) alone: the counts of `expected` cost as much again."""
    packed = where.pack(x).detach().requires_grad_()
    start, transition = start.detach(), transition.detach()
    with torch.enable_grad():
        first = start.expand(len(packed), -1)
        total = kernels.hmm_log_prob(packed, start, transition, first, where.lengths, where.reset).sum()
    (gx,) = torch.autograd.grad(total, packed)
    return float(total.detach()), where.unpack(gx)


@torch.no_grad()
def em(
    model: HiddenMarkov,
    data: Sequences,
    priors: Priors,
    *,
    n_iter: int,
    tol: float,
    frozen: frozenset[str],
    report: Report,
) -> Fit:
    """Climb log-likelihood + log prior, a step at a time, until a step gains less than `tol`."""
    where = rows(data.lengths)
    model.emission.begin(data.o)
    history: list[float] = []
    log_likelihoods: list[float] = []
    before, last = -math.inf, n_iter
    for i in range(n_iter + 1):
        start, transition = model.start, model.transition
        stats = expected(model.emission(data.o), start, transition, where)
        objective = stats.log_likelihood + float(priors.of(start, transition) + model.emission.log_prior())
        history.append(objective)
        log_likelihoods.append(stats.log_likelihood)
        check_progress(before, objective, i)
        if i < last and report(i, objective):
            last = i + 1
        if objective - before < tol or i == last:
            converged = objective - before < tol or last < n_iter
            break
        before = objective
        model.core.set(*_maximum(start, transition, stats, priors, frozen))
        model.emission.maximise(data.o, stats.posterior)
    _warn_of_dead_states(stats.posterior)
    if not converged and n_iter > 0:
        warnings.warn(
            f"EM stopped after n_iter = {n_iter} steps, the last of which gained {objective - before:.3g} (tol = "
            f"{tol:g}): it has not converged. Raise n_iter or tol.",
            FitWarning,
            stacklevel=3,
        )
    return Fit(history, log_likelihoods, converged)


def _maximum(
    start: Tensor, transition: Tensor, stats: Expected, priors: Priors, frozen: frozenset[str]
) -> tuple[Tensor, Tensor]:
    """The chain that the expected counts and the priors make most probable."""
    if "start" not in frozen:
        start = probabilities(with_prior(stats.start, start, priors.start), start)
    if "transition" not in frozen:
        transition = probabilities(with_prior(stats.transition, transition, priors.transition), transition)
    return start, transition


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


def _warn_of_dead_states(posterior: Tensor) -> None:
    weight = posterior.sum(0)
    dead = (weight < 1e-3).nonzero().flatten().tolist()
    if dead and len(posterior):
        warnings.warn(
            f"states {dead} explain no observation (total posterior {[f'{float(weight[k]):.2g}' for k in dead]} of "
            f"{len(posterior)}): they have kept the parameters that they had when they lost their last, which mean "
            "nothing. Use fewer components, other starting values, or n_init > 1.",
            FitWarning,
            stacklevel=4,
        )
