"""An LSTM cell whose states before it are those of neighbouring pixels, and in which order pixels can be computed.

    z = U x + b + W [h_1; ...; h_P]           P neighbours; beyond the edge of the image a state is zero
    i, o, f_p = s(z_i), s(z_o), s(z_fp)       g = tanh(z_g)
    c = i * g + f_1 * c_1 + ... + f_F * c_F   h = o * tanh(c)        F <= P

What a pixel reads is computed for all pixels at once. Then come levels, each a set of pixels that only need earlier
ones: a row of a row LSTM, a diagonal where a pixel needs the one to its left and the one above. (That is what skewing
an image is for.) `kernels.gathered` runs through the levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.kernels import Gather

Offset = tuple[int, int]  # rows and columns to a neighbour


class PixelState(NamedTuple):
    h: Tensor  # (B, N), or (B, C, N) of a row
    c: Tensor  # (B, N), or (B, C, N) of a row


class Geometry(NamedTuple):
    """Which neighbours a pixel has, and which pixels make a level: those with the same row + slope * column."""

    neighbours: tuple[Offset, ...]
    slope: int


class Neighbours(nn.Module):
    """The cell. W, U and b hold the gates i, g, o, f_1, ..., f_F, in this order.

    >>> cell = Neighbours(3, 4, Geometry(((0, -1), (-1, 0)), 1), forgets=1)
    >>> zero = PixelState(torch.zeros(2, 4), torch.zeros(2, 4))
    >>> cell(torch.zeros(2, 3), [zero, zero]).h.shape
    torch.Size([2, 4])
    """

    def __init__(self, inputs: int, size: int, geometry: Geometry, forgets: int) -> None:
        super().__init__()
        self.size, self.geometry, self.forgets = size, geometry, forgets
        rows, places = (3 + forgets) * size, len(geometry.neighbours)
        self.W = nn.Parameter(torch.empty(rows, places * size))
        self.U = nn.Parameter(torch.empty(rows, inputs))
        self.b = nn.Parameter(torch.empty(rows))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        places = len(self.geometry.neighbours)
        for block in self.W.chunk(places, 1):
            initial.recurrent(block, gates=3 + self.forgets)
        self.W.mul_(places**-0.5)  # what all neighbours say together is as large as what one would say
        initial.input(self.U, gates=3 + self.forgets)
        nn.init.zeros_(self.b)
        nn.init.ones_(self.b[3 * self.size :])  # a cell remembers to begin with (Jozefowicz et al., 2015)

    def forward(self, x: Tensor, before: Sequence[PixelState]) -> PixelState:
        """One pixel: what it reads, x (B, D), and the states of its neighbours. The definition."""
        h = torch.cat([state.h for state in before], -1)
        z = kernels.linear(x, self.U, self.b) + kernels.linear(h, self.W)
        i, g, o, *f = z.chunk(3 + self.forgets, -1)
        c = kernels.sigmoid(i) * kernels.tanh(g)
        for forget, state in zip(f, before, strict=False):
            c = c + kernels.sigmoid(forget) * state.c
        return PixelState(kernels.sigmoid(o) * kernels.tanh(c), c)

    def scan(self, x: Tensor, above: PixelState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, PixelState]:
        """All pixels of images x (B, T, C, D), below the row `above`: h (B, T, C, N), and the last row of each."""
        B, T, C, _ = x.shape
        order = _order(B, T, C, self.geometry, reset)
        before = [nn.functional.pad(leaf, (0, 0, 0, 1)).flatten(0, 1) for leaf in above]
        u = kernels.linear(x, self.U, self.b).flatten(0, 2)
        h, c = kernels.gathered("lstm", u, self.W, self.b, order.gather, PixelState(*before))
        ends = order.ends(lengths)
        last = PixelState(*(leaf.index_select(0, ends).unflatten(0, (B, C)) for leaf in (h, c)))
        return _Natural.apply(h, order.own, order.gather.source).unflatten(0, (B, T, C)), last


class Order(NamedTuple):
    """Where each pixel is among the rows of the kernel. In front of all pixels are, for each image, those of the
    row above and a zero: the state beyond its edges, and of what is above a pixel that begins another image."""

    gather: Gather
    own: Tensor  # (B * T * C,): the place of each pixel
    shape: tuple[int, int, int]

    def ends(self, lengths: Tensor) -> Tensor:
        """The places (B * C,) of the last row of each image; where it has none, of the row above."""
        B, T, C = self.shape
        image = torch.arange(B, device=lengths.device)
        above = image[:, None] * (C + 1) + torch.arange(C, device=lengths.device)
        if T == 0:
            return above.flatten()
        last = self.own.reshape(B, T, C)[image, (lengths - 1).clamp(min=0)]
        return torch.where(lengths[:, None] > 0, last, above).flatten()


def _order(B: int, T: int, C: int, geometry: Geometry, reset: Tensor) -> Order:
    order = _plain_order(B, T, C, geometry, reset.device)
    if not reset.any():
        return order
    before = order.gather.before.clone()
    rows = order.own.reshape(B, T, C)[reset]  # (n, C): the pixels of rows that begin an image
    zero = (reset.nonzero()[:, 0] * (C + 1) + C)[:, None]
    for place, (down, _) in enumerate(geometry.neighbours):
        if down:
            before[rows, place] = zero.expand_as(rows)
    return order._replace(gather=order.gather._replace(before=before))


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # what is kept serves training too, whoever asked for it first
def _plain_order(B: int, T: int, C: int, geometry: Geometry, device: torch.device) -> Order:
    """The order of images without a reset: by level, within it by image, within that by row."""
    r, c = np.divmod(np.arange(T * C), C)
    level = r + geometry.slope * c
    level -= level.min(initial=0)
    sizes = np.bincount(level)
    starts = np.cumsum(sizes) - sizes
    place = np.empty(T * C, np.int64)
    place[np.lexsort((r, level))] = np.arange(T * C) - np.repeat(starts, sizes)
    given, image = B * (C + 1), np.arange(B)[:, None]
    own = given + B * starts[level] + image * sizes[level] + place  # (B, T * C)
    N, known = given + B * T * C, np.concatenate([image * (C + 1) + np.arange(C), own], 1)  # rows -1 to T - 1
    before = np.full((N, len(geometry.neighbours)), -1)
    for i, (down, right) in enumerate(geometry.neighbours):
        inside = (c + right >= 0) & (c + right < C)
        there = known[:, np.where(inside, (r + down + 1) * C + c + right, 0)]
        before[own, i] = np.where(inside, there, image * (C + 1) + C)
    source = np.full(N, -1)
    source[own] = np.arange(B * T * C).reshape(own.shape)
    group = np.repeat(np.arange(B), C + 1)
    group = np.concatenate([group, np.empty(B * T * C, np.int64)])
    group[own] = image
    levels = given + B * np.concatenate([[0, 0], np.cumsum(sizes)])  # in the first, nothing is gathered: it is empty
    parts = (torch.from_numpy(part.astype(np.int64)).to(device) for part in (levels, before, source, group, own))
    levels_, before_, source_, group_, own_ = parts
    return Order(Gather(levels_, before_, None, source_, group_), own_.flatten(), (B, T, C))


class _Natural(torch.autograd.Function):
    """Rows of the kernel to pixels in their own order. Every pixel is taken once, so the gradient is taken back, where
    Torch would add it up row by row."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, own: Tensor, source: Tensor) -> Tensor:
        ctx.source, ctx.given = source, len(h) - len(own)
        return h.index_select(0, own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        back = grad.index_select(0, ctx.source[ctx.given :])
        return nn.functional.pad(back, (0, 0, ctx.given, 0)), None, None
