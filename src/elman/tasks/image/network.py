"""The network of an image model: a masked convolution of type A, then layers, each added to what it reads.

    x_0 = convolution(image)              x_l = x_(l-1) + V_l layer_l(x_(l-1)) + d_l

The features x are twice as wide as a layer, as in the paper. y[r, c] depends on pixels before (r, c) in reading order
only: it predicts that pixel. Behind diagonal layers it depends on all of them but one: the last pixel of the row above,
where the window of the convolution ends before it (the half from the right begins there, and does not see it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman.core import Core
from elman.errors import UnknownNameError
from elman.lengths import zero_past
from elman.options import whole
from elman.state import AnyState, State
from elman.tasks.image.convolution import MaskedConvolution
from elman.tasks.image.diagonal import DiagonalBiLSTM, MultiLSTM
from elman.tasks.image.pixels import Pixels, Row
from elman.tasks.image.row_lstm import RowLSTM

LAYERS: dict[str, Callable[[int, int, int], Pixels]] = {
    "row": RowLSTM,
    "diagonal": DiagonalBiLSTM,
    "multi": MultiLSTM,
}


class ResidualPixels(Pixels):
    """x + V layer(x) + d, pixel by pixel.

    >>> ResidualPixels(RowLSTM(8, 4, 6)).scan(torch.zeros(2, 5, 48))[0].shape
    torch.Size([2, 5, 48])
    """

    def __init__(self, layer: Pixels) -> None:
        super().__init__(layer.channels, layer.channels, layer.columns)
        self.layer = layer
        self.V = nn.Parameter(torch.empty(layer.channels, layer.size))
        self.d = nn.Parameter(torch.empty(layer.channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.V)
        nn.init.zeros_(self.d)

    def init_state(self, batch_size: int) -> AnyState:
        return self.layer.init_state(batch_size)

    def parts(self, state: AnyState) -> list[tuple[Core, AnyState]]:
        return [(self.layer, state)]

    def open(self, state: AnyState) -> AnyState:
        return self.layer.open(state)

    def pixel(self, x: Tensor, row: AnyState) -> tuple[Tensor, AnyState]:
        y, row = self.layer.pixel(x, row)
        return x + kernels.linear(y, self.V, self.d).to(x.dtype), row

    def close(self, row: AnyState) -> AnyState:
        return self.layer.close(row)

    def _scan(self, x: Tensor, state: AnyState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, AnyState]:
        y, state = self.layer.scan_unchecked(x, state, lengths, reset)
        added = kernels.linear(self.layer.apart(y), self.V, self.d).to(x.dtype).flatten(-2)
        return zero_past(x + added, lengths), state


class PixelNetwork(Pixels):
    """`layers` of `size` units of the kind that `layer` names, behind a masked convolution.

    >>> network = PixelNetwork(1, 4, columns=6, layer="diagonal", layers=2)
    >>> y, state = network.scan(torch.zeros(2, 5, 6))
    >>> y.shape
    torch.Size([2, 5, 48])
    """

    def __init__(
        self, channels: int, size: int, columns: int, *, layer: str = "diagonal", layers: int = 1, kernel: int = 7
    ) -> None:
        if layer not in LAYERS:
            raise UnknownNameError("layer of an image model", layer, LAYERS)
        super().__init__(channels, 2 * whole("size", size), columns)
        self.first = MaskedConvolution(channels, 2 * size, columns, kernel=kernel, kind="A")
        self.layers = nn.ModuleList(
            ResidualPixels(LAYERS[layer](2 * size, size, columns)) for _ in range(whole("layers", layers))
        )

    def init_state(self, batch_size: int) -> tuple[State, ...]:
        return tuple(part.init_state(batch_size) for part in self._parts())

    def open(self, state: tuple[State, ...]) -> tuple[AnyState, ...]:
        return tuple(part.open(before) for part, before in zip(self._parts(), state, strict=True))

    def predict(self, row: tuple[AnyState, ...]) -> tuple[Tensor, tuple[AnyState, ...]]:
        """y (B, 2 size) at the next pixel, before it is known; and the row, which waits for that pixel to be `put`."""
        first, *others = row
        y, rows = self.first.look(first), []
        for part, other in zip(self._parts()[1:], others, strict=True):
            y, after = part.pixel(y, other)
            rows.append(after)
        return y, (first, *rows)

    def put(self, x: Tensor, row: tuple[Row, ...]) -> tuple[AnyState, ...]:
        """The row with the pixel x (B, channels) that was predicted."""
        first, *others = row
        return (first._replace(xs=(*first.xs, x)), *others)

    def pixel(self, x: Tensor, row: tuple[AnyState, ...]) -> tuple[Tensor, tuple[AnyState, ...]]:
        y, row = self.predict(row)
        return y.to(x.dtype), self.put(x, row)

    def close(self, row: tuple[AnyState, ...]) -> tuple[State, ...]:
        return tuple(part.close(state) for part, state in zip(self._parts(), row, strict=True))

    def _scan(
        self, x: Tensor, state: tuple[State, ...], lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[State, ...]]:
        after = []
        for part, before in zip(self._parts(), state, strict=True):
            x, new = part.scan_unchecked(x, before, lengths, reset)
            after.append(new)
        return x, tuple(after)

    def parts(self, state: tuple[State, ...]) -> list[tuple[Core, State]]:
        return list(zip(self._parts(), state, strict=True))

    def _parts(self) -> Sequence[Pixels]:
        """The convolution and the layers, in their order."""
        return [self.first, *cast(Sequence[Pixels], self.layers)]
