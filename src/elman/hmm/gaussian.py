"""Gaussian emissions, single and mixed. Covariances are "spherical", "diag", "full" or "tied".

    spherical, diag:  log_variance (K,) or (K, D)
    full, tied:       factor (G, D, D), the lower Cholesky factor with the logarithm of its diagonal;
                      component k uses factor k * G // K

Priors as in hmmlearn: Normal on the means (`means_prior`, `means_weight`), inverse Gamma or Wishart on the covariances:

    covariance = (covars_prior + scatter) / (max(covars_weight - n, 0) + weight),   n = 1 for spherical and diag, else D

A scalar covars_prior of full covariances is that multiple of the identity.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from elman import draws as random
from elman.errors import FitError, InputError
from elman.hmm.emissions import Emission, dirichlet, probabilities
from elman.kernels.reference import log_sum_exp

COVARIANCE_TYPES = ("spherical", "diag", "full", "tied")
COLLAPSED = 1e-14  # of the largest variance: below, no difference of two numbers has digits left
LOG_2PI = math.log(2 * math.pi)


class Gaussian(Emission):
    """o ~ Normal(mean[k], covariance[k]), D-dimensional."""

    parts: ClassVar[dict[str, str]] = {"mean": "mean", "covariance": "scale"}

    def __init__(
        self,
        mean: Tensor,
        covariance: Tensor,
        covariance_type: str,
        *,
        means_prior: float | Tensor = 0.0,
        means_weight: float = 0.0,
        covars_prior: float | Tensor = 0.0,
        covars_weight: float = 1.0,
    ) -> None:
        """mean (K, D); covariance (K,), (K, D), (G, D, D) or (D, D), by type."""
        super().__init__()
        self.covariance_type = covariance_type
        self.mean = nn.Parameter(mean.clone())
        self.scale = nn.Parameter(self._scale_of(covariance))
        self.means_prior, self.means_weight = means_prior, means_weight
        self.covars_prior, self.covars_weight = covars_prior, covars_weight

    @property
    def width(self) -> int:
        return self.mean.shape[1]

    @property
    def dense(self) -> bool:
        """Whether covariances are matrices."""
        return self.covariance_type in ("full", "tied")

    @property
    def covariance(self) -> Tensor:
        """(K,), (K, D) or (G, D, D): as many as there are parameters."""
        if not self.dense:
            return self.scale.exp()
        L = self._factor()
        return L @ L.mT

    def forward(self, o: Tensor) -> Tensor:
        flat = o.reshape(-1, o.shape[-1])
        values = self._dense(flat) if self.dense else self._by_dimension(flat)
        return values.reshape(*o.shape[:-1], -1)

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        alive = weight.sum(0) > 0
        mean, covariance = self._dense_maximum(o, weight) if self.dense else self._diagonal_maximum(o, weight)
        if "mean" not in self.frozen:
            self.mean.copy_(torch.where(alive[:, None], mean, self.mean))
        if "covariance" not in self.frozen:
            kept = alive.reshape(len(covariance), -1).any(1).reshape(-1, *(1,) * (covariance.dim() - 1))
            self.scale.copy_(self._scale_of(torch.where(kept, covariance, self.covariance)))

    def log_prior(self) -> Tensor:
        return -0.5 * (self._log_prior_dense() if self.dense else self._log_prior_diagonal())

    @torch.no_grad()
    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        noise = random.normal(draws, self.mean.shape[1], first).to(self.mean.dtype)
        if not self.dense:
            return self.mean[z] + noise * (0.5 * self.scale).exp().reshape(len(self.scale), -1)[z]
        factor, o = self._factor()[self._group()[z]], self.mean[z]
        for d in range(noise.shape[1]):  # a product of matrices would round by how many rows there are
            o = o + factor[..., d] * noise[:, d, None]
        return o

    def modes(self) -> Tensor:
        return self.mean

    # Parameters

    def _scale_of(self, covariance: Tensor) -> Tensor:
        if not self.dense:
            variances = covariance.reshape(len(covariance), -1)
            _refuse_collapse(variances, variances.amax(0))
            return covariance.log()
        covariance = covariance.reshape(-1, *covariance.shape[-2:])
        eigenvalues = torch.linalg.eigvalsh(covariance)
        _refuse_collapse(eigenvalues, eigenvalues.amax())
        L = torch.linalg.cholesky(covariance)
        return L.tril(-1) + torch.diag_embed(L.diagonal(dim1=-2, dim2=-1).log())

    def _factor(self) -> Tensor:
        return self.scale.tril(-1) + torch.diag_embed(self.scale.diagonal(dim1=-2, dim2=-1).exp())

    def _group(self) -> Tensor:
        """Which covariance each of the K components uses."""
        K, G = len(self.mean), len(self.scale)
        return torch.arange(K) * G // K

    # Densities

    def _by_dimension(self, o: Tensor) -> Tensor:
        log_variance = self.scale.reshape(len(self.scale), -1).expand_as(self.mean)
        total = o.new_zeros(len(o), len(self.mean))
        # Differences first and squares after: expanding the square into products loses digits where means are
        # far from zero.
        seen = ~o.isnan()
        filled = torch.where(seen, o, 0.0)  # a NaN would come back through the gradient of the choice below
        for x, d, mean, log_v in zip(filled.T[..., None], seen.T[..., None], self.mean.T, log_variance.T, strict=True):
            term = (x - mean).square() * (-log_v).exp() + log_v + LOG_2PI
            total = total + torch.where(d, term, 0.0)
        return -0.5 * total

    def _dense(self, o: Tensor) -> Tensor:
        covariance = self.covariance
        parts, where = [], []
        for rows, seen in _patterns(o):
            L = torch.linalg.cholesky(covariance[:, seen][:, :, seen])
            parts.append(_log_normal(o[rows][:, seen], self.mean[:, seen], L, self._group()))
            where.append(rows)
        order = torch.cat(where).argsort() if len(where) > 1 else slice(None)
        return torch.cat(parts)[order] if parts else o.new_zeros(0, len(self.mean))

    # Maxima

    def _diagonal_maximum(self, o: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        seen = ~o.isnan()
        n = weight.T @ seen.to(weight)  # (K, D)
        total = weight.T @ torch.where(seen, o, 0.0)
        mean = self._mean(total, n)
        # Deviations from the mean that will be used: the old one where means are frozen.
        centre = self.mean if "mean" in self.frozen else mean
        scatter = torch.stack(
            [
                (weight * torch.where(x.isnan(), 0.0, (x - m).square())).sum(0)
                for x, m in zip(o.T[..., None], centre.T, strict=True)
            ],
            -1,
        )
        numerator = self._prior(centre) + scatter
        denominator = max(self.covars_weight - 1, 0.0) + n
        if self.covariance_type == "spherical":
            numerator, denominator = numerator.sum(-1), denominator.sum(-1)
        return mean, numerator / denominator.clamp_min(torch.finfo(o.dtype).tiny)

    def _dense_maximum(self, o: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        K, D = self.mean.shape
        groups = list(_patterns(o))
        means, scatters = [], []
        for k in range(K):
            filled, spread = self._completed(o, weight[:, k], k, groups)
            w = weight[:, k, None]
            mean = self._mean((w * filled).sum(0), w.sum())
            centre = self.mean[k] if "mean" in self.frozen else mean
            off = filled - centre
            scatters.append(
                spread + off.T @ (w * off) + self.means_weight * torch.outer(*2 * [centre - self._means_prior()[k]])
            )
            means.append(mean)
        G = len(self.scale)
        by_group = torch.stack(scatters).reshape(G, K // G, D, D).sum(1)
        denominator = max(self.covars_weight - D, 0.0) + weight.sum(0).reshape(G, K // G).sum(1)
        covariance = (self._wishart() + by_group) / denominator.clamp_min(torch.finfo(o.dtype).tiny)[:, None, None]
        return torch.stack(means), covariance

    def _completed(
        self, o: Tensor, weight: Tensor, k: int, groups: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """o with what is missing replaced by its expectation in state k, and the weighted covariance of what
        was replaced."""
        covariance, mean = self.covariance[self._group()[k]], self.mean[k]
        filled, spread = o.clone(), torch.zeros_like(covariance)
        for rows, seen in groups:
            if bool(seen.all()):
                continue
            gone = ~seen
            gain = torch.linalg.solve(covariance[seen][:, seen], covariance[seen][:, gone]).T  # (missing, seen)
            filled[rows[:, None], gone.nonzero()[:, 0]] = mean[gone] + (o[rows][:, seen] - mean[seen]) @ gain.T
            left = covariance[gone][:, gone] - gain @ covariance[seen][:, gone]
            index = gone.nonzero()[:, 0]
            spread[index[:, None], index] += weight[rows].sum() * left
        return filled, spread

    def _mean(self, total: Tensor, n: Tensor) -> Tensor:
        n = self.means_weight + n
        prior = self._means_prior() if total.dim() == 2 else self._means_prior()[0]
        return (self.means_weight * prior + total) / torch.where(n > 0, n, 1.0)

    # Priors

    def _means_prior(self) -> Tensor:
        return torch.as_tensor(self.means_prior, dtype=self.mean.dtype).expand_as(self.mean)

    def _prior(self, mean: Tensor) -> Tensor:
        """What stands beside the scatter in the numerator of a diagonal covariance (K, D)."""
        return (
            torch.as_tensor(self.covars_prior, dtype=mean.dtype)
            + self.means_weight * (mean - self._means_prior()).square()
        )

    def _wishart(self) -> Tensor:
        prior = torch.as_tensor(self.covars_prior, dtype=self.mean.dtype)
        return prior * torch.eye(self.mean.shape[1], dtype=self.mean.dtype) if prior.dim() == 0 else prior

    def _log_prior_diagonal(self) -> Tensor:
        log_variance = self.scale.reshape(len(self.scale), -1).expand_as(self.mean)
        return (max(self.covars_weight - 1, 0.0) * log_variance + self._prior(self.mean) * (-log_variance).exp()).sum()

    def _log_prior_dense(self) -> Tensor:
        L = self._factor()
        K, G = len(self.mean), len(L)
        off = (self.mean - self._means_prior()).reshape(G, K // G, -1)
        numerator = self._wishart() + self.means_weight * off.mT @ off
        log_det = 2 * self.scale.diagonal(dim1=-2, dim2=-1).sum(-1)
        trace = torch.cholesky_solve(numerator.expand_as(L), L).diagonal(dim1=-2, dim2=-1).sum()
        return max(self.covars_weight - self.mean.shape[1], 0.0) * log_det.sum() + trace


class Mixture(Emission):
    """A mixture of M Gaussians in each of K states: p(o | z = k) = sum_m softmax(logits[k])[m] Normal(o;
    component k * M + m)."""

    parts: ClassVar[dict[str, str]] = {"weights": "logits"}

    def __init__(self, weights: Tensor, components: Gaussian, *, prior: float | Tensor = 1.0) -> None:
        """weights (K, M); components K * M of them, those of one state side by side."""
        super().__init__()
        self.logits = nn.Parameter(weights.log())
        self.components = components
        self.prior = prior

    def freeze(self, names: frozenset[str]) -> None:
        super().freeze(names)
        self.components.freeze(names)

    @property
    def width(self) -> int:
        return self.components.width

    @property
    def weights(self) -> Tensor:
        """(K, M)."""
        return torch.softmax(self.logits, -1)

    def forward(self, o: Tensor) -> Tensor:
        return log_sum_exp(self._joint(o))

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        share = weight[..., None] * torch.softmax(self._joint(o), -1)  # (N, K, M)
        self.components.maximise(o, share.flatten(1))
        if "weights" not in self.frozen:
            self.logits.copy_(probabilities(share.sum(0) + self.prior - 1, self.weights).log())

    def log_prior(self) -> Tensor:
        return dirichlet(self.weights, self.prior) + self.components.log_prior()

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        m = random.symbols(draws, self.logits[z], first)
        return self.components.sample(z * self.logits.shape[1] + m, draws, first + random.STAGE)

    def modes(self) -> Tensor:
        return self.components.mean

    def _joint(self, o: Tensor) -> Tensor:
        return self.components(o).unflatten(-1, self.logits.shape) + torch.log_softmax(self.logits, -1)


def check_covariance_type(name: str) -> str:
    if name not in COVARIANCE_TYPES:
        raise InputError(f"covariance_type is {name!r}; it must be one of {', '.join(COVARIANCE_TYPES)}")
    return name


def _log_normal(o: Tensor, mean: Tensor, L: Tensor, group: Tensor) -> Tensor:
    """log Normal(o (N, D); mean (K, D), L L^T (G, D, D)) -> (N, K)."""
    log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    columns = []
    for k in range(len(mean)):
        white = torch.linalg.solve_triangular(L[group[k]], (o - mean[k]).T, upper=False)
        columns.append(white.square().sum(0) + log_det[group[k]] + o.shape[1] * LOG_2PI)
    return -0.5 * torch.stack(columns, -1)


def _patterns(o: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each set of dimensions that are observed together: which rows (n,), which dimensions (D,)."""
    seen = ~o.isnan()
    if bool(seen.all()):
        return [(torch.arange(len(o)), seen.new_ones(o.shape[1]))] if len(o) else []
    patterns, which = seen.unique(dim=0, return_inverse=True)
    return [((which == i).nonzero()[:, 0], pattern) for i, pattern in enumerate(patterns)]


def _refuse_collapse(variances: Tensor, largest: Tensor) -> None:
    """variances (K, D), or eigenvalues: a component on a single point has a likelihood without bound."""
    bad = ~((variances > COLLAPSED * largest) & variances.isfinite()).all(1)
    if bool(bad.any()):
        k = int(bad.nonzero()[0, 0])
        raise FitError(
            f"the covariance of state {k} collapsed (smallest variance {float(variances[k].min()):.3g}): it "
            f"sits on too few distinct "
            "points. Use fewer components, a larger covars_prior (it is added to every scatter), or "
            "covariance_type='tied'."
        )
