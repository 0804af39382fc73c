"""The family of linear recurrences: a cell of one's own from its coefficients alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman import state as states
from elman.cells import CELLS
from elman.cells.diagonal import Diagonal, wide
from elman.compose import Recompute
from elman.stream import Stream


def test_the_family():
    family = {name for name, kind in CELLS.items() if issubclass(kind, Diagonal)}
    assert family == {"mingru", "minlstm", "lru", "s5"}


class SimpleUnit(Diagonal[tuple[Tensor]]):
    """f, r = s(U x + b); h = f h' + (1 - f) V x; y = r tanh(h) + (1 - r) x (the SRU of Lei et al., 2018)."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.U = nn.Parameter(torch.randn(2 * size, size))
        self.b = nn.Parameter(torch.randn(2 * size))
        self.V = nn.Parameter(torch.randn(size, size))

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (self.zeros(batch_size, self.output_size),)

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f = kernels.sigmoid(wide(kernels.linear(x, self.U, self.b)).chunk(2, -1)[0])
        return f, (1 - f) * kernels.linear(x, self.V), x

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        r = kernels.sigmoid(kernels.linear(x, self.U, self.b).chunk(2, -1)[1])
        return r * kernels.tanh(h) + (1 - r) * x


class Rotation(Diagonal[tuple[Tensor]]):
    """One complex number for each input, turned by a learned angle and drawn by the input; y is a biased view of it."""

    is_complex = True

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.angle = nn.Parameter(torch.randn(size))
        self.B = nn.Parameter(torch.randn(2 * size, size))
        self.C = nn.Parameter(torch.randn(size, 2 * size))
        self.c = nn.Parameter(torch.randn(size))

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (self.zeros(batch_size, self.output_size, dtype=torch.complex64),)

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = 0.9 * torch.stack([self.angle.cos(), self.angle.sin()], 1)
        return a.flatten(), kernels.linear(x, self.B), x

    def read(self, h: Tensor, rest: Tensor) -> Tensor:
        return kernels.linear(h, self.C, self.c)


each_kind = pytest.mark.parametrize("kind", [SimpleUnit, Rotation])


@pytest.mark.parametrize("kernel", kernels.available())
@each_kind
def test_a_cell_of_ones_own_keeps_the_laws(kind, kernel):
    torch.manual_seed(0)
    with kernels.use(kernel):
        for core in (kind(4), Recompute(kind(4), 3)):
            report = laws.check(core)
            assert report.ok, str(report)


@pytest.mark.skipif("native" not in kernels.available(), reason="asks for native kernels")
@each_kind
def test_a_cell_of_ones_own_scans_and_streams_natively(kind):
    torch.manual_seed(0)
    core, x = kind(9), torch.randn(2, 6, 9)
    before = kernels.calls().get("linear_scan", 0)
    with torch.no_grad():
        y, last = core.scan(x)
    assert kernels.calls()["linear_scan"] == before + 1
    stream = Stream(core, 2)
    assert stream.native
    for t in range(6):
        assert torch.equal(stream.step(x[:, t]), y[:, t])
    assert all(map(torch.equal, states.leaves(stream.state), states.leaves(last)))
