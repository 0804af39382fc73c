"""A read-out in the units of a series: what the network says is relative to a reference, and counted in scales.

    y = [h, reference, scale]:   x = reference + scale * z,   z as the inner read-out has it of h

Counts are not shifted: their rate, or mean, is the scale times what the inner read-out says. Bits and classes have no
scale; their read-outs stand as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.errors import InputError
from elman.kernels.builder import Builder, Slot
from elman.nn.distributions import Distribution, Gaussian, NegativeBinomial, Poisson, StudentT
from elman.nn.quantiles import QuantileGrid
from elman.nn.readout import Readout


class Located(Readout[Distribution]):
    """The inner read-out of y without its last 2 * size columns, which are the reference and the scale.

    >>> from elman.nn.readout import GaussianReadout
    >>> predicted = Located(GaussianReadout(3, 1), 1)(torch.tensor([[0.0, 0.0, 0.0, 100.0, 10.0]]))
    >>> predicted.mean.item(), round(predicted.std.item(), 3)
    (100.0, 6.931)
    """

    def __init__(self, readout: Readout[Distribution], size: int) -> None:
        super().__init__()
        self.readout, self.size = readout, size

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Distribution:
        h, reference, scale = self._parts(y)
        return located(self.readout(h), reference, scale)

    def distribution(self, values: Tensor) -> Distribution:
        inner, reference, scale = self._parts(values)
        return located(self.readout.distribution(inner), reference, scale)

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        inner = self.readout.describe_step(builder, builder.cut(y, 0, y.width - 2 * self.size))
        return builder.concat([inner, builder.cut(y, y.width - 2 * self.size, 2 * self.size)])

    def _parts(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.split([y.shape[-1] - 2 * self.size, self.size, self.size], -1)


def located(z: Distribution, reference: Tensor, scale: Tensor) -> Distribution:
    """The distribution of reference + scale * z; reference and scale (..., D), the scale above zero."""
    if isinstance(z, Gaussian):
        return Gaussian(reference + scale * z.mean, scale * z.std)
    if isinstance(z, StudentT):
        return StudentT(z.df, reference + scale * z.mean, scale * z.scale)
    if isinstance(z, QuantileGrid):
        return QuantileGrid(reference[..., None] + scale[..., None] * z.values, z.levels)
    if isinstance(z, Poisson):
        return Poisson(_inverse_softplus(scale * z.rate))
    if isinstance(z, NegativeBinomial):
        return NegativeBinomial(_inverse_softplus(scale * z.mean), z.shape)
    raise InputError(f"a {type(z).__name__} has no scale; use its read-out as it stands")


def _inverse_softplus(m: Tensor) -> Tensor:
    """x with log(1 + exp(x)) = m, by m + log(1 - exp(-m)); in float64, so that the bits of a row are its own."""
    wide = m.double().clamp(min=1e-30)
    return (wide + torch.log(-torch.expm1(-wide))).to(m.dtype)
