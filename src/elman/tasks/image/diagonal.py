"""LSTMs over both axes of an image: a pixel's state comes of the state to its left and the state above it.

    left[r, c]  = LSTM(x[r, c]; left[r, c-1], left[r-1, c])        sees all pixels above and to the left
    right[r, c] = LSTM(x[r, c]; right[r, c+1], right[r-1, c])      sees all pixels above and to the right
    y[r, c]     = left[r, c] + right[r-1, c]

The half that comes from the right is read one row lower, for beside a pixel it would see the future. So y[r, c] knows
every pixel before (r, c), and (r, c).

    Diagonal BiLSTM          the cell is that of the pixel beside: c = i * g + f * c_beside
    multi-dimensional LSTM   each of the two has a forget gate: c = i * g + f_1 * c_beside + f_2 * c_above

A. van den Oord, N. Kalchbrenner, K. Kavukcuoglu, Pixel recurrent neural networks (2016), arXiv 1601.06759, section 3.2.
A. Graves, S. Fernández, J. Schmidhuber, Multi-dimensional recurrent neural networks (2007), arXiv 0705.2011.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from elman.lengths import zero_past
from elman.tasks.image.neighbours import Geometry, Neighbours, PixelState
from elman.tasks.image.pixels import Pixels, Row
from elman.tasks.image.row_lstm import beside, joined

FROM_LEFT = Geometry(((0, -1), (-1, 0)), 1)
FROM_RIGHT = Geometry(((0, 1), (-1, 0)), -1)


class BothWays(NamedTuple):
    left: PixelState  # of the row above, coming from the left
    right: PixelState  # of the row above, coming from the right


class DiagonalBiLSTM(Pixels):
    """`size` units for each pixel of a row of `columns`, in each of two directions, whose outputs are added.

    >>> y, state = DiagonalBiLSTM(3, 4, 6).scan(torch.zeros(2, 5, 18))
    >>> y.shape, state.right.h.shape
    (torch.Size([2, 5, 24]), torch.Size([2, 6, 4]))
    """

    forgets: ClassVar[int] = 1

    def __init__(self, channels: int, size: int, columns: int) -> None:
        super().__init__(channels, size, columns)
        self.left = Neighbours(channels, size, FROM_LEFT, self.forgets)
        self.right = Neighbours(channels, size, FROM_RIGHT, self.forgets)

    def init_state(self, batch_size: int) -> BothWays:
        leaf = self.zeros(batch_size, self.columns, self.size)
        return BothWays(*(PixelState(leaf, leaf.clone()) for _ in range(2)))

    def pixel(self, x: Tensor, row: Row) -> tuple[Tensor, Row]:
        above, c = row.before, len(row.xs)
        before = row.cells[-1] if c else beside(above.left, -1)
        state = self.left(x, [before, beside(above.left, c)])
        return (state.h + above.right.h[:, c]).to(x.dtype), Row(above, (*row.xs, x), (*row.cells, state))

    def close(self, row: Row) -> BothWays:
        """From the right, a row can be read only now."""
        above, states = row.before.right, [beside(row.before.right, -1)]
        for c in range(self.columns - 1, -1, -1):
            states.append(self.right(row.xs[c], [states[-1], beside(above, c)]))
        return BothWays(joined(row.cells), joined(tuple(states[:0:-1])))

    def _scan(self, x: Tensor, state: BothWays, lengths: Tensor, reset: Tensor) -> tuple[Tensor, BothWays]:
        pixels = self.apart(x)
        left, last_left = self.left.scan(pixels, state.left, lengths, reset)
        right, last_right = self.right.scan(pixels, state.right, lengths, reset)
        lower = torch.cat([state.right.h[:, None], right], 1)[:, : x.shape[1]]
        if reset.any():
            lower = torch.where(reset[..., None, None], lower.new_zeros(()), lower)
        y = (left + lower).to(x.dtype).flatten(-2)
        return zero_past(y, lengths), BothWays(last_left, last_right)


class MultiLSTM(DiagonalBiLSTM):
    """The same with a forget gate for each of the two neighbours.

    >>> MultiLSTM(3, 4, 6).left.W.shape
    torch.Size([20, 8])
    """

    forgets = 2
