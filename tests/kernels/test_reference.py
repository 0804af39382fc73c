"""The reference scan against the loop that defines it, in both directions, real and complex."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman.kernels import reference


def by_loop(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    def recur(ab: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        at, bt = ab.chunk(2, -1)
        h = at * h + bt
        return h, h

    ab = torch.cat([a.expand_as(b), b], -1)
    return reference.loop(recur, ab, h0, torch.zeros_like(h0), lengths, reset, b.shape[-1])


def inputs(B: int, T: int, C: int, dtype: torch.dtype, seed: int, constant: bool) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(C,) if constant else (B, T, C), (B, T, C), (B, C)]
    a, b, h0 = (torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes)
    lengths = torch.randint(0, T + 1, (B,), generator=generator)
    return a, b, h0, lengths, torch.rand(B, T, generator=generator) < 0.3


@settings(deadline=None, max_examples=40)
@given(
    B=st.integers(0, 4),
    T=st.integers(0, 17),
    C=st.integers(1, 3),
    seed=st.integers(0, 999),
    constant=st.booleans(),
    complex_=st.booleans(),
)
def test_doubling_is_the_loop_with_gradients(B, T, C, seed, constant, complex_):
    a, b, h0, lengths, reset = inputs(B, T, C, torch.complex128 if complex_ else torch.float64, seed, constant)
    results, wanted = reference.linear_scan(a, b, h0, lengths, reset), by_loop(a, b, h0, lengths, reset)
    for result, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, want)
    weights = [torch.randn_like(result) for result in results]

    def gradients(outputs):
        total = sum((weight * output).sum() for weight, output in zip(weights, outputs, strict=True))
        return torch.autograd.grad(
            torch.view_as_real(total).sum() if complex_ else total, (a, b, h0), materialize_grads=True
        )

    for result, want in zip(gradients(results), gradients(wanted), strict=True):
        torch.testing.assert_close(result, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_second_derivatives(dtype):
    a, b, h0, lengths, reset = inputs(2, 4, 2, dtype, 0, False)
    assert torch.autograd.gradgradcheck(lambda *tensors: reference.linear_scan(*tensors, lengths, reset), (a, b, h0))


def test_an_infinity_before_a_reset_stays_there():
    b = torch.ones(1, 4, 1)
    b[0, 1] = float("inf")
    a = torch.full((1, 4, 1), 0.5, requires_grad=True)
    reset = torch.tensor([[False, False, True, False]])
    h, last = reference.linear_scan(a, b, torch.zeros(1, 1), torch.tensor([4]), reset)
    assert h.flatten().tolist() == [1.0, float("inf"), 1.0, 1.5]
    (gradient,) = torch.autograd.grad(last.sum(), a)
    assert gradient.flatten().tolist() == [0.0, 0.0, 0.0, 1.0]


def test_rubbish_in_the_padding_stays_there():
    b = torch.tensor([[[1.0], [float("nan")], [float("inf")]]])
    a = torch.full((1, 3, 1), float("nan"))
    a[:, 0] = 0.5
    a.requires_grad_()
    h, last = reference.linear_scan(
        a, b, torch.full((1, 1), 4.0), torch.tensor([1]), torch.zeros(1, 3, dtype=torch.bool)
    )
    assert h.flatten().tolist() == [3.0, 0.0, 0.0] and last.item() == 3.0
    (gradient,) = torch.autograd.grad(h.sum() + last.sum(), a)
    assert gradient.flatten().tolist() == [8.0, 0.0, 0.0]


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_reverse_turns_each_prefix_around_and_back(lengths):
    x = torch.randn(len(lengths), 6, 2)
    turned = reference.reverse(x, torch.tensor(lengths))
    for row, original, length in zip(turned, x, lengths, strict=True):
        assert torch.equal(row[:length], original[:length].flip(0)) and torch.equal(row[length:], original[length:])
    assert torch.equal(reference.reverse(turned, torch.tensor(lengths)), x)
