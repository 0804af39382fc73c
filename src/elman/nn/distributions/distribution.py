"""What a distribution answers.

Batch and time axes stand in front. A distribution's own event axes are summed, so `log_prob` is one number per target.
`sample` takes the draws (B, 2) of B rows, one event each (elman.random).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from elman.errors import InputError
from elman.lengths import masked


class Distribution(Protocol):
    """What models predict with. Batch and time axes stand in front.

    >>> from elman.nn.readout import Softmax
    >>> predicted: Distribution = Softmax(4, 10)(torch.zeros(2, 4))
    >>> predicted.log_prob(torch.tensor([7, 0])).shape, predicted.sample(torch.tensor([[1, 0], [2, 0]])).shape
    (torch.Size([2]), torch.Size([2]))
    """

    def log_prob(self, value: Tensor) -> Tensor: ...

    def log_prob_sum(self, value: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, int]:
        """The sum of `log_prob`, and how many terms that has: one a row, or of (B, T) those at t < lengths (B,)."""
        terms = self.log_prob(value)
        if lengths is None or terms.dim() == 1:
            return terms.sum(), terms.numel()
        return masked(terms, lengths).sum(), int(lengths.sum())

    def sample(self, draws: Tensor) -> Tensor: ...
    @property
    def mode(self) -> Tensor: ...


class WithValues(Distribution, Protocol):
    """A distribution that one row of numbers says all of: what a classifier answers with."""

    def values(self) -> Tensor: ...


class Numeric(Distribution):
    """A distribution of D independent numbers; a frozen dataclass of its parameters (..., D)."""

    if TYPE_CHECKING:  # at run time a property would be the default of a field of this name

        @property
        def mean(self) -> Tensor:
            """(..., D)."""

    def quantile(self, levels: Sequence[float]) -> Tensor:
        """The smallest x with P(X <= x) >= level: (..., D, Q) in float64, a column for each of Q levels."""
        raise InputError(f"a {type(self).__name__} has no quantiles here")

    def rescaled(self, shift: Tensor, scale: Tensor) -> Numeric:
        """The distribution of shift + scale * x; shift and scale (..., D), the scale above zero.

        Counts are not shifted: their rate, or mean, is multiplied.
        """
        raise InputError(f"a {type(self).__name__} has no scale; use its read-out as it stands")

    def elementwise(self) -> Numeric:
        """The D numbers as events of their own: parameters (..., D) become (..., D, 1)."""
        assert is_dataclass(self)
        return replace(self, **{one.name: getattr(self, one.name)[..., None] for one in fields(self)})

    def loss(self, value: Tensor, unit: Tensor) -> Tensor:
        """What training minimises (...) at value (..., D); where it depends on units, in those of `unit` (..., D)."""
        return -self.log_prob(value)


def checked_levels(levels: Sequence[float]) -> Tensor:
    """The levels (Q,) of quantiles; an InputError if one is not between 0 and 1."""
    for level in levels:
        if not 0 < level < 1:
            raise InputError(f"a quantile at {level} was asked for; levels are above 0 and below 1")
    return torch.tensor(list(levels), dtype=torch.float64)


def one_event_per_row(parameter: Tensor, draws: Tensor) -> Tensor:
    """The parameter (B, D), without its graph; an InputError if it is not of one event for each row of draws."""
    if parameter.dim() != 2 or len(parameter) != len(draws):
        raise InputError(
            f"sample was given the draws of {len(draws)} rows, and the parameters are {list(parameter.shape)}: it "
            f"draws one event for each row, from parameters ({len(draws)}, D). Predict step by step."
        )
    return parameter.detach()
