"""What `hmm_gaussian`, a step of EM, is given besides the data."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class GaussianParameters(NamedTuple):
    """Of a hidden Markov model with Gaussian emissions, D-dimensional."""

    start: Tensor  # (K,)
    transition: Tensor  # (K, K)
    mean: Tensor  # (K, D)
    spread: Tensor  # variances (K, D), or lower Cholesky factors (G, D, D)


class GaussianPriors(NamedTuple):
    """What a step of EM takes besides the data; csrc/kernels.h explains the fields."""

    start: Tensor  # (K,)
    transition: Tensor  # (K, K)
    mean: Tensor  # (K, D)
    variance: Tensor  # (K, D)
    least: Tensor  # (D,)
    mean_weight: float
    variance_weight: float
    dead: float
    learns_start: bool
    learns_transition: bool
    learns_mean: bool
    learns_variance: bool
