"""The log-likelihood of a long sequence with all time steps at once: matrices multiplied pair by pair, log2(T)
levels deep.

    M[t] = transition * exp(x[t] - max x[t]) by columns,   log p = log(start l[0] M[1] M[2] ... M[T-1] 1) + sum
    of what was taken out

Each product is scaled by its largest entry, whose logarithm is kept. It takes K times the arithmetic of the
filter, in T K^2 memory:
for few states and devices with many processors. Its gradients are, as always, posteriors and expected counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.kernels.reference import log


def log_likelihood(x: Tensor, start: Tensor, transition: Tensor) -> Tensor:
    """x (B, T, K), whole sequences -> log p (B,).

    >>> half = torch.full((2,), 0.5)
    >>> log_likelihood(torch.zeros(1, 5, 2), half, half.expand(2, 2)).tolist()
    [0.0]
    """
    if x.shape[1] == 0:
        return x.new_zeros(len(x))
    shift = x.detach().amax(-1, keepdim=True)
    shift = torch.where(shift.isfinite(), shift, 0.0)
    likelihood = torch.exp(x - shift)
    first = start * likelihood[:, :1]  # (B, 1, K)
    chain, taken = _product(transition * likelihood[:, 1:, None, :])
    return log((first @ chain).sum((-1, -2))) + taken + shift.sum((1, 2))


def _product(m: Tensor) -> tuple[Tensor, Tensor]:
    """m (B, T, K, K) -> the product over T (B, K, K), scaled, and the logarithm of the scale (B,)."""
    B, T, K, _ = m.shape
    taken = m.new_zeros(B)
    if T == 0:
        return torch.eye(K, dtype=m.dtype, device=m.device).expand(B, K, K), taken
    while T > 1:
        paired = m[:, : T // 2 * 2 : 2] @ m[:, 1 : T // 2 * 2 : 2]
        top = paired.detach().amax((-1, -2), keepdim=True)
        top = torch.where(top > 0, top, 1.0)
        taken = taken + top.log().sum((1, 2, 3))
        m = torch.cat([paired / top, m[:, T // 2 * 2 :]], 1)
        T = m.shape[1]
    return m[:, 0], taken
