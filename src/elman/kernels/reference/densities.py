"""Logarithms of the densities of Student's t and of the negative binomial, in float64: their logarithms of gamma
functions cancel in all but a few digits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LINEAR = 40.0  # where log(1 + exp(x)) is x to the last digit


def student_t_log_prob(x: Tensor, df: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Of each number of x; all of one shape and dtype."""
    dtype = mean.dtype
    x, df, mean, scale = x.double(), df.double(), mean.double(), scale.double()
    t = (x - mean) / scale
    constant = log_rising(df / 2, torch.full_like(df, 0.5)) - 0.5 * torch.log(df * math.pi) - scale.log()
    far = t.abs() > 1e100  # where 1 + t^2 / df is t^2 / df to the last digit, and t^2 may be infinite
    near, size = torch.where(far, 0.0, t), torch.where(far, t.abs(), 1.0)
    more = torch.where(far, 2 * size.log() - df.log(), torch.log1p(near * near / df))
    return (constant - (df + 1) / 2 * more).to(dtype)


def negative_binomial_log_prob(x: Tensor, logits: Tensor, shape: Tensor) -> Tensor:
    """The same of counts, whose mean is softplus(logits)."""
    dtype = logits.dtype
    n, logits, r = x.double(), logits.double(), shape.double()
    more = torch.log1p(F.softplus(logits, threshold=LINEAR) / r)  # log((r + m) / r)
    ways = log_rising(r, n) - torch.lgamma(n + 1)
    return (ways - r * more + n * (log_softplus(logits) - r.log() - more)).to(dtype)


def log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + exp(x))), x in float64. Below -37 it is x to the last digit, where exp(x) would end in log 0."""
    low = x < -37
    return torch.where(low, x, F.softplus(torch.where(low, 0.0, x), threshold=LINEAR).log())


def log_rising(z: Tensor, by: Tensor) -> Tensor:
    """log G(z + by) - log G(z), float64. Of a large z by Stirling's series, in which what is large cancels beforehand:
    at 1e12 the difference of two logarithms has no digit left.

    >>> z, half = torch.tensor([1e12, 0.5], dtype=torch.float64)
    >>> abs(log_rising(z, half).item() - 6 * math.log(10)) < 1e-12
    True
    """
    large = (z > 1e3) & (z + by > 1e3)
    small, some = torch.where(large, 1.0, z), torch.where(large, 0.0, by)
    z, by = torch.where(large, z, 2e3), torch.where(large, by, 0.0)
    main = (z + by - 0.5) * torch.log1p(by / z) + by * (z.log() - 1)
    rest = [(1 / (v * 12)) * (1 - 1 / (30 * v * v)) for v in (z + by, z)]  # the next term is 1 / (1260 v^5)
    return torch.where(large, main + rest[0] - rest[1], torch.lgamma(small + some) - torch.lgamma(small))
