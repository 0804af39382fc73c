"""What Python and csrc/ must agree on: the kinds of gated loops, where what they save lies, the structs of a call."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import kernels
from elman.kernels import GatedOptions

native = pytest.importorskip("elman.kernels.native")
from elman import _native  # noqa: E402
from elman.kernels.native.gated import KINDS  # noqa: E402
from elman.kernels.native.program import Program  # noqa: E402

# From the equations of the papers: gates, states, whether h' meets a matrix.
FAMILIES = {
    "elman": (1, 1, True), "indrnn": (1, 1, False), "rate": (1, 1, True), "gru": (3, 1, True), "mgu": (2, 1, True),
    "lstm_coupled": (3, 2, True), "lstm": (4, 2, True),
}  # fmt: skip


def test_kinds_are_those_of_the_equations() -> None:
    for name, kind in KINDS.items():
        family = next(family for family in FAMILIES if name.startswith(family))  # the longer name stands first
        assert (kind.gates, kind.states, kind.matrix) == FAMILIES[family], name
    assert [kind.number for kind in KINDS.values()] == list(range(len(KINDS)))


def struct(kind: int = 0, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """One step of an Elman cell of two units, one row."""
    weights = {
        "kind": kind, "D": 2, "H": 2, "R": 2, "U": None, "b": None, "w": torch.eye(2), "extra": None, "extra_size": 0,
        "options": None,
    }  # fmt: skip
    inputs = {
        "weights": weights, "B": 1, "T": 1, "every": 1, "x": (torch.zeros(1, 1, 2), 2, 2),
        "h0": torch.full((1, 2), 0.5), "c0": None, "lengths": torch.tensor([1]),
        "reset": torch.zeros(1, 1, dtype=torch.bool), "backwards": False,
    }  # fmt: skip
    outputs = {
        "y": torch.zeros(1, 1, 2), "h": torch.zeros(1, 2), "c": None, "saved": None, "halves": None,
        "checkpoints": None, "ldy": 2,
    }  # fmt: skip
    return {**inputs, **changes}, outputs


def test_structs_are_read_by_name_in_any_order() -> None:
    inputs, outputs = struct()
    _native.gated_f32(dict(reversed(inputs.items())), dict(reversed(outputs.items())), 1)
    torch.testing.assert_close(outputs["y"][0, 0], torch.full((2,), 0.5).tanh())
    assert torch.equal(outputs["h"], outputs["y"][0])


def test_a_kind_that_is_not_listed_is_an_error() -> None:
    for number in (-1, len(KINDS), 1000):
        inputs, outputs = struct(number)
        with pytest.raises(ValueError, match=f"number {number}"):
            _native.gated_f32(inputs, outputs, 1)
        with pytest.raises(ValueError, match="kind"):
            _native.gated_layout(number, 8, 8, False, False, False, 4)


@pytest.mark.parametrize("lost", ["weights", "lengths", "every"])
def test_a_missing_field_is_named(lost: str) -> None:
    inputs, outputs = struct()
    del inputs[lost]
    with pytest.raises(TypeError, match=f"`{lost}` is missing"):
        _native.gated_f32(inputs, outputs, 1)


def test_an_unknown_field_is_named() -> None:
    inputs, outputs = struct(evry=3)
    with pytest.raises(TypeError, match="evry"):
        _native.gated_f32(inputs, outputs, 1)
    inputs, outputs = struct()
    with pytest.raises(TypeError, match="yy"):
        _native.gated_f32(inputs, {**outputs, "yy": None}, 1)


@pytest.mark.parametrize("field,value", [("B", "1"), ("x", torch.zeros(1, 1, 2)), ("h0", 3.5), ("weights", [1])])
def test_a_field_of_another_type_is_an_error(field: str, value: object) -> None:
    inputs, outputs = struct(**{field: value})
    with pytest.raises((TypeError, AttributeError)):
        _native.gated_f32(inputs, outputs, 1)


def test_a_length_past_the_end_is_an_error() -> None:
    inputs, outputs = struct(lengths=torch.tensor([2]))
    with pytest.raises(ValueError, match=r"lengths\[0\] is 2"):
        _native.gated_f32(inputs, outputs, 1)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softplus": torch.nn.functional.softplus,
    "silu": torch.nn.functional.silu, "log": torch.log, "exp": torch.exp, "relu": torch.relu, "abs": torch.abs,
    "sqrt": torch.sqrt, "sin": torch.sin, "cos": torch.cos,
}  # fmt: skip
COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip


def test_codes_mean_what_their_names_mean_in_torch() -> None:
    assert set(_native.Function.__members__) == set(FUNCTIONS)
    assert set(_native.Combination.__members__) == set(COMBINATIONS)
    program = Program(torch.float64)
    x = program.input(4)
    left, right = program.cut(x, 0, 2), program.cut(x, 2, 2)
    parts = [program.map(name, right) for name in FUNCTIONS]
    parts += [getattr(program, name)(left, right) for name in COMBINATIONS]
    program.finish(x, program.concat(parts))
    given = torch.tensor([[-0.7, 3.0, 0.4, 1.9]], dtype=torch.float64)
    y = torch.from_numpy(program.stream(1).step(given.numpy(), None, program.outputs(), 1))
    a, b = given.chunk(2, -1)
    expected = [f(b) for f in FUNCTIONS.values()] + [f(a, b) for f in COMBINATIONS.values()]
    torch.testing.assert_close(y, torch.cat(expected, -1), equal_nan=True)


def test_an_operation_is_read_by_name() -> None:
    program = _native.program_f32(_native.Stored.whole)
    x, code = program.slot(3), _native.Function["tanh"]
    assert program.map({"x": x, "function": code}) == x + 1
    with pytest.raises(TypeError, match="`function` is missing"):
        program.map({"x": x})
    with pytest.raises(TypeError, match="yy"):
        program.map({"x": x, "function": code, "yy": 1})
    with pytest.raises(RuntimeError):
        program.map({"x": x, "function": "tanh"})


def lines(width: int, itemsize: int) -> int:
    """Numbers that `width` of them take in whole cache lines of 64 bytes."""
    return -(-width * itemsize // 64) * 64 // itemsize


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_layout_is_the_drawing(data: st.DataObject) -> None:
    """The drawing in csrc/README.md, block by block."""
    draw = data.draw
    kind, itemsize = KINDS[draw(st.sampled_from(sorted(KINDS)))], draw(st.sampled_from([4, 8]))
    H, R = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    gain, gain_U, gain_c = (draw(st.booleans()) for _ in range(3))
    blocks = [lines(H, itemsize)] * kind.saves
    blocks += [lines(H, itemsize)] * kind.gates * gain + [lines(H, itemsize)] * kind.gates * gain_U
    blocks += [64 // itemsize] * (gain or gain_U or gain_c)
    state = [lines(R, itemsize)] + [lines(H, itemsize)] * (kind.states - 1)
    expected = sum(blocks), sum(state)
    assert _native.gated_layout(kind.number, H, R, gain, gain_U, gain_c, itemsize) == expected


class Guarded:
    """Runs kernels with what is saved between two walls of a number that no kernel writes there."""

    WALL, BRICK = 64, -12345.0

    def __init__(self, plain: Any) -> None:
        self.plain, self.guarded = plain, 0

    def __call__(self, name: str, dtype: torch.dtype, *structs: dict[str, Any]) -> None:
        if name != "gated":
            return self.plain(name, dtype, *structs)
        inputs, outputs = structs
        for field in ("saved", "checkpoints"):
            given = outputs[field]
            if given is None or not given.numel():
                continue
            walled = torch.full((given.numel() + 2 * self.WALL,), self.BRICK, dtype=dtype)
            outputs = {**outputs, field: walled[self.WALL : -self.WALL]}
            self.plain(name, dtype, inputs, outputs)
            assert (walled[: self.WALL] == self.BRICK).all() and (walled[-self.WALL :] == self.BRICK).all(), field
            given.copy_(walled[self.WALL : -self.WALL])
            self.guarded += 1
            return None
        return self.plain(name, dtype, *structs)


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    module = sys.modules["elman.kernels.native.gated"]  # its name is also that of a function
    guarded = Guarded(module.run)
    monkeypatch.setattr(module, "run", guarded)
    yield guarded
    assert guarded.guarded


def loop(kind: str, H: int, dtype: torch.dtype, norms: tuple[bool, bool, bool], every: int | None) -> list[Tensor]:
    """Outputs and gradients of a loop of three ragged rows."""
    facts, g = KINDS[kind], torch.Generator().manual_seed(H)

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64).mul(0.4).to(dtype).requires_grad_()

    B, T, D, N = 3, 5, 2, facts.gates * H
    weights = [weight(N, H)] if facts.matrix else []
    if not facts.matrix or kind == "gru" or kind.startswith("rate"):
        weights.append(weight(H))
    state = tuple(weight(B, H) for _ in range(facts.states))
    gain, gain_U, gain_c = norms
    options = GatedOptions(
        gain=weight(N) if gain or gain_U else None,
        gain_U=weight(N) if gain_U else None,
        gain_c=weight(H) if gain_c and facts.states == 2 else None,
        bias_c=weight(H) if gain_c and facts.states == 2 else None,
    )
    x, U, b = weight(B, T, D), weight(N, D), weight(N)
    lengths, reset = torch.tensor([T, 0, 3]), torch.rand(B, T, generator=g) < 0.3
    y, last = kernels.gated(kind, x, tuple(weights), state, lengths, reset, lambda *_: (), U, b, options, None, every)  # type: ignore[arg-type]
    assert isinstance(last, tuple)
    wanted = [x, U, b, *weights, *state, *(option for option in options if option is not None)]
    return [y, *last, *torch.autograd.grad([y, *last], wanted, [torch.ones_like(t) for t in (y, *last)])]


NORMED = {kind for kind in KINDS if kind.startswith(("lstm", "gru"))}
SAVING = [kind for kind in KINDS if KINDS[kind].saves]


@pytest.mark.parametrize("kind", SAVING)
def test_what_is_saved_fits_where_python_made_room(kind: str, guard: Guarded) -> None:
    """No number outside what `gated_layout` promised, and all that the backward pass needs inside."""
    norms = [(False, False, False)]
    if kind in NORMED:
        norms += [(True, False, False), (True, True, True), (False, False, True)]
    for H in (1, 3, 16, 17, 64, 65):
        for dtype in (torch.float32, torch.float64):
            for which in norms:
                whole, pieces = loop(kind, H, dtype, which, None), loop(kind, H, dtype, which, 2)
                outputs = 1 + KINDS[kind].states
                assert all(map(torch.equal, whole[:outputs], pieces[:outputs])), (H, dtype, which)
                torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)  # weights add up chunk by chunk


def test_a_normalised_c_alone_does_not_depend_on_the_threads() -> None:
    """Its norm is over all units of a row, which one thread must therefore have."""
    torch.manual_seed(0)
    B, T, H = 2, 60, 130
    x, W, state = torch.randn(B, T, 4 * H), torch.randn(4 * H, H) / H**0.5, (torch.randn(B, H), torch.randn(B, H))
    options = GatedOptions(gain_c=torch.randn(H), bias_c=torch.randn(H))
    lengths, reset = torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            y, _ = kernels.gated("lstm", x, (W,), state, lengths, reset, lambda *_: (), None, None, options)  # type: ignore[arg-type]
            found.append(y)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
