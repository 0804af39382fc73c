"""A stream is a scan in steps of one, bit for bit: every gated kind, the linear scan, norms, stacks and read-outs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import cell
from elman.compose import Dense, Norm, Parallel, Stack, WeightDrop, stack
from elman.core import Core
from elman.errors import InputError

native = pytest.importorskip("elman.kernels.native")
from elman.kernels.native.gated import KINDS  # noqa: E402
from elman.kernels.stream import Program, Slot, Stream, Unstreamable  # noqa: E402


class Gated(Core):
    """Any kind of gated cell, by its kernel."""

    def __init__(self, kind: str, D: int, H: int) -> None:
        super().__init__(D, H)
        self.kind, facts = kind, KINDS[kind]
        self.U = nn.Parameter(torch.randn(facts.gates * H, D) * D**-0.5)
        self.b = nn.Parameter(torch.randn(facts.gates * H))
        weights = [torch.randn(facts.gates * H, H) * H**-0.5] if facts.matrix else []
        if kind == "gru" or kind.startswith(("rate", "indrnn")):
            weights.append(torch.rand(H))
        self.w = nn.ParameterList(nn.Parameter(w) for w in weights)

    def init_state(self, batch_size: int) -> tuple[Tensor, ...]:
        return tuple(self.U.new_zeros(batch_size, self.output_size) for _ in range(KINDS[self.kind].states))

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        u = kernels.linear(x, self.U, self.b)
        return kernels.gated(self.kind, u, tuple(self.w), state, lengths, reset, None)  # type: ignore[arg-type]

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.gated(self.kind, x, self.U, self.b, tuple(self.w), state)


class Linear(Core):
    """h = a h + b x, real or complex; y = h (as pairs), normalised, gated by a sigmoid, beside half of x."""

    def __init__(self, D: int, C: int, *, complex_: bool) -> None:
        super().__init__(D, 0 or (2 * C if complex_ else C) + D)
        self.C, self.complex_ = C, complex_
        self.width = 2 * C if complex_ else C
        self.a = nn.Parameter(torch.rand(self.width) * 0.7)
        self.B, self.gain, self.bias = (
            nn.Parameter(torch.randn(s)) for s in ((self.width, D), (self.width,), (self.width,))
        )

    def _pairs(self, v: Tensor) -> Tensor:
        return torch.view_as_complex(v.unflatten(-1, (-1, 2))) if self.complex_ else v

    def init_state(self, batch_size: int) -> Tensor:
        return self._pairs(torch.zeros(batch_size, self.width))

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        b = kernels.linear(x, self.B)
        h, last = kernels.linear_scan(self._pairs(self.a), self._pairs(b), state, lengths, reset)
        h = torch.view_as_real(h).flatten(-2) if self.complex_ else h
        h = native.layer_norm(h, self.gain, self.bias, 1e-5)
        h = native.rms_norm(torch.relu(h) + kernels.softplus(h), self.gain, 1e-5)
        return torch.cat([h * kernels.sigmoid(b), x], -1), last

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        b = program.linear(x, self.B)
        h = program.scan(program.constant(self.a), b, state, is_complex=self.complex_)
        h = program.layer_norm(h, self.gain, self.bias, 1e-5)
        h = program.rms_norm(program.add(program.map("relu", h), program.map("softplus", h)), self.gain, 1e-5)
        both = program.concat([x, program.mul(h, program.map("sigmoid", b))])
        return program.concat([program.cut(both, x.width, h.width), program.cut(both, 0, x.width)])


class Chain(Core):
    def __init__(self, *cores: Core) -> None:
        super().__init__(cores[0].input_size, cores[-1].output_size)
        self.cores = nn.ModuleList(cores)

    def init_state(self, batch_size: int) -> Any:
        return tuple(core.init_state(batch_size) for core in self.cores)  # type: ignore[operator]

    def _scan(self, x: Tensor, state: Any, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        ends = []
        for core, part in zip(self.cores, state, strict=True):
            x, end = core._scan(x, part, lengths, reset)  # type: ignore[operator]
            ends.append(end)
        return x, tuple(ends)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        for core, part in zip(self.cores, state, strict=True):
            x = program.core(core, x, part)
        return x


def check(core: Core, B: int, T: int = 5) -> Stream:
    """Bits of outputs and of the last state; then the same from the middle, from a state put back."""
    x = torch.randn(B, T, core.input_size)
    with torch.no_grad():
        expected, last = core.scan(x)
    stream = Stream(core, B)
    assert stream.native
    for t in range(T):
        if t == 2:
            middle = stream.state
        assert np.array_equal(stream.step(x[:, t].numpy()), expected[:, t].numpy()), t
    assert all(map(torch.equal, leaves(stream.state), leaves(last)))
    stream.state = middle
    for t in range(2, T):
        assert torch.equal(stream.step(x[:, t]), expected[:, t])
    return stream


def leaves(state: Any) -> list[Tensor]:
    from elman import state as states

    return states.leaves(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("D,H", [(3, 7), (16, 128), (5, 65), (1, 1)])
def test_gated_kinds(kind: str, D: int, H: int) -> None:
    torch.manual_seed(0)
    core = Gated(kind, D, H)
    for B in (1, 2, 3, 8):
        check(core, B)


@pytest.mark.parametrize("complex_", [False, True])
def test_linear_scan_norms_and_elementwise(complex_: bool) -> None:
    torch.manual_seed(1)
    for B in (1, 3):
        check(Linear(5, 9, complex_=complex_), B)


def test_stack_of_different_cores() -> None:
    torch.manual_seed(2)
    core = Chain(Gated("lstm", 4, 20), Linear(20, 6, complex_=True), Gated("gru_before", 32, 9))
    stream = check(core, 4)
    other = Stream(core, 4)
    other.state = stream.state  # a fork
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    assert np.array_equal(stream.step(x), other.step(x))


def test_float64_and_a_frozen_snapshot() -> None:
    core = Gated("gru", 3, 5).double()
    stream = Stream(core, 2)
    x = torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = core.scan(x[:, None])
        core.U.zero_()
    assert torch.equal(stream.step(x), expected[:, 0])


def test_what_has_no_native_form_is_scanned() -> None:
    class Plain(Gated):
        def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
            raise Unstreamable("an option")

    core = Plain("gru", 3, 4)
    stream = Stream(core, 2)
    assert not stream.native
    x = torch.randn(2, 3, 3)
    with torch.no_grad():
        expected, last = core.scan(x)
    for t in range(3):
        y = stream.step(x[:, t].numpy())
    assert np.array_equal(y, expected[:, 2].numpy())
    assert torch.equal(stream.state[0], last[0])


def test_the_state_is_a_value() -> None:
    stream = Stream(Gated("lstm", 3, 4), 2)
    stream.step(np.ones((2, 3), np.float32))
    state = stream.state
    state[0].fill_(7)
    assert not (stream.state[0] == 7).any()
    with pytest.raises(InputError, match=r"float32\[2, 4\]"):
        stream.state = (state[0], state[1][:1])


def test_a_wrong_input_says_what_is_needed() -> None:
    stream = Stream(Gated("gru", 3, 4), 2)
    with pytest.raises(InputError, match=r"\[2, 3\]"):
        stream.step(np.ones((3, 3), np.float32))
    assert stream.step(np.ones((2, 3), np.float64)).dtype == np.float32


@pytest.mark.parametrize("centred", [True, False])
def test_norms_are_torchs(centred: bool) -> None:
    x, g, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 3, 9), (9,), (9,)))
    if centred:
        torch.testing.assert_close(native.layer_norm(x, g, b, 1e-5), nn.functional.layer_norm(x, (9,), g, b, 1e-5))
        assert torch.autograd.gradcheck(lambda *a: native.layer_norm(*a, 1e-5), (x, g, b))
    else:
        torch.testing.assert_close(native.rms_norm(x, g, 1e-5), nn.functional.rms_norm(x, (9,), g, 1e-5))
        assert torch.autograd.gradcheck(lambda *a: native.rms_norm(*a, 1e-5), (x, g))


LAYERS: dict[str, dict[str, Any]] = {
    "gru": {}, "lstm": {}, "elman": {}, "mgu": {}, "indrnn": {}, "rate": {"baseline": 0.5},
    "gru before": {"reset_after": False},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_every_gated_cell_of_the_library(name: str) -> None:
    torch.manual_seed(3)
    for B in (1, 3):
        check(cell(name.split()[0], 5, 9, **LAYERS[name]), B)


def test_words_of_composition() -> None:
    torch.manual_seed(4)
    deep = stack("lstm", 6, 10, layers=3, residual=True, norm="layer", dropout=0.2).eval()
    check(Stack(deep, Norm(10, kind="rms"), Dense(10, 4, activation="silu")), 3)
    inner = WeightDrop(cell("gru", 7, 5), 0.3).eval()
    wide = Stack(Dense(3, 4, activation="relu"), Parallel(inner, Dense(7, 2)), inputs="all")
    check(wide, 2)


def test_options_without_a_native_loop_are_scanned() -> None:
    assert not Stream(cell("hmm", 4, 4), 2).native
