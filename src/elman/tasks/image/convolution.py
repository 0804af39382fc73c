"""The masked convolution: what a pixel sees of those before it, in a square window.

    y[r, c] = b + sum over (i, j) of U_ij x[r - i, c + j],   0 <= i <= k, -k <= j <= k, and i > 0 or j < 0

Of type A it sees no more; of type B it sees (r, c) itself too. Type A comes first in a network, and only there.
A. van den Oord, N. Kalchbrenner, K. Kavukcuoglu, Pixel recurrent neural networks (2016), arXiv 1601.06759, section 3.4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman import kernels
from elman.errors import InputError
from elman.lengths import zero_past
from elman.options import choice, whole
from elman.tasks.image.pixels import Pixels, Row, around, at


class ConvolutionState(NamedTuple):
    above: Tensor  # (B, K, C, D): the last K rows, the latest last


class MaskedConvolution(Pixels):
    """A window of `kernel` columns and half as many rows above, of the pixels that come before each pixel.

    >>> sees = MaskedConvolution(1, 4, 6, kernel=3, kind="A")
    >>> y, state = sees.scan(torch.zeros(2, 5, 6))
    >>> y.shape, state.above.shape
    (torch.Size([2, 5, 24]), torch.Size([2, 1, 6, 1]))
    """

    def __init__(self, channels: int, size: int, columns: int, *, kernel: int = 7, kind: str = "B") -> None:
        super().__init__(channels, size, columns)
        if whole("kernel", kernel, least=3) % 2 == 0:
            raise InputError(f"kernel is {kernel}; it must be odd, so that there is a pixel in the middle")
        self.kind, self.reach = choice("kind", kind, ("A", "B")), kernel // 2
        taps = self.reach * kernel + self.reach + (kind == "B")
        self.U = nn.Parameter(torch.empty(size, taps * channels))  # rows from above, then the pixels to the left
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.U)  # outputs as large as inputs
        nn.init.zeros_(self.b)

    def init_state(self, batch_size: int) -> ConvolutionState:
        return ConvolutionState(self.zeros(batch_size, self.reach, self.columns, self.channels))

    def look(self, row: Row, x: Tensor | None = None) -> Tensor:
        """y (B, N) at the next pixel of a row, which is x; type A does not look at it, and needs not know it."""
        above, c, k = row.before.above, len(row.xs), self.reach
        own = [*row.xs[max(0, c - k) :], *([] if x is None else [x])]
        edge = above.new_zeros(len(above), self.channels)
        missing = self.U.shape[1] // self.channels - k * (2 * k + 1) - len(own)
        seen = [at(above_row, c, k, k) for above_row in above.unbind(1)]
        return kernels.linear(torch.cat([*seen, *[edge] * missing, *own], -1), self.U, self.b)

    def pixel(self, x: Tensor, row: Row) -> tuple[Tensor, Row]:
        y = self.look(row, x if self.kind == "B" else None)
        return y.to(x.dtype), row._replace(xs=(*row.xs, x))

    def close(self, row: Row) -> ConvolutionState:
        above = row.before.above
        return ConvolutionState(torch.cat([above, torch.stack(row.xs, 1)[:, None].to(above.dtype)], 1)[:, 1:])

    def _scan(
        self, x: Tensor, state: ConvolutionState, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, ConvolutionState]:
        """All windows side by side, as one product."""
        K, T = self.reach, x.shape[1]
        rows = torch.cat([state.above.to(x.dtype), self.apart(x)], 1)  # row t of x is row K + t here
        since = _since(reset)
        fresh = bool(reset.any())  # one look costs less than K copies
        above = [rows[:, K - i : K - i + T] for i in range(K, 0, -1)]
        seen = [_within(row, since >= K - i) for i, row in enumerate(above)] if fresh else above
        own = around(rows[:, K:], K, 0)[..., : (K + (self.kind == "B")) * self.channels]
        windows = torch.cat([*(around(row, K, K) for row in seen), own], -1)
        y = kernels.linear(windows, self.U, self.b).to(x.dtype).flatten(-2)
        return zero_past(y, lengths), ConvolutionState(self._last(rows, lengths, since, state))

    def _last(self, rows: Tensor, lengths: Tensor, since: Tensor, state: ConvolutionState) -> Tensor:
        """The last K rows (B, K, C, D) before each image's end, zeros for those before a reset."""
        K, B = self.reach, len(rows)
        places = lengths[:, None] + torch.arange(K, device=lengths.device)  # rows lengths - K to lengths - 1
        window = rows[torch.arange(B, device=rows.device)[:, None], places].to(state.above.dtype)
        end = F.pad(since, (1, 0), value=K)[torch.arange(B, device=rows.device), lengths]  # at row lengths - 1
        back = torch.arange(K - 1, -1, -1, device=rows.device)
        return _within(window, end[:, None] >= back)


def _since(reset: Tensor) -> Tensor:
    """reset (B, T) -> (B, T): how many rows of the episode are above each row; of the first, more than any window."""
    t = torch.arange(reset.shape[1], device=reset.device)
    start = torch.where(reset, t, torch.full_like(t, -(1 << 30))).cummax(1).values
    return t - start


def _within(rows: Tensor, inside: Tensor) -> Tensor:
    """rows (B, T, C, D), zeros where `inside` (B, T) is false: chosen, for what is left out may be infinite."""
    return torch.where(inside[..., None, None], rows, rows.new_zeros(()))
