"""Exported cores are saved and loaded by Torch: their states have names there."""

import io
import logging
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from elman import state as states
from elman.cells import cell
from elman.compose import LearnedStart, Pool, stack
from elman.core import Core


class OwnState(NamedTuple):
    total: Tensor


class Own(Core):
    def init_state(self, batch_size: int) -> OwnState:
        return OwnState(torch.zeros(batch_size, self.output_size))

    def step(self, x: Tensor, state: OwnState) -> tuple[Tensor, OwnState]:
        total = state.total + x
        return total, OwnState(total)


CORES = {
    "gated": lambda: cell("lstm", 4, 4),
    "diagonal": lambda: cell("mingru", 4, 4),
    "complex": lambda: cell("lru", 4, 4),
    "bank": lambda: cell("s4d", 4, 4),
    "selective": lambda: cell("mamba", 4, 4),
    "window": lambda: cell("window", 4, 4),
    "filter": lambda: cell("hmm", 4, 4),
    "pool": lambda: Pool("mean", 4),
    "stack": lambda: stack("gru", 4, 4, layers=2),
    "learned start": lambda: LearnedStart(cell("lru", 4, 4)),
    "own": lambda: Own(4, 4),
}


@pytest.mark.parametrize("name", CORES)
def test_an_exported_core_is_saved_and_loaded(name, caplog):
    torch.manual_seed(0)
    core, file = CORES[name]().eval(), io.BytesIO()
    x, state = torch.randn(2, 3, 4), core.init_state(2)
    torch.export.save(torch.export.export(core, (x, state)), file)
    file.seek(0)
    with caplog.at_level(logging.WARNING):
        loaded = torch.export.load(file).module()
    assert "weights_only" not in caplog.text  # nothing in the file had to be trusted
    (y, last), (wanted, wanted_last) = loaded(x, state), core(x, state)
    torch.testing.assert_close(y, wanted)
    assert type(last) is type(wanted_last)
    torch.testing.assert_close(states.leaves(last), states.leaves(wanted_last))
