"""The order-m Markov model with interpolated Kneser-Ney smoothing: what counting alone can do.

For a context c of k symbols, and c' without its first one:
    P_k(v | c) = max(n(c v) - D_k, 0) / n(c) + D_k * N(c) / n(c) * P_k-1(v | c'),   P_-1(v) = 1 / V,
where n are counts for k = m, and for k < m the number of different symbols that come before (continuation counts),
N(c) is how many different symbols follow c, and D_k = n1 / (n1 + 2 n2) from the numbers of counts that are 1 and 2.
(Kneser and Ney 1995; Chen and Goodman 1999, in the interpolated form.) A context that was never seen has P_k = P_k-1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elman.data.cache import Ids
from elman.data.vocabulary import BOUNDARY
from elman.errors import InputError
from elman.nn.distributions import Discrete
from elman.options import whole
from elman.progress import Waiting
from elman.state import State

Keys = NDArray[np.int64]
S = TypeVar("S", bound=np.generic)
CHUNK = 1 << 19  # symbols that are counted at a time


class Markov(nn.Module):
    """It has a state like any other model: the last m symbols (B, m)."""

    def __init__(self, vocabulary_size: int, order: int) -> None:
        super().__init__()
        whole("model.order", order, least=0)
        if vocabulary_size ** (order + 1) >= 2**63:
            raise InputError(f"{order + 1} symbols out of {vocabulary_size} do not fit into 64 bits; lower model.order")
        self.V, self.order = vocabulary_size, order
        self.keys: list[Keys] = []  # for each k, the (k + 1)-grams as numbers in base V, sorted
        self.cumulated: list[Keys] = []  # for each k, the sums of the counts before each key, and of all
        self.discounts: list[float] = []

    def fit(self, ids: Ids) -> None:
        """Count a text. Every sequence in it begins after a boundary symbol; before that there are only more."""
        with Waiting("counting", len(ids) - 1, "tokens") as waiting:
            keys, counts = _count(self._chunks(ids, waiting))
        tensors = {}
        for k in range(self.order, -1, -1):
            tensors[f"keys.{k}"], tensors[f"counts.{k}"] = torch.from_numpy(keys), torch.from_numpy(counts)
            # Each different gram once, without its first symbol: continuation counts.
            keys, counts = np.unique(keys % self.V**k, return_counts=True)
        self.restore(tensors)

    def _chunks(self, ids: Ids, waiting: Waiting) -> Iterator[Keys]:
        for start in range(1, len(ids), CHUNK):
            grams = self._grams(ids, start)
            yield grams
            waiting.add(len(grams))

    def _grams(self, ids: Ids, start: int) -> Keys:
        """The (m + 1)-gram that ends with each symbol of a chunk, with nothing from before the sequence it is in."""
        x = np.asarray(ids[start - 1 : start - 1 + CHUNK], dtype=np.int64)
        y = np.asarray(ids[start : start + CHUNK], dtype=np.int64)
        history = np.full(self.order, BOUNDARY)
        before = ids[max(0, start - 1 - self.order) : start - 1]
        history[self.order - len(before) :] = before
        contexts = _contexts(x[None, : len(y)], history[None], self.order)[0]
        grams: Keys = contexts @ self._places(self.order, 1) + y
        return grams

    def _places(self, k: int, shift: int = 0) -> NDArray[np.int64]:
        return self.V ** np.arange(k - 1 + shift, shift - 1, -1, dtype=np.int64)

    def restore(self, stored: dict[str, Tensor]) -> None:
        """Take the counts that `state_dict` gave."""
        self.keys = [stored[f"keys.{k}"].numpy() for k in range(self.order + 1)]
        counts = [stored[f"counts.{k}"].numpy() for k in range(self.order + 1)]
        self.cumulated = [np.concatenate([[0], part.cumsum()]) for part in counts]
        self.discounts = [_discount(part) for part in counts]

    @property
    def names(self) -> set[str]:
        """What `state_dict` gives names to."""
        return {f"{name}.{k}" for name in ("keys", "counts") for k in range(self.order + 1)}

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        named = (("keys", self.keys), ("counts", [np.diff(part) for part in self.cumulated]))
        return {f"{name}.{k}": torch.from_numpy(part) for name, parts in named for k, part in enumerate(parts)}

    def init_state(self, batch_size: int) -> Tensor:
        return torch.full((batch_size, self.order), BOUNDARY)

    def step(self, x: Tensor, state: State) -> tuple[MarkovDistribution, Tensor]:
        predicted, state = self.scan(x[:, None], state)
        return MarkovDistribution(self, predicted.contexts[:, 0]), state

    def scan(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[MarkovDistribution, Tensor]:
        """x (B, T): the distribution of what follows each symbol, and the last m symbols. A boundary, or a reset before
        a symbol, forgets all."""
        B, T = x.shape
        assert state is None or isinstance(state, Tensor)
        history = (self.init_state(B) if state is None else state).numpy()
        first = np.zeros((B, T), bool) if reset is None else reset.numpy()
        contexts = _contexts(x.numpy(), history, self.order, first)
        ends = np.full(B, T) if lengths is None else lengths.numpy()
        padded = np.concatenate([history[:, None], contexts], 1)
        return MarkovDistribution(self, contexts), torch.from_numpy(padded[np.arange(B), ends].copy())

    def log_prob(self, contexts: NDArray[np.int64], symbols: NDArray[np.int64]) -> NDArray[np.float64]:
        """log P(symbol | context) of each of n contexts (n, m) and symbols (n,)."""
        p = np.full(len(symbols), 1 / self.V)
        for k in range(self.order + 1):
            c = contexts[:, self.order - k :] @ self._places(k)
            first, last = np.searchsorted(self.keys[k], c * self.V), np.searchsorted(self.keys[k], (c + 1) * self.V)
            cumulated = self.cumulated[k]
            total, different = cumulated[last] - cumulated[first], last - first
            at = np.minimum(np.searchsorted(self.keys[k], c * self.V + symbols), len(self.keys[k]) - 1)
            count = np.where(self.keys[k][at] == c * self.V + symbols, cumulated[at + 1] - cumulated[at], 0)
            D = self.discounts[k]
            seen = np.maximum(total, 1)
            p = np.where(total > 0, np.maximum(count - D, 0) / seen + D * different / seen * p, p)
        logs: NDArray[np.float64] = np.log(p)
        return logs


class MarkovDistribution(Discrete):
    """The distribution after each context (..., m)."""

    def __init__(self, model: Markov, contexts: NDArray[np.int64]) -> None:
        self.model, self.contexts = model, contexts

    @property
    def _flat(self) -> NDArray[np.int64]:
        """The contexts (n, m); m may be 0, so n cannot be left to numpy."""
        return self.contexts.reshape(math.prod(self.contexts.shape[:-1]), self.model.order)

    def log_prob(self, value: Tensor) -> Tensor:
        flat = self._flat
        return torch.from_numpy(self.model.log_prob(flat, value.reshape(-1).numpy())).reshape(value.shape)

    def log_probs(self) -> Tensor:
        flat, V = self._flat, self.model.V
        every = np.tile(np.arange(V), len(flat))
        table = self.model.log_prob(flat.repeat(V, 0), every).reshape(*self.contexts.shape[:-1], V)
        return torch.from_numpy(table)


def _contexts(
    x: NDArray[np.int64], history: NDArray[np.int64], order: int, first: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """The last `order` symbols (B, T, m) at each place of x (B, T); what a boundary hides is a boundary too, and so is
    all that comes before the `first` symbol (B, T) of a sequence."""
    if not order:
        return np.empty((*x.shape, 0), np.int64)
    windows = _windows(np.concatenate([history, x], 1), order)
    hidden = _so_far(windows == BOUNDARY)
    if first is not None and first.any():
        starts = _windows(np.concatenate([np.zeros_like(history, bool), first], 1), order)
        # A first symbol hides those before it, not itself.
        hidden[..., :-1] |= _so_far(starts)[..., 1:]
    return np.where(hidden, BOUNDARY, windows).astype(np.int64)


def _so_far(marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """From the right, whether a mark has been met."""
    return np.logical_or.accumulate(marks[..., ::-1], axis=-1)[..., ::-1].copy()


def _windows(row: NDArray[S], order: int) -> NDArray[S]:
    """The last `order` values (B, T, m) at each place after the first `order` ones."""
    return np.lib.stride_tricks.sliding_window_view(row, order, axis=1)[:, 1:]


def _count(chunks: Iterator[Keys]) -> tuple[Keys, Keys]:
    """The different keys of all chunks, sorted, and how often each occurs, without ever holding all chunks."""
    parts: list[tuple[Keys, Keys]] = []
    for chunk in chunks:
        parts.append(np.unique(chunk, return_counts=True))
        # As in a merge sort: what is joined is about equally long, so each key is moved a few times only.
        while len(parts) > 1 and len(parts[-1][0]) * 2 > len(parts[-2][0]):
            parts.append(_join(parts.pop(), parts.pop()))
    while len(parts) > 1:
        parts.append(_join(parts.pop(), parts.pop()))
    return parts[0]


def _join(a: tuple[Keys, Keys], b: tuple[Keys, Keys]) -> tuple[Keys, Keys]:
    keys, counts = np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
    order = keys.argsort(kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts[order], first)


def _discount(counts: Keys) -> float:
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else 0.5
