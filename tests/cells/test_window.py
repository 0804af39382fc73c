from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elman.cells.window import Window, WindowState
from elman.errors import InputError


def convolution(core: Window, past: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """tanh of a causal convolution over the carried inputs and x (B, T, D)."""
    kernel = core.W.unflatten(1, (core.k, core.input_size)).transpose(1, 2)
    return F.conv1d(torch.cat([past, x], 1).transpose(1, 2), kernel, core.b).tanh().transpose(1, 2)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_is_a_causal_convolution(k, same, randomised, draw):
    core = randomised(Window(3, 4, k=k))
    x, past = draw(0, 2, 6, 3), draw(1, 2, k - 1, 3)
    y, last = core.scan(x, WindowState(past))
    torch.testing.assert_close(last.past, torch.cat([past, x], 1)[:, 6:])
    inputs = {"x": x, **({"past": past} if k > 1 else {}), **dict(core.named_parameters())}
    same([y], [convolution(core, past, x)], inputs)


@pytest.mark.parametrize("k", [2, 5, 9])
def test_no_window_crosses_a_reset(k, same, randomised, draw):
    """Episodes [0, 3), [3, 4), [4, 6), each convolved by itself; the first still sees what was carried."""
    core = randomised(Window(3, 4, k=k))
    x, past = draw(0, 1, 6, 3), draw(1, 1, k - 1, 3)
    reset = torch.tensor([[False, False, False, True, True, False]])
    y, last = core.scan(x, WindowState(past), reset=reset)
    nothing = torch.zeros_like(past)
    pieces = [(past, x[:, :3]), (nothing, x[:, 3:4]), (nothing, x[:, 4:])]
    expected = torch.cat([convolution(core, before, episode) for before, episode in pieces], 1)
    expected_last = torch.cat([nothing, x[:, 4:]], 1)[:, -(k - 1) :]
    same([y, last.past], [expected, expected_last], {"x": x, "past": past, "W": core.W})


def test_ragged_rows_remember_their_last_valid_inputs(randomised, draw):
    core = randomised(Window(2, 4, k=4))
    x, past = draw(0, 4, 5, 2), draw(1, 4, 3, 2)
    lengths, reset = torch.tensor([0, 2, 5, 3]), torch.zeros(4, 5, dtype=torch.bool)
    reset[1, 2] = reset[0, 0] = True  # in the padding: it never happens
    reset[3, 2] = True
    _, last = core.scan(x, WindowState(past), lengths=lengths, reset=reset)
    zero = torch.zeros(2, 2, dtype=torch.float64)
    expected = [past[0], torch.cat([past[1, 2:], x[1, :2]]), x[2, 2:], torch.cat([zero, x[3, 2:3]])]
    torch.testing.assert_close(last.past, torch.stack(expected), rtol=0, atol=0)


def test_k_is_a_positive_whole_number():
    with pytest.raises(InputError, match="k is 0; it must be a whole number of at least 1"):
        Window(3, 4, k=0)
