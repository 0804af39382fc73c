"""Where a fit starts: random chains, and centres by k-means (Lloyd's iterations, seeded as in k-means++)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError

SOME = 100  # points among which there are enough distinct ones, as a rule: to sort them all takes long
SAMPLE = 20_000  # points that k-means looks at: more do not move the centres of a start


def dirichlet(shape: tuple[int, ...], mask: Tensor, generator: torch.Generator) -> Tensor:
    """Rows drawn evenly from all distributions on what the mask allows."""
    draws = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator) * mask
    return draws / draws.sum(-1, keepdim=True)


def kmeans(o: Tensor, K: int, generator: torch.Generator, *, n_iter: int = 50) -> Tensor:
    """Centres (K, D) of o (N, D); missing values count as the mean of their column."""
    mean = o.nanmean(0)
    o = torch.where(o.isnan(), mean.nan_to_num(0.0), o)
    if len(set(map(tuple, o[:SOME].tolist()))) < K and (distinct := len(o.unique(dim=0))) < K:
        raise InputError(
            f"X has {distinct} distinct observations, too few to start {K} components; use fewer n_components"
        )
    if len(o) > SAMPLE:
        o = o[torch.randperm(len(o), generator=generator)[:SAMPLE]]
    o = o[torch.from_numpy(np.lexsort(o.T.numpy()))]  # the order of the sequences must not matter to a start
    centres = _seed(o, K, generator)
    for _ in range(n_iter):
        nearest = torch.cdist(o, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=K).to(o.dtype)[:, None]
        moved = torch.zeros_like(centres).index_add_(0, nearest, o) / counts.clamp_min(1)
        moved = torch.where(counts > 0, moved, centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _seed(o: Tensor, K: int, generator: torch.Generator) -> Tensor:
    centres = o[torch.randint(len(o), (1,), generator=generator)]
    while len(centres) < K:
        away = torch.cdist(o, centres).amin(1).square()
        chance = away if float(away.sum()) > 0 else torch.ones_like(away)
        centres = torch.cat([centres, o[torch.multinomial(chance, 1, generator=generator)]])
    return centres


def spread(o: Tensor, K: int, generator: torch.Generator) -> Tensor:
    """Centres (K, D) for emissions whose observations may have fewer distinct values than there are states: k-means,
    jittered."""
    o = torch.where(o.isnan(), o.nanmean(0).nan_to_num(0.0), o)
    scale = o.std(0).nan_to_num(0.0)
    return kmeans(o + 0.1 * scale * torch.randn(o.shape, generator=generator, dtype=o.dtype), min(K, len(o)), generator)


def nested_kmeans(o: Tensor, K: int, M: int, generator: torch.Generator) -> Tensor:
    """Centres (K, M, D): K clusters, and M inside each of them where it has so many points."""
    centres = kmeans(o, K, generator)
    if M == 1:
        return centres[:, None]
    filled = torch.where(o.isnan(), o.nanmean(0).nan_to_num(0.0), o)
    nearest = torch.cdist(filled, centres).argmin(1)
    scale = filled.std(0)
    inner = []
    for k in range(K):
        own = filled[nearest == k]
        if len(own.unique(dim=0)) >= M:
            inner.append(kmeans(own, M, generator))
        else:
            inner.append(centres[k] + 0.1 * scale * torch.randn(M, o.shape[1], generator=generator, dtype=o.dtype))
    return torch.stack(inner)


def covariances(o: Tensor, covariance_type: str, K: int, floor: float) -> Tensor:
    """The covariance of all data for every component, in the shape of its type."""
    if covariance_type == "spherical":
        return (_pairwise(o).diagonal() + floor).mean().expand(K).clone()
    if covariance_type == "diag":
        return (_pairwise(o).diagonal() + floor).expand(K, -1).clone()
    whole = covariance(o, floor)
    return whole if covariance_type == "tied" else whole.expand(K, -1, -1).clone()


def _pairwise(o: Tensor) -> Tensor:
    """The covariance (D, D) of the observed values, of each pair where both are there."""
    seen = ~o.isnan()
    off = torch.where(seen, o - o.nanmean(0), 0.0)
    pairs = (seen.to(o).T @ seen.to(o)).clamp_min(1)
    return off.T @ off / pairs


def covariance(o: Tensor, floor: float) -> Tensor:
    """(D, D) of the observed values, pairwise where some are missing, with `floor` added on the diagonal."""
    whole, D = _pairwise(o), o.shape[1]
    diagonal = torch.diag_embed(whole.diagonal() + floor)
    # Pairwise estimates need not be positive definite together: then variances alone must do for a start.
    full = whole + floor * torch.eye(D, dtype=o.dtype)
    unit = diagonal.diagonal().sqrt()  # features may be of very different sizes
    return full if float(torch.linalg.eigvalsh(full / torch.outer(unit, unit)).min()) > 0 else diagonal
