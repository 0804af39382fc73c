"""The steps of EM: what is expected at some parameters, and the parameters that make it most probable.

The expected counts are gradients of the log-likelihood through the filter:

    posterior[t, k] = d log p / d x[t, k],   counts = start * d log p / d start,   transition * d log p / d transition

Where one kernel has all of a step (Gaussian emissions, nothing missing), it is one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from elman import kernels
from elman.kernels import GaussianParameters
from elman.tasks.hmm.emissions import Emission, probabilities, with_prior
from elman.tasks.hmm.gaussian import Gaussian
from elman.tasks.hmm.model import Priors
from elman.tasks.hmm.sequences import Rows

if TYPE_CHECKING:
    from elman.kernels import HmmGaussian


class Expected(NamedTuple):
    log_likelihood: float
    posterior: Tensor  # (N, K)
    start: Tensor  # (K,) expected number of sequences that begin in each state
    transition: Tensor  # (K, K) expected number of transitions


def expected(x: Tensor, start: Tensor, transition: Tensor, where: Rows) -> Expected:
    """Log-likelihood, posterior and expected counts of log-likelihoods x (N, K), all from one gradient."""
    total, gx, gs, gt = kernels.hmm_expected(where.pack(x), start, transition, where.lengths, where.reset)
    return Expected(float(total), where.unpack(gx), start.detach() * gs, transition.detach() * gt)


class Steps(Protocol):
    """`expect`, then `maximise`, and so on; the emission has its parameters after `finish`."""

    @property
    def start(self) -> Tensor: ...  # (K,)
    @property
    def transition(self) -> Tensor: ...  # (K, K)
    @property
    def weight(self) -> Tensor: ...  # (K,) how many observations each state explains
    def expect(self) -> tuple[float, float]: ...  # the log-likelihood, and the log prior
    def maximise(self) -> None: ...
    def finish(self) -> None: ...


def steps(
    emission: Emission,
    start: Tensor,
    transition: Tensor,
    o: Tensor,
    where: Rows,
    priors: Priors,
    frozen: frozenset[str],
) -> Steps:
    """Those of an emission that has looked at the observations o (N, D)."""
    if isinstance(emission, Gaussian) and emission.is_complete(o):
        parameters = GaussianParameters(start, transition, emission.mean.detach(), emission.variances_or_factors())
        prior = emission.priors(priors.start, priors.transition, frozen)
        spherical = emission.covariance_type == "spherical"
        native = kernels.hmm_gaussian(where.pack(o), where.lengths, where.reset, parameters, prior, spherical)
        if native is not None:
            return _GaussianSteps(emission, native)
    return _EmissionSteps(emission, start, transition, o, where, priors, frozen)


class _EmissionSteps:
    """Those of any emission."""

    def __init__(
        self,
        emission: Emission,
        start: Tensor,
        transition: Tensor,
        o: Tensor,
        where: Rows,
        priors: Priors,
        frozen: frozenset[str],
    ) -> None:
        self.emission, self.start, self.transition = emission, start, transition
        self.o, self.where, self.priors, self.frozen = o, where, priors, frozen

    @property
    def weight(self) -> Tensor:
        return self.stats.posterior.sum(0)

    def expect(self) -> tuple[float, float]:
        self.stats = expected(self.emission(self.o), self.start, self.transition, self.where)
        prior = self.priors.of(self.start, self.transition) + self.emission.log_prior()
        return self.stats.log_likelihood, float(prior)

    def maximise(self) -> None:
        if "start" not in self.frozen:
            self.start = _most_probable(self.stats.start, self.start, self.priors.start)
        if "transition" not in self.frozen:
            self.transition = _most_probable(self.stats.transition, self.transition, self.priors.transition)
        self.emission.maximise(self.o, self.stats.posterior)

    def finish(self) -> None:
        """The emission is what was maximised."""


def _most_probable(counts: Tensor, p: Tensor, prior: float | Tensor) -> Tensor:
    return probabilities(with_prior(counts, p, prior), p)


class _GaussianSteps:
    """Those that a kernel takes: all but what becomes of dense covariances."""

    def __init__(self, emission: Gaussian, native: HmmGaussian) -> None:
        self.emission, self.native = emission, native

    @property
    def start(self) -> Tensor:
        return self.native.parameters.start

    @property
    def transition(self) -> Tensor:
        return self.native.parameters.transition

    @property
    def weight(self) -> Tensor:
        return self.native.weight

    def expect(self) -> tuple[float, float]:
        log_likelihood, log_prior, self.collapsed = self.native.run()
        return log_likelihood, log_prior + float(self.emission.log_prior()) if self.emission.dense else log_prior

    def maximise(self) -> None:
        if self.emission.dense:
            self.emission.maximise_dense(self.native.proposed.mean, self.native.scatter, self.native.weight)
            self.native.parameters.spread.copy_(self.emission.variances_or_factors())
        elif self.collapsed and "covariance" not in self.emission.frozen:
            self.emission.refuse_collapse(self.native.proposed.spread)
        self.native.accept()

    def finish(self) -> None:
        if not self.emission.dense:
            self.emission.set(self.native.parameters.mean, self.native.parameters.spread)
