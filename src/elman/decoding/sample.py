"""Sampling, one symbol per row and step, in Numpy: a dozen small Torch calls would cost more than the model.

P'(v) is proportional to P(v)^(1/temperature) over the symbols that top_k and top_p leave; temperature 0 takes the most
probable one. All rows are chosen for at once, each with its own uniform number (elman.random), and to the same bits as
alone. With the settings left alone that is `Categorical.sample`, at temperature 0 its `mode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import random
from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.decoding.hypotheses import Allowed, Hypothesis, Limit, each
from elman.errors import InputError
from elman.nn.distributions import Distribution
from elman.progress import check_cancelled
from elman.state import State
from elman.stream import ModelStream, Scores, Steps, Symbols

AHEAD = 64  # steps whose uniform numbers are made at once: one call costs as much as those of as many steps


class Carried(NamedTuple):
    """All that the next symbol depends on, as a value: it can be saved, forked and carried on."""

    core: State
    token: Tensor  # (B,) int64: the last symbol, which the core has not read yet
    seen: Tensor  # (B, V) bool: the symbols so far, for the repetition penalty
    draws: Tensor  # (B, 2) int64: the seed of each row, and how many symbols have been drawn with it


@dataclass(frozen=True)
class Sampling:
    """How to choose.

    Args:
        temperature: below 1 sharper, above 1 flatter, 0 the most probable symbol always
        top_k: choose among so many of the most probable symbols; 0 among all
        top_p: choose among the most probable symbols that together have this probability
        repetition_penalty: what the log-probability of every symbol seen before is multiplied by
        banned: symbols that are never chosen
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    banned: tuple[int, ...] = ()

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

    @cached_property
    def _left_out(self) -> slice | list[int]:
        """The banned symbols, side by side where they are: numpy writes a slice in a tenth of the time."""
        first, last = min(self.banned), max(self.banned)
        side_by_side = sorted(self.banned) == list(range(first, last + 1))
        return slice(first, last + 1) if side_by_side else list(self.banned)

    def choose(self, logits: Scores, seen: NDArray[np.bool_], u: NDArray[np.float64]) -> Symbols:
        """A symbol for each row (B,), from logits (B, V), the symbols seen (B, V) and uniform numbers u (B, 1)."""
        p = logits.astype(np.float64)
        if self.banned:
            p[:, self._left_out] = -np.inf
        if self.repetition_penalty != 1:
            self._penalise(p, seen)
        if self.temperature == 0:
            return p.argmax(axis=1)
        p -= _largest(p)
        if self.temperature != 1:
            p /= self.temperature
        np.exp(p, out=p)
        if 0 < self.top_k < p.shape[1] or self.top_p < 1:
            return self._among_the_top(p, u)
        return random.place(p.cumsum(axis=1, out=p), u)

    def _penalise(self, p: NDArray[np.float64], seen: NDArray[np.bool_]) -> None:
        """Make p (B, V) log-probabilities, and those of the symbols seen smaller."""
        p -= _largest(p)
        p -= np.log(np.add.reduce(np.exp(p), axis=1, keepdims=True))
        np.multiply(p, self.repetition_penalty, out=p, where=seen)

    def _among_the_top(self, p: NDArray[np.float64], u: NDArray[np.float64]) -> Symbols:
        order = (-p).argsort(axis=1, kind="stable")[:, : self.top_k or None]
        rows = np.arange(len(p))
        total = p[rows[:, None], order].cumsum(axis=1)
        if self.top_p < 1:  # the one that reaches top_p is in; past it the sums no longer count
            total[:, -1] = total[rows, random.place(total, self.top_p)]
        return order[rows, random.place(total, u)]


def _largest(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, 1). Numpy finds where it is several times faster than what it is."""
    return p[np.arange(len(p)), p.argmax(axis=1)][:, None]


class Uniform:
    """The uniform number of each row's next draw, made for some steps ahead."""

    def __init__(self, draws: Tensor) -> None:
        self._first, self._drawn = draws.clone(), 0
        self._ahead: list[NDArray[np.float64]] = []  # the last first

    def next(self) -> NDArray[np.float64]:
        """(B, 1)."""
        if not self._ahead:
            self._ahead = [*random.ahead(self.draws, AHEAD).numpy().T[::-1, :, None]]
        self._drawn += 1
        return self._ahead.pop()

    @property
    def draws(self) -> Tensor:
        """The seed of each row, and how many numbers have been drawn with it."""
        return random.after(self._first, self._drawn)


class Sampler:
    """Draws symbol after symbol for each of B rows, each row with a seed of its own, whoever stands beside it."""

    def __init__(self, model: Steps[Distribution], start: Carried, settings: Sampling) -> None:
        self.settings, self.stream = settings, ModelStream(model, len(start.token))
        self.stream.state = start.core
        self.token: Symbols = start.token.numpy().copy()
        self.seen = start.seen.numpy().copy()
        self.rows = np.arange(len(self.token)) * self.seen.shape[1]  # where each begins in `seen`
        self.uniform = Uniform(start.draws)

    def next(self) -> Symbols:
        """The next symbol (B,) of each row."""
        logits = self.stream.logits(self.token)
        self.token = self.settings.choose(logits, self.seen, self.uniform.next())
        self.seen.put(self.rows + self.token, True)
        return self.token

    @property
    def state(self) -> Carried:
        """What the rows continue from."""
        token, seen = torch.from_numpy(self.token.copy()), torch.from_numpy(self.seen.copy())
        return Carried(self.stream.state, token, seen, self.uniform.draws)


def sample(
    model: Steps[Distribution],
    state: State,
    token: Tensor,
    drawn: Tensor,
    settings: Sampling,
    *,
    max_new_tokens: Limit,
    min_new_tokens: Limit = 0,
    prefixes: Sequence[Sequence[int]] = (),
) -> list[Hypothesis]:
    """A continuation by chance of each row of `state`, until its boundary or as long as it may be.

    The next input of the rows is `token` (B,), their random numbers `drawn` (B, 2); limits and prefixes are as in
    `beam`. A row is the same alone and in any batch, and is not computed any more once it has ended. log_prob is what
    the model says of what was drawn, whatever the settings made of it; score is that divided by the symbols.
    """
    B, rows, uniform = len(token), ModelStream(model, len(token)), Uniform(drawn)
    rows.state = state
    least, most = each(min_new_tokens, B), each(max_new_tokens, B)
    allowed, pending = Allowed(settings.banned, least, prefixes), token.numpy().copy()
    written, sums, t = [list[int]() for _ in range(B)], np.zeros(B), 0
    seen: NDArray[np.bool_] = np.zeros((B, 0), bool)
    while len(going_on := np.flatnonzero((most > t) & ((pending != BOUNDARY) | (t == 0)))):
        check_cancelled()
        log_probs = rows.log_probs(pending[going_on], going_on)
        seen = seen if seen.size else np.zeros((B, log_probs.shape[1]), bool)
        left = log_probs.copy()
        allowed.apply(left, np.full(len(going_on), t), going_on)
        pending[going_on] = chosen = settings.choose(left, seen[going_on], uniform.next()[going_on])
        seen[going_on, chosen] = True
        sums[going_on] += log_probs[np.arange(len(chosen)), chosen]
        for row, symbol in zip(going_on.tolist(), chosen.tolist(), strict=True):
            written[row].append(symbol)
        t += 1
    after = rows.state
    return [
        Hypothesis(tokens, float(s), states.take(after, [i]), float(s) / max(1, len(tokens)))
        for i, (tokens, s) in enumerate(zip(written, sums, strict=True))
    ]
