"""Sampling, one symbol per row and step, in numpy: a dozen small Torch calls would cost more than the model.

P'(v) is proportional to P(v)^(1/temperature) over the symbols that top_k and top_p leave; temperature 0 takes the most
probable one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.distributions import Categorical
from elman.errors import InputError
from elman.kernels.stream import Stream
from elman.model import SequenceModel
from elman.readout import Softmax
from elman.state import State


class Carried(NamedTuple):
    """All that the next symbol depends on, as a value: it can be saved, forked and carried on."""

    core: State
    token: Tensor  # (B,) int64: the last symbol, which the core has not read yet
    seen: Tensor  # (B, V) bool: the symbols so far, for the repetition penalty
    draws: Tensor  # (B, 2) int64: the seed of each row, and how many numbers have been drawn from it


@dataclass(frozen=True)
class Sampling:
    """How to choose.

    Args:
        temperature: below 1 sharper, above 1 flatter, 0 the most probable symbol always
        top_k: choose among so many of the most probable symbols; 0 among all
        top_p: choose among the most probable symbols that together have this probability
        repetition_penalty: what the log-probability of every symbol seen before is multiplied by
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(
                f"temperature is {self.temperature}; it must be at least 0, and 0 takes the most probable symbol"
            )
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}; it must be at least 0, and 0 leaves all symbols")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1, and 1 leaves all symbols")
        if not 0 < self.repetition_penalty < float("inf"):
            raise InputError(
                f"repetition_penalty is {self.repetition_penalty}; it must be positive, and 1 changes nothing"
            )

    def choose(self, logits: NDArray[Any], seen: NDArray[np.bool_], u: float) -> int:
        """A symbol, from logits (V,) and a uniform number u."""
        if self.repetition_penalty != 1:
            logits = self._penalised(logits.astype(np.float64), seen)
        best = logits.argmax()
        if self.temperature == 0:
            return int(best)
        p = np.subtract(logits, logits[best], dtype=np.float64)
        if self.temperature != 1:
            p /= self.temperature
        np.exp(p, out=p)
        if 0 < self.top_k < len(p) or self.top_p < 1:
            return self._among_the_top(p, u)
        return _at(p.cumsum(out=p), u)

    def _penalised(self, scores: NDArray[np.float64], seen: NDArray[np.bool_]) -> NDArray[np.float64]:
        scores -= scores.max() + np.log(np.exp(scores - scores.max()).sum())
        scores[seen] *= self.repetition_penalty
        return scores

    def _among_the_top(self, p: NDArray[np.float64], u: float) -> int:
        order = np.argsort(-p, kind="stable")[: self.top_k or None]
        total = p[order].cumsum()
        keep = int(np.searchsorted(total, self.top_p * total[-1])) + 1  # the one that reaches top_p is in
        return int(order[_at(total[:keep], u)])


def _at(total: NDArray[np.float64], u: float) -> int:
    """The place at which a cumulated sum passes u times its end."""
    return min(int(total.searchsorted(u * total[-1], "right")), len(total) - 1)


class Sampler:
    """Draws symbol after symbol for each of B rows, each row with a seed of its own, whoever stands beside it."""

    def __init__(self, model: Any, start: Carried, settings: Sampling) -> None:
        self.settings = settings
        self.stepper = _stepper(model, start.core, len(start.token))
        self.token = start.token.numpy().copy()
        self.seen = list(start.seen.numpy().copy())
        self.start, self.drawn = start.draws.numpy().copy(), 0
        self.generators = [generator(int(seed), int(drawn)) for seed, drawn in self.start]

    def next(self) -> NDArray[np.int64]:
        """The next symbol (B,) of each row."""
        logits = self.stepper.step(self.token)
        chosen = [
            self.settings.choose(row, seen, g.random())
            for row, seen, g in zip(logits, self.seen, self.generators, strict=True)
        ]
        for seen, symbol in zip(self.seen, chosen, strict=True):
            seen[symbol] = True
        self.drawn += 1
        self.token = np.array(chosen)
        return self.token

    @property
    def state(self) -> Carried:
        """What the rows go on from."""
        parts = (self.token.copy(), np.stack(self.seen), self.start + np.array([0, self.drawn]))
        return Carried(self.stepper.state, *map(torch.from_numpy, parts))


class _Streamed:
    """The model as one stream, packed once; a step is one native call between numpy arrays."""

    def __init__(self, model: Any, state: State, batch_size: int) -> None:
        self.stream = Stream(model, batch_size)
        self.stream.state = state
        self.step = self.stream.logits

    @property
    def state(self) -> State:
        return self.stream.state


class _Scanned:
    """Anything with a `scan`, in steps of one."""

    def __init__(self, model: Any, state: State) -> None:
        self.model, self.state = model, state

    @torch.inference_mode()
    def step(self, token: NDArray[np.int64]) -> NDArray[Any]:
        """The logits (B, V) of what follows the symbols (B,)."""
        predicted, self.state = self.model.scan(torch.from_numpy(token)[:, None], self.state)
        logits = predicted.logits if isinstance(predicted, Categorical) else predicted.log_probs()
        rows: NDArray[Any] = logits[:, 0].cpu().numpy()
        return rows


def _stepper(model: Any, state: State, batch_size: int) -> _Streamed | _Scanned:
    softmax = isinstance(model, SequenceModel) and isinstance(model.readout, Softmax)
    if softmax and all(p.device.type == "cpu" for p in model.parameters()):
        return _Streamed(model, state, batch_size)
    return _Scanned(model, state)


def generator(seed: int, drawn: int) -> np.random.Generator:
    """The generator of a seed after `drawn` numbers; each uniform number is one step of it."""
    bits = np.random.PCG64(seed)
    return np.random.Generator(bits.advance(drawn))
