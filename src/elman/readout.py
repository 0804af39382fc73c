"""What stands behind a core: its output (..., H) to a distribution. Every product goes through `kernels.linear`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman import kernels
from elman.distributions import Bernoulli, Categorical, Gaussian, Poisson
from elman.errors import InputError
from elman.options import fraction

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


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
        return kernels.linear(F.dropout(h, self.dropout, self.training), self.weight, self.bias)

    def _stream(self, program: Program, h: Slot) -> Slot:
        return program.linear(h, self.weight, self.bias)


class Softmax(nn.Module):
    """P(v) is proportional to exp(V h + c): a softmax over all symbols. `weight` shares the embedding's (V, H)."""

    def __init__(
        self, input_size: int, vocabulary_size: int, *, dropout: float = 0.0, weight: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.linear = Linear(input_size, vocabulary_size, dropout=dropout)
        if weight is not None:
            if weight.shape != self.linear.weight.shape:
                raise InputError(
                    f"the embedding is {list(weight.shape)}, the read-out {list(self.linear.weight.shape)}: "
                    "they can be tied only if the embedding is as wide as the last layer"
                )
            self.linear.weight = weight

    def forward(self, h: Tensor) -> Categorical:
        return self.distribution(self.linear(h))

    def distribution(self, logits: Tensor) -> Categorical:
        return Categorical(logits)

    def _stream(self, program: Program, h: Slot) -> Slot:
        return self.linear._stream(program, h)


class BernoulliReadout(Linear):
    """A bit for each of `output_size` places, with logits V h + c."""

    distribution = Bernoulli

    def forward(self, h: Tensor) -> Bernoulli:  # type: ignore[override]
        return self.distribution(super().forward(h))


class PoissonReadout(Linear):
    """A count for each of `output_size` places, with rates softplus(V h + c)."""

    distribution = Poisson

    def forward(self, h: Tensor) -> Poisson:  # type: ignore[override]
        return self.distribution(super().forward(h))


class GaussianReadout(nn.Module):
    """Mean V h + c and standard deviation softplus(V' h + c'), for each of `output_size` numbers."""

    def __init__(self, input_size: int, output_size: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = Linear(input_size, 2 * output_size, dropout=dropout)

    def forward(self, h: Tensor) -> Gaussian:
        return self.distribution(self.linear(h))

    def _stream(self, program: Program, h: Slot) -> Slot:
        return self.linear._stream(program, h)

    def distribution(self, values: Tensor) -> Gaussian:
        mean, width = values.chunk(2, -1)
        # A width of exactly zero would make the density infinite.
        return Gaussian(mean, kernels.softplus(width) + torch.finfo(width.dtype).tiny)


class AdaptiveSoftmax(nn.Module):
    """A softmax for large vocabularies, whose rare symbols share a cluster (Grave et al. 2017, arXiv 1609.04309).

    Symbols are numbered by decreasing frequency. With the cutoffs c1 < c2 < V, the head chooses among the first c1
    symbols and one cluster per tail; P(v) = P(cluster) P(v | cluster). The i-th tail sees a projection to H / 4^i
    numbers.
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

    def forward(self, h: Tensor) -> AdaptiveCategorical:
        return AdaptiveCategorical(self, F.dropout(h, self.dropout, self.training))


class AdaptiveCategorical:
    """The distribution of an adaptive softmax; a tail is computed for the places that need it."""

    def __init__(self, readout: AdaptiveSoftmax, h: Tensor) -> None:
        self.readout, self.h = readout, h

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the symbols value (...)."""
        first = self.readout.bounds[0]
        h, symbols = self.h.reshape(-1, self.h.shape[-1]), value.reshape(-1)
        head = torch.log_softmax(self.readout.head(h), -1)
        cluster = torch.bucketize(symbols, torch.tensor(self.readout.bounds, device=symbols.device), right=True)
        result = head.gather(1, torch.where(cluster == 0, symbols, first + cluster - 1)[:, None])[:, 0]
        for i, tail in enumerate(self.readout.tails, 1):
            rows = (cluster == i).nonzero()[:, 0]
            inside = torch.log_softmax(tail(h[rows]), -1).gather(
                1, (symbols[rows] - self.readout.bounds[i - 1])[:, None]
            )
            result = result.index_add(0, rows, inside[:, 0])
        return result.reshape(value.shape)

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all symbols."""
        first = self.readout.bounds[0]
        head = torch.log_softmax(self.readout.head(self.h), -1)
        tails = [
            head[..., first + i, None] + torch.log_softmax(tail(self.h), -1)
            for i, tail in enumerate(self.readout.tails)
        ]
        return torch.cat([head[..., :first], *tails], -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A symbol (...) for each place."""
        return Categorical(self.log_probs()).sample(generator)

    @property
    def mode(self) -> Tensor:
        """The most probable symbol (...)."""
        return self.log_probs().argmax(-1)
