"""The row LSTM: a pixel's state comes of the three states above it, so that a row is computed at once.

    z[r, c] = K_U * x[r] + b + W_0 h[r-1, c] + W_- h[r-1, c-1] + W_+ h[r-1, c+1]
    the rest as in an LSTM, with the cell of the pixel above: c[r, c] = f * c[r-1, c] + i * g

K_U is a convolution along the row, of type B: it sees the pixel and `kernel` // 2 to its left. What a pixel sees of the
rows above is a triangle.
A. van den Oord, N. Kalchbrenner, K. Kavukcuoglu, Pixel recurrent neural networks (2016), arXiv 1601.06759, section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.errors import InputError
from elman.lengths import zero_past
from elman.options import whole
from elman.tasks.image.neighbours import Geometry, Neighbours, PixelState
from elman.tasks.image.pixels import Pixels, Row, around

ABOVE = Geometry(((-1, 0), (-1, -1), (-1, 1)), 0)


class RowLSTM(Pixels):
    """`size` units for each pixel of a row of `columns`.

    >>> y, state = RowLSTM(3, 4, 6).scan(torch.zeros(2, 5, 18))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 24]), torch.Size([2, 6, 4]))
    """

    def __init__(self, channels: int, size: int, columns: int, *, kernel: int = 3) -> None:
        super().__init__(channels, size, columns)
        if whole("kernel", kernel) % 2 == 0:
            raise InputError(f"kernel is {kernel}; it must be odd, so that there is a pixel in the middle")
        self.reach = kernel // 2
        self.cell = Neighbours((self.reach + 1) * channels, size, ABOVE, forgets=1)

    def init_state(self, batch_size: int) -> PixelState:
        return PixelState(*(self.zeros(batch_size, self.columns, self.size) for _ in range(2)))

    def pixel(self, x: Tensor, row: Row) -> tuple[Tensor, Row]:
        c, xs = len(row.xs), (*row.xs, x)
        own = xs[max(0, c - self.reach) :]
        read = torch.cat([*[torch.zeros_like(x)] * (self.reach + 1 - len(own)), *own], -1)
        state = self.cell(read, [beside(row.before, c + right) for _, right in ABOVE.neighbours])
        return state.h.to(x.dtype), Row(row.before, xs, (*row.cells, state))

    def close(self, row: Row) -> PixelState:
        return joined(row.cells)

    def _scan(self, x: Tensor, state: PixelState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, PixelState]:
        h, last = self.cell.scan(around(self.apart(x), self.reach, 0), state, lengths, reset)
        return zero_past(h.to(x.dtype).flatten(-2), lengths), last


def beside(row: PixelState, column: int) -> PixelState:
    """The state of one pixel of a row: zero beyond its edges."""
    if 0 <= column < row.h.shape[1]:
        return PixelState(row.h[:, column], row.c[:, column])
    return PixelState(*(torch.zeros_like(leaf[:, 0]) for leaf in row))


def joined(cells: tuple[PixelState, ...]) -> PixelState:
    """The state of a row, of those of its pixels."""
    return PixelState(torch.stack([state.h for state in cells], 1), torch.stack([state.c for state in cells], 1))
