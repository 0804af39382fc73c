"""The family of gated cells: the gates of each by name, and a cell of one's own from its equation alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS, cell
from elman.cells.gated import Gated, Gates
from elman.cells.gru import GRUState
from elman.compose import Recompute
from elman.stream import Stream

GATED = [name for name, kind in CELLS.items() if issubclass(kind, Gated)]
VARIANTS = [(name, options) for name in GATED for options in CELLS[name].variants]
NAMES = {
    "elman": "h", "indrnn": "h", "rate": "n", "mgu": "f n", "gru": "r z n", "lstm": "i f g o c", "jordan": "h",
    "deep_transition": "g1 g2", "slstm": "i f log_f z o",
}  # fmt: skip


def test_the_family() -> None:
    assert set(GATED) == set(NAMES)
    for name in GATED:
        core = cell(name, 3, 4)
        gates = core.gates(core.project(torch.ones(2, 3)), core.init_state(2))
        assert list(gates) == NAMES[name].split()
        assert all(gate.shape == (2, 4) for gate in gates.values())


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_gates_make_the_scan(name, options, randomised, draw):
    """From every state that the (native) scan passes, the gates and `update` lead to the next."""
    core = randomised(cell(name, 3, 4, **options))
    x = draw(0, 2, 5, 3)
    state = core.init_state(2)
    for t in range(5):
        gates = core.gates(core.project(x[:, t]), state)
        y, after = core.scan(x[:, t : t + 1], state)
        for one, two in zip(core.update(gates, state), after, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(core.read(after[0]), y[:, 0], rtol=1e-10, atol=1e-10)
        state = after


@pytest.mark.parametrize(("name", "options"), [(n, o) for n, o in VARIANTS if n in ("mgu", "gru", "lstm")])
def test_gates_lie_between_zero_and_one(name, options, randomised, draw):
    core = randomised(cell(name, 3, 4, **options))
    _, state = core.scan(draw(0, 2, 5, 3))
    gates = core.gates(core.project(draw(1, 2, 3)), state)
    for letter in set("rzfio") & set(gates):
        assert gates[letter].min() > 0 and gates[letter].max() < 1


def test_the_gates_of_a_gru_by_hand():
    """One unit, weights in whole numbers: r = s(1), z = s(2), n = tanh(3 + r (4 + 5))."""
    core = cell("gru", 1, 1).double()
    with torch.no_grad():
        core.U.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
        core.W.copy_(torch.tensor([[0.0], [0.0], [4.0]]))
        core.b.zero_(), core.c.fill_(5.0)
    one = torch.ones(1, 1, dtype=torch.float64)
    gates = core.gates(core.project(one), GRUState(one))
    r, z = (1 / (1 + torch.exp(torch.tensor(-v, dtype=torch.float64))) for v in (1.0, 2.0))
    torch.testing.assert_close(gates["r"].squeeze(), r)
    torch.testing.assert_close(gates["z"].squeeze(), z)
    torch.testing.assert_close(gates["n"].squeeze(), torch.tanh(3 + r * 9))


class UpdateGate(Gated[tuple[Tensor]]):
    """h = g h' + (1 - g) tanh(W_c h' + U_c x + b_c), g = s(W_g h' + U_g x + b_g) (Collins et al., 2017)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.W = nn.Parameter(torch.randn(2 * size, size) / size)
        self.U = nn.Parameter(torch.randn(2 * size, input_size))
        self.b = nn.Parameter(torch.randn(2 * size))

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (self.zeros(batch_size, self.output_size),)

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.U, self.b)

    def gates(self, u: Tensor, state: tuple[Tensor]) -> Gates:
        g, c = (u + kernels.linear(state[0], self.W)).chunk(2, -1)
        return {"g": kernels.sigmoid(g), "c": kernels.tanh(c)}

    def update(self, gates: Gates, state: tuple[Tensor]) -> tuple[Tensor]:
        return (gates["g"] * state[0] + (1 - gates["g"]) * gates["c"],)


class Learned(UpdateGate):
    """It starts from a state that it learns, says how far h is from its last value, and remembers that value."""

    output_is_state = False

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.first = nn.Parameter(torch.randn(size))

    def init_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        first = self.first + self.zeros(batch_size, self.output_size)
        return first, -first

    def update(self, gates: Gates, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (h,) = super().update(gates, state[:1])
        return h - 0.5 * state[1], state[0]

    def read(self, h: Tensor) -> Tensor:
        return 2 * h + 1


class Swap(UpdateGate):
    """Two memories that change places, one of them then being updated: y is what the other was."""

    def init_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        return self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size)

    def update(self, gates: Gates, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return state[1], gates["g"] * state[0] + gates["c"]


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("kind", [UpdateGate, Learned, Swap])
def test_a_cell_of_ones_own_keeps_the_laws(kind, kernel):
    torch.manual_seed(0)
    with kernels.use(kernel):
        for core in (kind(3, 4), Recompute(kind(3, 4), 2)):
            report = laws.check(core)
            assert report.ok, str(report)


@pytest.mark.skipif("native" not in kernels.available(), reason="without native kernels a stream is a scan")
@pytest.mark.parametrize("kind", [UpdateGate, Learned, Swap])
def test_a_cell_of_ones_own_streams_natively(kind):
    torch.manual_seed(0)
    core, x = kind(3, 9), torch.randn(2, 6, 3)
    with torch.no_grad():
        y, last = core.scan(x)
    stream = Stream(core, 2)
    assert stream.native
    for t in range(6):
        assert torch.equal(stream.step(x[:, t]), y[:, t])
    assert all(map(torch.equal, states.leaves(stream.state), states.leaves(last)))


class Arctangent(UpdateGate):
    """A candidate that no native program knows."""

    def gates(self, u: Tensor, state: tuple[Tensor]) -> Gates:
        g, c = (u + kernels.linear(state[0], self.W)).chunk(2, -1)
        return {"g": kernels.sigmoid(g), "c": torch.atan(c)}


def test_what_a_stream_cannot_build_is_scanned():
    torch.manual_seed(0)
    core, x = Arctangent(3, 9), torch.randn(2, 6, 3)
    with torch.no_grad():
        y, _ = core.scan(x)
    stream = Stream(core, 2)
    assert not stream.native
    for t in range(6):
        torch.testing.assert_close(stream.step(x[:, t]), y[:, t])


@pytest.mark.skipif("native" not in kernels.available(), reason="a native loop is asked for")
def test_recompute_runs_inside_the_native_loop_of_every_cell_that_has_one():
    for name in GATED:
        core = cell(name, 3, 4)
        before = kernels.calls().get("gated", 0)
        Recompute(core, 3).scan(torch.randn(2, 12, 3))[0].sum().backward()
        once = core.loop() is not None
        assert core.has_loop() == once
        assert kernels.calls().get("gated", 0) - before == int(once), name
        assert all(p.grad is not None for p in core.parameters())
