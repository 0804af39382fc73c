"""Layer normalisation inside a cell (J. L. Ba, J. R. Kiros, G. E. Hinton, 2016)."""

from __future__ import annotations

from torch import Tensor

from elman import kernels


def layer_norm(v: Tensor, gain: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """LN(v) = gain * (v - mean v) / std v + bias, over the last axis of v (..., H); v itself where there is no gain.

    >>> import torch
    >>> layer_norm(torch.tensor([[-1.0, 1.0]]), torch.ones(2)).round().tolist()
    [[-1.0, 1.0]]
    """
    if gain is None:
        return v
    return kernels.layer_norm(v, gain.to(v.dtype), None if bias is None else bias.to(v.dtype), 1e-5)
