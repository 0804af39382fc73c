"""log P(symbol) under a softmax, where logits are many: a batch of word models has more of them than fit any cache.

Torch makes two more arrays as large as the logits, the log-probabilities and their gradient, in memory that is mapped
anew in every step: page faults took a third of the time of a word model. Here both are made some rows at a time, in one
buffer, and used at once: the gradients of what the logits are a product of are computed block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elman import kernels

BLOCK = 1 << 22  # numbers: 16 MiB of float32, of which glibc keeps what was freed for the next time (up to 32)


class Product(NamedTuple):
    """What logits (..., V) are: h W^T + b."""

    h: Tensor  # (..., H)
    weight: Tensor  # (V, H)
    bias: Tensor | None  # (V,)


def log_prob(logits: Tensor, symbols: Tensor, product: Product | None = None) -> Tensor:
    """logits[symbol] - logsumexp(logits): logits (..., V), symbols (...) -> (...). `product` is what logits are.

    >>> log_prob(torch.zeros(1, 4), torch.tensor([2])).exp().item()
    0.25
    """
    flat, at = logits.reshape(-1, logits.shape[-1]), symbols.reshape(-1)
    if product is not None and torch.is_grad_enabled() and logits.requires_grad:
        h = product.h.reshape(-1, product.h.shape[-1])
        return _LogProb.apply(flat.detach(), at, h, product.weight, product.bias).reshape(symbols.shape)
    return -F.cross_entropy(flat, at, reduction="none").reshape(symbols.shape)


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, at: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(logits, at, h, weight, bias)
        found = logits.new_empty(len(at))
        for rows, block in _blocks(logits):
            torch.log_softmax(logits[rows], -1, out=block)
            torch.gather(block, 1, at[rows, None], out=found[rows, None])
        return found

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        logits, at, h, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            g = gy[:, None] * (F.one_hot(at, len(weight)) - kernels.linear(h, weight, bias).softmax(-1))
            return None, None, (g @ weight).to(h.dtype), g.t() @ h.to(g.dtype), None if bias is None else g.sum(0)
        wide = h.to(weight.dtype)
        gx, gw, gb = torch.empty_like(wide), torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        turned = weight.t().contiguous()
        for rows, g in _blocks(logits):
            torch.softmax(logits[rows], -1, out=g)
            g.mul_(-gy[rows, None]).scatter_add_(1, at[rows, None], gy[rows, None])
            gx[rows] = kernels.linear(g, turned)
            gw.addmm_(g.t(), wide[rows])
            if gb is not None:
                gb += g.sum(0)
        return None, None, gx.to(h.dtype), gw, gb


def _blocks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some rows of logits (M, V) at a time, and a buffer as large as they are."""
    M, V = logits.shape
    most = max(1, min(M, BLOCK // max(1, V)))
    buffer = logits.new_empty(most, V)
    for begin in range(0, M, most):
        end = min(begin + most, M)
        yield slice(begin, end), buffer[: end - begin]
