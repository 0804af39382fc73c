"""Recorded functions as tapes: against Torch, operation by operation; the trace step; bits; what is left to Torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import kernels

tape = pytest.importorskip("elman.kernels.native.tape")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# A vector and a tail, several blocks of 256, one number, none.
SHAPES = [(5,), (3, 37), (300, 3), (2, 3, 130), (1,), (), (4, 0)]


def on_tape(function: Callable[..., list[Tensor]], arguments: list[Tensor]) -> Callable[..., list[Tensor]]:
    recorded = kernels.record(function, arguments)
    assert isinstance(recorded, tape.Tape), "an operation is missing"
    return recorded


def agrees(function: Callable[..., list[Tensor]], *arguments: Tensor) -> None:
    found, wanted = on_tape(function, list(arguments))(*arguments), function(*arguments)
    exact = torch.finfo(arguments[0].dtype).eps
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=16 * exact, atol=16 * exact, equal_nan=True)


UNARY = {
    name: getattr(torch, name)
    for name in ("neg", "exp", "expm1", "sigmoid", "tanh", "relu", "abs", "sign", "sin", "cos", "reciprocal", "square")
}
POSITIVE = {name: getattr(torch, name) for name in ("log", "log1p", "sqrt", "lgamma", "digamma")}
BINARY = {
    name: getattr(torch, name)
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
}


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_one_number(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = 3 * torch.randn(shape, dtype=dtype)
    agrees(lambda x: [f(x) for f in UNARY.values()] + [torch.nn.functional.softplus(x), x.isnan(), x**3], x)
    agrees(lambda x: [f(x) for f in POSITIVE.values()], x.abs() + 0.1)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_two_numbers_that_are_broadcast_or_lie_elsewhere(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, y = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    one = torch.randn(shape[-1:], dtype=dtype)
    agrees(lambda x, y, one: [f(x, y) for f in BINARY.values()] + [f(x, one) for f in BINARY.values()], x, y, one)
    agrees(lambda x, y: [x.mT + y.mT if x.dim() > 1 else x + y, 2 - x, x + 0.5 * y, torch.where(x > y, x, 0.0)], x, y)
    agrees(lambda x, y: [x.clamp(min=-0.5, max=0.5), x.clamp(max=0.1), (x > 0) & ~(y > 0) | (x > y)], x, y)


@DTYPES
def test_what_is_no_number_stays_so(dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0], dtype=dtype)
    y = x.flip(0)
    agrees(lambda x: [f(x) for f in UNARY.values()] + [x.isnan(), x.clamp(-1, 1), torch.relu(x), x.amax()], x)
    agrees(lambda x, y: [f(x, y) for f in BINARY.values()], x, y)


@DTYPES
def test_sums_products_and_places(dtype: torch.dtype) -> None:
    x, y = torch.randn(3, 5, 7, dtype=dtype), torch.randn(3, 7, 4, dtype=dtype)
    agrees(lambda x: [x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(-1), x.amax(1), (x > 0).any(1)], x)
    agrees(lambda x, y: [torch.bmm(x, y), x[0] @ y[0], torch.bmm(x[:, :, :1], y[:, :1]), y[0].T @ x[0].T], x, y)
    agrees(lambda x, y: [torch.nn.functional.linear(x[0], y[0].T, y[0, 0])], x, y)
    agrees(lambda x: [torch.log_softmax(x, -1), torch.softmax(x, 1), torch.cat([x[:1], x[1:]], 0)], x)
    agrees(lambda x: [torch.stack([x[0], x[1]], 1), x.permute(2, 0, 1)[:, 1:].flatten(), *x.split([2, 3], 1)], x)
    places = torch.tensor([[4, 0], [-1, 2]])
    agrees(lambda x, i: [x[:, i], x.gather(1, i.abs()[:, :1, None].expand(2, 1, 7)[:1].expand(3, 1, 7))], x, places)
    z = torch.complex(x, x.flip(0))
    agrees(lambda z: [z * z, z + z, (z * z.conj()).sum(0), torch.view_as_real(z).flatten(1), z[:, 1]], z)
    agrees(lambda z: [z.exp(), z.expm1(), z.sgn(), z / (z + 3), z.reciprocal(), 1e-6 * z, (1e-6 * z).expm1()], z)
    agrees(lambda x: [torch.block_diag(x[0], x[1, :, :2], x[2])], x)
    agrees(lambda x: [torch.view_as_complex(x[..., :2].contiguous()), torch.polar(x.abs(), x)], x)
    agrees(lambda x: [x.double(), x.float() + 1, (x > 0).to(x.dtype), x.new_zeros(2, 2), torch.ones_like(x) * x], x)


def test_what_is_computed_once_is_and_what_a_tape_cannot_is_left_to_torch() -> None:
    x = torch.randn(2, 3)
    recorded = kernels.record(lambda x: [torch.linalg.inv(x @ x.T)], [x])
    assert not isinstance(recorded, tape.Tape)
    torch.testing.assert_close(recorded(x)[0], torch.linalg.inv(x @ x.T))
    noise = kernels.record(lambda x: [x + torch.rand(2, 3)], [x])
    assert not torch.equal(noise(x)[0], noise(x)[0])
    half = torch.ones(3, dtype=torch.bfloat16)
    assert not isinstance(kernels.record(lambda x: [x + half], [x]), tape.Tape)
    with kernels.use("reference"):
        assert not isinstance(kernels.record(lambda x: [x + x], [x]), tape.Tape)


def test_other_arguments_than_it_was_recorded_with_are_left_to_torch_too() -> None:
    x = torch.randn(4, 3)
    doubled = on_tape(lambda x: [x + x], [x])
    for other in (torch.randn(3, 3), x.double(), x.T.contiguous().T):
        torch.testing.assert_close(doubled(other)[0], other + other)
    places = on_tape(lambda x, i: [x[i]], [x, torch.tensor([0])])
    with pytest.raises(IndexError):
        places(x, torch.tensor([4]))


def drawn(B: int, C: int, R: int, W: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(B + 10 * C + 100 * R)
    shapes = (B, C, R, W), (B, C, C, R), (B, C, R), (B, C, R, W)
    return tuple(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)


TRACES = [(1, 1, 128, 16), (3, 1, 7, 5), (2, 2, 9, 3), (5, 1, 130, 1), (4, 2, 33, 1), (2, 3, 4, 1), (0, 1, 3, 2)]
TRACES += [(32, 1, 64, 16)]


@DTYPES
@pytest.mark.parametrize("shape", TRACES)
def test_a_trace_step_is_that_of_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = drawn(*shape, dtype)
    before = kernels.calls().get("trace_step", 0)
    found = kernels.trace_step(*given)
    assert kernels.calls()["trace_step"] == before + 1
    with kernels.use("reference"):
        wanted = kernels.trace_step(*(v.double() for v in given))
    for one, other in zip(found, wanted, strict=True):
        tolerance = 64 * torch.finfo(dtype).eps
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("shape", TRACES)
def test_a_trace_step_of_an_outer_product_is_that_of_its_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    B, C, R, W = shape
    e, factors, share, _ = drawn(*shape, dtype)
    left, right = drawn(B, C, R, 1, dtype)[0].reshape(B, C * R, 1), drawn(B, 1, 1, W, dtype)[3].reshape(B, 1, W)

    def step(e: Tensor, factors: Tensor, share: Tensor, left: Tensor, right: Tensor) -> list[Tensor]:
        return list(kernels.trace_step(e, factors, share, torch.bmm(left, right).reshape(B, C, R, W)))

    found = on_tape(step, [e, factors, share, left, right])(e, factors, share, left, right)
    for one, other in zip(found, step(e, factors, share, left, right), strict=True):
        tolerance = 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@DTYPES
def test_bits_of_a_trace_step_depend_on_neither_threads_nor_the_batch(dtype: torch.dtype) -> None:
    given = drawn(32, 2, 130, 16, dtype)
    threads = torch.get_num_threads()
    try:
        many = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            many.append(kernels.trace_step(*given))
    finally:
        torch.set_num_threads(threads)
    for after, gradient in many[1:]:
        assert torch.equal(after, many[0][0]) and torch.equal(gradient, many[0][1])
    for b in (0, 17, 31):
        alone = kernels.trace_step(*(v[b : b + 1] for v in given))[0]
        assert torch.equal(alone[0], many[0][0][b])


def listed(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], list[Tensor]]:
    return lambda x: [f(x)]


def recorded_and_run(function: Callable[..., list[Tensor]], *arguments: Tensor) -> bool:
    """Whether a tape came to its end; whichever ran, that it gave what Torch gives."""
    recorded = kernels.record(function, list(arguments))
    for one, other in zip(recorded(*arguments), function(*arguments), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        exact = 16 * torch.finfo(other.dtype).eps if other.dtype.is_floating_point else 0.0
        torch.testing.assert_close(one, other, rtol=exact, atol=exact, equal_nan=True)
    return isinstance(recorded, tape.Tape) and recorded.run(arguments) is not None


def test_whole_numbers_and_booleans_are_those_of_torch() -> None:
    i = torch.arange(-6, 6).reshape(3, 4)
    places = torch.tensor([[1], [0], [2]])
    # A learner counts the rows that are valid so.
    assert recorded_and_run(lambda i: [(i > 0).sum().clamp(min=1), i.clamp(max=2), torch.maximum(i, 1 - i)], i)
    assert recorded_and_run(lambda i: [(i > 0)[:, places[:, 0]], (i > 0).gather(1, places), i**2, i**2.0, i**1.0], i)
    for f in (torch.abs, torch.sign, torch.relu, lambda i: i**4, lambda i: i.double() ** 4):
        recorded_and_run(listed(f), i)
    recorded_and_run(lambda i: [(i > 0) & True, i.view(torch.int32) == 0, i.double().mean(0, dtype=torch.float32)], i)


def test_a_function_that_a_tape_does_not_bring_to_its_end_is_no_tape() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    for f in (torch.isnan, lambda z: z.bool()):
        assert not isinstance(kernels.record(listed(f), [z]), tape.Tape)


def test_random_numbers_are_drawn_at_each_call() -> None:
    x = torch.zeros(64)
    for f in (lambda x: [x + torch.rand(64)], lambda x: [x + torch.bernoulli(torch.full((64,), 0.5))]):
        recorded = kernels.record(f, [x])
        assert not torch.equal(recorded(x)[0], recorded(x)[0])


def test_a_place_below_zero_is_one_where_torch_says_so_alone() -> None:
    x, places = torch.randn(3, 4), torch.tensor([[0], [2], [1]])
    functions = (
        lambda x, i: [x.gather(1, i)],
        lambda x, i: [torch.nn.functional.embedding(i, x)],
        lambda x, i: [torch.zeros(3, 4).scatter_add(1, i, x[:, :1])],
    )
    for function in functions:
        recorded = on_tape(function, [x, places])
        with pytest.raises((IndexError, RuntimeError)):
            recorded(x, -places)
    agrees(lambda x, i: [x[i[:, 0]]], x, -places)


@pytest.mark.parametrize("padding", [None, 1])
def test_the_gradient_of_an_embedding_leaves_out_the_padding(padding: int | None) -> None:
    def gradient(w: Tensor, i: Tensor, by_count: bool) -> list[Tensor]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            rows = torch.nn.functional.embedding(i, w, padding, scale_grad_by_freq=by_count)
            return list(torch.autograd.grad((rows**2).sum(), w))

    w, i = torch.randn(5, 3), torch.tensor([1, 2, 1, 0])
    assert recorded_and_run(lambda w, i: gradient(w, i, False), w, i)
    recorded_and_run(lambda w, i: gradient(w, i, True), w, i)


def test_many_axes_are_left_to_torch() -> None:
    x = torch.randn([2] * 12 + [1] * 6)
    recorded = kernels.record(lambda x: [x.transpose(0, 17).transpose(3, 7) + 1], [x])
    assert torch.equal(recorded(x)[0], x.transpose(0, 17).transpose(3, 7) + 1)
    with pytest.raises(ValueError, match="1 to 16 axes"):
        native = tape._native.Tape()
        native.append(tape.Code.neg, tape.TYPES[torch.float32], [1] * 17, [], [[2, 0, *[0] * 17]] * 2)


def test_parts_without_elements_are_joined_as_in_torch() -> None:
    x = torch.randn(3, 4)
    assert recorded_and_run(lambda x: [torch.cat([x, x[:0, 0]], 1), torch.cat([x[:0, 0], x], -1)], x)
    assert recorded_and_run(lambda x: [torch.cat([x[:0, 0], x[:0, 1]]), torch.stack([x[:0, 0], x[:0, 1]], 1)], x)


def test_a_bias_of_one_number_is_every_columns() -> None:
    x = torch.randn(3, 4)
    recorded_and_run(lambda b, x: [torch.addmm(b, x, x.T)], torch.randn(1), x)


def test_what_a_softplus_and_a_relu_are_where_torch_has_choices() -> None:
    x = torch.tensor([-3.0, 0.0, 0.4, 2.0, float("nan")])
    recorded_and_run(lambda x: [torch.nn.functional.softplus(x, threshold=0.5)], x)

    def gradient(x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return list(torch.autograd.grad(torch.relu(y).sum(), y))

    assert recorded_and_run(gradient, x, x)


def test_powers_and_exponentials_at_the_ends_are_those_of_torch() -> None:
    ends = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 2.0, -2.0])
    assert recorded_and_run(lambda x: [x**0.5, x**-0.5, 1 / x**-0.5, x**-1, x**-2, x**1.5], ends)
    z = torch.complex(
        torch.tensor([float("inf"), -float("inf"), 100.0, -float("inf")]), torch.tensor([0.0, 1.0, 0.0, float("nan")])
    )
    agrees(lambda x, z: [torch.view_as_real(z.exp())], ends, z)


def test_an_array_times_ones_is_no_outer_product() -> None:
    e, factors, share, _ = drawn(1, 1, 6, 3, torch.float64)
    whole = torch.randn(1, 6, 3, dtype=torch.float64)

    def step(e: Tensor, factors: Tensor, share: Tensor, whole: Tensor) -> list[Tensor]:
        flat = torch.bmm(whole[:, :, :1], torch.ones(1, 1, 3, dtype=torch.float64))
        return [flat, *kernels.trace_step(e, factors, share, whole.reshape(1, 1, 6, 3))]

    agrees(step, e, factors, share, whole)


@DTYPES
def test_angles_have_the_bits_of_the_kernels(dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(300, dtype=dtype) * 10.0**n for n in range(-40, 36, 5)])
    x = torch.cat([x, torch.tensor([0.0, -0.0, float("inf"), float("nan"), torch.finfo(dtype).max], dtype=dtype)])
    found = on_tape(lambda x: [torch.sin(x), torch.cos(x)], [x])(x)
    for one, other in zip(found, (kernels.sin(x), kernels.cos(x)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    z = on_tape(lambda x: [torch.view_as_real(torch.complex(torch.zeros_like(x), x).exp())], [x])(x)[0]
    torch.testing.assert_close(z, torch.stack(found[::-1], -1), rtol=0, atol=0, equal_nan=True)


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    torch.neg, torch.tanh, torch.sigmoid, torch.relu, torch.abs, torch.sign, torch.sin, torch.cos, torch.square,
    torch.nn.functional.softplus, lambda x: x.clamp(-0.5, 0.5), lambda x: x.flatten(), lambda x: x.sum(),
    lambda x: x.mT if x.dim() > 1 else x, lambda x: x[..., ::2], lambda x: x[..., -1:], lambda x: x[..., :0],
    lambda x: x.unsqueeze(0), lambda x: x.sum(-1, keepdim=True) if x.dim() else x, lambda x: x * 1, lambda x: 2 - x,
    lambda x: x.mean(0) if x.dim() else x, lambda x: (x > 0).to(x.dtype), lambda x: (x > 0).sum() * x,
    lambda x: torch.softmax(x, -1) if x.dim() else x, lambda x: x.expand(2, *x.shape), lambda x: x.to(torch.float64),
    lambda x: x.reshape(-1)[:6].reshape(-1, 1), lambda x: x.amax(-1) if x.dim() and x.shape[-1] else x,
]  # fmt: skip
PAIRS: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x / (1 + y.abs()), lambda x, y: torch.add(x, y, alpha=0.5), lambda x, y: (x >= y) | (y != y),
    lambda x, y: torch.cat([x.flatten(), y.flatten()]), lambda x, y: torch.outer(x.flatten()[:9], y.flatten()[:9]),
    lambda x, y: torch.stack([x, x], -1) if y.dim() else y, lambda x, y: x.masked_fill(y.isnan(), 1.0),
]  # fmt: skip


@DTYPES
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_small_programs_compute_what_torch_does(data: st.DataObject, dtype: torch.dtype) -> None:
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 17]), max_size=3))
    calls = st.tuples(st.sampled_from([*FUNCTIONS, *PAIRS]), st.integers(0, 9), st.integers(0, 9))
    steps = data.draw(st.lists(calls, min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randn(shape, generator=generator, dtype=dtype)
    if x.numel():
        x.view(-1)[0] = data.draw(st.sampled_from([0.0, -0.0, 1.0, float("inf"), float("nan")]))

    def program(x: Tensor, number: Tensor) -> list[Tensor]:
        values = [x, number]
        for f, i, j in steps:
            one, other = values[i % len(values)], values[j % len(values)]
            if one.dtype == torch.bool or other.dtype == torch.bool:
                one, other = one.to(dtype), other.to(dtype)
            with suppress(RuntimeError, IndexError):  # of shapes that do not fit
                values.append(f(one, other) if f in PAIRS else f(one))  # type: ignore[operator]
        return values

    number = torch.randn((), generator=generator, dtype=dtype)
    found, wanted = kernels.record(program, [x, number])(x, number), program(x, number)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        exact = 256 * torch.finfo(dtype).eps
        torch.testing.assert_close(one, other, rtol=exact, atol=exact, equal_nan=True)
