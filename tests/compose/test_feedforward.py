"""Feed-forward networks: their equations, the laws, and a stream in one native step."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import laws
from elman.compose.feedforward import ChannelMixing, FeedForward
from elman.errors import ElmanError

THEIRS = {"relu": torch.relu, "silu": torch.nn.functional.silu, "gelu": torch.nn.GELU(approximate="tanh")}


@pytest.mark.parametrize("activation", THEIRS)
@pytest.mark.parametrize("gated", [True, False])
def test_it_is_its_equation(activation: str, gated: bool) -> None:
    torch.manual_seed(0)
    core, x = FeedForward(3, 5, activation=activation, gated=gated, bias=True), torch.randn(2, 4, 3)
    torch.nn.init.normal_(core.b)
    torch.nn.init.normal_(core.c)
    u = x @ core.U.T + core.b
    u = THEIRS[activation](u[..., :5]) * u[..., 5:] if gated else THEIRS[activation](u)
    torch.testing.assert_close(core.scan(x)[0], u @ core.V.T + core.c)


def test_channel_mixing_is_its_equation() -> None:
    torch.manual_seed(0)
    core, x = ChannelMixing(3, 5), torch.randn(2, 4, 3)
    before = torch.cat([torch.zeros(2, 1, 3), x[:, :-1]], 1)
    u = torch.relu((x + core.mu * (before - x)) @ core.U.T).square()
    torch.testing.assert_close(core.scan(x)[0], u @ core.V.T)


@pytest.mark.parametrize("core", [FeedForward(3, 5, activation="gelu", bias=True), ChannelMixing(3, 5)])
def test_the_laws_hold(core: elman.Core) -> None:
    report = laws.check(core)
    assert report.ok and report.exact, report
    assert elman.Stream(core, 2).native


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ElmanError, match="'swish'; there are gelu, relu, silu"):
        FeedForward(3, 5, activation="swish")
