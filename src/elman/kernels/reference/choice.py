"""The reference of `kernels.choose`: a symbol by chance for each row of logits, in Numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]
Symbols = NDArray[np.int64]


class Choice(NamedTuple):
    """How to choose; `elman.decoding.Sampling` says what its parts mean."""

    temperature: float
    top_k: int
    top_p: float
    penalty: float
    banned: Tensor  # int64

    def fields(self) -> dict[str, object]:
        """What csrc/program.h takes."""
        return {**self._asdict(), "banned_count": len(self.banned)}


def choose(choice: Choice, logits: NDArray[np.floating], seen: NDArray[np.bool_], u: Numbers) -> Symbols:
    p = logits.astype(np.float64)
    p[:, choice.banned.numpy()] = -np.inf
    if choice.penalty != 1:
        _penalise(p, seen, choice.penalty)
    if choice.temperature == 0:
        return p.argmax(axis=1)
    p -= _largest(p)
    p /= choice.temperature
    np.exp(p, out=p)
    if 0 < choice.top_k < p.shape[1] or choice.top_p < 1:
        return _among_the_top(choice, p, u)
    return place(p.cumsum(axis=1, out=p), u)


def place(total: Numbers, u: Numbers | float) -> Symbols:
    """Where the running sums `total` (B, V) of weights reach u (B, 1) times their end: (B,).

    Never a place without weight: u is above 0, and where the product is rounded up to the end, the last weight reaches
    it.
    """
    return (total >= u * total[:, -1:]).argmax(axis=1)


def _penalise(p: Numbers, seen: NDArray[np.bool_], penalty: float) -> None:
    """Make p (B, V) log-probabilities, and those of the symbols seen smaller."""
    p -= _largest(p)
    p -= np.log(np.add.reduce(np.exp(p), axis=1, keepdims=True))
    np.multiply(p, penalty, out=p, where=seen)


def _among_the_top(choice: Choice, p: Numbers, u: Numbers) -> Symbols:
    order = (-p).argsort(axis=1, kind="stable")[:, : choice.top_k or None]
    rows = np.arange(len(p))
    total = p[rows[:, None], order].cumsum(axis=1)
    if choice.top_p < 1:  # the one that reaches top_p is in; past it the sums no longer count
        total[:, -1] = total[rows, place(total, choice.top_p)]
    return order[rows, place(total, u)]


def _largest(p: Numbers) -> Numbers:
    """(B, 1). Numpy finds where it is several times faster than what it is."""
    return p[np.arange(len(p)), p.argmax(axis=1)][:, None]
