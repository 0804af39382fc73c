"""Beam search, for every model over symbols with a state: `repeat` once, then reorder rows by their parents.

Of all continuations of the num_beams best sequences, the num_beams best are kept. A sequence that has ended (the
boundary symbol, or what the caller says) stays as it is, and competes with those that go on. What is compared is

    log P(sequence) / length ** length_penalty

length the number of its symbols. With 0 that is the probability, which every further symbol lowers: wide beams then
prefer to end at once. With 1, the default, it is the mean log-probability of a symbol. Of equal ones the earlier wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.decoding.stepper import Predictor, Symbols, stepper
from elman.errors import InputError
from elman.options import number, whole
from elman.state import State

Sums = NDArray[np.float64]
MOST = 10_000  # beams: each is a row of the model


class Hypothesis(NamedTuple):
    """A continuation, its log-probability, and the state (1 row) that has read all of it but the last symbol."""

    tokens: list[int]
    log_prob: float
    state: State


def beam(
    model: Predictor,
    state: State,
    token: Tensor,
    *,
    num_beams: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    banned: Sequence[int] = (),
    ended: Callable[[list[int]], bool] = lambda tokens: tokens[-1] == BOUNDARY,
) -> list[list[Hypothesis]]:
    """For each row of `state`, whose next input is `token` (B,), its num_beams best continuations, the best first.

    Symbols that are `banned` are never chosen.
    """
    K = whole("num_beams", num_beams, most=MOST)
    penalty = number("length_penalty", length_penalty, 0)
    rows = _Rows(len(token), K, token.numpy())
    model_rows = stepper(model, states.repeat(state, K), len(token) * K)
    for _ in range(max_new_tokens):
        going_on = np.flatnonzero(~rows.done)
        if not len(going_on):
            break
        log_probs = model_rows.log_probs(rows.token[going_on], going_on).double().cpu().numpy()
        model_rows.reorder(rows.grow(_without(log_probs, banned), going_on, penalty))
        rows.end(ended)
    return rows.hypotheses(model_rows.state)


class _Rows:
    """B * K sequences, K for each row of the search."""

    def __init__(self, B: int, K: int, token: Symbols) -> None:
        self.B, self.K = B, K
        self.token = token.repeat(K)  # what each reads next
        self.tokens: list[list[int]] = [[] for _ in range(B * K)]
        self.lengths, self.done = np.zeros(B * K), np.zeros(B * K, bool)
        # All beams of a row are equal at first: all but one are shut, or the search would keep K copies.
        self.sums = np.full(B * K, -np.inf)
        self.sums[::K] = 0

    def grow(self, log_probs: Sums, going_on: Symbols, penalty: float) -> Symbols:
        """Keep the best continuations, log_probs (n, V) those of the sequences that go on; the parent of each."""
        V = log_probs.shape[1]
        # What has ended goes on by nothing, in the place of one symbol.
        grown = np.full((self.B * self.K, V), -np.inf)
        grown[:, BOUNDARY] = self.sums
        grown[going_on] = self.sums[going_on, None] + log_probs
        lengths = self.lengths + ~self.done
        compared = grown / lengths[:, None] ** penalty
        rows = compared.reshape(self.B, self.K * V)
        best = np.concatenate([b * self.K * V + _largest(row, self.K) for b, row in enumerate(rows)])
        parents, symbols = best // V, best % V
        self.sums, self.lengths = grown.ravel()[best], lengths[parents]
        self._follow(parents, symbols)
        return parents

    def _follow(self, parents: Symbols, symbols: Symbols) -> None:
        self.done = self.done[parents]
        self.token = np.where(self.done, self.token[parents], symbols)  # of what has ended, the last stays pending
        chosen = zip(parents.tolist(), symbols.tolist(), self.done.tolist(), strict=True)
        self.tokens = [self.tokens[p] if over else [*self.tokens[p], s] for p, s, over in chosen]

    def end(self, ended: Callable[[list[int]], bool]) -> None:
        """Those end that `ended` says it of."""
        self.done = np.array([over or ended(t) for over, t in zip(self.done.tolist(), self.tokens, strict=True)])

    def hypotheses(self, state: State) -> list[list[Hypothesis]]:
        """Those of each row that are possible, with their rows of `state`."""
        pairs = zip(self.tokens, self.sums.tolist(), strict=True)
        found = [Hypothesis(t, s, states.take(state, [i])) for i, (t, s) in enumerate(pairs)]
        rows = (found[b * self.K : (b + 1) * self.K] for b in range(self.B))
        return [[h for h in row if h.log_prob > -np.inf] for row in rows]


def _largest(scores: Sums, K: int) -> Symbols:
    """Where the K largest of `scores` stand, the largest first, and of equal ones the earlier."""
    least = np.partition(scores, -K)[-K]
    found = np.flatnonzero(scores >= least)
    return found[(-scores[found]).argsort(kind="stable")][:K]


def _without(log_probs: Sums, banned: Sequence[int]) -> Sums:
    """The log-probabilities, those of the symbols that are `banned` minus infinity."""
    if len(set(banned)) == log_probs.shape[1]:
        raise InputError("all symbols are banned; there is nothing left to choose")
    log_probs[:, list(banned)] = -np.inf
    return log_probs
