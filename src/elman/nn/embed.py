"""What stands before a core: symbols to vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman import kernels
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.options import fraction, whole


class Embed(nn.Module):
    """What makes features (..., D) of the inputs of a model. Any module can; a subclass can say how a stream does."""

    def describe_step(self, builder: Builder) -> Slot:
        """Append what makes features of the symbols that a step is given: their slot. See kernels/builder.py."""
        raise Unstreamable(f"{type(self).__name__} does not describe its step")


class Embedding(Embed):
    """x[t] = E[symbol], with dropout. Activations are in `dtype` where that is given (bfloat16), else as wide as E.

    >>> Embedding(10, 4)(torch.tensor([[7, 0, 7]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(
        self, vocabulary_size: int, size: int, *, dropout: float = 0.0, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.vocabulary_size, self.output_size = whole("vocabulary_size", vocabulary_size), whole("size", size)
        self.dropout, self.dtype = fraction("dropout", dropout), dtype
        self.weight = nn.Parameter(torch.empty(vocabulary_size, size))  # (V, D)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Rows of length one: as a tied read-out, E starts with logits of order one.
        nn.init.normal_(self.weight, std=self.output_size**-0.5)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) or (B,) -> (..., D)."""
        rows = F.embedding(symbols, self.weight, sparse=getattr(self.weight, "by_rows", False))  # training/optim.py
        x = kernels.dropout(rows, self.dropout, self.training)
        return x if self.dtype is None else x.to(self.dtype)

    def describe_step(self, builder: Builder) -> Slot:
        if self.dtype is not None:
            raise Unstreamable(f"activations in {self.dtype}")
        return builder.lookup(self.weight)
