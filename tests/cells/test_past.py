"""What came before each input of a scan is what a loop over steps remembers, with lengths and resets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elman.cells.past import Past, ScanPast, StepPast

B, T, C = 4, 7, 3
LENGTHS = torch.tensor([0, 7, 4, 6])
F64 = torch.float64
Use = Callable[[Past, Tensor], tuple[Tensor, ...]]

USES: dict[str, tuple[tuple[int, ...], torch.dtype, Use]] = {
    "convolution": ((3, C), F64, lambda past, x: (past.convolve("leaf", x, torch.arange(12.0).view(4, C).to(F64)),)),
    "shift": ((C,), F64, lambda past, x: (past.shift("leaf", x),)),
    "count": ((1,), F64, lambda past, x: (past.count("leaf", x),)),
    "turn": ((2,), torch.complex128, lambda past, x: (past.turn("leaf", torch.tensor([1.0, 0.3], dtype=F64)),)),
    "turn by the input": ((C,), torch.complex128, lambda past, x: (past.turn("leaf", x),)),
    "maximum": ((C,), F64, lambda past, x: (past.maximum("leaf", x, x.flip(-1)),)),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("first", [True, False])
def test_a_scan_remembers_what_steps_do(name: str, first: bool) -> None:
    shape, dtype, use = USES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(B, T, C, generator=generator, dtype=F64)
    reset = torch.rand(B, T, generator=generator) < 0.3
    reset[:, 0] = first
    leaf = torch.rand(B, *shape, generator=generator, dtype=dtype)
    past = ScanPast({"leaf": leaf}, LENGTHS, reset)
    whole = use(past, x)
    for b in range(B):
        state = leaf[b : b + 1]
        for t in range(int(LENGTHS[b])):
            state = torch.zeros_like(state) if reset[b, t] else state
            step = StepPast({"leaf": state})
            for found, wanted in zip(whole, use(step, x[b : b + 1, t]), strict=True):
                torch.testing.assert_close(found[b : b + 1, t], wanted)
            state = step.after["leaf"]
        torch.testing.assert_close(past.after["leaf"][b : b + 1], state)


def test_the_input_before_is_not_what_becomes_of_it() -> None:
    """Who gives an input may write the next one into the same memory."""
    x, step = torch.ones(2, C), StepPast({"leaf": torch.zeros(2, C)})
    step.shift("leaf", x)
    x.zero_()
    assert step.after["leaf"].tolist() == [[1.0] * C] * 2


def test_a_turn_stays_on_the_circle() -> None:
    """In float32 the leaf itself drifts off it, by what rounding adds in each of many steps."""
    theta = torch.tensor([1.0, 0.01, 1e-4], dtype=F64)
    past = ScanPast(
        {"h": torch.zeros(1, 3, dtype=torch.complex64)}, torch.tensor([50_000]), torch.zeros(1, 50_000).bool()
    )
    cos, sin = past.turn("h", theta)[0, -1].double().view(3, 2).unbind(1)
    torch.testing.assert_close(cos**2 + sin**2, torch.ones(3, dtype=F64), rtol=1e-6, atol=0)
    off = torch.atan2(sin, cos) - 50_000 * theta
    assert (torch.remainder(off + torch.pi, 2 * torch.pi) - torch.pi).abs().max() < 0.01  # of 50,000 radians
