"""Sampling, one symbol per row and step: natively many steps in a call, or by `kernels.choose`, to the same bits.

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

from elman import kernels, random
from elman import state as states
from elman.data.vocabulary import BOUNDARY
from elman.decoding.hypotheses import Allowed, Hypothesis, Limit, each
from elman.errors import InputError
from elman.nn.distributions import Distribution
from elman.progress import check_cancelled
from elman.state import State
from elman.stream import ModelStream, Scores, Steps, Symbols, stream_of

AHEAD = 32  # steps that are drawn, or whose uniform numbers are made, in one call


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
    def choice(self) -> kernels.Choice:
        banned = torch.tensor(self.banned, dtype=torch.int64)
        return kernels.Choice(self.temperature, self.top_k, self.top_p, self.repetition_penalty, banned)

    def choose(self, logits: Scores, seen: NDArray[np.bool_], u: NDArray[np.float64]) -> Symbols:
        """A symbol for each row (B,), from logits (B, V), the symbols seen (B, V) and uniform numbers u (B, 1)."""
        self.check(logits.shape[1])
        return kernels.choose(self.choice, logits, seen, u)

    def check(self, vocabulary_size: int) -> None:
        """Raise an InputError if a banned symbol is none of so many."""
        if self.banned and not 0 <= min(self.banned) <= max(self.banned) < vocabulary_size:
            raise InputError(f"banned is {list(self.banned)}; the symbols are 0 to {vocabulary_size - 1}")


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
    """Draws symbol after symbol for each of B rows, each row with a seed of its own, whoever stands beside it.

    Where the model writes natively, symbols are drawn some steps ahead in one call. A row that ends before it has come
    to the last of them, or whose state is wanted, goes back to where these began, and draws again what was taken.
    `most` is how many will be asked for, where that is known, and `ahead` how many are drawn in one call.

    A ModelStream in place of the model, with as many rows, is used as it is: its weights are not looked at again.
    """

    def __init__(
        self, model: Steps[Distribution] | ModelStream, start: Carried, settings: Sampling, *,
        most: int | None = None, ahead: int = AHEAD,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.stream = model if isinstance(model, ModelStream) else stream_of(model, len(start.token))
        self.stream.state = start.core
        # The arrays of `pending`, which native code writes to.
        settings.check(start.seen.shape[1])
        self.token, self.seen, self.draws = (
            part.clone(memory_format=torch.contiguous_format) for part in (start.token, start.seen, start.draws)
        )
        self.uniform = Uniform(start.draws)
        self.rows = np.arange(len(self.token))  # those that go on
        self._ahead: Symbols = np.empty((0, len(self.token)), np.int64)
        self._taken, self._left, self._most_ahead = 0, most, ahead

    def next(self) -> Symbols:
        """The next symbol (B,) of each row that goes on; of the others the last one."""
        if self._taken == len(self._ahead):
            self._look_ahead()
        self._taken += 1
        return self._ahead[self._taken - 1]

    def some(self) -> Symbols:
        """The next symbols (n, B), as `next` has them: as many as were drawn ahead."""
        if self._taken == len(self._ahead):
            self._look_ahead()
        first, self._taken = self._taken, len(self._ahead)
        return self._ahead[first:]

    def end(self, row: int, without: int = 0) -> None:
        """The row stays where it is, or where it was before the last `without` symbols of `some`."""
        taken = self._taken - without
        self._go_back(np.array([row]), taken)
        self._ahead[taken:, row] = int(self.token[row])
        self.rows = self.rows[self.rows != row]

    @property
    def state(self) -> Carried:
        """What the rows continue from."""
        self._go_back(self.rows, self._taken)
        self._ahead = self._ahead[: self._taken]
        return Carried(self.stream.state, self.token.clone(), self.seen.clone(), self.draws.clone())

    def _look_ahead(self) -> None:
        if self.stream.writes:
            self._before = self.stream.state, self.token.clone(), self.seen.clone(), self.draws.clone()
            n = self._most_ahead if self._left is None else max(1, min(self._most_ahead, self._left))
            written = self._write(self.rows, n, BOUNDARY)
            self._left = None if self._left is None else self._left - len(written)
        else:
            written = self._step()
        self._ahead = np.repeat(self.token.numpy()[None], len(written), 0)
        self._ahead[:, self.rows] = written
        self._taken = 0

    def _write(self, rows: Symbols, n: int, end: int) -> Symbols:
        pending = {"symbols": self.token, "seen": self.seen, "draws": self.draws}
        return self.stream.write(self.settings.choice, pending, rows, n, end)

    def _step(self) -> Symbols:
        """One symbol (1, rows) of each of the rows, for which Python has to look at the logits."""
        rows, token, seen = self.rows, self.token.numpy(), self.seen.numpy()
        logits = self.stream.logits(token[rows], rows)
        token[rows] = self.settings.choose(logits, seen[rows], self.uniform.next()[rows])
        seen[rows, token[rows]] = True
        self.draws[rows, 1] += 1
        return token[rows][None]

    def _go_back(self, rows: Symbols, taken: int) -> None:
        """Bring rows that were drawn ahead back to what was taken."""
        if taken == len(self._ahead) or not len(rows):
            return
        core, *pending = self._before
        self.stream.put(rows, states.take(core, torch.from_numpy(rows)))
        for now, then in zip((self.token, self.seen, self.draws), pending, strict=True):
            now[rows] = then[rows]
        if taken:
            self._write(rows, taken, end=-1)


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
