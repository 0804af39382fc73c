"""Products, functions of each element, norms, and rows turned around or spelt as JSON."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from elman.lengths import valid

linear = F.linear
exp = torch.exp
sin = torch.sin
cos = torch.cos
sigmoid = torch.sigmoid
tanh = torch.tanh
softplus = F.softplus
silu = F.silu


def log(p: Tensor) -> Tensor:
    """log p of a probability, -inf where p is zero; the gradient there is zero, not infinite: what cannot
    happen has no say."""
    none = p <= 0
    return torch.where(none, -torch.inf, torch.where(none, 1.0, p).log())


def log_sum_exp(v: Tensor) -> Tensor:
    """log sum exp v over the last axis. Where all of v is -inf so is the sum, and its gradient is zero, not NaN.

    >>> log_sum_exp(torch.tensor([[0., 0.], [-torch.inf, -torch.inf]]))
    tensor([0.6931,   -inf])
    """
    top = v.detach().amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    return log(torch.exp(v - top).sum(-1)) + top[..., 0]


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Tensor:
    """gain * (x - mean x) / sqrt(var x + eps) + bias over the last axis of x (..., N), or over each head of it."""
    if heads == 1:
        return F.layer_norm(x, gain.shape, gain, bias, eps)
    return affine(F.layer_norm(parts := x.unflatten(-1, (heads, -1)), parts.shape[-1:], eps=eps), gain, bias)


def rms_norm(x: Tensor, gain: Tensor, eps: float, heads: int = 1) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) over the last axis of x (..., N), or over each head of it."""
    if heads == 1:
        return F.rms_norm(x, gain.shape, gain, eps)
    return affine(F.rms_norm(parts := x.unflatten(-1, (heads, -1)), parts.shape[-1:], eps=eps), gain, None)


def l2_norm(x: Tensor, eps: float, heads: int = 1) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis of x (..., N), or over each head of it."""
    parts = x.unflatten(-1, (heads, -1))
    return (parts * torch.rsqrt(parts.square().sum(-1, keepdim=True) + eps)).flatten(-2)


def affine(x: Tensor, gain: Tensor, bias: Tensor | None) -> Tensor:
    """gain * x + bias, side by side: x (..., heads, N); gain and bias (N,), the same for each head, or (heads * N,)."""
    y = x * _by_head(gain, x)
    return (y if bias is None else y + _by_head(bias, x)).flatten(-2)


def _by_head(weight: Tensor, x: Tensor) -> Tensor:
    return weight if weight.shape == x.shape[-1:] else weight.view(x.shape[-2:])


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the valid prefix of each row of x (B, T, ...); the padding stays where it is."""
    B, T = x.shape[:2]
    t = torch.arange(T, device=x.device)
    source = torch.where(valid(lengths, T), lengths[:, None] - 1 - t, t)
    rows = torch.arange(B, device=x.device)[:, None]
    return x[rows, source]


def json_rows(y: NDArray[np.float32]) -> list[bytes]:
    """Each row of y (n, H) as a JSON array; what is not finite is null. A float32 is spelt as the double that it is."""
    spelt = ((repr(value) if math.isfinite(value) else "null" for value in row) for row in y.tolist())
    return [f"[{','.join(row)}]".encode() for row in spelt]
