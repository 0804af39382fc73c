"""What decoding finds, and what it may: continuations, and the symbols that they may go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elman.data.vocabulary import BOUNDARY
from elman.errors import InputError
from elman.options import whole
from elman.state import State
from elman.stream import Scores, Symbols

Limit = int | Sequence[int]  # one for all rows, or one each


class Hypothesis(NamedTuple):
    """A continuation, its log-probability, the state (1 row) that has read all of it but the last symbol, and what it
    was compared by."""

    tokens: list[int]
    log_prob: float
    state: State
    score: float


def each(limit: Limit, B: int, times: int = 1) -> Symbols:
    """The limit of each of B rows, every row `times` times."""
    given = [limit] * B if isinstance(limit, int) else list(limit)
    return np.array([whole("a limit of tokens", one, least=0) for one in given for _ in range(times)], np.int64)


class Allowed:
    """Which symbols a sequence may go on with."""

    def __init__(self, banned: Sequence[int], least: Symbols, prefixes: Sequence[Sequence[int]]) -> None:
        self.banned, self.least, self.prefixes = list(banned), least, prefixes
        self.begins = max(map(len, prefixes), default=0)

    def apply(self, log_probs: Scores, lengths: Symbols, rows: Symbols) -> None:
        """Make log_probs (n, V) of the sequences in `rows`, so long by now, minus infinity where a symbol may not
        follow."""
        if len(set(self.banned)) == log_probs.shape[1]:
            raise InputError("all symbols are banned; there is nothing left to choose")
        if self.banned:
            log_probs[:, self.banned] = -np.inf
        if log_probs.shape[1] > len({*self.banned, BOUNDARY}):
            log_probs[lengths < self.least[rows], BOUNDARY] = -np.inf
        for i, (row, at) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)) if self.begins else ():
            if at < len(self.prefixes[row]):
                symbol = self.prefixes[row][at]
                kept = float(log_probs[i, symbol])
                log_probs[i] = -np.inf
                log_probs[i, symbol] = kept
