"""Series to what a model reads: x[t] = [y[t-1], whether it was seen, past covariates of t-1, what is known at t].

A value that is missing has no term in the loss; as an input it is the last one that was seen, with a flag: each of
several targets by itself. Past covariates come with a flag of their own, for they end where the future begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.data.batches import Batch, Position, check_shared
from elman.errors import InputError
from elman.options import whole
from elman.tasks.forecast.calendar import Ticks
from elman.tasks.forecast.data import Panel, PanelReader, Series, inside

Floats = NDArray[np.floating[Any]]  # as PanelInputs.dtype says
MOST = {"float32": 1e30, "float64": 1e300}  # what leaves room for the differences and products of a network


class Tail(NamedTuple):
    """What the next row needs of the row before it."""

    value: Floats  # (C,): the last that was seen
    seen: Floats  # (F,): whether the row before had it, of each target or of all
    past: Floats  # (P + 1,): past covariates and their flag; none without such covariates


class Rows(NamedTuple):
    """A series as a model reads it; or several, with an axis B in front of all, and zeros behind the shorter ones."""

    x: Floats  # (T, D)
    y: Floats  # (T, C), zero where missing
    counted: NDArray[np.bool_]  # (T, C): whether there is a target
    tail: Tail  # what the row after it needs


@dataclass(frozen=True)
class PanelInputs:
    """How series become numbers: the reader's covariates, the calendar, and which series there are.

    Args:
        reader: how they are read
        names: the series that training saw, in order
        calendar: whether the time is an input
        numbered: whether the number of the series is, for an embedding; 0 is a series that training did not see
        each: whether every target has a flag of its own; else one says whether all were seen
        dtype: of what is read, float32 or float64
    """

    reader: PanelReader
    names: tuple[str, ...]
    calendar: bool = True
    numbered: bool = False
    each: bool = True
    dtype: str = "float32"

    @property
    def targets(self) -> int:
        """C."""
        return len(self.reader.target)

    @property
    def flags(self) -> int:
        """F."""
        return self.targets if self.each else 1

    @property
    def past(self) -> int:
        """P."""
        return self.reader.width(self.reader.past)

    @property
    def past_columns(self) -> slice:
        """Where past covariates and their flag stand in x."""
        start = self.targets + self.flags
        return slice(start, start + (self.past + 1 if self.past else 0))

    @property
    def others(self) -> int:
        """How many inputs there are beside the values and their flags, and beside the number of the series."""
        reader, columns = self.reader, self.past_columns
        assert reader.frequency is not None
        dates = reader.frequency.features(np.zeros(1, np.int64)).shape[1] if self.calendar else 0
        return columns.stop - columns.start + reader.width(reader.future) + dates + reader.width(reader.static)

    def first(self, series: int) -> Tail:
        """Before the first row of so many series nothing was seen."""
        columns = self.past_columns
        widths = (self.targets, self.flags, columns.stop - columns.start)
        return Tail(*(np.zeros((series, width), self.dtype) for width in widths))

    def rows(self, series: Series, tail: Tail | None = None) -> Rows:
        """The rows of a series, which continues from `tail`."""
        one = None if tail is None else Tail(*(part[None] for part in tail))
        found = self.batch([series], one)
        return Rows(found.x[0], found.y[0], found.counted[0], Tail(*(part[0] for part in found.tail)))

    def batch(self, series: Sequence[Series], tail: Tail | None = None) -> Rows:
        """The rows of several series, which continue from the rows of `tail`."""
        panel = Panel.of(series)
        B, lengths = len(panel), panel.lengths
        tail = self.first(B) if tail is None else tail
        given = panel.padded(panel.y, np.nan)
        self._check_range(panel, given, self.reader.target)
        counted = ~np.isnan(given)
        y = np.where(counted, given, 0.0).astype(self.dtype)
        T = y.shape[1]
        last = np.maximum.accumulate(np.where(counted, np.arange(1, T + 1)[:, None], 0), 1)  # 0 is the tail's
        last = np.concatenate([np.zeros((B, 1, self.targets), np.int64), last], 1)
        values = np.take_along_axis(np.concatenate([tail.value[:, None], y], 1), last, 1)  # (B, T + 1, C)
        flags = counted if self.each else counted.all(2, keepdims=True)
        seen = np.concatenate([tail.seen[:, None], flags.astype(self.dtype)], 1)
        past = np.concatenate([tail.past[:, None], self._past(panel)], 1)
        now = self.known(panel.names, panel.starts, lengths, panel.padded(panel.future, 0.0), panel.static)
        x = np.concatenate([values[:, :-1], seen[:, :-1], past[:, :-1], now], 2, dtype=self.dtype)
        every = np.arange(B)
        return Rows(
            np.where(inside(lengths)[..., None], x, np.zeros((), self.dtype)), y, counted,
            Tail(*(part[every, lengths] for part in (values, seen, past))),
        )  # fmt: skip

    def known(
        self, names: Sequence[str], starts: Ticks, lengths: Ticks, future: NDArray[np.float64],
        static: NDArray[np.float64],
    ) -> Floats:  # fmt: skip
        """What is known ahead (B, T, K): future covariates (B, T, F), the calendar, what does not change (B, S), and
        the numbers of the series."""
        frequency = self.reader.frequency
        assert frequency is not None
        B, T = future.shape[:2]
        ticks = starts[:, None] + np.arange(T)
        gone = np.isnan(future).any(2) & inside(lengths)
        if gone.any():
            i, t = np.argwhere(gone)[0]
            when = frequency.stamps(ticks[i, t : t + 1])[0]
            raise InputError(
                f"series {names[i]!r} has no value of {' or '.join(self.reader.future)} at {when}; a future covariate "
                "must be known for every row and for the whole horizon: --future FILE has those to come"
            )
        if np.abs(future).max(initial=0) > MOST[self.dtype]:
            raise InputError(f"a value of {' or '.join(self.reader.future)} is beyond {MOST[self.dtype]:g}; correct it")
        parts: list[NDArray[Any]] = [future]
        if self.calendar:
            parts.append(frequency.features(ticks.ravel()).reshape(B, T, -1))
        parts.append(np.broadcast_to(static[:, None], (B, T, static.shape[1])))
        if self.numbered:
            numbers = {name: float(i + 1) for i, name in enumerate(self.names)}
            each = np.array([numbers.get(name, 0.0) for name in names])
            parts.append(np.broadcast_to(each[:, None, None], (B, T, 1)))
        return np.concatenate(parts, 2, dtype=self.dtype)

    def _check_range(self, panel: Panel, given: NDArray[np.float64], names: Sequence[str]) -> None:
        """Raise an InputError that names the first value that cannot be computed with."""
        with np.errstate(invalid="ignore"):
            wrong = np.abs(given) > MOST[self.dtype]
        if wrong.any():
            i, t, column = np.argwhere(wrong)[0]
            assert self.reader.frequency is not None
            when = self.reader.frequency.stamps(panel.starts[i : i + 1] + t)[0]
            named = f" of {names[column]}" if len(names) == wrong.shape[2] else ""
            raise InputError(
                f"series {panel.names[i]!r} has the value {given[i, t, column]:g}{named} at {when} (row {t}), beyond "
                f"{MOST[self.dtype]:g}, what this model computes with ({self.dtype}). Correct it, leave it empty if it "
                "is missing, or write the series in other units."
            )

    def _past(self, panel: Panel) -> Floats:
        """Past covariates with their flag: all of a row are known, or it counts as none."""
        if not self.past:
            return np.zeros((len(panel), int(panel.lengths.max()), 0), self.dtype)
        given = panel.padded(panel.past, np.nan)
        self._check_range(panel, given, self.reader.past)
        known = ~np.isnan(given).any(2, keepdims=True)
        return np.concatenate([np.where(known, given, 0.0), known], 2, dtype=self.dtype)


class Segment(NamedTuple):
    """A stretch of a series in the arrays of all: rows before `counts` are read without a term in the loss."""

    start: int
    counts: int
    stop: int


class SeriesStreams:
    """Series in parallel lanes, `window` rows at a time, the state carried from window to window.

    A pass has every row once, in an order of its own. A series longer than `segment` is cut, at other places in each
    pass; a piece begins anew, and reads `warmup` rows from before it first. With past covariates, each window of a lane
    has an origin by chance, behind which they are not known. The first `skip` values of a series have no term.
    """

    def __init__(
        self, inputs: PanelInputs, series: Sequence[Series], batch_size: int, window: int, seed: int, *,
        segment: int = 0, warmup: int = 0, skip: int = 0, rank: int = 0, world: int = 1,
    ) -> None:  # fmt: skip
        check_shared(batch_size, world)
        whole("data.window", window)
        rows = [inputs.rows(one) for one in series]
        self.inputs, self.batch_size, self.window, self.seed = inputs, batch_size, window, seed
        self.segment, self.warmup = segment, warmup
        self.mine = range(rank * batch_size // world, (rank + 1) * batch_size // world)
        self.x, self.y = (torch.from_numpy(np.concatenate(part)) for part in ([r.x for r in rows], [r.y for r in rows]))
        counted = [r.counted.copy() for r in rows]
        for one in counted:  # the first values of a series say how large the others will be; of a short one, fewer do
            skipped = np.clip(one.sum(0) // 2, min(skip, 1), skip)  # of each target, which may begin later than others
            one[one.cumsum(0) <= skipped] = False
        if not any(one.any() for one in counted):
            raise InputError("no series has two values to learn from; there is nothing to train on")
        self.counted = torch.from_numpy(np.concatenate(counted))
        ends = np.cumsum([len(r.x) for r in rows])
        self.bounds = [(int(end) - len(r.x), int(end)) for end, r in zip(ends, rows, strict=True)]
        self._pass: tuple[int, list[list[Segment]]] = (-1, [])

    def batch(self, at: Position) -> Batch:
        """The windows of all lanes at a position."""
        lanes, T = self._lanes(at.epoch), self.window
        pieces = [_window(lane, at.window * T, T) for lane in (lanes[i] for i in self.mine)]
        lengths = torch.tensor([len(places) for places, _, _ in pieces])
        index = torch.zeros(len(pieces), int(lengths.max()), dtype=torch.int64)
        reset, counts = torch.zeros_like(index, dtype=torch.bool), torch.zeros_like(index, dtype=torch.bool)
        for row, (places, begins, terms) in enumerate(pieces):
            index[row, : len(places)] = torch.from_numpy(places)
            reset[row, : len(places)] = torch.from_numpy(begins)
            counts[row, : len(places)] = torch.from_numpy(terms)
        if at.window == 0:
            reset[:, 0] = True
        x = self.x[index]
        self._hide_past(x, at)
        return Batch(x, (self.y[index], counts[..., None] & self.counted[index]), reset, lengths)

    def after(self, at: Position) -> Position:
        """The position that follows."""
        longest = max(sum(piece.stop - piece.start for piece in lane) for lane in self._lanes(at.epoch))
        return Position(at.epoch, at.window + 1) if (at.window + 1) * self.window < longest else Position(at.epoch + 1)

    def _hide_past(self, x: Tensor, at: Position) -> None:
        columns = self.inputs.past_columns
        if columns.stop > columns.start:
            origins = np.random.default_rng((self.seed, at.epoch, at.window)).integers(0, self.window, self.batch_size)
            for row, origin in zip(x, origins[self.mine.start : self.mine.stop], strict=True):
                row[origin + 1 :, columns] = 0.0

    def _lanes(self, epoch: int) -> list[list[Segment]]:
        """The pieces of each lane in a pass: each next one goes to the lane that is shortest."""
        if self._pass[0] != epoch:
            random = np.random.default_rng((self.seed, epoch))
            pieces = [piece for start, stop in self.bounds for piece in self._pieces(start, stop, random)]
            lanes: list[list[Segment]] = [[] for _ in range(self.batch_size)]
            lengths = np.zeros(self.batch_size, np.int64)
            for i in random.permutation(len(pieces)):
                lane = int(lengths.argmin())
                lanes[lane].append(pieces[i])
                lengths[lane] += pieces[i].stop - pieces[i].start
            self._pass = (epoch, lanes)
        return self._pass[1]

    def _pieces(self, start: int, stop: int, random: np.random.Generator) -> list[Segment]:
        if not self.segment or stop - start <= self.segment:
            return [Segment(start, start, stop)]
        first = start + int(random.integers(1, self.segment + 1))
        cuts = [start, *range(first, stop, self.segment), stop]
        return [Segment(max(start, a - self.warmup), a, b) for a, b in pairwise(cuts) if b > a]


def _window(
    lane: Sequence[Segment], start: int, T: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Of the rows [start, start + T) of a lane: where they are, whether a piece begins, whether they count."""
    places, begins, terms, at = [], [], [], 0
    for piece in lane:
        length = piece.stop - piece.start
        first, last = max(start - at, 0), min(start + T - at, length)
        if first < last:
            rows = np.arange(piece.start + first, piece.start + last)
            places.append(rows)
            begins.append(rows == piece.start)
            terms.append(rows >= piece.counts)
        at += length
    if not places:
        return np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, bool)
    return np.concatenate(places), np.concatenate(begins), np.concatenate(terms)
