"""Batches are windows into parallel streams; where the next batch is, is a value, so a run can resume anywhere.

The state is carried from window to window. Where an input is the boundary symbol, a new sequence begins: reset is set.
Independent lines and one endless text are thus the same thing to the training loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from elman.data.batches import Batch, Position, check_shared
from elman.data.cache import Encoded, Ids
from elman.data.vocabulary import BOUNDARY
from elman.errors import FileError, InputError
from elman.options import whole


class Streams:
    """`batch_size` parallel streams through a text, `window` symbols at a time; this process has its part of them.

    Each pass starts some random symbols later than the text does, so that windows are not cut at the same places.
    """

    def __init__(
        self, encoded: Encoded, batch_size: int, window: int, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        check_shared(batch_size, world)
        whole("data.window", window)
        if encoded.tokens < batch_size * window:
            raise InputError(
                f"the training text has {encoded.tokens} tokens; {batch_size} streams with windows of {window} need "
                f"at least {batch_size * window}. Give more text, or lower data.batch_size or data.window."
            )
        self.ids, self.batch_size, self.window, self.seed = encoded.ids, batch_size, window, seed
        self.rows = range(rank * batch_size // world, (rank + 1) * batch_size // world)

    def _offset(self, epoch: int) -> int:
        room = len(self.ids) - 1 - self.batch_size * self.window
        return int(np.random.default_rng((self.seed, epoch)).integers(0, min(self.window, room + 1))) if epoch else 0

    def _length(self, epoch: int) -> int:
        return (len(self.ids) - 1 - self._offset(epoch)) // self.batch_size

    def windows(self, epoch: int) -> int:
        """How many windows the pass has; the last one may be shorter."""
        return -(-self._length(epoch) // self.window)

    def batch(self, at: Position) -> Batch:
        """The windows of all rows at a position."""
        if at.window >= self.windows(at.epoch):
            raise FileError(
                f"the checkpoint continues at window {at.window} of a pass that has {self.windows(at.epoch)}: it is "
                "not one of this run. Put back a copy, or start another run."
            )
        offset, length = self._offset(at.epoch), self._length(at.epoch)
        start = at.window * self.window
        stop = min(start + self.window, length)
        begins = [offset + row * length for row in self.rows]
        batch = _batch(self.ids, [begin + start for begin in begins], [stop - start] * len(begins), stop - start)
        if at.window == 0:
            batch.reset[:, 0] = True
        return batch

    def after(self, at: Position) -> Position:
        """The position that follows."""
        return (
            Position(at.epoch, at.window + 1) if at.window + 1 < self.windows(at.epoch) else Position(at.epoch + 1, 0)
        )


class Lane(NamedTuple):
    """A part of a text that begins with a boundary, so that it can be scored beside the others."""

    start: int
    stop: int  # the last symbol of the lane, which is scored and not read


def lanes(encoded: Encoded, batch_size: int) -> list[Lane]:
    """Cut a text into at most `batch_size` parts of about equal length, at boundaries: scoring them apart is exact."""
    last = encoded.tokens
    cuts = [0]
    for k in range(1, max(1, batch_size)):
        cut = _next_boundary(encoded.ids, max(cuts[-1] + 1, k * last // batch_size))
        if cut >= last:
            break
        cuts.append(cut)
    return [Lane(a, b) for a, b in zip(cuts, [*cuts[1:], last], strict=True)]


def lane_batches(encoded: Encoded, batch_size: int, chunk: int, most: int) -> Iterator[Batch]:
    """All of a text, each token once, as batches to be scanned one after another with a carried state.

    A batch has `chunk` tokens of each lane, or fewer, so that it has no more than `most` in all.
    """
    parts = lanes(encoded, batch_size)
    chunk = min(chunk, max(1, most // len(parts)))
    longest = max(part.stop - part.start for part in parts)
    for start in range(0, longest, chunk):
        lengths = [min(max(part.stop - part.start - start, 0), chunk) for part in parts]
        yield _batch(encoded.ids, [part.start + start for part in parts], lengths, max(lengths))


def _batch(ids: Ids, starts: list[int], lengths: list[int], T: int) -> Batch:
    rows = np.zeros((len(starts), T + 1), dtype=np.int64)
    for row, start, length in zip(rows, starts, lengths, strict=True):
        if length:
            row[: length + 1] = ids[start : start + length + 1]
    x = torch.from_numpy(rows[:, :-1].copy())
    return Batch(x, torch.from_numpy(rows[:, 1:].copy()), x == BOUNDARY, torch.tensor(lengths, dtype=torch.int64))


def _next_boundary(ids: Ids, start: int, step: int = 1 << 20) -> int:
    for at in range(start, len(ids), step):
        places = np.flatnonzero(np.asarray(ids[at : at + step]) == BOUNDARY)
        if len(places):
            return at + int(places[0])
    return len(ids)
