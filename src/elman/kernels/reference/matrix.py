"""States that are matrices, one for each head: written by outer products, read by a product with a vector."""

from __future__ import annotations

import torch
from torch import Tensor

from elman.lengths import checked, masked, valid


def matrix_scan(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, S0: Tensor, lengths: Tensor, reset: Tensor,
    b: Tensor | None = None, alpha: Tensor | None = None, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """S[t] = diag(a) S[t-1] + k v^T, y[t] = S[t]^T q for each head, step by step: y (B, T, H, V), last S (B, H, K, V).

    With b the value that is written is b (v - (a * k)^T S[t-1]); with alpha and beta, beta (alpha^T S[t-1]) is added.
    """
    T, H = v.shape[1:3]
    lengths = checked(lengths, v)

    def of_heads(x: Tensor) -> Tensor:
        # What is past the lengths must not come into a product, whose gradient would be NaN where that is infinite.
        x = masked(x, lengths)
        return x if x.shape[2] == H else x.repeat_interleave(H // x.shape[2], 2)

    q, k, v = of_heads(q), of_heads(k), of_heads(v)
    decay = None if a is None else of_heads(a[..., None] if a.dim() == 3 else a)
    strength = None if b is None else of_heads(b)[..., None]
    correction = None if alpha is None or beta is None else (of_heads(alpha), of_heads(beta))
    inside = valid(lengths, T)
    S, ys = S0, []
    for t in range(T):
        before = torch.where(reset[:, t, None, None, None], S.new_zeros(()), S)
        kept = before if decay is None else decay[:, t, :, :, None] * before
        if correction is not None:
            kept = kept + correction[1][:, t, :, :, None] * _read(before, correction[0][:, t])[:, :, None]
        value = v[:, t] if strength is None else strength[:, t] * (v[:, t] - _read(kept, k[:, t]))
        new = kept + k[:, t, :, :, None] * value[:, :, None]
        ys.append(_read(new, q[:, t]))
        S = torch.where(inside[:, t, None, None, None], new, S)
    y = torch.stack(ys, 1) if ys else v
    return masked(y, lengths), S


def _read(S: Tensor, x: Tensor) -> Tensor:
    """S^T x: S (B, H, K, V), x (B, H, K) -> (B, H, V)."""
    return torch.einsum("bhkv,bhk->bhv", S, x)


def max_scan(a: Tensor, b: Tensor, m0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """m[t] = max(a[t] + m[t-1], b[t]): m (B, T, C), zero past lengths, and the last m (B, C)."""
    lengths = checked(lengths, a)
    a, b = masked(a, lengths), masked(b, lengths)
    inside = valid(lengths, a.shape[1])[..., None]
    m, ms = m0, []
    for t in range(a.shape[1]):
        new = torch.maximum(a[:, t] + torch.where(reset[:, t, None], m.new_zeros(()), m), b[:, t])
        ms.append(new)
        m = torch.where(inside[:, t], new, m)
    return masked(torch.stack(ms, 1) if ms else a, lengths), m
