"""The native selective scan, scan of banks and convolution: equal to plain loops, the same bits however cut."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import (
    LAYOUTS,
    OPERATIONS,
    Case,
    Operation,
    Results,
    arriving,
    called,
    case,
    close,
    compare,
    each_dtype,
    each_operation,
    each_shape,
    gradients,
    native,
    native_gradients,
    run,
    same,
)
from torch import Tensor

from elman import kernels
from elman.errors import KernelError


@each_operation
@each_dtype
@each_shape
def test_loop(op: Operation, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    compare(case(op, shape, dtype))


@each_operation
def test_the_reference_is_the_loop(op: Operation) -> None:
    c = case(op, (5, 12, 7, 3), torch.float64)
    out = arriving(c)
    with kernels.use("reference"), called(op, 0, 0):
        for x, expected in zip(op(*c.inputs), op.loop(*c.inputs), strict=True):
            close(x, expected)
        got = gradients(op, c, out)
    for name, g in gradients(op.loop, c, out).items():
        close(got[name], g)


@each_operation
def test_gradcheck(op: Operation) -> None:
    c = case(op, (3, 5, 3, 2), torch.float64).map(Tensor.requires_grad_)
    before = native.calls[op.name + "_back"]
    assert torch.autograd.gradcheck(lambda *a: op(*a, c.lengths, c.reset), tuple(c.arguments.values()))
    assert native.calls[op.name + "_back"] > before


def test_gradcheck_over_a_saved_state() -> None:
    c = case(OPERATIONS["selective_scan"], (1, 35, 2, 2), torch.float64).map(Tensor.requires_grad_)
    c.reset[:] = False
    assert torch.autograd.gradcheck(lambda *a: c.op(*a, c.lengths, c.reset), tuple(c.arguments.values()))


@each_operation
@pytest.mark.parametrize("index", [0, 1])
def test_gradient_that_arrives_at_one_output(op: Operation, index: int) -> None:
    c = case(op, (3, 6, 5, 3), torch.float64)
    g = arriving(c)[index]
    got, wanted = (
        torch.autograd.grad(f(*leaf.inputs)[index], tuple(leaf.arguments.values()), g, materialize_grads=True)
        for f, leaf in ((f, c.map(lambda t: t.clone().requires_grad_())) for f in (op, op.loop))
    )
    for x, expected in zip(got, wanted, strict=True):
        close(x, expected)


@pytest.mark.parametrize("name", ["A", "weight", "bias", "a", "b", "c"])
def test_long_sums_keep_their_digits(name: str) -> None:
    """The gradient of what is constant is a sum over all rows and steps: a running float would lose digits."""
    op = next(op for op in OPERATIONS.values() if name in op.axes)
    c = case(op, (2, 20000, 1, 1), torch.float32).map(torch.ones_like)
    if name == "A":
        c.arguments["A"] = -c.arguments["A"]
    if op.name == "bank_scan":
        c.arguments["a"] /= 2
    c.lengths[:], c.reset[:] = 20000, False
    out = (torch.ones(2, 20000, 1), torch.zeros(c.arguments[list(op.axes)[-1]].shape))
    got = native_gradients(c, out)[name]
    with kernels.use("reference"):
        expected = gradients(op, c.map(Tensor.double), out)[name]
    torch.testing.assert_close(got.double(), expected, rtol=2e-6, atol=0)


@each_operation
@each_dtype
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_nothing_leaks_past_a_reset_or_out_of_the_padding(op: Operation, bad: float, dtype: torch.dtype) -> None:
    T = 41  # past the first saved state
    clean = case(op, (3, T, 11, 4), dtype)
    clean.lengths[:], clean.reset[:] = torch.tensor([T, 35, 0]), False
    clean.reset[0, 36] = True
    c = clean.map(Tensor.clone)
    out = arriving(c)
    spoilt = out[0].clone()
    spoilt[1, 35:], spoilt[2] = bad, bad
    timed = [k for k, axes in op.axes.items() if "T" in axes]
    for k in timed:
        c.arguments[k][0, :36] = c.arguments[k][1, 35:] = c.arguments[k][2] = bad  # before the reset, in the padding
    c.arguments[list(op.axes)[-1]][0] = bad
    (y, last), (expected, expected_last) = run(c), run(clean)
    assert torch.equal(y[0, 36:], expected[0, 36:]) and torch.equal(y[1:], expected[1:])
    assert torch.equal(last, expected_last)
    got, wanted = native_gradients(c, (spoilt, out[1])), native_gradients(clean, out)
    for k in timed:
        assert torch.equal(got[k][0, 36:], wanted[k][0, 36:]) and torch.equal(got[k][1:], wanted[k][1:]), k
    assert torch.equal(got[list(op.axes)[-1]][1:], wanted[list(op.axes)[-1]][1:])


@each_operation
@each_dtype
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan"), 1e30, 1e-42])
def test_what_is_not_ordinary_comes_out_as_from_the_loop(op: Operation, bad: float, dtype: torch.dtype) -> None:
    """One bad number in each argument in turn. In the loop's own dtype: 1e30 squared is infinite in float32.

    Of one channel too: a sum over it alone is infinite where one over several may be NaN, whatever is added to it.
    """
    for name, channels in itertools.product(op.axes, (5, 1)):
        c = case(op, (2, 6, channels, 3), dtype)
        c.lengths[:], c.reset[:] = 6, False
        values = c.arguments[name].view(-1)
        values[max(len(values) - 2, 0)] = bad
        for x, expected in zip(run(c), op.loop(*c.inputs), strict=True):
            same(x, expected)
        out = arriving(c)
        expected_gradients = gradients(op.loop, c, out)
        for k, g in native_gradients(c, out).items():
            same(g, expected_gradients[k])


@each_dtype
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 30.0, 86.0, 88.0, 95.0, 103.0, 120.0, 700.0, 740.0, 1e6, 1e30])
def test_decays_of_every_size(size: float, dtype: torch.dtype) -> None:
    """exp(delta A) to 3 roundings, down to denormals and zero and up to infinity."""
    op = OPERATIONS["selective_scan"]
    c = case(op, (1, 1, 64, 2), dtype)
    c.lengths[:], c.reset[:] = 1, False
    c.arguments["delta"] = torch.rand(1, 1, 64, generator=torch.Generator().manual_seed(2), dtype=dtype)
    c.arguments["A"] = torch.tensor([-size, size], dtype=dtype).expand(64, 2)
    c.arguments["x"].zero_(), c.arguments["h0"].fill_(1)
    expected = torch.exp((c.arguments["delta"][0, 0, :, None] * c.arguments["A"]).double()).to(dtype)
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    torch.testing.assert_close(run(c)[1][0], expected, rtol=3 * torch.finfo(dtype).eps, atol=float(tiny))


@each_operation
@each_dtype
def test_bits_do_not_depend_on_the_batch(op: Operation, dtype: torch.dtype) -> None:
    c = case(op, (64, 40, 37, 3), dtype)
    out = arriving(c)
    whole, gradient = run(c), native_gradients(c, out)
    for B in (1, 2, 3, 5, 8, 17, 64):
        for first in (0, 64 - B):
            rows = slice(first, first + B)
            part = c.rows(first, first + B)
            for x, y in zip(run(part), whole, strict=True):
                assert torch.equal(x, y[rows])
            for k, g in native_gradients(part, (out[0][rows], out[1][rows])).items():
                if op.axes[k][0] == "B":
                    assert torch.equal(g, gradient[k][rows]), k


@each_operation
@each_dtype
def test_bits_do_not_depend_on_the_cut(op: Operation, dtype: torch.dtype) -> None:
    c = case(op, (5, 70, 19, 4), dtype)
    y, last = run(c)
    for cuts in ((0, 1, 70), (0, 7, 7, 33, 70), tuple(range(71))):
        state, pieces = c.arguments[list(op.axes)[-1]], []
        for first, end in itertools.pairwise(cuts):
            piece, state = run(c.steps(first, end, state))
            pieces.append(piece)
        assert torch.equal(torch.cat(pieces, 1), y) and torch.equal(state, last)


@each_operation
@each_dtype
@pytest.mark.parametrize("shape", [(1, 200, 261, 4), (3, 130, 150, 3), (8, 100, 64, 2)])  # enough for threads
def test_bits_do_not_depend_on_threads(op: Operation, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    c = case(op, shape, dtype)
    out, before, seen = arriving(c), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            seen.append((*run(c), *native_gradients(c, out).values()))
    finally:
        torch.set_num_threads(before)
    for other in seen[1:]:
        assert all(torch.equal(x, y) for x, y in zip(seen[0], other, strict=True))


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(data=st.data())
def test_fuzz(data: st.DataObject) -> None:
    """Any shape, lengths, resets, strides and dtype."""
    op = data.draw(st.sampled_from(list(OPERATIONS.values())))
    B, T, D = (data.draw(st.integers(0, n)) for n in (4, 70, 40))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    c = case(op, (B, T, D, data.draw(st.integers(1, 7))), dtype, seed=data.draw(st.integers(0, 99)))
    c.lengths = torch.tensor(data.draw(st.lists(st.integers(0, T), min_size=B, max_size=B)), dtype=torch.int64)
    c.reset = torch.rand(B, T, generator=torch.Generator().manual_seed(3)) < data.draw(
        st.sampled_from([0.0, 0.05, 0.5])
    )
    laid_out = c.map(LAYOUTS[data.draw(st.sampled_from(list(LAYOUTS)))])
    for x, y in zip(run(laid_out), run(c), strict=True):
        assert torch.equal(x, y)
    compare(c, laid_out)


@each_operation
def test_broadcast_inputs_are_read_as_they_lie(op: Operation) -> None:
    c = case(op, (3, 6, 5, 3), torch.float32)
    c.arguments["x"] = c.arguments["x"][:1, :1].expand(3, 6, 5)
    for x, y in zip(run(c), run(c.map(Tensor.contiguous)), strict=True):
        assert torch.equal(x, y)


@each_operation
def test_second_derivative_says_what_to_do(op: Operation) -> None:
    c = case(op, (2, 4, 3, 2), torch.float64).map(Tensor.requires_grad_)
    x = c.arguments["x"]
    (g,) = torch.autograd.grad(run(c)[0].sum(), x, create_graph=True)
    with pytest.raises(KernelError, match=r'no second derivative; use `with elman.kernels.use\("reference"\)`'):
        g.sum().backward()
    with kernels.use("reference"):
        (g,) = torch.autograd.grad(op(*c.inputs)[0].sum(), x, create_graph=True)
        g.sum().backward()


@each_operation
def test_wrong_lengths_and_shapes_are_refused(op: Operation) -> None:
    c = case(op, (2, 4, 3, 2), torch.float32)
    function = getattr(native, op.name)
    wrong = c.lengths.clone()
    wrong[1] = 5
    with pytest.raises(ValueError, match=r"lengths\[1\] is 5, but must be in \[0, 4\]"):
        function(*c.arguments.values(), wrong, c.reset)
    for name in list(op.axes)[1:]:
        bad = {**c.arguments, name: torch.cat([c.arguments[name]] * 2, -1)}
        if name == "A":  # as wide as it is, N is what the others are compared with
            name = "B"
        with pytest.raises(KernelError, match=f"`{name}` is"):
            function(*bad.values(), c.lengths, c.reset)
    with pytest.raises(KernelError, match="`reset` is"):
        function(*c.arguments.values(), c.lengths, c.reset.float())


@pytest.mark.slow
@each_operation
def test_compiled(op: Operation) -> None:
    c = case(op, (3, 37, 7, 3), torch.float64)
    compiled = torch.compile(lambda *a: op(*a), fullgraph=True, dynamic=True, backend="aot_eager")
    with called(op):
        results = compiled(*c.inputs)
    for x, expected in zip(results, run(c), strict=True):
        assert torch.equal(x, expected)
    out = arriving(c)
    with called(op, 1, 1):
        got = gradients(compiled, c, out)
    for name, expected in native_gradients(c, out).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-12, atol=1e-12)


@each_operation
@pytest.mark.parametrize("grad", [False, True])
def test_exported_with_dynamic_batch_and_time(op: Operation, grad: bool) -> None:
    class Module(torch.nn.Module):
        def __init__(self, fixed: dict[str, Tensor]) -> None:
            super().__init__()
            self.fixed = torch.nn.ParameterDict(
                {k: torch.nn.Parameter(v, requires_grad=grad) for k, v in fixed.items()}
            )

        def forward(self, moving: dict[str, Tensor], lengths: Tensor, reset: Tensor) -> Results:
            return op(*({**self.fixed, **moving}[k] for k in op.axes), lengths, reset)

    B, T = torch.export.Dim("B", min=1, max=1024), torch.export.Dim("T", min=1, max=4096)

    def moving(c: Case) -> dict[str, Tensor]:
        return {k: v for k, v in c.arguments.items() if op.axes[k][0] == "B"}

    c = case(op, (3, 5, 7, 3), torch.float32)
    module = Module({k: v for k, v in c.arguments.items() if op.axes[k][0] != "B"})
    shapes = {k: {0: B, 1: T} if "T" in op.axes[k] else {0: B} for k in moving(c)}
    program = torch.export.export(
        module, (moving(c), c.lengths, c.reset), dynamic_shapes=(shapes, {0: B}, {0: B, 1: T})
    )
    for T_other in (1, 11, 70):
        other = replace(case(op, (5, T_other, 7, 3), torch.float32, seed=1))
        with called(op):
            results = program.module()(moving(other), other.lengths, other.reset)
        for x, expected in zip(results, module(moving(other), other.lengths, other.reset), strict=True):
            assert torch.equal(x, expected)
