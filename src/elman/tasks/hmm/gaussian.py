"""Gaussian emissions. Covariances are "spherical", "diag", "full" or "tied".

    spherical, diag:  log_variance (K,) or (K, D)
    full, tied:       factor (G, D, D), the lower Cholesky factor with the logarithm of its diagonal;
                      component k uses factor k * G // K

Priors as in hmmlearn: Normal on the means (`means_prior`, `means_weight`), inverse Gamma or Wishart on the covariances:

    covariance = (covars_prior + scatter) / (max(covars_weight - n, 0) + weight),   n = 1 for spherical and diag, else D

A scalar covars_prior of full covariances is that multiple of the identity. None is a millionth of the variance of each
feature of the data: it costs no likelihood to speak of, and a component on a single point keeps a variance.

A component that explains less than a thousandth of an observation keeps its parameters: a prior alone would take its
covariance to infinity. Whether a covariance has collapsed is measured against the variance of the data.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from elman import random
from elman.errors import FitError, InputError
from elman.kernels import GaussianPriors
from elman.kernels.builder import Builder, Slot
from elman.nn.distributions.continuous import log_normal
from elman.tasks.hmm.emissions import Emission

COVARIANCE_TYPES = ("spherical", "diag", "full", "tied")
COLLAPSED = 1e-14  # of the data's variance: below, no difference of two numbers has digits left
DEAD = 1e-3  # observations: what explains fewer has nothing to learn from
FLOOR = 1e-6  # of the data's variance: the prior where none was given
PIECE = 1 << 17  # numbers that are worked on at a time: they stay in the cache
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
        covars_prior: float | Tensor | None = 0.0,
        covars_weight: float = 1.0,
    ) -> None:
        """mean (K, D); covariance (K,), (K, D), (G, D, D) or (D, D), by type."""
        super().__init__()
        self.covariance_type = covariance_type
        self.spread: Tensor | None = None  # (D,) the variance of the data, once they are known
        self._given: Tensor | None = None
        self._complete = False
        self.mean = nn.Parameter(mean.clone())
        self.scale = nn.Parameter(self._scale_of(covariance))
        self.means_prior, self.means_weight = means_prior, means_weight
        self.covars_prior, self.covars_weight = covars_prior, covars_weight

    def begin(self, o: Tensor) -> None:
        self._given, self._complete = o, not bool(o.isnan().any())
        if self._complete:
            self.spread = o.var(0, correction=0)
        else:
            self.spread = (o - o.nanmean(0)).square().nanmean(0).nan_to_num(0.0)
        if self.covars_prior is None:
            floor = FLOOR * torch.where(self.spread > 0, self.spread, 1.0)  # what never changes has no scale of its own
            self.covars_prior = torch.diag(floor) if self.dense else floor

    def is_complete(self, o: Tensor) -> bool:
        """Whether nothing is missing; looked up for the data of a fit, which come in every step."""
        return self._complete if o is self._given else not bool(o.isnan().any())

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
        flat = o if o.dim() == 2 else o.reshape(-1, o.shape[-1])
        values = self._dense(flat) if self.dense else self._by_dimension(flat)
        return values if o.dim() == 2 else values.reshape(*o.shape[:-1], -1)

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        total = weight.sum(0)
        mean, covariance = self._dense_maximum(o, weight) if self.dense else self._diagonal_maximum(o, weight)
        if not bool((total > DEAD).all()):
            mean = torch.where((total > DEAD)[:, None], mean, self.mean)
            covariance = self._where_alive(covariance, total)
        self._set(mean, covariance)

    def maximise_dense(self, mean: Tensor, scatter: Tensor, weight: Tensor) -> None:
        """The same where the new means, the scatter (K, D, D) about them and the weights (K,) are known."""
        if self.means_weight:
            off = mean - self._means_prior()
            scatter = scatter + self.means_weight * off[:, :, None] * off[:, None]
        self._set(mean, self._where_alive(self._dense_covariance(scatter, weight), weight))

    def set(self, mean: Tensor, variances: Tensor) -> None:
        """Means and variances (K, D) that a fit has arrived at, the latter not dense, none of them collapsed."""
        self.mean.copy_(mean)
        self.scale.copy_(variances.log() if self.scale.dim() == 2 else variances[:, 0].log())

    def refuse_collapse(self, variances: Tensor) -> None:
        """Raise a FitError that says which of the variances (K, D), of which some have collapsed."""
        assert self.spread is not None
        self._refuse_collapse(variances, variances, self.spread)

    def _set(self, mean: Tensor, covariance: Tensor) -> None:
        if "mean" not in self.frozen:
            self.mean.copy_(mean)
        if "covariance" not in self.frozen:
            self.scale.copy_(self._scale_of(covariance))

    def _where_alive(self, covariance: Tensor, weight: Tensor) -> Tensor:
        """The present covariance where none of those who share it explains anything."""
        alive = weight > DEAD
        if bool(alive.all()):
            return covariance
        learns = alive.reshape(len(covariance), -1).any(1).reshape(-1, *(1,) * (covariance.dim() - 1))
        return torch.where(learns, covariance, self.covariance)

    def variances_or_factors(self) -> Tensor:
        """Variances (K, D), or lower Cholesky factors (G, D, D)."""
        if self.dense:
            return self._factor()
        return self.covariance[:, None].expand_as(self.mean) if self.scale.dim() == 1 else self.covariance

    def priors(self, start: float | Tensor, transition: float | Tensor, frozen: frozenset[str]) -> GaussianPriors:
        """What a step of EM takes besides the data, with the Dirichlet priors of a chain."""
        K, D = self.mean.shape
        variance = _filled(0.0 if self.dense or self.covars_prior is None else self.covars_prior, (K, D))
        assert self.spread is not None
        return GaussianPriors(
            _filled(start, (K,)), _filled(transition, (K, K)), _filled(self.means_prior, (K, D)), variance,
            COLLAPSED * self.spread,
            mean_weight=self.means_weight, variance_weight=self.covars_weight, dead=DEAD,
            learns_start="start" not in frozen, learns_transition="transition" not in frozen,
            learns_mean="mean" not in frozen, learns_variance="covariance" not in frozen,
        )  # fmt: skip

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
            self._refuse_collapse(variances, variances, 0.0 if self.spread is None else self.spread)
            return covariance.log()
        covariance = covariance.reshape(-1, *covariance.shape[-2:])
        own = covariance.diagonal(dim1=-2, dim2=-1)
        # In units of the data, or of its own: features may be of very different sizes.
        unit = (own if self.spread is None else self.spread.expand_as(own)).sqrt()
        unit = torch.where(unit > 0, unit, 1.0)
        eigenvalues = torch.linalg.eigvalsh(covariance / (unit[:, :, None] * unit[:, None]))
        self._refuse_collapse(eigenvalues, own, 1.0)
        L = torch.linalg.cholesky(covariance)
        return L.tril(-1) + torch.diag_embed(L.diagonal(dim1=-2, dim2=-1).log())

    def _refuse_collapse(self, variances: Tensor, own: Tensor, unit: Tensor | float) -> None:
        """variances (K, D), or eigenvalues: a component on a single point has a likelihood without bound."""
        found, least = variances.detach().numpy(), COLLAPSED * unit
        good = (found > (least.numpy() if isinstance(least, Tensor) else least)) & (found < math.inf)
        if good.all():
            return
        k = int((~good.all(1)).argmax())
        advice = "Give it variances that are positive."
        if self.spread is not None:
            advice = (
                f"Set covars_prior, which is added to every scatter, to {0.01 * float(self.spread.max()):.2g}, a "
                "hundredth of the variance of the data, or to None; or use fewer components, or covariance_type='tied'."
            )
        raise FitError(
            f"the covariance of state {k} collapsed (smallest variance {float(own[k].min()):.3g}): it sits on too few "
            f"distinct points. {advice}"
        )

    def _factor(self) -> Tensor:
        return self.scale.tril(-1) + torch.diag_embed(self.scale.diagonal(dim1=-2, dim2=-1).exp())

    def _group(self) -> Tensor:
        """Which covariance each of the K components uses."""
        K, G = len(self.mean), len(self.scale)
        return torch.arange(K) * G // K

    def _rows(self) -> int:
        """How many observations are worked on at a time."""
        return max(1, PIECE // self.mean.numel())

    # Densities

    def _by_dimension(self, o: Tensor) -> Tensor:
        log_std = 0.5 * self.scale.reshape(len(self.scale), -1).expand_as(self.mean)
        inverse = torch.exp(-log_std)
        pieces, complete = [], self.is_complete(o)
        for part in o.split(self._rows()):
            # Differences first and squares after: expanding the square into products loses digits where means are
            # far from zero.
            if complete:
                pieces.append(log_normal((part[:, None] - self.mean) * inverse, log_std))
                continue
            seen = ~part.isnan()
            filled = torch.where(seen, part, 0.0)  # a NaN would come back through the gradient of the choice below
            z = torch.where(seen[:, None], (filled[:, None] - self.mean) * inverse, 0.0)
            constant = seen.to(o.dtype) @ (log_std + 0.5 * LOG_2PI).T
            pieces.append(-0.5 * z.square().sum(-1) - constant)
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def describe_step(self, builder: Builder) -> Slot:
        K, D = self.mean.shape
        seen = builder.gather(builder.input(D), [*range(D)] * K)
        off = builder.add(seen, builder.constant(-self.mean.reshape(-1)))
        if self.dense:
            L = torch.linalg.cholesky(self.covariance)[self._group()]
            z, log_std = builder.linear(off, torch.block_diag(*torch.linalg.inv(L))), L.diagonal(0, 1, 2).log()
        else:
            log_std = 0.5 * self.scale.reshape(len(self.scale), -1).expand_as(self.mean)
            z = builder.mul(off, builder.constant(torch.exp(-log_std).reshape(-1)))
        halves = torch.full((1, D), -0.5, dtype=self.mean.dtype)
        constant = -log_std.sum(-1) - 0.5 * D * LOG_2PI
        return builder.linear(builder.mul(z, z), torch.block_diag(*[halves] * K), constant)

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
        whole = self.is_complete(o)
        seen = o if whole else ~o.isnan()
        n = weight.sum(0)[:, None].expand_as(self.mean) if whole else weight.T @ seen.to(weight)  # (K, D)
        filled = o if whole else torch.where(seen, o, 0.0)
        mean = self._mean(weight.T @ filled, n)
        # Deviations from the mean that will be used: the old one where means are frozen.
        centre = self.mean if "mean" in self.frozen else mean
        scatter = torch.zeros_like(centre)
        for part, w, there in zip(*(v.split(self._rows()) for v in (filled, weight, seen)), strict=True):
            square = (part[:, None] - centre).square()
            scatter += (w[..., None] * (square if whole else torch.where(there[:, None], square, 0.0))).sum(0)
        numerator = self._prior(centre) + scatter
        denominator = max(self.covars_weight - 1, 0.0) + n
        if self.covariance_type == "spherical":
            numerator, denominator = numerator.sum(-1), denominator.sum(-1)
        return mean, numerator / denominator.clamp_min(torch.finfo(o.dtype).tiny)

    def _dense_maximum(self, o: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        groups = list(_patterns(o))
        means, scatters = [], []
        for k in range(len(self.mean)):
            filled, spread = self._completed(o, weight[:, k], k, groups)
            w = weight[:, k, None]
            mean = self._mean((w * filled).sum(0), w.sum(), k)
            centre = self.mean[k] if "mean" in self.frozen else mean
            off = filled - centre
            scatters.append(
                spread + off.T @ (w * off) + self.means_weight * torch.outer(*2 * [centre - self._means_prior()[k]])
            )
            means.append(mean)
        return torch.stack(means), self._dense_covariance(torch.stack(scatters), weight.sum(0))

    def _dense_covariance(self, scatter: Tensor, weight: Tensor) -> Tensor:
        """(G, D, D) of the scatters (K, D, D), with what the prior of the means adds to them, and the weights (K,)."""
        K, D = self.mean.shape
        G = len(self.scale)
        by_group = scatter.reshape(G, K // G, D, D).sum(1)
        denominator = max(self.covars_weight - D, 0.0) + weight.reshape(G, K // G).sum(1)
        return (self._wishart() + by_group) / denominator.clamp_min(torch.finfo(weight.dtype).tiny)[:, None, None]

    def _completed(
        self, o: Tensor, weight: Tensor, k: int, groups: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """o with what is missing replaced by its expectation in state k, and the weighted covariance of what was
        replaced."""
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

    def _mean(self, total: Tensor, n: Tensor, k: int | slice = slice(None)) -> Tensor:
        if not self.means_weight:
            return total / n.clamp_min(torch.finfo(total.dtype).tiny)
        n = self.means_weight + n
        return (self.means_weight * self._means_prior()[k] + total) / torch.where(n > 0, n, 1.0)

    # Priors

    def _means_prior(self) -> Tensor:
        return torch.as_tensor(self.means_prior, dtype=self.mean.dtype).expand_as(self.mean)

    def _covars_prior(self) -> Tensor:
        return torch.as_tensor(0.0 if self.covars_prior is None else self.covars_prior, dtype=self.mean.dtype)

    def _prior(self, mean: Tensor) -> Tensor:
        """What stands beside the scatter in the numerator of a diagonal covariance (K, D)."""
        prior = self._covars_prior()
        return prior + self.means_weight * (mean - self._means_prior()).square() if self.means_weight else prior

    def _wishart(self) -> Tensor:
        prior = self._covars_prior()
        return prior * torch.eye(self.mean.shape[1], dtype=self.mean.dtype) if prior.dim() == 0 else prior

    def _log_prior_diagonal(self) -> Tensor:
        log_variance = self.scale.reshape(len(self.scale), -1).expand_as(self.mean)
        total = (self._prior(self.mean) * (-log_variance).exp()).sum()
        weight = max(self.covars_weight - 1, 0.0)
        return total + weight * log_variance.sum() if weight else total

    def _log_prior_dense(self) -> Tensor:
        L = self._factor()
        K, G = len(self.mean), len(L)
        off = (self.mean - self._means_prior()).reshape(G, K // G, -1)
        numerator = self._wishart() + self.means_weight * off.mT @ off
        log_det = 2 * self.scale.diagonal(dim1=-2, dim2=-1).sum(-1)
        trace = torch.cholesky_solve(numerator.expand_as(L), L).diagonal(dim1=-2, dim2=-1).sum()
        return max(self.covars_weight - self.mean.shape[1], 0.0) * log_det.sum() + trace


def _filled(prior: float | Tensor, shape: tuple[int, ...]) -> Tensor:
    """A prior for each of `shape`."""
    return prior.expand(shape) if isinstance(prior, Tensor) else torch.full(shape, prior, dtype=torch.float64)


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
