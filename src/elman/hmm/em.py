"""A hidden Markov model as a module, and its fit by expectation and maximisation. gradient.py has the other way.

The expected counts of EM are gradients of the log-likelihood through the filter: there is no other
forward-backward pass.

    posterior[t, k] = d log p / d x[t, k],   counts = start * d log p / d start,   transition * d log p / d transition
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.hmm import HMM, log_sum_exp
from elman.errors import FitError
from elman.hmm.emissions import Emission, dirichlet, probabilities
from elman.hmm.sequences import Rows, Sequences, rows
from elman.lengths import valid

REACHED = 1e-30  # chains whose every step is more probable come back to each state long before it can underflow
Report = Callable[[int, float], None]  # told the number of a step, and the log-likelihood before it


class FitWarning(UserWarning):
    """A fit that went on, but not as one would wish."""


class Lengths(Protocol):
    """How much of each row is valid, and where sequences begin."""

    @property
    def lengths(self) -> Tensor: ...  # (R,)
    @property
    def reset(self) -> Tensor: ...  # (R, L)


class Expected(NamedTuple):
    log_likelihood: float
    posterior: Tensor  # (N, K)
    start: Tensor  # (K,) expected number of sequences that begin in each state
    transition: Tensor  # (K, K) expected number of transitions


@dataclass(frozen=True)
class Priors:
    """Dirichlet parameters of the start and the transitions; 1 is flat."""

    start: float | Tensor = 1.0
    transition: float | Tensor = 1.0


@dataclass(frozen=True)
class Fit:
    """How a fit went: the log-likelihood before each step and after the last, and whether it stopped by itself."""

    history: list[float]
    converged: bool
    objective: float


class HiddenMarkov(nn.Module):
    """An emission and a chain, whose probabilities are softmax of logits: a logit of -inf stays a zero in training."""

    def __init__(self, emission: Emission, start: Tensor, transition: Tensor) -> None:
        super().__init__()
        self.emission = emission
        self.pi = nn.Parameter(start.log())
        self.A = nn.Parameter(transition.log())

    def freeze(self, names: frozenset[str]) -> None:
        """Leave some parts alone in a fit: start, transition, and what the emission has."""
        self.pi.requires_grad_("start" not in names)
        self.A.requires_grad_("transition" not in names)
        self.emission.freeze(names)

    @torch.no_grad()
    def set(self, start: Tensor, transition: Tensor) -> None:
        self.pi.copy_(start.log())
        self.A.copy_(transition.log())

    @property
    def start(self) -> Tensor:
        """p(z(1)) (K,)."""
        return torch.softmax(self.pi, -1)

    @property
    def transition(self) -> Tensor:
        """p(z(t+1) = column | z(t) = row) (K, K)."""
        return torch.softmax(self.A, -1)

    def core(self) -> HMM:
        """The filter of this chain, as a Core."""
        return log_core(self.start, self.transition)

    def log_prob(self, o: Tensor, where: Lengths) -> Tensor:
        """log p(o[t] | o[<t]) (R, L) of observations (R, L, D), as long as they are valid."""
        return _filter(self.emission(o), self.start, self.transition, where)

    def log_prior(self, priors: Priors) -> Tensor:
        chain = dirichlet(self.start, priors.start) + dirichlet(self.transition, priors.transition)
        return chain + self.emission.log_prior()

    def score(self, o: Tensor, where: Rows) -> float:
        """log p of all sequences together."""
        with torch.no_grad():
            x, start, transition = where.pack(self.emission(o)), self.start, self.transition
            total = float(_filter(x, start, transition, where).sum())
            if underflowed(total, x, start, transition, where):
                return float(_log_likelihood_in_logs(self.core(), x, where))
            return total


@torch.no_grad()
def log_core(start: Tensor, transition: Tensor) -> HMM:
    """The core that filters in logarithms with these probabilities."""
    core = HMM(len(start), len(start)).to(start.dtype)
    core.log_pi.copy_(start.log())
    core.log_P.copy_(transition.log())
    return core


def _filter(x: Tensor, start: Tensor, transition: Tensor, where: Lengths) -> Tensor:
    return kernels.hmm_log_prob(x, start, transition, start.expand(len(x), -1), where.lengths, where.reset)


def expected(x: Tensor, start: Tensor, transition: Tensor, where: Rows) -> Expected:
    """Log-likelihood, posterior and expected counts of log-likelihoods x (N, K), all from one gradient."""
    packed, start, transition = (v.detach().requires_grad_() for v in (where.pack(x), start, transition))
    total = _log_likelihood(packed, start, transition, where)
    if total is None:
        return _expected_in_logs(packed, start, transition, where)
    gx, gs, gt = torch.autograd.grad(total, (packed, start, transition), allow_unused=True, materialize_grads=True)
    return Expected(float(total.detach()), where.unpack(gx), start.detach() * gs, transition.detach() * gt)


def posterior(x: Tensor, start: Tensor, transition: Tensor, where: Rows) -> tuple[float, Tensor]:
    """Log-likelihood and posterior (N, K) alone: the counts of `expected` cost as much again."""
    packed, start, transition = where.pack(x).detach().requires_grad_(), start.detach(), transition.detach()
    total = _log_likelihood(packed, start, transition, where)
    if total is None:
        stats = _expected_in_logs(packed, start, transition, where)
        return stats.log_likelihood, stats.posterior
    (gx,) = torch.autograd.grad(total, packed)
    return float(total.detach()), where.unpack(gx)


def _log_likelihood(packed: Tensor, start: Tensor, transition: Tensor, where: Rows) -> Tensor | None:
    """By the scaled filter, to be differentiated; None where that has underflowed."""
    with torch.enable_grad():
        total = _filter(packed, start, transition, where).sum()
    return None if underflowed(float(total.detach()), packed, start, transition, where) else total


def underflowed(total: float, packed: Tensor, start: Tensor, transition: Tensor, where: Rows) -> bool:
    """Whether the scaled filter has lost what later turned out to matter: a state that had become 1e-300 and could not
    be reached again. Then its log-likelihood is below that of the best path, which Viterbi finds in logarithms."""
    if min(float(start.detach().min()), float(transition.detach().min())) > REACHED:
        return False
    best = float(kernels.viterbi(packed, start, transition, where.lengths, where.reset)[1].double().sum())
    return best > total + 1e-9 * (1 + abs(total))


def _expected_in_logs(packed: Tensor, start: Tensor, transition: Tensor, where: Rows) -> Expected:
    """The same by the core that filters in logarithms, step by step: slow, and nothing underflows."""
    core = log_core(start, transition)
    with torch.enable_grad():
        total = _log_likelihood_in_logs(core, packed, where)
        gx, gs, gt = torch.autograd.grad(total, (packed, core.log_pi, core.log_P))
    return Expected(float(total.detach()), where.unpack(gx), gs, gt)


def _log_likelihood_in_logs(core: HMM, packed: Tensor, where: Rows) -> Tensor:
    y, _ = core.scan(packed, lengths=where.lengths, reset=where.reset)
    return log_sum_exp(y, -1)[valid(where.lengths, packed.shape[1])].sum()


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
    history: list[float] = []
    before = -math.inf
    for i in range(n_iter + 1):
        stats = expected(model.emission(data.o), model.start, model.transition, where)
        objective = stats.log_likelihood + float(model.log_prior(priors))
        history.append(stats.log_likelihood)
        check_progress(before, objective, i)
        report(i, stats.log_likelihood)
        if objective - before < tol or i == n_iter:
            converged = objective - before < tol
            break
        before = objective
        _maximise(model, data.o, stats, priors, frozen)
    _warn_of_dead_states(stats.posterior)
    if not converged and n_iter > 0:
        warnings.warn(
            f"EM stopped after n_iter = {n_iter} steps, the last of which gained {objective - before:.3g} (tol "
            f"= {tol:g}): "
            "it has not converged. Raise n_iter or tol.",
            FitWarning,
            stacklevel=3,
        )
    return Fit(history, converged, objective)


def _maximise(model: HiddenMarkov, o: Tensor, stats: Expected, priors: Priors, frozen: frozenset[str]) -> None:
    start, transition = model.start, model.transition
    if "start" not in frozen:
        start = probabilities(torch.where(start > 0, stats.start + priors.start - 1, 0.0), start)
    if "transition" not in frozen:
        transition = probabilities(
            torch.where(transition > 0, stats.transition + priors.transition - 1, 0.0), transition
        )
    model.set(start, transition)
    model.emission.maximise(o, stats.posterior)


def check_progress(before: float, objective: float, i: int) -> None:
    if math.isnan(objective):
        raise FitError(
            f"the log-likelihood is NaN at step {i}: a parameter is not a number. Check X for extreme values; "
            f"scale it to unit variance."
        )
    if objective == -math.inf:
        raise FitError(
            f"the model gives these data probability zero at step {i}. Start from parameters without zeros "
            f"where the data need them, "
            "or use a prior above 1 (transmat_prior, emissionprob_prior), which keeps every event possible."
        )
    # Rounding of a sum of many terms; a real fall would be a wrong gradient or a wrong M step.
    if objective < before - 1e-8 * (1 + abs(before)):
        raise FitError(
            f"EM lowered its objective from {before:.10g} to {objective:.10g} at step {i}, which it cannot do; "
            f"please report this with the data"
        )


def _warn_of_dead_states(posterior: Tensor) -> None:
    weight = posterior.sum(0)
    dead = (weight < 1e-3).nonzero().flatten().tolist()
    if dead and len(posterior):
        warnings.warn(
            f"states {dead} explain no observation (total posterior {[f'{float(weight[k]):.2g}' for k in dead]} "
            f"of {len(posterior)}): "
            "their parameters mean nothing. Use fewer components, other starting values, or n_init > 1.",
            FitWarning,
            stacklevel=4,
        )
