"""Attention to a window against Torch's, whose mask says which inputs are in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman import laws
from elman.compose.attention.local import LocalAttention
from elman.errors import ElmanError

OPTIONS = [
    {"heads": 2, "window": 3},
    {"heads": 4, "groups": 2, "head_size": 6, "window": 4, "rotary": 4, "base": 100.0},
    {"heads": 2, "groups": 1, "window": 20},
]


def by_torch(core: LocalAttention, x: Tensor) -> Tensor:
    """x (B, T, D): rotation by positions, and scaled dot products under a mask of a band."""
    T, K, R = x.shape[1], core.head_size, core.rotary
    q, k, v = (x @ core.U.T).split([core.heads * K, core.groups * K, core.groups * K], -1)
    q, k, v = (part.unflatten(-1, (-1, K)).transpose(1, 2) for part in (q, k, v))
    angle = torch.arange(T)[:, None] / core.base ** (torch.arange(0, R, 2) / R)
    cos, sin = angle.cos(), angle.sin()

    def turn(part: Tensor) -> Tensor:
        a, b, rest = part.split([R // 2, R // 2, K - R], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    distance = torch.arange(T)[:, None] - torch.arange(T)
    band = (distance >= 0) & (distance < core.window)
    k, v = (part.repeat_interleave(core.heads // core.groups, 1) for part in (turn(k), v))
    y = torch.nn.functional.scaled_dot_product_attention(turn(q), k, v, attn_mask=band)
    return y.transpose(1, 2).flatten(2) @ core.O.T + core.c


@pytest.mark.parametrize("options", OPTIONS)
def test_torch_computes_the_same(options: dict) -> None:
    torch.manual_seed(0)
    core, x = LocalAttention(8, 8, **options), torch.randn(2, 13, 8)
    torch.nn.init.normal_(core.c)
    torch.testing.assert_close(core.scan(x)[0], by_torch(core, x))


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_the_laws_hold(options: dict) -> None:
    torch.manual_seed(0)
    report = laws.check(LocalAttention(8, 8, **options))
    assert report.ok and report.exact, report


def test_the_state_has_a_fixed_size() -> None:
    core = LocalAttention(8, 8, heads=2, window=3)
    sizes = {sum(leaf.numel() for leaf in core.scan(torch.randn(1, T, 8))[1]) for T in (0, 2, 20)}
    assert len(sizes) == 1


@pytest.mark.parametrize("start", [2**23 - 20, 2**24 - 30])
def test_a_ring_turns_for_ever(start: int) -> None:
    """Beyond what float32 can count to: the same as if fewer inputs had come by whole rounds."""
    torch.manual_seed(0)
    core, x = LocalAttention(8, 8, heads=2, window=3), torch.randn(2, 40, 8)
    state = core.scan(x[:, :10])[1]
    late = state._replace(t=state.t + start // 3 * 3)
    y, last = core.scan(x[:, 10:], late)
    wanted, same = core.scan(x[:, 10:], state)
    assert torch.equal(y, wanted) and torch.equal(last.keys, same.keys) and torch.equal(last.values, same.values)
    assert bool((last.t % 3 == same.t % 3).all()) and last.t.max() < 2**24


def test_an_odd_number_of_turned_columns_is_refused() -> None:
    for rotary in (3, 6):  # of heads of 4 columns
        with pytest.raises(ElmanError, match=f"rotary is {rotary}"):
            LocalAttention(8, 8, heads=2, window=3, rotary=rotary)
