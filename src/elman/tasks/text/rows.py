"""Rows of a model over symbols, as bytes in and out: stepped together, or scanned together for some steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman import state as states
from elman.decoding.stepper import Scores, Symbols
from elman.model import SequenceModel
from elman.nn.readout import Softmax
from elman.state import State
from elman.stream import Stream
from elman.tasks.serving import Bytes


class StreamRows:
    """Rows of a stream, written before each step and read after it."""

    def __init__(self, model: SequenceModel, rows: int) -> None:
        self.stream, self.places = Stream(model, rows), np.arange(rows)
        self.softmax = isinstance(model.readout, Softmax)

    def step(self, core: Bytes, symbols: Symbols) -> tuple[Scores, Bytes]:
        rows = self.places[: len(symbols)]
        self.stream.write(rows, core)
        if self.softmax:
            scores: Scores = self.stream.logits(symbols, rows)
        else:
            scores = self.stream.distribution(symbols, rows).log_probs().numpy()
        return scores, self.stream.read(rows)


class ScanRows:
    """What cannot be streamed: scans of length one."""

    def __init__(self, model: Any) -> None:
        self.model, self.like = model, model.init_state(1)

    def step(self, core: Bytes, symbols: Symbols) -> tuple[Scores, Bytes]:
        state = states.from_rows(core, self.like)
        scores, after = scanned(self.model, symbols[:, None], state, torch.ones(len(symbols), dtype=torch.int64), True)
        assert scores is not None
        return scores[:, 0], after


@torch.inference_mode()
def scanned(model: Any, x: Symbols, core: State, lengths: Tensor, wanted: bool) -> tuple[Scores | None, Bytes]:
    """The scores (B, T, V) of what follows each symbol, if they are wanted, and the states after the last."""
    given = torch.from_numpy(x)
    if not wanted and isinstance(model, SequenceModel):
        _, state = model.core.scan(model.embed(given), core, lengths=lengths)
        return None, states.to_rows(state)
    predicted, state = model.scan(given, core, lengths=lengths)
    if not wanted:
        return None, states.to_rows(state)
    return predicted.scores().numpy(), states.to_rows(state)
