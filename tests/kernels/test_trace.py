"""What a traced equation appends to a program, against the same equation on tensors: bit for bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elman import kernels

pytest.importorskip("elman.kernels.native")
from elman.kernels.builder import Slot, Unstreamable
from elman.kernels.native.program import Program
from elman.kernels.trace import slot_of, step_through, traced

B, D = 3, 6
W, V = torch.randn(2, 4, D, generator=torch.Generator().manual_seed(0)).unbind()
G = torch.randn(D, generator=torch.Generator().manual_seed(1))

EQUATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: kernels.linear(x, W),
    "linear with a bias": lambda x: kernels.linear(x, W, G[:4]),
    "windows that overlap": lambda x: kernels.windows(x, V[:, :3], G[:4], 2),
    "windows as wide as vectors": lambda x: kernels.windows(x, torch.cat([V] * 16)[:, :2], None, 1),
    "one window": lambda x: kernels.windows(x, W, None, 5),
    "square root": lambda x: kernels.sqrt(x * x),
    "sigmoid": kernels.sigmoid,
    "tanh": kernels.tanh,
    "softplus": kernels.softplus,
    "silu": kernels.silu,
    "relu": torch.relu,
    "exp": kernels.exp,
    "sine": kernels.sin,
    "cosine": lambda x: kernels.cos(x * 1e7),
    "l2 norm": lambda x: kernels.l2_norm(x, 1e-6),
    "layer norm": lambda x: kernels.layer_norm(x, G, -G, 1e-5),
    "rms norm": lambda x: kernels.rms_norm(x, G, 1e-5),
    "sum": lambda x: x + kernels.tanh(x),
    "difference": lambda x: x - kernels.tanh(x),
    "product": lambda x: x * kernels.tanh(x),
    "negative": lambda x: -x,
    "number on the right": lambda x: (x + 2) * 3 - 0.1,
    "number on the left": lambda x: 2 + 3 * (1 - x),
    "tensor on the right": lambda x: (x + G) * G - G,
    "tensor on the left": lambda x: G + G * (G - x),
    "one for all": lambda x: torch.tensor(0.3) * x,
    "chunk": lambda x: x.chunk(2, -1)[1] * x.chunk(2, -1)[0],
    "split": lambda x: x.split([1, 5], -1)[1],
    "of no input": lambda x: G * 2,
    "log": lambda x: kernels.log(x.abs()),
    "absolute value": lambda x: x.abs(),
    "quotient": lambda x: x / kernels.tanh(x),
    "quotient by a number": lambda x: x / 3,
    "each column three times": lambda x: x.repeat_interleave(3, -1) * kernels.tanh(x).repeat_interleave(3, -1),
    "columns": lambda x: x[..., 1:4] * x[..., [5, 0, 0]],
    "the last columns": lambda x: x[..., -2:],
    "every other column": lambda x: x[..., 1::2],
    "choice": lambda x: torch.where(x > 0, x * 2, 0.25),
    "choice by another": lambda x: torch.where(kernels.tanh(x) > 0, 1.0, -x),
    "larger": lambda x: torch.maximum(x, kernels.tanh(x)),
    "clamp": lambda x: x.clamp(-1.5, 0.5),
    "side by side": lambda x: torch.cat([x, x[..., :1]], -1),
    "one column beside many": lambda x: (x - x[..., :1]) / x[..., 1:2],
    "zeros and ones": lambda x: torch.zeros_like(x) - torch.ones_like(x),
}


def stream(program: Program, x: Slot, y: Slot) -> Callable[[Tensor], Tensor]:
    """The program of x and y, as a function of x that remembers its state."""
    program.finish(x, y)
    rows, outputs = program.stream(B), program.outputs()
    return lambda given: torch.from_numpy(rows.step(given.numpy(), None, outputs, 1))


@pytest.mark.parametrize("name", EQUATIONS)
def test_an_equation_has_the_bits_it_has_on_tensors(name: str) -> None:
    equation, x = EQUATIONS[name], torch.randn(B, D, generator=torch.Generator().manual_seed(2)) * 3
    program = Program(torch.float32)
    slot = program.input(D)
    y = slot_of(program, equation(traced(program, slot)))
    expected = equation(x)
    assert torch.equal(stream(program, slot, y)(x), expected.expand(B, -1))


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "a quotient of a number": lambda x: 1 / x,
    "a power": lambda x: x**2,
    "a row": lambda x: x[0],
    "an index": lambda x: x[:, 0],
    "one column": lambda x: x[..., 0],
    "a comparison": lambda x: x > 1,
    "a comparison with a value": lambda x: torch.where(x > x, x, x),
    "a condition as a number": lambda x: (x > 0) * 2,  # type: ignore[operator]
    "a condition of two": lambda x: (x > 0) & (x > 0),
    "a condition from outside": lambda x: torch.where(G > 0, x, x),
    "side by side along the batch": lambda x: torch.cat([x, x]),
    "a tensor at its side": lambda x: torch.cat([x, torch.ones(B, 1)], -1),
    "a branch": lambda x: 1 if x else 0,
    "a method": lambda x: x.exp(),
    "a function": lambda x: torch.exp(x),
    "a function of Torch with options": lambda x: torch.relu(input=x),
    "another axis": lambda x: x.chunk(2, 0),
    "axis zero": lambda x: x.chunk(2),
    "parts of a width": lambda x: x.split(2, -1),
    "a wider value": lambda x: x.to(torch.float64),
    "a value that is broadcast": lambda x: x.split([1, 5], -1)[0] * x,
    "a tensor of many rows": lambda x: x * torch.ones(2, D),
    "what changes a tensor": lambda x: G.clone().add_(x),
    "another kernel": lambda x: kernels.reverse(x, G),
    "a kernel over time": lambda x: kernels.linear_scan(G, x, x, G, G),
    "unequal parts": lambda x: x.split([1, 2], -1),
    "a product of tensors": lambda x: W @ x,
    "an equality": lambda x: x == x,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_says_so(name: str) -> None:
    program = Program(torch.float32)
    with pytest.raises(Unstreamable):
        REFUSED[name](traced(program, program.input(D)))


def test_what_is_not_a_number_stays_so() -> None:
    """NaN and infinities pass as they do in Torch, on either side."""
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0, 1.0, -1.0]] * B)
    y = x.flip(1)
    for function in (torch.maximum, lambda a, b: a.clamp(-0.5, 0.5) / b, lambda a, b: torch.where(a > 0, a, b)):
        program = Program(torch.float32)
        slot = program.input(2 * D)
        a, b = traced(program, slot).chunk(2, -1)
        found = stream(program, slot, slot_of(program, function(a, b)))(torch.cat([x, y], 1))
        torch.testing.assert_close(found, function(x, y), rtol=0, atol=0, equal_nan=True)


def test_leaves_that_take_over_one_another() -> None:
    """All of the new state is made of the old one, whatever the order in which its leaves are written."""

    def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        a, b, (c,) = state
        return c, (b, c, (a + x,))  # type: ignore[return-value]

    like = (torch.zeros(B, D), torch.zeros(B, D), (torch.zeros(B, D),))
    program = Program(torch.float32)
    x, (a, b, c) = program.input(D), (program.state(D) for _ in range(3))
    run = stream(program, x, step_through(program, step, x, (a, b, (c,)), like))
    state, steps = like, torch.randn(7, B, D)
    for xt in steps:
        expected, state = step(xt, state)  # type: ignore[assignment]
        assert torch.equal(run(xt), expected)
