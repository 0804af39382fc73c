"""Gated DeltaNet against transformers' layer of Qwen3-Next, with the same parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman.cells.gated_deltanet import GatedDeltaNet
from elman.errors import InputError

peer = pytest.importorskip("transformers.models.qwen3_next", exc_type=ImportError)


def rows_of(theirs: nn.Module) -> Tensor:
    """Their two products as one of ours, rows q, k, v, z, r, p: theirs has them group by group."""
    G, H, K, V = theirs.num_k_heads, theirs.num_v_heads, theirs.head_k_dim, theirs.head_v_dim
    groups = theirs.in_proj_qkvz.weight.view(G, -1, 6).split([K, K, H // G * V, H // G * V], 1)
    b, a = theirs.in_proj_ba.weight.view(G, -1, 6).chunk(2, 1)
    return torch.cat([part.flatten(0, 1) for part in (*groups, b, a)])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transformers_computes_the_same(groups: int) -> None:
    torch.manual_seed(0)
    config = peer.Qwen3NextConfig(
        hidden_size=6, num_hidden_layers=1, linear_num_key_heads=groups, linear_num_value_heads=4,
        linear_key_head_dim=3, linear_value_head_dim=5, rms_norm_eps=1e-5, layer_types=["linear_attention"],
    )  # fmt: skip
    theirs = peer.modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0)
    ours = GatedDeltaNet(6, 6, heads=4, groups=groups, key_size=3, value_size=5)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(0.5 * torch.randn_like(p))
        for mine, other in (
            (ours.U, rows_of(theirs)), (ours.w, theirs.conv1d.weight[:, 0].T), (ours.A_log, theirs.A_log),
            (ours.dt, theirs.dt_bias), (ours.g, theirs.norm.weight), (ours.O, theirs.out_proj.weight),
        ):  # fmt: skip
            mine.copy_(other)
    x = torch.randn(2, 70, 6, requires_grad=True)  # longer than a chunk of theirs
    arriving = torch.randn(2, 70, 6)
    results = []
    for y in (ours.scan(x)[0], theirs(x)):
        results.append((y, *torch.autograd.grad(y, x, arriving)))
    assert results[1][0].abs().max() > 0.1
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=2e-5)


def test_the_equations_with_a_carried_state_and_a_reset(randomised, delta_rule) -> None:
    core = randomised(GatedDeltaNet(3, 4, heads=4, groups=2, key_size=3, value_size=2, conv=3))

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        u, z, r, p = (core.U @ x).split([20, 8, 4, 4])
        a = torch.exp(-torch.exp(core.A_log) * torch.log1p(torch.exp(p + core.dt)))
        return u, r, a[:, None].expand(4, 3), z * torch.sigmoid(z)

    delta_rule(core, parts)


def test_groups_must_divide_the_heads() -> None:
    with pytest.raises(InputError, match="groups is 2, and there are 3 heads"):
        GatedDeltaNet(2, 6, heads=3, groups=2)
