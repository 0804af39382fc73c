"""Kimi delta attention against transformers' layer, with the same parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.cells.kda import KDA
from elman.errors import InputError

peer = pytest.importorskip("transformers.models.kimi_linear", exc_type=ImportError)


def test_transformers_computes_the_same() -> None:
    torch.manual_seed(0)
    config = peer.KimiLinearConfig(
        hidden_size=6, num_hidden_layers=1, linear_num_heads=2, linear_head_dim=4, rms_norm_eps=1e-5,
        layer_types=["linear_attention"], pad_token_id=0,
    )  # fmt: skip
    theirs = peer.modeling_kimi_linear.KimiLinearDeltaAttention(config, 0)
    ours = KDA(6, 6, heads=2, key_size=4, value_size=4)
    gate = theirs.forget_gate
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(0.5 * torch.randn_like(p))
        rows = [part.weight for part in (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.b_proj)]
        for mine, other in (
            (ours.U, torch.cat(rows)), (ours.w, theirs.conv1d.weight[:, 0].T), (ours.W_1, gate.f_a_proj.weight),
            (ours.W_2, gate.f_b_proj.weight), (ours.Z_1, theirs.g_a_proj.weight), (ours.Z_2, theirs.g_b_proj.weight),
            (ours.A_log, gate.A_log.flatten()), (ours.dt, gate.dt_bias), (ours.g, theirs.o_norm.weight),
            (ours.O, theirs.o_proj.weight),
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
    core = randomised(KDA(3, 4, heads=2, key_size=3, value_size=2, rank=2, conv=3))

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        u, r = (core.U @ x).split([16, 2])
        dt = torch.log1p(torch.exp(core.W_2 @ (core.W_1 @ x) + core.dt)).view(2, 3)
        a = torch.exp(-torch.exp(core.A_log)[:, None] * dt)
        return u, r, a, torch.sigmoid(core.Z_2 @ (core.Z_1 @ x))

    delta_rule(core, parts)


def test_options_outside_their_range_are_named() -> None:
    with pytest.raises(InputError, match="rank is 0"):
        KDA(2, 6, rank=0)
