"""Beam search, for every model over symbols with a state: `repeat` once, then reorder rows by their parents.

Of all continuations of the num_beams best sequences, the num_beams best are kept. A sequence that has ended (the
boundary symbol, or what the caller says) stays as it is, and competes with those that go on. What is compared is

    log P(sequence) / length ** length_penalty + bonus

length the number of its symbols. With 0 that is the probability, which every further symbol lowers: wide beams then
prefer to end at once. With 1, the default, it is the mean log-probability of a symbol. Of equal ones the earlier wins.
The bonus is what the caller makes of a sequence's state, as the coverage of a source; none by default.

Rows are independent: each has its own limits and prefix, those that have ended are not computed any more, and what is
found for a row does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.decoding.stepper import Predictor, Scores, Symbols, stepper
from elman.errors import InputError
from elman.options import number, whole
from elman.state import State

Sums = NDArray[np.float64]
Limit = int | Sequence[int]  # one for all rows, or one each
MOST = 10_000  # beams: each is a row of the model


class Hypothesis(NamedTuple):
    """A continuation, its log-probability, the state (1 row) that has read all of it but the last symbol, and what it
    was compared by."""

    tokens: list[int]
    log_prob: float
    state: State
    score: float


def beam(
    model: Predictor,
    state: State,
    token: Tensor,
    *,
    num_beams: int,
    max_new_tokens: Limit,
    min_new_tokens: Limit = 0,
    length_penalty: float = 1.0,
    banned: Sequence[int] = (),
    prefixes: Sequence[Sequence[int]] = (),
    ended: Callable[[list[int]], bool] = lambda tokens: tokens[-1] == BOUNDARY,
    bonus: Callable[[State], Sums] | None = None,
) -> list[list[Hypothesis]]:
    """For each row of `state`, whose next input is `token` (B,), its num_beams best continuations, the best first.

    Symbols that are `banned` are never chosen; the boundary not before min_new_tokens others have been. A row begins
    with its prefix, if `prefixes` are given, whatever the model says of it. `bonus` takes the states of all sequences.
    """
    K, B = whole("num_beams", num_beams, most=MOST), len(token)
    penalty = number("length_penalty", length_penalty, 0)
    allowed = _Allowed(banned, _each(min_new_tokens, B, K), [p for p in prefixes for _ in range(K)])
    rows = _Rows(B, K, token.numpy(), _each(max_new_tokens, B, K))
    model_rows = stepper(model, state, B, times=K)
    while len(going_on := np.flatnonzero(~rows.done)):
        log_probs = model_rows.log_probs(rows.token[going_on], going_on).cpu().numpy()
        allowed.apply(log_probs, rows.tokens, going_on)
        extra = np.zeros(B * K) if bonus is None else bonus(model_rows.state)
        model_rows.reorder(rows.grow(log_probs, going_on, penalty, extra))
        rows.end(ended)
    return rows.hypotheses(model_rows.state)


def _each(limit: Limit, B: int, K: int) -> list[int]:
    given = [limit] * B if isinstance(limit, int) else list(limit)
    return [whole("a limit of tokens", one, least=0) for one in given for _ in range(K)]


class _Allowed:
    """Which symbols a sequence may go on with."""

    def __init__(self, banned: Sequence[int], least: list[int], prefixes: Sequence[Sequence[int]]) -> None:
        self.banned, self.least, self.prefixes = list(banned), least, prefixes
        self.begins = max(map(len, prefixes), default=0)

    def apply(self, log_probs: Scores, tokens: list[list[int]], rows: Symbols) -> None:
        """Make log_probs (n, V) of the sequences in `rows` minus infinity where a symbol may not follow."""
        if len(set(self.banned)) == log_probs.shape[1]:
            raise InputError("all symbols are banned; there is nothing left to choose")
        if self.banned:
            log_probs[:, self.banned] = -np.inf
        early = [i for i, row in enumerate(rows.tolist()) if len(tokens[row]) < self.least[row]]
        if early and log_probs.shape[1] > len({*self.banned, BOUNDARY}):
            log_probs[early, BOUNDARY] = -np.inf
        for i, row in enumerate(rows.tolist()) if self.begins else ():
            at = len(tokens[row])
            if at < len(self.prefixes[row]):
                symbol = self.prefixes[row][at]
                kept = float(log_probs[i, symbol])
                log_probs[i] = -np.inf
                log_probs[i, symbol] = kept


class _Rows:
    """B * K sequences, K for each row of the search."""

    def __init__(self, B: int, K: int, token: Symbols, most: list[int]) -> None:
        self.B, self.K, self.most = B, K, most
        self.token = token.repeat(K)  # what each reads next
        self.tokens: list[list[int]] = [[] for _ in range(B * K)]
        self.lengths, self.done, self.scores = np.zeros(B * K), np.array(most) == 0, np.zeros(B * K)
        # All beams of a row are equal at first: all but one are shut, or the search would keep K copies.
        self.sums = np.full(B * K, -np.inf)
        self.sums[::K] = 0

    def grow(self, log_probs: Scores, going_on: Symbols, penalty: float, bonus: Sums) -> Symbols:
        """Keep the best continuations, log_probs (n, V) those of the sequences that go on; the parent of each."""
        parents, symbols, grown = self._candidates(log_probs, going_on)
        lengths = self.lengths + ~self.done
        with np.errstate(invalid="ignore"):  # nothing has been written where the most is 0
            compared = grown / np.maximum(lengths[parents], 1) ** penalty + bonus[parents]
        ends = np.searchsorted(parents, np.arange(0, (self.B + 1) * self.K, self.K))
        best = np.concatenate([a + _largest(compared[a:b], self.K) for a, b in pairwise(ends)])
        parents, symbols = parents[best], symbols[best]
        self.sums, self.scores, self.lengths = grown[best], compared[best], lengths[parents]
        self._follow(parents, symbols)
        return parents

    def _candidates(self, log_probs: Scores, going_on: Symbols) -> tuple[Symbols, Symbols, Sums]:
        """The sequences that may be kept, by parent and then by symbol: of what goes on, each one's K best symbols and
        those equal to the last of them; of what has ended, itself."""
        most = min(self.K, log_probs.shape[1])
        least = torch.from_numpy(log_probs).topk(most, 1).values[:, -1:].numpy()
        places, symbols = (log_probs >= least).nonzero()
        rows = going_on[places]
        sums = self.sums[rows] + log_probs[places, symbols].astype(np.float64)
        over = np.flatnonzero(self.done)
        rows, symbols = np.concatenate([rows, over]), np.concatenate([symbols, np.full(len(over), BOUNDARY)])
        order = rows.argsort(kind="stable")
        return rows[order], symbols[order], np.concatenate([sums, self.sums[over]])[order]

    def _follow(self, parents: Symbols, symbols: Symbols) -> None:
        self.done = self.done[parents]
        self.token = np.where(self.done, self.token[parents], symbols)  # of what has ended, the last stays pending
        chosen = zip(parents.tolist(), symbols.tolist(), self.done.tolist(), strict=True)
        self.tokens = [self.tokens[p] if over else [*self.tokens[p], s] for p, s, over in chosen]

    def end(self, ended: Callable[[list[int]], bool]) -> None:
        """Those end that `ended` says it of, and those that are as long as they may be."""
        each = zip(self.done.tolist(), self.tokens, self.most, strict=True)
        self.done = np.array([over or len(t) >= most or ended(t) for over, t, most in each], bool)

    def hypotheses(self, state: State) -> list[list[Hypothesis]]:
        """Those of each row that are possible, with their rows of `state`."""
        each = zip(self.tokens, self.sums.tolist(), self.scores.tolist(), strict=True)
        found = [Hypothesis(t, s, states.take(state, [i]), c) for i, (t, s, c) in enumerate(each)]
        rows = (found[b * self.K : (b + 1) * self.K] for b in range(self.B))
        return [[h for h in row if h.log_prob > -np.inf] for row in rows]


def _largest(scores: Sums, K: int) -> Symbols:
    """Where the K largest of `scores` stand, the largest first, and of equal ones the earlier."""
    return (-scores).argsort(kind="stable")[:K]
