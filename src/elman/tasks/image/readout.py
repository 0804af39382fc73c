"""The ends of the network: levels to numbers before it, a distribution for each pixel after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elman.errors import InputError, UnknownNameError
from elman.nn.distributions import Bernoulli, Distribution
from elman.nn.embed import Embed
from elman.nn.readout import BernoulliReadout, Linear, Readout, Softmax
from elman.options import whole
from elman.tasks.image.logistic_mixture import LogisticMixtureReadout

READOUTS: dict[str, Callable[[int, int], Readout[Distribution]]] = {
    "binary": lambda size, levels: BernoulliReadout(size, 1),
    "categorical": lambda size, levels: Softmax(size, levels),
    "logistic": lambda size, levels: LogisticMixtureReadout(size, levels),
}


class Brightness(Embed):
    """Levels 0 to `levels` - 1 as numbers from -1 to 1: zero is what lies outside of the image.

    >>> Brightness(3)(torch.tensor([0, 1, 2])).tolist()
    [-1.0, 0.0, 1.0]
    """

    like: Tensor

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = whole("levels", levels, least=2)
        self.register_buffer("like", torch.zeros(0), persistent=False)  # its dtype is that of the model

    def forward(self, image: Tensor) -> Tensor:
        return image.to(self.like.dtype) * (2 / (self.levels - 1)) - 1


@dataclass(frozen=True)
class PixelRow(Distribution):
    """A row of pixels, each with the distribution that all pixels before it give: an event for each row."""

    pixels: Distribution  # (..., C)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of rows of levels (..., C)."""
        return self.each(value).sum(-1)

    def each(self, value: Tensor) -> Tensor:
        """The log-probability (..., C) of each pixel."""
        return self.pixels.log_prob(value[..., None] if isinstance(self.pixels, Bernoulli) else value)

    def sample(self, draws: Tensor) -> Tensor:
        raise InputError(
            "the pixels of a row depend on one another, so it is not drawn at once; `Painter.draw` draws one by one"
        )

    @property
    def mode(self) -> Tensor:
        """The most probable level (..., C) of each pixel, given those before it."""
        levels = self.pixels.mode
        return levels[..., 0] if isinstance(self.pixels, Bernoulli) else levels


class PixelReadout(Readout[PixelRow]):
    """relu, an affine map, relu, and a read-out, the same for each pixel of a row.

    >>> PixelReadout("binary", 8, columns=6)(torch.zeros(2, 5, 48)).log_prob(torch.zeros(2, 5, 6)).shape
    torch.Size([2, 5])
    """

    def __init__(self, kind: str, size: int, columns: int, *, hidden: int = 32, levels: int = 2) -> None:
        super().__init__()
        if kind not in READOUTS:
            raise UnknownNameError("read-out of an image model", kind, READOUTS)
        self.kind, self.columns = kind, columns
        self.hidden = Linear(size, whole("hidden", hidden))
        nn.init.kaiming_uniform_(self.hidden.weight, nonlinearity="relu")  # half of what it reads was cut off
        self.readout = READOUTS[kind](hidden, levels)

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> PixelRow:
        return PixelRow(self.pixel(y.unflatten(-1, (self.columns, -1))))

    def pixel(self, y: Tensor) -> Distribution:
        """The distribution of single pixels, y (..., N)."""
        return self.readout(self.hidden(y.relu()).relu())

    def draw(self, y: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """One pixel for each row of draws, y (B, N): its level (B,), and the log-probability of that."""
        predicted = self.pixel(y)
        value = predicted.sample(draws)
        return (value[:, 0] if self.kind == "binary" else value).long(), predicted.log_prob(value)
