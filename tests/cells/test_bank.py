"""The family of banks: a cell of one's own from its coefficients alone, and what it keeps in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman import kernels, laws
from elman.cells import CELLS, cell
from elman.cells.bank import Bank
from elman.compose import Recompute
from elman.stream import Stream


def test_the_family():
    assert [name for name, kind in CELLS.items() if issubclass(kind, Bank)] == ["s4d"]


class Averages(Bank[tuple[Tensor]]):
    """Each channel keeps three averages of its input, read by learned weights; y is biased, also where x is not."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.U = nn.Parameter(torch.randn(size, input_size))
        self.decay = nn.Parameter(torch.randn(size, 3, 2))
        self.C = nn.Parameter(torch.randn(size, 3, 2))
        self.c = nn.Parameter(torch.randn(size))

    def init_state(self, batch_size: int) -> tuple[Tensor]:
        return (self.zeros(batch_size, self.output_size, 3, dtype=torch.complex64),)

    def project(self, x: Tensor) -> Tensor:
        return kernels.tanh(kernels.linear(x, self.U))

    def bank(self) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.tanh(self.decay) / 2**0.5
        return a, 1 - a, self.C

    def read(self, s: Tensor, u: Tensor) -> Tensor:
        return kernels.silu(s) + self.c


@pytest.mark.parametrize("kernel", kernels.available())
def test_a_cell_of_ones_own_keeps_the_laws(kernel):
    torch.manual_seed(0)
    with kernels.use(kernel):
        for core in (Averages(3, 4), Recompute(Averages(3, 4), 3)):
            report = laws.check(core)
            assert report.ok, str(report)


@pytest.mark.skipif("native" not in kernels.available(), reason="asks for native kernels")
def test_a_cell_of_ones_own_scans_and_streams_natively():
    torch.manual_seed(0)
    core, x = Averages(3, 9), torch.randn(2, 6, 3)
    before = kernels.calls().get("bank_scan", 0)
    with torch.no_grad():
        y, last = core.scan(x)
    assert kernels.calls()["bank_scan"] == before + 1
    stream = Stream(core, 2)
    assert stream.native
    for t in range(6):
        assert torch.equal(stream.step(x[:, t]), y[:, t])
    assert torch.equal(stream.state[0], last[0])


@pytest.mark.skipif("native" not in kernels.available(), reason="the reference kernels hold every state")
def test_the_states_of_all_time_steps_are_never_held():
    """What autograd keeps of S4D is a few times x, not the 64 numbers of each channel and step."""
    core, x, kept = cell("s4d", 16, 16), torch.randn(2, 640, 16), {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        core.scan(x)
    parameters = sum(p.nbytes for p in core.parameters())
    assert sum(kept.values()) < 5 * x.nbytes + 10 * parameters
