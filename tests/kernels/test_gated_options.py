"""The options of the gated loops (layer norm, peepholes, coupled gates, projections) against what defines them.

tests/cells has the cells against their equations; here it is every width and length, rows and threads.
"""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.cells import cell
from elman.core import Core
from elman.errors import ElmanError

native = pytest.importorskip("elman.kernels.native")
from gated_loops import on_threads  # noqa: E402

LSTM = [
    {"peephole": p, "coupled": c, "projection": r, "layer_norm": n, "candidate": g}
    for p, c, r, n, g in itertools.product((False, True), (False, True), (None, 5), (False, True), ("tanh", "logistic"))
]
GRU = [{"reset_after": r, "layer_norm": True} for r in (True, False)]
CASES = [("lstm", options) for options in LSTM] + [("gru", options) for options in GRU]
NAMES = [" ".join([name, *(f"{k}={v}" for k, v in options.items() if v)]) for name, options in CASES]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
some_cases = pytest.mark.parametrize(
    ("name", "options"), [CASES[i] for i in (2, 15, 29, 31, 32, 33)], ids=[NAMES[i] for i in (2, 15, 29, 31, 32, 33)]
)


def build(name: str, D: int, H: int, options: dict[str, Any], dtype: torch.dtype = torch.float64) -> Core:
    """A cell whose every parameter is random: zeros and ones at the start would hide a mistake."""
    torch.manual_seed(H)
    core = cell(name, D, H, **options).to(dtype)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, dtype=dtype) * (0.7 / max(1, H) ** 0.5 if parameter.ndim > 1 else 0.5)
            )
    return core


def drawn(core: Core, B: int, T: int, D: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Any, Tensor, Tensor]:
    g = torch.Generator().manual_seed(B * T + D)
    x = torch.randn(B, T, D, generator=g, dtype=torch.float64).to(dtype)
    state = states.map(lambda s: torch.randn(s.shape, generator=g, dtype=torch.float64).to(dtype), core.init_state(B))
    lengths = torch.randint(0, T + 1, (B,), generator=g)
    reset = torch.rand(B, T, generator=g) < 0.2
    if B > 1:
        lengths[0], lengths[1] = T, 0
    return x, state, lengths, reset


def solve(core: Core, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> list[Tensor]:
    """Outputs, last state, and the gradients of everything."""
    x = x.detach().requires_grad_()
    state = states.map(lambda s: s.detach().requires_grad_(), state)
    y, last = core.scan(x, state, lengths=lengths, reset=reset)
    g = torch.Generator().manual_seed(1)
    outputs = [y, *states.leaves(last)]
    loss = sum((o * torch.randn(o.shape, generator=g, dtype=torch.float64).to(o.dtype)).sum() for o in outputs)
    inputs = [x, *states.leaves(state), *core.parameters()]
    return [*outputs, *torch.autograd.grad(loss, inputs)]  # type: ignore[arg-type]


def compare(core: Core, *arguments: Any, threads: int = 1) -> None:
    """The native kernels on some threads against the reference on one: on several, a busy machine makes it wait."""
    before = native.calls["gated"], native.calls["gated_back"]
    with on_threads(threads):
        got = solve(core, *arguments)
    assert (native.calls["gated"], native.calls["gated_back"]) == (before[0] + 1, before[1] + 1)
    with kernels.use("reference"):
        expected = solve(core, *arguments)
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


@every_case
def test_values_and_gradients(name: str, options: dict[str, Any]) -> None:
    for B, T, D, H in ((1, 5, 3, 4), (3, 6, 2, 7), (5, 4, 3, 33), (9, 3, 5, 16)):
        core = build(name, D, H, options)
        compare(core, *drawn(core, B, T, D))


@pytest.mark.slow
@some_cases
def test_more_steps_than_a_chunk_and_two_threads(name: str, options: dict[str, Any]) -> None:
    for B, T, H in ((2, 600, 6), (9, 40, 48), (9, 150, 96)):  # a projection makes little work: only the last divides it
        core = build(name, 3, H, options)
        compare(core, *drawn(core, B, T, 3), threads=2)


@some_cases
def test_gradcheck(name: str, options: dict[str, Any]) -> None:
    core = build(name, 2, 3, {**options, "projection": 2} if options.get("projection") else options)
    x, state, lengths, reset = drawn(core, 3, 4, 2)
    leaves = [x, *states.leaves(state)]
    names = [n for n, _ in core.named_parameters()]

    def f(*given: Tensor) -> tuple[Tensor, ...]:
        ends = iter(given[1 : len(leaves)])
        parts = dict(zip(names, given[len(leaves) :], strict=True))
        now = states.map(lambda leaf: next(ends), state)
        y, last = torch.func.functional_call(
            Scanned(core), {f"core.{n}": p for n, p in parts.items()}, (given[0], now, lengths, reset)
        )
        return (y, *states.leaves(last))

    inputs = [t.detach().requires_grad_() for t in (*leaves, *core.parameters())]
    assert torch.autograd.gradcheck(f, inputs)


class Scanned(torch.nn.Module):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> Any:
        return self.core.scan(x, state, lengths=lengths, reset=reset)


@every_case
def test_bits(name: str, options: dict[str, Any]) -> None:
    """Law 8: alone, in a batch, cut in time, on one thread or two."""
    core = build(name, 3, 41, options, torch.float32)
    x, state, lengths, reset = drawn(core, 17, 24, 3, torch.float32)
    with torch.no_grad():
        y, last = core.scan(x, state, lengths=lengths, reset=reset)
        for threads, (first, count) in itertools.product((1, 2), ((0, 1), (3, 2), (5, 3), (8, 8), (0, 17))):
            torch.set_num_threads(threads)
            rows = slice(first, first + count)
            now = states.map(lambda s, rows=rows: s[rows], state)
            pieces = []
            for a, b in ((0, 2), (2, 3), (3, 24)):
                piece, now = core.scan(
                    x[rows, a:b], now, lengths=(lengths[rows] - a).clamp(0, b - a), reset=reset[rows, a:b]
                )
                pieces.append(piece)
            assert torch.equal(torch.cat(pieces, 1), y[rows]), (threads, first, count)
            for p, q in zip(states.leaves(now), states.leaves(last), strict=True):
                assert torch.equal(p, q[rows])
    torch.set_num_threads(1)


@some_cases
def test_nothing_crosses_a_reset(name: str, options: dict[str, Any]) -> None:
    core = build(name, 3, 5, options)
    x, state, _, _ = drawn(core, 2, 5, 3)
    x[0, 1] = float("nan")
    reset = torch.zeros(2, 5, dtype=torch.bool)
    reset[0, 3] = True
    x.requires_grad_()
    y, last = core.scan(x, state, reset=reset)
    (gx,) = torch.autograd.grad(y[:, 3:].sum() + states.leaves(last)[0].sum(), x)
    assert y[0, 3:].isfinite().all() and gx[0, 3:].isfinite().all() and gx[1].isfinite().all()


@every_case
def test_what_a_chunk_leaves_behind_reaches_no_other(name: str, options: dict[str, Any]) -> None:
    """NaN in a late episode of a row: its gradients are NaN, and those of the episode before are not."""
    T, cut = 1600, 900  # several chunks of either direction
    core = build(name, 3, 5, options)
    x = torch.randn(1, T, 3, dtype=torch.float64)
    x[0, 1500] = torch.nan
    reset = torch.zeros(1, T, dtype=torch.bool)
    reset[0, cut] = True
    y, _ = core.scan(x.requires_grad_(), reset=reset)
    (gx,) = torch.autograd.grad(y.sum(), x)
    assert gx[0, :cut].isfinite().all() and gx[0, cut:1500].isnan().any()


@given(data=st.data())
@settings(max_examples=40)
def test_fuzz(data: st.DataObject) -> None:
    draw = data.draw
    name, options = draw(st.sampled_from(CASES))
    B, T, D, H = (draw(st.integers(low, high)) for low, high in ((1, 7), (1, 6), (1, 9), (2, 40)))
    core = build(name, D, H, options)
    compare(core, *drawn(core, B, T, D))


@pytest.mark.slow
@some_cases
def test_compiled_and_exported(name: str, options: dict[str, Any]) -> None:
    core = build(name, 3, 6, options, torch.float32)
    module = Scanned(core)
    x, state, lengths, reset = drawn(core, 3, 5, 3, torch.float32)
    y, last = module(x, state, lengths, reset)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    again, ends = compiled(x, state, lengths, reset)
    assert torch.equal(again, y)
    again.sum().backward()
    found = [p.grad.clone() for p in core.parameters() if p.grad is not None]
    core.zero_grad()
    y.sum().backward()
    torch.testing.assert_close(found, [p.grad for p in core.parameters() if p.grad is not None])


def test_second_derivative_says_what_to_do() -> None:
    core = build("lstm", 2, 4, {"layer_norm": True})
    x, state, lengths, reset = drawn(core, 2, 3, 2)
    x.requires_grad_()
    y, _ = core.scan(x, state, lengths=lengths, reset=reset)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(ElmanError, match="reference"):
        g.sum().backward()


def test_wrong_shapes_are_named() -> None:
    core = build("lstm", 2, 4, {"peephole": True})
    x, state, lengths, reset = drawn(core, 2, 3, 2)
    options = kernels.GatedOptions(peephole=torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(ElmanError, match="peephole"):
        kernels.gated("lstm", x, (core.W,), state, lengths, reset, core.recurrence(), core.U, core.b, options)  # type: ignore[attr-defined,arg-type]


def test_what_is_kept_and_what_was_saved_are_checked() -> None:
    core = build("gru", 2, 4, {})
    x, (h,), lengths, reset = drawn(core, 2, 3, 2)
    U, b, W, c = (core.get_parameter(name).detach() for name in ("U", "b", "W", "c"))
    with pytest.raises(ElmanError, match="every is 0"):
        kernels.gated("gru", x, (W, c), (h,), lengths, reset, core.recurrence(), U, b, every=0)  # type: ignore[attr-defined,arg-type]
    given = ("gru", x, U, b, W, c, h, None, lengths, reset, *[None] * 6)
    y, last, _, saved = torch.ops.elman.gated(*given, True, None, False, False)
    arriving = (torch.ones_like(y), torch.ones_like(last), None, [True] * 5, False)
    assert len(torch.ops.elman.gated_back(*given, y, saved, None, *arriving)) == 6
    with pytest.raises(ElmanError, match="`saved`"):
        torch.ops.elman.gated_back(*given, y, saved[:-1], None, *arriving)
    with pytest.raises(ElmanError, match="`saved`"):
        torch.ops.elman.gated_back(*given, y, saved, 2, *arriving)
