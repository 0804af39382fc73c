"""What a forecaster says: a distribution of numbers, mostly in the units of a series.

What the network says is relative to a reference, and counted in scales. Counts are not shifted: their mean is the scale
times what the inner read-out says. Bits and classes have no scale; their read-outs stand as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from elman.kernels.builder import Builder, Slot
from elman.nn.distributions import Categorical, Numeric
from elman.nn.readout import (
    Affine,
    BernoulliReadout,
    GaussianReadout,
    NegativeBinomialReadout,
    PoissonReadout,
    QuantileReadout,
    Readout,
    StudentTReadout,
)

SCALED = ("numbers", "counts")  # what can be counted in the units of a series


class Rescaled(Readout[Numeric]):
    """A read-out in the units of a series: of y = [h, reference, scale], reference + scale * what it says of h.

    >>> predicted = Rescaled(GaussianReadout(3, 1), 1)(torch.tensor([[0.0, 0.0, 0.0, 100.0, 10.0]]))
    >>> predicted.mean.item(), round(predicted.std.item(), 3)
    (100.0, 6.931)
    """

    def __init__(self, readout: Readout[Numeric], size: int) -> None:
        super().__init__()
        self.readout, self.size = readout, size

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Numeric:
        h, reference, scale = self._parts(y)
        inner: Numeric = self.readout(h)
        return inner.rescaled(reference, scale)

    def distribution(self, values: Tensor) -> Numeric:
        inner, reference, scale = self._parts(values)
        return self.readout.distribution(inner).rescaled(reference, scale)

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        inner = self.readout.describe_step(builder, builder.cut(y, 0, y.width - 2 * self.size))
        return builder.concat([inner, builder.cut(y, y.width - 2 * self.size, 2 * self.size)])

    def _parts(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.split([y.shape[-1] - 2 * self.size, self.size, self.size], -1)


@dataclass(frozen=True)
class ClassNumber(Numeric):
    """The number of a class, as one number (..., 1)."""

    classes: Categorical

    def log_prob(self, value: Tensor) -> Tensor:
        return self.classes.log_prob(value[..., 0].long())

    def sample(self, draws: Tensor) -> Tensor:
        return self.classes.sample(draws)[:, None].to(self.classes.logits.dtype)

    @property
    def mode(self) -> Tensor:
        return self.classes.mode[..., None]

    @property
    def mean(self) -> Tensor:
        return self.classes.mean

    def quantile(self, levels: Sequence[float]) -> Tensor:
        return self.classes.quantile(levels)


class ClassNumberReadout(Affine[ClassNumber]):
    """A softmax over classes."""

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> ClassNumber:
        return ClassNumber(Categorical(self.linear.product(y)))

    def distribution(self, values: Tensor) -> ClassNumber:
        return ClassNumber(Categorical(values))


class Family(NamedTuple):
    """A read-out of (input_size, size, dropout=p), and what it predicts: numbers, counts, bits or classes."""

    readout: Callable[..., Readout[Numeric]]
    predicts: str


READOUTS = {
    "gaussian": Family(GaussianReadout, "numbers"),
    "student_t": Family(StudentTReadout, "numbers"),
    "quantiles": Family(QuantileReadout, "numbers"),
    "poisson": Family(PoissonReadout, "counts"),
    "negative_binomial": Family(NegativeBinomialReadout, "counts"),
    "bernoulli": Family(BernoulliReadout, "bits"),
    "categorical": Family(ClassNumberReadout, "classes"),
}
