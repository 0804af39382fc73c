"""RG-LRU in its block against transformers' layer of RecurrentGemma, and against its equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from elman.cells.rglru import RGLRU
from elman.errors import InputError
from elman.stream import Stream


def layers() -> tuple[RGLRU, nn.Module]:
    peer = pytest.importorskip("transformers.models.recurrent_gemma", exc_type=ImportError)
    torch.manual_seed(0)
    config = peer.RecurrentGemmaConfig(
        hidden_size=6, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=8,
        lru_width=8, conv1d_width=4, hidden_activation="gelu_pytorch_tanh",
    )  # fmt: skip
    theirs = peer.modeling_recurrent_gemma.RecurrentGemmaRecurrentBlock(config, 0)
    ours, unit = RGLRU(6, 6, width=8, heads=2), theirs.rg_lru
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(0.5 * torch.randn_like(p))
        for mine, other in (
            (ours.U, torch.cat([theirs.linear_x.weight, theirs.linear_y.weight])),
            (ours.b, torch.cat([theirs.linear_x.bias, theirs.linear_y.bias])),
            (ours.w, theirs.conv_1d.weight[:, 0].T), (ours.c, theirs.conv_1d.bias),
            (ours.W_a, unit.recurrent_gate_weight.mT), (ours.b_a, unit.recurrent_gate_bias.flatten()),
            (ours.W_x, unit.input_gate_weight.mT), (ours.b_x, unit.input_gate_bias.flatten()),
            (ours.L, unit.recurrent_param), (ours.O, theirs.linear_out.weight), (ours.o, theirs.linear_out.bias),
        ):  # fmt: skip
            mine.copy_(other)
    return ours, theirs


def test_transformers_computes_the_same() -> None:
    ours, theirs = layers()
    x, arriving = torch.randn(2, 11, 6, requires_grad=True), torch.randn(2, 11, 6)
    positions = torch.arange(11).expand(2, -1)
    results = []
    for y in (ours.scan(x)[0], theirs(x, positions, None, use_cache=False)[0]):
        results.append((y, *torch.autograd.grad(y, x, arriving)))
    assert results[1][0].abs().max() > 0.1
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_first_input_of_an_episode_is_not_scaled(randomised) -> None:
    """Nor one after a reset, in a scan, in steps and in a stream; every other is, by sqrt(1 - a^2)."""
    core = randomised(RGLRU(3, 4, conv=1))
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    reset = torch.tensor([[False, False, False, True, False, False]])
    _, state = core.scan(x, reset=reset)
    h = torch.zeros(4, dtype=torch.float64)
    for t in range(6):
        u = (core.U @ x[0, t] + core.b)[:4]
        v = core.w[0] * u + core.c
        r, i = (torch.sigmoid(W[0] @ v + b) for W, b in ((core.W_a, core.b_a), (core.W_x, core.b_x)))
        log_a = -8 * r * torch.log1p(torch.exp(core.L))
        h = i * v if t in (0, 3) else torch.exp(log_a) * h + torch.sqrt(-torch.expm1(2 * log_a)) * i * v
    torch.testing.assert_close(state.h[0], h, rtol=1e-10, atol=1e-12)
    assert state.t.tolist() == [[3.0]]
    stream = Stream(core, 1)
    for t in range(3, 6):
        stream.step(x[:, t])
    torch.testing.assert_close(stream.state.h[0], h, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_slow_channel_keeps_its_input_in_float32() -> None:
    """1 - a^2 is lost in rounding where a is within 1e-7 of 1; what is written must not be."""
    core = RGLRU(1, 1, conv=1)
    core.L.fill_(-18.0)
    core.b.fill_(1.0)
    rate = 8 * torch.sigmoid(torch.zeros(1)) * torch.log1p(torch.exp(torch.tensor(-18.0).double()))
    a, b, _ = core.coefficients(torch.zeros(1, 1), _later(core))
    u = core.w[0] * 1.0
    gate = torch.sigmoid(core.W_a[0, 0] * u), torch.sigmoid(core.W_x[0, 0] * u)
    expected = torch.sqrt(-torch.expm1(-2 * rate * 2 * gate[0].double())) * gate[1] * u
    torch.testing.assert_close(b[0].double(), expected, rtol=1e-5, atol=0)


def _later(core: RGLRU):
    from elman.cells.past import StepPast

    return StepPast(core.init_state(1)._replace(t=torch.ones(1, 1))._asdict())


def test_decays_start_as_in_the_paper() -> None:
    torch.manual_seed(0)
    core = RGLRU(2, 2000)
    a = torch.exp(-8 * torch.log1p(torch.exp(core.L.detach().double())))
    assert 0.9 <= a.min() < 0.905 and 0.998 < a.max() <= 0.999
    assert math.isclose(float((a**2).mean()), (0.9**2 + 0.999**2) / 2, abs_tol=0.01)


def test_options_outside_their_range_are_named() -> None:
    with pytest.raises(InputError, match="heads is 3, and there are 4 channels"):
        RGLRU(2, 4, heads=3)
    with pytest.raises(InputError, match="width is 0"):
        RGLRU(2, 4, width=0)
