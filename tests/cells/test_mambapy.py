"""Mamba against an implementation that nobody here wrote: mambapy's block, with the same parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.mamba import Mamba

peer = pytest.importorskip("mambapy.mamba")


def blocks(size: int, **options: int) -> tuple[Mamba, nn.Module]:
    """Ours and mambapy's, with the same parameters."""
    torch.manual_seed(0)
    N, expand, K, R = (options[k] for k in ("state_size", "expand", "conv", "dt_rank"))
    core = Mamba(size, size, **options)
    config = peer.MambaConfig(d_model=size, n_layers=1, d_state=N, expand_factor=expand, d_conv=K, dt_rank=R)
    block = peer.MambaBlock(config)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for theirs, ours in pairs(core, block):
            theirs.copy_(ours.T[:, None] if theirs.ndim == 3 else ours)
    return core, block


def pairs(core: Mamba, block: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Their parameter and ours; that of the convolution is (I, 1, K) there and (K, I) here."""
    return [
        (block.in_proj.weight, core.U), (block.conv1d.weight, core.w), (block.conv1d.bias, core.c),
        (block.x_proj.weight, core.S), (block.dt_proj.weight, core.W), (block.dt_proj.bias, core.b),
        (block.A_log, core.A_log), (block.D, core.D), (block.out_proj.weight, core.V),
    ]  # fmt: skip


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize(
    ("T", "options"),
    [
        (70, {"state_size": 16, "expand": 2, "conv": 4, "dt_rank": 1}),
        (64, {"state_size": 3, "expand": 3, "conv": 2, "dt_rank": 5}),
    ],
)
def test_the_same_outputs_and_gradients(T, options, kernel):
    core, block = blocks(12, **options)
    x = torch.randn(3, T, 12)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    g = torch.randn(3, T, 12)
    with kernels.use(kernel):
        y, _ = core.scan(ours)
        got = torch.autograd.grad(y, (ours, *(p for _, p in pairs(core, block))), g)
    expected = block(theirs)
    wanted = torch.autograd.grad(expected, (theirs, *(p for p, _ in pairs(core, block))), g)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    for given, other in zip(got, wanted, strict=True):
        other = other[:, 0].T if other.ndim == 3 and other.shape[1] == 1 else other
        torch.testing.assert_close(given, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
