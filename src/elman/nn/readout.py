"""What stands behind a core: its output to a distribution. Every product goes through `kernels.linear`.

A read-out is called as `readout(y, lengths)` with y (B, T, H), or as `readout(y)` with y (B, H), the output of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from elman import kernels
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.nn.distributions import (
    GRID,
    AdaptiveCategorical,
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    NegativeBinomial,
    Poisson,
    Product,
    QuantileGrid,
    StudentT,
)
from elman.options import fraction

D_co = TypeVar("D_co", bound=Distribution, covariant=True)


class Linear(nn.Module):
    """V h + c, after dropout: the affine map that every read-out begins with."""

    def __init__(self, input_size: int, output_size: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.dropout = fraction("dropout", dropout)
        self.weight = nn.Parameter(torch.empty(output_size, input_size))
        self.bias = nn.Parameter(torch.empty(output_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Outputs of order one for outputs of order one: the variance of a sum of H terms is H times theirs.
        nn.init.normal_(self.weight, std=self.input_size**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, h: Tensor) -> Tensor:
        """h (..., H) -> (..., V), in the parameters' dtype."""
        return kernels.linear(*self.product(h))

    def product(self, h: Tensor) -> Product:
        """What that is, not computed yet."""
        return Product(kernels.dropout(h, self.dropout, self.training), self.weight, self.bias)


class Readout(nn.Module, Generic[D_co]):
    """What makes a distribution of the output of a core. Any module can; a subclass can say how a stream does."""

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        """Append what `distribution` takes, made of a core's output y: its slot. See kernels/builder.py."""
        raise Unstreamable(f"{type(self).__name__} does not describe its step")

    def distribution(self, values: Tensor) -> D_co:
        """What the values (..., N) are the parameters of."""
        raise NotImplementedError(f"{type(self).__name__} must define distribution(values)")


class Affine(Readout[D_co]):
    """values = V h + c, then `distribution(values)`: one target per step. Subclasses say how many values, and which."""

    def __init__(self, input_size: int, values: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = Linear(input_size, values, dropout=dropout)

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> D_co:
        return self.distribution(self.linear(y))

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        return builder.linear(y, self.linear.weight, self.linear.bias)


class Softmax(Affine[Categorical]):
    """P(v) is proportional to exp(V h + c): a softmax over all symbols. `weight` shares the embedding's (V, H).

    >>> Softmax(4, 10)(torch.zeros(2, 5, 4)).log_probs().shape
    torch.Size([2, 5, 10])
    """

    def __init__(
        self, input_size: int, vocabulary_size: int, *, dropout: float = 0.0, weight: nn.Parameter | None = None
    ) -> None:
        super().__init__(input_size, vocabulary_size, dropout=dropout)
        if weight is not None:
            if weight.shape != self.linear.weight.shape:
                raise InputError(
                    f"the embedding is {list(weight.shape)}, the read-out {list(self.linear.weight.shape)}: "
                    "they can be tied only if the embedding is as wide as the last layer"
                )
            self.linear.weight = weight

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Categorical:
        return Categorical(self.linear.product(y))

    def distribution(self, values: Tensor) -> Categorical:
        return Categorical(values)


class BernoulliReadout(Affine[Bernoulli]):
    """A bit for each of `size` places, with logits V h + c.

    >>> BernoulliReadout(4, 3)(torch.zeros(2, 5, 4)).mode.shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0) -> None:
        super().__init__(input_size, size, dropout=dropout)

    def distribution(self, values: Tensor) -> Bernoulli:
        return Bernoulli(values)


class GaussianReadout(Affine[Gaussian]):
    """Mean V h + c and standard deviation softplus(V' h + c'), for each of `size` numbers.

    >>> GaussianReadout(4, 3)(torch.zeros(2, 5, 4)).std.shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0) -> None:
        super().__init__(input_size, 2 * size, dropout=dropout)

    def distribution(self, values: Tensor) -> Gaussian:
        mean, width = values.chunk(2, -1)
        return Gaussian(mean, _positive(width))


class StudentTReadout(Affine[StudentT]):
    """Mean V h + c, scale softplus(V' h + c') and degrees of freedom 2 + softplus(V'' h + c''), for `size` numbers.

    With more than 2 the variance exists.

    >>> bool((StudentTReadout(4, 3)(torch.zeros(2, 5, 4)).df > 2).all())
    True
    """

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0) -> None:
        super().__init__(input_size, 3 * size, dropout=dropout)

    def distribution(self, values: Tensor) -> StudentT:
        mean, width, df = values.chunk(3, -1)
        return StudentT(2 + kernels.softplus(df), mean, _positive(width))


class PoissonReadout(Affine[Poisson]):
    """A count for each of `size` places, with rates softplus(V h + c).

    >>> PoissonReadout(4, 3)(torch.zeros(2, 5, 4)).mean.shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0) -> None:
        super().__init__(input_size, size, dropout=dropout)

    def distribution(self, values: Tensor) -> Poisson:
        return Poisson(values)


class NegativeBinomialReadout(Affine[NegativeBinomial]):
    """A count for each of `size` places, with means softplus(V h + c) and shapes 1 / (softplus(V' h + c') + 1e-6).

    What is learnt is the inverse of the shape, because at zero that is a Poisson distribution; its least value keeps
    log G(n + r) - log G(r) accurate.

    >>> NegativeBinomialReadout(4, 3)(torch.zeros(2, 5, 4)).shape.shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0) -> None:
        super().__init__(input_size, 2 * size, dropout=dropout)

    def distribution(self, values: Tensor) -> NegativeBinomial:
        logits, inverse = values.chunk(2, -1)
        return NegativeBinomial(logits, 1 / (kernels.softplus(inverse) + 1e-6))


class QuantileReadout(Affine[QuantileGrid]):
    """Quantiles that cannot cross, of each of `size` numbers: the middle one is V h + c, and each next one is further
    away by softplus of a value of its own.

    >>> QuantileReadout(4, 3, levels=[0.1, 0.5, 0.9])(torch.zeros(2, 5, 4)).values.shape
    torch.Size([2, 5, 3, 3])
    """

    def __init__(self, input_size: int, size: int, *, dropout: float = 0.0, levels: Sequence[float] = GRID) -> None:
        if len(levels) < 2 or not all(a < b for a, b in pairwise((0.0, *levels, 1.0))):
            raise InputError(f"levels are {list(levels)}; it takes two or more between 0 and 1, which rise")
        super().__init__(input_size, size * len(levels), dropout=dropout)
        self.size, self.levels = size, tuple(levels)

    def distribution(self, values: Tensor) -> QuantileGrid:
        each = values.unflatten(-1, (self.size, len(self.levels)))
        middle = len(self.levels) // 2
        steps = kernels.softplus(each)
        # Sums in a fixed order, place by place: a row has the same bits in any batch.
        up, down = [each[..., middle]], list[Tensor]()
        for i in range(middle + 1, len(self.levels)):
            up.append(up[-1] + steps[..., i])
        for i in range(middle - 1, -1, -1):
            down.append((down[-1] if down else up[0]) - steps[..., i])
        return QuantileGrid(torch.stack([*reversed(down), *up], -1), self.levels)


class AdaptiveSoftmax(Readout[AdaptiveCategorical]):
    """A softmax for large vocabularies, whose rare symbols share a cluster (Grave et al. 2017, arXiv 1609.04309).

    Symbols are numbered by decreasing frequency. With the cutoffs c1 < c2 < V, the head chooses among the first c1
    symbols and one cluster per tail; P(v) = P(cluster) P(v | cluster). The i-th tail sees a projection to H / 4^i
    numbers.

    >>> AdaptiveSoftmax(16, 1000, [100, 500])(torch.zeros(2, 16)).log_probs().shape
    torch.Size([2, 1000])
    """

    def __init__(self, input_size: int, vocabulary_size: int, cutoffs: list[int], *, dropout: float = 0.0) -> None:
        super().__init__()
        if cutoffs != sorted(set(cutoffs)) or not cutoffs or cutoffs[0] < 1 or cutoffs[-1] >= vocabulary_size:
            raise InputError(
                f"cutoffs are {cutoffs}; they must rise, from at least 1 to below the {vocabulary_size} symbols"
            )
        self.bounds = [*cutoffs, vocabulary_size]
        self.dropout = fraction("dropout", dropout)
        self.head = Linear(input_size, cutoffs[0] + len(cutoffs), bias=False)
        widths = [max(1, input_size // 4**i) for i in range(1, len(cutoffs) + 1)]
        self.tails = nn.ModuleList(
            nn.Sequential(Linear(input_size, width, bias=False), Linear(width, stop - start, bias=False))
            for width, start, stop in zip(widths, self.bounds, self.bounds[1:], strict=False)
        )

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> AdaptiveCategorical:
        h = kernels.dropout(y, self.dropout, self.training)
        return AdaptiveCategorical(self.head(h), h, list(self.tails), self.bounds)


class Pooled(Readout[Distribution]):
    """One target per row: the read-out of y at each row's last valid step, zeros for a row without one.

    Behind a `Pool` that is the pool of the whole row. Of a single step it is the answer so far.

    >>> Pooled(Softmax(4, 3))(torch.zeros(2, 5, 4), torch.tensor([5, 0])).logits.shape
    torch.Size([2, 3])
    """

    def __init__(self, readout: Readout[Distribution]) -> None:
        super().__init__()
        self.readout = readout

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Distribution:
        return self.readout(y if lengths is None else at_end(y, lengths))

    def distribution(self, values: Tensor) -> Distribution:
        return self.readout.distribution(values)

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        return self.readout.describe_step(builder, y)


class BothEnds(Readout[Distribution]):
    """One target per row of a bidirectional core: the read-out of both last states, [left at lengths - 1, right at 0].

    `size` is how many columns of y come from the left. It needs the whole row, so there is no step.

    >>> BothEnds(Softmax(6, 3), 4)(torch.zeros(2, 5, 6), torch.tensor([5, 2])).logits.shape
    torch.Size([2, 3])
    """

    def __init__(self, readout: Readout[Distribution], size: int) -> None:
        super().__init__()
        self.readout, self.size = readout, size

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Distribution:
        if lengths is None:
            raise InputError("BothEnds reads the future, so it has no step: scan whole sequences")
        left, right = at_end(y[..., : self.size], lengths), at_end(y[:, :1, self.size :], lengths.clamp(max=1))
        return self.readout(torch.cat([left, right], -1))


def at_end(y: Tensor, lengths: Tensor) -> Tensor:
    """y (B, T, H) at each row's last valid step: (B, H), zeros where there is none."""
    if y.shape[1] == 0:
        return y.new_zeros(len(y), y.shape[2])
    last = y[torch.arange(len(y), device=y.device), (lengths - 1).clamp(min=0)]
    return torch.where((lengths > 0)[:, None], last, 0.0)


def _positive(width: Tensor) -> Tensor:
    """softplus(width), never exactly zero: that would make a density infinite."""
    return kernels.softplus(width) + torch.finfo(width.dtype).tiny
