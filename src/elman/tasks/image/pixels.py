"""Recurrences over the rows of an image, each of which can be taken pixel by pixel.

A row of pixels is one step: x (B, T, C * D) is a batch of images of T rows and C columns, D numbers a pixel, and the
state is what the next row needs to know of the rows above. Inside a row, pixels come from left to right:

    row = open(state)                   a row is begun
    y, row = pixel(x, row)              C times: x (B, D), y (B, N)
    state = close(row)                  it is complete

That is the definition; a step is these three, and a scan is steps. So an image is drawn for the price of one scan:
pixel after pixel, with what is known of the row in between.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.core import Core
from elman.options import whole
from elman.state import AnyState


class Row(NamedTuple):
    """A row of which some pixels are known."""

    before: AnyState  # the state when it was begun
    xs: tuple[Tensor, ...] = ()  # (B, D) each: what was read of it
    cells: tuple[AnyState, ...] = ()  # the states of its pixels, where they lead on to the right


class Pixels(Core):
    """A Core over rows of `columns` pixels, each `channels` numbers in and `size` out."""

    remedy = "a wider window (model.kernel) or more layers (model.layers)"

    def __init__(self, channels: int, size: int, columns: int) -> None:
        channels, size, columns = whole("channels", channels), whole("size", size), whole("columns", columns)
        super().__init__(columns * channels, columns * size)
        self.channels, self.size, self.columns = channels, size, columns

    def open(self, state: AnyState) -> AnyState:
        """A row of which no pixel is known, below the rows that `state` is of."""
        return Row(state)

    def pixel(self, x: Tensor, row: AnyState) -> tuple[Tensor, AnyState]:
        """The next pixel of a row, x (B, D): y (B, N), and the row with it. The definition."""
        raise NotImplementedError(f"{type(self).__name__} must define pixel(x, row)")

    def close(self, row: AnyState) -> AnyState:
        """The state after a row all of whose pixels are known."""
        raise NotImplementedError(f"{type(self).__name__} must define close(row)")

    def step(self, x: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        row, ys = self.open(state), []
        for pixel in self.apart(x).unbind(-2):
            y, row = self.pixel(pixel, row)
            ys.append(y)
        return torch.cat(ys, -1), self.close(row)

    def apart(self, x: Tensor) -> Tensor:
        """x (..., C * D) -> (..., C, D)."""
        return x.unflatten(-1, (self.columns, -1))

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.size}, columns={self.columns}"


def around(row: Tensor, left: int, right: int) -> Tensor:
    """row (..., C, D) -> (..., C, (left + 1 + right) * D): each pixel among its neighbours, zeros beyond the edges.

    >>> around(torch.tensor([[1.0], [2.0], [3.0]]), 1, 0).tolist()
    [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    """
    wide, C = F.pad(row, (0, 0, left, right)), row.shape[-2]
    return torch.cat([wide[..., j : j + C, :] for j in range(left + 1 + right)], -1)


def at(row: Tensor, column: int, left: int, right: int) -> Tensor:
    """One pixel of `around`: row (B, C, D) -> (B, (left + 1 + right) * D)."""
    some = row[:, max(0, column - left) : column + right + 1]
    before, after = max(0, left - column), max(0, column + right + 1 - row.shape[1])
    return F.pad(some, (0, 0, before, after)).flatten(1)
