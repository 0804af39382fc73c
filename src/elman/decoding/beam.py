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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.decoding.hypotheses import Allowed, Hypothesis, Limit, each
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.options import number, whole
from elman.progress import check_cancelled
from elman.state import State
from elman.stream import ModelStream, Scores, Steps, Symbols

Sums = NDArray[np.float64]
MOST = 10_000  # beams: each is a row of the model


def beam(
    model: Steps[Distribution],
    state: State,
    token: Tensor,
    *,
    num_beams: int,
    max_new_tokens: Limit,
    min_new_tokens: Limit = 0,
    length_penalty: float = 1.0,
    banned: Sequence[int] = (),
    prefixes: Sequence[Sequence[int]] = (),
    ended: Callable[[Symbols], bool] | None = None,
    bonus: Callable[[State], Sums] | None = None,
) -> list[list[Hypothesis]]:
    """For each row of `state`, whose next input is `token` (B,), its num_beams best continuations, the best first.

    Symbols that are `banned` are never chosen; the boundary not before min_new_tokens others have been. A row begins
    with its prefix, if `prefixes` are given, whatever the model says of it. A sequence ends with the boundary, or where
    `ended` says so of its symbols, an array. `bonus` takes the states of all sequences.
    """
    K, B = whole("num_beams", num_beams, most=MOST), len(token)
    penalty = number("length_penalty", length_penalty, 0)
    allowed = Allowed(banned, each(min_new_tokens, B, K), [p for p in prefixes for _ in range(K)])
    rows = _Rows(B, K, token.numpy(), each(max_new_tokens, B, K))
    stream = ModelStream(model.repeat(K) if isinstance(model, SequenceModel) else model, B * K)
    stream.state = states.repeat(state, K)
    while len(going_on := rows.going_on()):
        check_cancelled()
        log_probs = stream.log_probs(rows.token[going_on], going_on)
        allowed.apply(log_probs, rows.lengths[going_on], going_on)
        extra = np.zeros(B * K) if bonus is None else bonus(stream.state)
        parents = rows.grow(log_probs, going_on, penalty, extra)
        if K > 1:
            stream.reorder(parents)
        rows.end(ended)
    return rows.hypotheses(stream.state)


class _Rows:
    """B * K sequences, K for each row of the search."""

    def __init__(self, B: int, K: int, token: Symbols, most: Symbols) -> None:
        self.B, self.K, self.most = B, K, most
        self.token = token.repeat(K)  # what each reads next
        self.written = np.zeros((B * K, 32), np.int64)  # the symbols of each, as many as lengths says
        self.lengths, self.done, self.scores = np.zeros(B * K, np.int64), most == 0, np.zeros(B * K)
        # All beams of a row are equal at first: all but one are shut, or the search would keep K copies.
        self.sums = np.full(B * K, -np.inf)
        self.sums[::K] = 0

    def going_on(self) -> Symbols:
        """Those that have not ended; of what is shut nothing can come."""
        return np.flatnonzero(~self.done & (self.sums > -np.inf))

    def grow(self, log_probs: Scores, going_on: Symbols, penalty: float, bonus: Sums) -> Symbols:
        """Keep the best continuations, log_probs (n, V) those of the sequences that go on; the parent of each.

        Candidates stand by parent and then by symbol: of what goes on its K best symbols, of what has ended itself.
        """
        best = _best(log_probs, self.K)
        symbols = np.full((self.B * self.K, best.shape[1]), BOUNDARY)
        grown = np.full(symbols.shape, -np.inf)
        symbols[going_on] = best
        grown[going_on] = self.sums[going_on, None] + np.take_along_axis(log_probs, best, 1).astype(np.float64)
        grown[self.done, 0] = self.sums[self.done]
        lengths = self.lengths + ~self.done
        compared = grown / np.maximum(lengths, 1)[:, None] ** penalty + bonus[:, None]
        order = (-compared).reshape(self.B, -1).argsort(1, kind="stable")[:, : self.K]  # of equal ones the earlier
        parents = (order // best.shape[1] + self.K * np.arange(self.B)[:, None]).ravel()
        chosen = parents, (order % best.shape[1]).ravel()
        self.sums, self.scores, self.lengths = grown[chosen], compared[chosen], lengths[parents]
        self._follow(parents, symbols[chosen])
        return parents

    def _follow(self, parents: Symbols, symbols: Symbols) -> None:
        self.done, self.written = self.done[parents], self.written[parents]
        self.token = np.where(self.done, self.token[parents], symbols)  # of what has ended, the last stays pending
        if self.lengths.max() > self.written.shape[1]:
            self.written = np.concatenate([self.written, np.zeros_like(self.written)], 1)
        grew = np.flatnonzero(~self.done)
        self.written[grew, self.lengths[grew] - 1] = symbols[grew]

    def end(self, ended: Callable[[Symbols], bool] | None) -> None:
        """Those end that write the boundary or that `ended` says it of, and those that are as long as they may be."""
        over = self.token == BOUNDARY
        if ended is not None:
            for i in np.flatnonzero(~self.done & (self.sums > -np.inf)).tolist():
                over[i] |= ended(self.written[i, : self.lengths[i]])  # a view: copies would add up
        self.done |= over | (self.lengths >= self.most)

    def hypotheses(self, state: State) -> list[list[Hypothesis]]:
        """Those of each row that are possible, with their rows of `state`."""
        all_ = zip(self.written, self.lengths.tolist(), self.sums.tolist(), self.scores.tolist(), strict=True)
        found = [Hypothesis(t[:n].tolist(), s, _row(state, i), c) for i, (t, n, s, c) in enumerate(all_)]
        rows = (found[b * self.K : (b + 1) * self.K] for b in range(self.B))
        return [[h for h in row if h.log_prob > -np.inf] for row in rows]


def _row(state: State, i: int) -> State:
    return states.map(lambda leaf: leaf[i : i + 1], state)


def _best(log_probs: Scores, K: int) -> Symbols:
    """The K symbols of each row (n, V) that are the most probable, in their own order; of equal ones the earlier."""
    n, V = log_probs.shape
    if V <= K:
        return np.tile(np.arange(V), (n, 1))
    values, symbols = torch.from_numpy(log_probs).topk(K + 1, 1)
    best: Symbols = symbols[:, :K].numpy().copy()
    for i in np.flatnonzero((values[:, K - 1] == values[:, K]).numpy()).tolist():  # where Torch chose among equal ones
        best[i] = (-log_probs[i]).argsort(kind="stable")[:K]
    best.sort(1)
    return best
