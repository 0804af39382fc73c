"""The native gated loops against a plain Torch loop of the equations, against torch.nn, and against themselves.

A kind is checked in float64 for values and for every gradient, with gradient arriving at y and at the last state; in
float32 for equality of bits however rows are batched, time is cut, and threads are counted.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from elman import kernels
from elman.errors import ElmanError

native = pytest.importorskip("elman.kernels.native")
from gated_loops import arguments, called, check_bits, equations, on_threads, ragged  # noqa: E402

from elman.kernels.native.gated import KINDS  # noqa: E402


def reference(
    kind: str, u: Tensor, weights: tuple[Tensor, ...], state: tuple[Tensor, ...], lengths: Tensor, reset: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Row by row, step by step, with an `if` for a reset: nothing here is vectorised over rows."""
    step = equations(kind, weights)
    B, T = u.shape[:2]
    rows, ends = [], []
    for b in range(B):
        now = tuple(leaf[b : b + 1] for leaf in state)
        ys = [torch.zeros_like(now[0])] * T
        for t in range(int(lengths[b])):
            if reset[b, t]:
                now = tuple(torch.zeros_like(leaf) for leaf in now)
            ys[t], now = step(u[b : b + 1, t], now)
        rows.append(torch.stack(ys, 1) if T else u.new_zeros(1, 0, state[0].shape[1]))
        ends.append(now)
    if not rows:
        return u.new_zeros(0, T, state[0].shape[1]), state
    return torch.cat(rows), tuple(torch.cat(leaves) for leaves in zip(*ends, strict=True))


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> list[Tensor]:
    g = torch.Generator().manual_seed(7)
    loss = sum((o * torch.randn(o.shape, generator=g, dtype=o.dtype)).sum() for o in outputs)
    found = torch.autograd.grad(loss, inputs, allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(x) if gx is None else gx for gx, x in zip(found, inputs, strict=True)]


SHAPES = [
    (1, 5, 3),
    (2, 6, 8),
    (3, 4, 7),
    (5, 9, 65),
    (8, 7, 16),
    (17, 5, 33),
    (4, 3, 128),
    (1, 6, 40),
    (2, 3, 200),
    (9, 3, 160),
    (1, 40, 128),  # from here on there is work enough for a second thread (csrc/parallel.h), for units and for rows
    (2, 36, 130),
    (3, 64, 72),
    (8, 40, 64),
]


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind: str) -> None:
    """On one thread and on two; the reference on one, since a second would only wait."""
    for number, (B, T, H) in enumerate([*SHAPES, (0, 3, 4), (2, 0, 4), (3, 4, 1)]):
        u, weights, state = arguments(kind, B, T, H, torch.float64, number)
        lengths, reset = ragged(B, T, number)
        learned = weights[:1] if kind.startswith("rate") else weights  # the leak is not learned
        inputs = [t.requires_grad_() for t in (u, *learned, *state)]
        expected, ends = reference(kind, u, weights, state, lengths, reset)
        wanted = gradients((expected, *ends), inputs) if B else ()
        for threads in (1, 2):
            with on_threads(threads):
                y, last = called(kind, u, weights, state, lengths, reset)
                before = native.calls["gated_back"]
                got = gradients((y, *last), inputs) if B else ()
            assert native.calls["gated_back"] == before + bool(B)
            torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(last, ends, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("B", "T"), [(1, 1100), (3, 400)])
def test_more_steps_than_a_chunk(kind: str, B: int, T: int) -> None:
    """A chunk has at most 512 rows: these sequences are cut in several."""
    H, learned = 4, slice(0, 1) if kind.startswith("rate") else slice(None)
    u, weights, state = arguments(kind, B, T, H, torch.float64, T)
    lengths, reset = ragged(B, T, T)
    lengths[0] = T
    inputs = [t.requires_grad_() for t in (u, *weights[learned], *state)]
    y, last = called(kind, u, weights, state, lengths, reset)
    expected, ends = reference(kind, u, weights, state, lengths, reset)
    torch.testing.assert_close((y, *last), (expected, *ends), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(
        gradients((y, *last), inputs), gradients((expected, *ends), inputs), rtol=1e-9, atol=1e-9
    )


THREADED = [(3, 40, 130, 9), (9, 30, 70, 5)]  # work enough for a second thread: units are divided, then rows


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with on_threads(request.param):
        yield request.param


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_projecting_inside_is_projecting_outside(kind: str, bias: bool, threads: int) -> None:
    """The same bits, and the same gradients of everything."""
    for number, (B, T, H, D) in enumerate(
        [(1, 5, 3, 1), (2, 6, 40, 5), (5, 7, 65, 33), (8, 4, 16, 17), (1, 600, 7, 3), *THREADED]
    ):
        u, weights, state = arguments(kind, B, T, H, torch.float64, number)
        x, U = torch.randn(B, T, D).double(), torch.randn(u.shape[-1], D).double()
        b = torch.randn(u.shape[-1]).double() if bias else None
        more = ragged(B, T, number)
        fixed = weights[1:] if kind.startswith("rate") else ()
        learned = weights[: len(weights) - len(fixed)]
        inputs = [t.requires_grad_() for t in (x, U, *((b,) if b is not None else ()), *learned, *state)]
        before = native.calls["gated"]
        y, last = kernels.gated(kind, x, weights, state, *more, equations(kind, weights), U, b)
        assert native.calls["gated"] == before + 1
        outside, ends = called(kind, kernels.linear(x, U, b), weights, state, *more)
        assert all(torch.equal(p, q) for p, q in zip((y, *last), (outside, *ends), strict=True)), (B, T, H, D)
        got, expected = gradients((y, *last), inputs), gradients((outside, *ends), inputs)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
        single = torch.autograd.grad(
            kernels.gated(kind, x, weights, state, *more, equations(kind, weights), U, b)[0].sum(), U
        )
        whole = torch.autograd.grad(called(kind, kernels.linear(x, U, b), weights, state, *more)[0].sum(), U)
        torch.testing.assert_close(single, whole, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_at_the_last_state_alone_and_at_y_alone(kind: str) -> None:
    u, weights, state = arguments(kind, 3, 4, 5, torch.float64)
    lengths, reset = ragged(3, 4)
    for pick in (slice(0, 1), slice(1, None)):
        u = u.detach().requires_grad_()
        y, last = called(kind, u, weights, state, lengths, reset)
        expected, ends = reference(kind, u, weights, state, lengths, reset)
        torch.testing.assert_close(gradients((y, *last)[pick], [u]), gradients((expected, *ends)[pick], [u]))


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: str) -> None:
    u, weights, state = arguments(kind, 3, 4, 3, torch.float64, 3)
    lengths, reset = ragged(3, 4, 3)
    fixed = weights[1:] if kind.startswith("rate") else ()
    learned = weights[: len(weights) - len(fixed)]
    inputs = [t.requires_grad_() for t in (u, *learned, *state)]

    def f(u: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        y, last = called(kind, u, (*rest[: len(learned)], *fixed), rest[len(learned) :], lengths, reset)
        return (y, *last)

    assert torch.autograd.gradcheck(f, inputs)


ORACLES = {"elman_tanh": nn.RNN, "elman_relu": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@pytest.mark.parametrize("kind", ORACLES)
def test_torch_nn_is_the_oracle(kind: str) -> None:
    torch.manual_seed(0)
    options = {"nonlinearity": "relu"} if kind == "elman_relu" else {}
    layer = ORACLES[kind](6, 9, batch_first=True, dtype=torch.float64, **options)
    x = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(1, 4, 9, dtype=torch.float64)
    c0 = torch.randn(1, 4, 9, dtype=torch.float64)
    expected, ends = layer(x, (h0, c0) if kind == "lstm" else h0)
    bias = layer.bias_ih_l0 + layer.bias_hh_l0
    weights: tuple[Tensor, ...] = (layer.weight_hh_l0,)
    if kind == "gru":
        bias = torch.cat([bias[:18], layer.bias_ih_l0[18:]])
        weights = (layer.weight_hh_l0, layer.bias_hh_l0[18:])
    u = kernels.linear(x, layer.weight_ih_l0, bias)
    state = (h0[0], c0[0]) if kind == "lstm" else (h0[0],)
    y, last = called(kind, u, weights, state, torch.full((4,), 7), torch.zeros(4, 7, dtype=torch.bool))
    ends = ends if kind == "lstm" else (ends,)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last, tuple(e[0] for e in ends))
    inputs = [x, *layer.parameters()]
    torch.testing.assert_close(gradients((y, *last), inputs), gradients((expected, *(e[0] for e in ends)), inputs))


@pytest.mark.slow
def test_bits_do_not_depend_on_batch_chunks_or_threads() -> None:
    with on_threads(2):
        check_bits()


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_close_to_float64(kind: str) -> None:
    """Within 64 ulps of 1 after 50 contracting steps; a wrong digit anywhere would be thousands."""
    u, weights, state = arguments(kind, 3, 50, 24, torch.float32)
    full = torch.full((3,), 50)
    none = torch.zeros(3, 50, dtype=torch.bool)
    y, _ = called(kind, u, weights, state, full, none)
    wide, _ = called(kind, u.double(), tuple(w.double() for w in weights), tuple(s.double() for s in state), full, none)
    scale = wide.abs().clamp(min=1)
    assert float(((y.double() - wide).abs() / scale).max()) <= 64 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e-42, 1e30, -1e30])
def test_special_values_as_the_reference(kind: str, value: float) -> None:
    u, weights, state = arguments(kind, 3, 6, 5, torch.float32)
    u[1, 2, 1] = value
    lengths = torch.full((3,), 6)
    reset = torch.zeros(3, 6, dtype=torch.bool)
    reset[1, 4] = True
    y, last = called(kind, u, weights, state, lengths, reset)
    expected, ends = reference(kind, u, weights, state, lengths, reset)
    torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-5, atol=1e-6)
    assert y[[0, 2]].isfinite().all() and y[1, 4:].isfinite().all(), "a reset starts anew, other rows do not see it"


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_padding_is_irrelevant(kind: str) -> None:
    u, weights, state = arguments(kind, 3, 6, 5, torch.float64)
    lengths, reset = torch.tensor([6, 3, 0]), torch.zeros(3, 6, dtype=torch.bool)
    dirty = u.clone()
    dirty[1, 3:] = float("nan")
    dirty[2] = float("inf")
    results = []
    for inputs in (u, dirty):
        inputs = inputs.requires_grad_()
        w = tuple(x.clone().requires_grad_() for x in weights)
        y, last = called(kind, inputs, w, state, lengths, reset)
        results.append([y, *last, *gradients((y, *last), [inputs, w[0]])])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["elman_tanh", "gru", "lstm", "gru_before"])
def test_gradients_do_not_cross_a_reset_even_from_infinity(kind: str) -> None:
    """The first episode overflows to NaN; the second one and its gradients must not notice."""
    u, weights, state = arguments(kind, 2, 5, 4, torch.float64)
    u[0, 1] = float("nan")
    reset = torch.zeros(2, 5, dtype=torch.bool)
    reset[0, 3] = True
    u.requires_grad_()
    y, last = called(kind, u, weights, state, torch.tensor([5, 5]), reset)
    (gu,) = torch.autograd.grad(y[:, 3:].sum() + last[0].sum(), u)
    assert gu[0, 3:].isfinite().all() and gu[1].isfinite().all()
    (alone,) = torch.autograd.grad(
        called(kind, (v := u.detach()[:1, 3:].requires_grad_()), weights, tuple(torch.zeros_like(s[:1]) for s in state),
               torch.tensor([2]), torch.zeros(1, 2, dtype=torch.bool))[0].sum(), v)  # fmt: skip
    (whole,) = torch.autograd.grad(called(kind, u, weights, state, torch.tensor([5, 5]), reset)[0][:1, 3:].sum(), u)
    torch.testing.assert_close(whole[:1, 3:], alone)


@pytest.mark.parametrize("kind", ["gru", "lstm", "elman_tanh"])
def test_backward_twice_through_a_retained_graph(kind: str) -> None:
    u, weights, state = arguments(kind, 3, 5, 6, torch.float64)
    lengths, reset = ragged(3, 5)
    u.requires_grad_()
    y, _ = called(kind, u, weights, state, lengths, reset)
    (first,) = torch.autograd.grad(y.square().sum(), u, retain_graph=True)
    (second,) = torch.autograd.grad(y.square().sum(), u)
    assert torch.equal(first, second)


def test_second_derivative_says_what_to_do() -> None:
    u, weights, state = arguments("gru", 2, 3, 4, torch.float64)
    u.requires_grad_()
    y, _ = called("gru", u, weights, state, *ragged(2, 3))
    (g,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
    with pytest.raises(ElmanError, match="reference"):
        g.sum().backward()


def test_unknown_kind_lists_the_kinds() -> None:
    u, weights, state = arguments("gru", 2, 3, 4, torch.float64)
    with pytest.raises(ElmanError, match="gru_before"):
        native.gated("grue", u, weights, state, *ragged(2, 3))


@pytest.mark.slow
def test_in_a_forked_child() -> None:
    """After the parent has used its thread pool, which does not survive a fork."""
    code = f"""
import os, sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
from gated_loops import arguments, called, check_bits, equations, ragged  # noqa: E402
torch.set_num_threads(2)
u, weights, state = arguments("lstm", 16, 20, 64, torch.float32)
more = ragged(16, 20)
y, _ = called("lstm", u, weights, state, *more)
child = os.fork()
if child == 0:
    again, _ = called("lstm", u, weights, state, *more)
    os._exit(0 if torch.equal(again, y) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_several_python_threads_at_once() -> None:
    problems: list[str] = []

    def work(seed: int) -> None:
        for kind in ("gru", "lstm", "elman_tanh"):
            u, weights, state = arguments(kind, 3 + seed, 10, 64, torch.float32, seed)
            more = ragged(3 + seed, 10, seed)
            y = native.gated(kind, u, weights, state, *more)[0]
            for _ in range(20):
                if not torch.equal(native.gated(kind, u, weights, state, *more)[0], y):
                    problems.append(kind)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not problems


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_fuzz(data: st.DataObject) -> None:
    """Any shape, lengths, resets, strides and dtype."""
    draw = data.draw
    kind = draw(st.sampled_from(sorted(KINDS)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    B, T, H = draw(st.integers(0, 9)), draw(st.integers(0, 7)), draw(st.integers(1, 40))
    u, weights, state = arguments(kind, B, T, H, dtype, draw(st.integers(0, 99)))
    lengths = torch.tensor(draw(st.lists(st.integers(0, T), min_size=B, max_size=B)), dtype=torch.int64)
    reset = torch.tensor(draw(st.lists(st.booleans(), min_size=B * T, max_size=B * T)), dtype=torch.bool).view(B, T)
    layout = draw(st.sampled_from(["plain", "time first", "every other", "shared"]))
    if layout == "time first":
        u = u.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "every other":
        u = torch.stack([u, u], -1)[..., 0]
    elif layout == "shared" and B:
        u = u[:1].expand(B, -1, -1)
        state = tuple(s[:1].expand(B, -1) for s in state)
    u = u.detach().requires_grad_()
    y, last = called(kind, u, weights, state, lengths, reset)
    wide = tuple(w.double() for w in weights)
    expected, ends = reference(kind, u.double(), wide, tuple(s.double() for s in state), lengths, reset)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(y.double(), expected, **close)
    torch.testing.assert_close(tuple(s.double() for s in last), ends, **close)
    if lengths.sum() > 0:
        torch.testing.assert_close(gradients((y.double(),), [u]), gradients((expected,), [u]), **close)


class Recurrent(nn.Module):
    """A whole layer, for compile and export: projection, loop, read-out."""

    def __init__(self, kind: str, D: int, H: int) -> None:
        super().__init__()
        self.kind, self.H = kind, H
        self.project = nn.Linear(D, KINDS[kind].gates * H)
        self.weights = nn.ParameterList(nn.Parameter(w) for w in arguments(kind, 1, 1, H, torch.float32)[1])

    def forward(self, x: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        state = tuple(x.new_zeros(x.shape[0], self.H) for _ in range(KINDS[self.kind].states))
        y, last = kernels.gated(
            self.kind,
            x,
            tuple(self.weights),
            state,
            lengths,
            reset,
            None,
            self.project.weight,
            self.project.bias,  # type: ignore[arg-type]
        )
        return kernels.tanh(y), last[0]  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["elman_tanh", "gru", "lstm"])
def test_compiled_training(kind: str) -> None:
    model = Recurrent(kind, 4, 6)
    x = torch.randn(3, 5, 4, requires_grad=True)
    lengths, reset = ragged(3, 5)
    inputs = [x, *model.parameters()]
    expected = model(x, lengths, reset)
    wanted = gradients(expected, inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    before = native.calls["gated"], native.calls["gated_back"]
    got = compiled(x, lengths, reset)
    found = gradients(got, inputs)
    assert (native.calls["gated"], native.calls["gated_back"]) == (before[0] + 1, before[1] + 1)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_exported_with_dynamic_batch_and_time(kind: str) -> None:
    model = Recurrent(kind, 4, 6).eval()
    lengths, reset = ragged(3, 5)
    B, T = torch.export.Dim("B"), torch.export.Dim("T")
    shapes = ({0: B, 1: T}, {0: B}, {0: B, 1: T})
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(3, 5, 4), lengths, reset), dynamic_shapes=shapes)
        x = torch.randn(7, 9, 4)
        lengths, reset = ragged(7, 9)
        before = native.calls["gated"]
        got = program.module()(x, lengths, reset)
        assert native.calls["gated"] == before + 1
        for a, b in zip(got, model(x, lengths, reset), strict=True):
            assert torch.equal(a, b)
