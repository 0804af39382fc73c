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


@torch.no_grad()
def test_the_equations_with_a_carried_state_and_a_reset(randomised) -> None:
    """S = a (I - b k k^T) S' + b k v^T, as the paper has it, with whole matrices."""
    core = randomised(GatedDeltaNet(3, 4, heads=4, groups=2, key_size=3, value_size=2, conv=3))
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    start = type(core.init_state(0))(*(torch.randn_like(leaf) for leaf in core.init_state(1)))
    reset = torch.tensor([[False, False, False, True, False, False]])
    y, last = core.scan(x, start, reset=reset)
    S, window = start.S[0].clone(), start.window[0]
    for t in range(6):
        if reset[0, t]:
            S, window = torch.zeros_like(S), torch.zeros_like(window)
        u, z, r, p = (core.U @ x[0, t]).split([20, 8, 4, 4])
        window = torch.cat([window, u[None]])
        c = (core.w * window).sum(0)
        q, k, v = (c * torch.sigmoid(c)).split([6, 6, 8])
        window, reads = window[1:], []
        for h in range(4):
            group = h // 2
            qh, kh, vh = q.view(2, 3)[group], k.view(2, 3)[group], v.view(4, 2)[h]
            qh, kh = qh / torch.sqrt(qh @ qh + 1e-6) / 3**0.5, kh / torch.sqrt(kh @ kh + 1e-6)
            a, b = torch.exp(-torch.exp(core.A_log[h]) * torch.log1p(torch.exp(p[h] + core.dt[h]))), torch.sigmoid(r[h])
            S[h] = a * (torch.eye(3) - b * torch.outer(kh, kh)) @ S[h] + b * torch.outer(kh, vh)
            s = S[h].T @ qh
            reads.append(core.g * s / torch.sqrt((s**2).mean() + 1e-5))
        expected = core.O @ (torch.cat(reads) * z * torch.sigmoid(z))
        torch.testing.assert_close(y[0, t], expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.S[0], S, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.window[0], window)


def test_groups_must_divide_the_heads() -> None:
    with pytest.raises(InputError, match="groups is 2, and there are 3 heads"):
        GatedDeltaNet(2, 6, heads=3, groups=2)
