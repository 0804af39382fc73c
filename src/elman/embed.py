"""What stands before a core: symbols to vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.kernels.stream import Unstreamable
from elman.options import fraction, whole

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class Embedding(nn.Module):
    """x[t] = E[symbol], with dropout. Activations are in `dtype` where that is given (bfloat16), else as wide as E."""

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
        x = F.dropout(F.embedding(symbols, self.weight), self.dropout, self.training)
        return x if self.dtype is None else x.to(self.dtype)

    def _stream(self, program: Program) -> Slot:
        if self.dtype is not None:
            raise Unstreamable(f"activations in {self.dtype}")
        return program.lookup(self.weight)
