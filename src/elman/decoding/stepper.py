"""What decoding steps: some rows of a model over symbols, one symbol at a time, each row with its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.model import SequenceModel
from elman.nn.distributions import Categorical, Discrete
from elman.nn.readout import Softmax
from elman.state import State
from elman.stream import Stream

Scores = NDArray[np.float32] | NDArray[np.float64]
Symbols = NDArray[np.int64]


class Predictor(Protocol):
    """What can be decoded from: a SequenceModel, or anything else with a `scan` over symbols."""

    def scan(self, x: Tensor, state: State) -> tuple[Discrete, State]: ...


class Stepper(Protocol):
    """Rows that go on one symbol at a time."""

    def logits(self, symbols: Symbols) -> Scores:
        """Every row reads one of the symbols (B,): the logits (B, V) of what follows, up to a number for each row."""

    def log_probs(self, symbols: Symbols, rows: Symbols) -> Tensor:
        """Some rows read one symbol each, symbols (n,): the log-probabilities (n, V) of what follows."""

    def reorder(self, parents: Symbols) -> None:
        """Row i becomes what row parents[i] was."""

    @property
    def state(self) -> State:
        """The states of all rows."""


def stepper(model: Predictor, state: State, batch_size: int, times: int = 1) -> Stepper:
    """The batch_size rows of `state`, each `times` times: a stream where the model can be streamed, else scans of one
    step."""
    state = states.repeat(state, times) if times > 1 else state
    if isinstance(model, SequenceModel) and all(p.device.type == "cpu" for p in model.parameters()):
        return Streamed(model.repeat(times), state, batch_size * times)
    return Scanned(model, state)


class Streamed:
    """The model as one stream, packed once; a step is one native call between numpy arrays."""

    def __init__(self, model: SequenceModel, state: State, batch_size: int) -> None:
        self.stream = Stream(model, batch_size)
        self.stream.state = state
        self.reorder = self.stream.reorder
        self.softmax = isinstance(model.readout, Softmax)
        self.logits: Callable[[Symbols], Scores] = self.stream.logits if self.softmax else self._scores

    def _scores(self, symbols: Symbols) -> Scores:
        scores: Scores = self.stream.distribution(symbols).log_probs().numpy()
        return scores

    def log_probs(self, symbols: Symbols, rows: Symbols) -> Tensor:
        if self.softmax:
            return Categorical(torch.from_numpy(self.stream.logits(symbols, rows))).log_probs()
        log_probs: Tensor = self.stream.distribution(symbols, rows).log_probs()
        return log_probs

    @property
    def state(self) -> State:
        return self.stream.state


class Scanned:
    """Anything with a `scan`, in steps of one."""

    def __init__(self, model: Predictor, state: State) -> None:
        self.model, self.state = model, state

    @torch.inference_mode()
    def logits(self, symbols: Symbols) -> Scores:
        predicted, self.state = self.model.scan(torch.from_numpy(symbols)[:, None], self.state)
        scores: Scores = predicted.scores()[:, 0].cpu().numpy()
        return scores

    @torch.inference_mode()
    def log_probs(self, symbols: Symbols, rows: Symbols) -> Tensor:
        numbers = torch.from_numpy(rows)
        predicted, after = self.model.scan(torch.from_numpy(symbols)[:, None], states.take(self.state, numbers))
        self.state = states.put(self.state, numbers, after)
        return predicted.log_probs()[:, 0]

    def reorder(self, parents: Symbols) -> None:
        self.state = states.take(self.state, torch.from_numpy(parents))
