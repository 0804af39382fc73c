"""Law 8 for whole models: embedding, stack and read-out in one, on every instruction set that the machine has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import CELLS
from elman.compose import Dense, Stack, stack
from elman.model import SequenceModel
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels")

T, D, V = 12, 7, 11
NATIVE = (
    "elman", "indrnn", "rate", "gru", "lstm", "mgu", "mingru", "minlstm", "lru", "s4d", "s5", "mamba", "mamba2",
    "mamba3", "retnet", "gla", "hgrn2", "deltanet", "gated_deltanet", "kda", "rwkv7", "mlstm", "slstm", "rglru",
)  # fmt: skip


def model(name: str) -> SequenceModel:
    torch.manual_seed(0)
    network = stack(name, D, 33, layers=2, residual=True, norm="layer", dropout=0.1)
    core = Stack(network, Dense(33, 9, activation="silu"))
    return SequenceModel(Embedding(V, D), core, Softmax(9, V)).eval()


def inputs(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    symbols = torch.randint(0, V, (rows, T), generator=generator)
    lengths = torch.randint(0, T + 1, (rows,), generator=generator)
    return symbols, lengths, torch.rand(rows, T, generator=generator) < 0.2


def logits(net: SequenceModel, x: Tensor, lengths: Tensor, reset: Tensor, cuts: tuple[int, ...] = ()) -> Tensor:
    """Logits (B, T, V), scanned in chunks that end at the cuts."""
    parts, state, start = [], None, 0
    with torch.inference_mode():
        for end in (*cuts, T):
            left = (lengths - start).clamp(0, end - start)
            predicted, state = net.scan(x[:, start:end], state, lengths=left, reset=reset[:, start:end])
            parts.append(predicted.logits)
            start = end
    return torch.cat(parts, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_batch_chunks_and_threads_do_not_change_a_bit(name):
    assert name in CELLS
    net, (x, lengths, reset) = model(name), inputs(64)
    before = kernels.calls()
    whole = logits(net, x, lengths, reset)
    assert kernels.calls() != before  # or this would compare Torch with itself
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for rows in (1, 2, 3, 5, 8, 17, 64):
                part = logits(net, x[:rows], lengths[:rows], reset[:rows])
                assert torch.equal(part, whole[:rows]), (threads, rows)
            for cuts in ((1,), (5, 5, 6), tuple(range(1, T))):
                assert torch.equal(logits(net, x, lengths, reset, cuts), whole), (threads, cuts)
    finally:
        torch.set_num_threads(1)


class Logits(nn.Module):
    """A model as a graph sees it: tensors in, tensors out."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = model(name)

    def forward(self, x: Tensor, lengths: Tensor, reset: Tensor) -> Tensor:
        predicted, _ = self.net.scan(x, lengths=lengths, reset=reset)
        return predicted.logits


def gradients(module, arrays: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(module(*arrays).square().sum(), weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lru", "mamba"])
def test_compiled_models_compute_the_same(name):
    plain, arrays = Logits(name), inputs(5)
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    before = kernels.calls()
    assert torch.equal(compiled(*arrays), plain(*arrays))
    assert kernels.calls() != before
    weights = list(plain.parameters())
    for given, wanted in zip(gradients(compiled, arrays, weights), gradients(plain, arrays, weights), strict=True):
        torch.testing.assert_close(given, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "mingru", "mamba"])
def test_exported_models_take_any_batch_and_time(name):
    plain, arrays = Logits(name), inputs(5)
    B, time = torch.export.Dim("B", max=4096), torch.export.Dim("time", max=4096)
    shapes = ({0: B, 1: time}, {0: B}, {0: B, 1: time})
    exported = torch.export.export(plain, arrays, dynamic_shapes=shapes).module()
    x, lengths, reset = inputs(9)
    assert torch.equal(exported(x, lengths, reset), plain(x, lengths, reset))
    short = lengths.clamp(max=7)
    assert torch.equal(exported(x[:, :7], short, reset[:, :7]), plain(x[:, :7], short, reset[:, :7]))
