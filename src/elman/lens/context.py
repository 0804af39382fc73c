"""How much the loss depends on inputs long ago.

    context[n] = mean over anchors of L[a](the last n inputs alone) - L[a](all of them)        n = 1, 2, 4, ...

The state before those n inputs is the first one. effective_context is the smallest n from which on context stays below
1 % of the loss with all inputs (Khandelwal et al., 2018, "Sharp nearby, fuzzy far away").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elman.lens.flow import ANCHORS
from elman.lens.layers import inspection_mode
from elman.lens.sample import Sample, causal, features, losses

SHARE = 0.01


@dataclass(frozen=True)
class Context:
    """The loss with the last n inputs alone, minus that with all, in nats."""

    n: list[int]
    excess: list[float]
    loss: float  # with all inputs

    @property
    def effective(self) -> int:
        """The number of inputs beyond which more of them do not help."""
        bound = SHARE * abs(self.loss)
        too_few = [n for n, more in zip(self.n, self.excess, strict=True) if not abs(more) <= bound]
        return next((n for n in self.n if not too_few or n > too_few[-1]), self.n[-1])


def context(model: nn.Module, sample: Sample, anchors: int = ANCHORS) -> Context | None:
    """The loss with the last n inputs alone; None for a model that reads the future, for which it is not defined.

    >>> from elman.cells import cell
    >>> context(cell("gru", 3, 4), Sample(torch.randn(2, 9, 3))).n
    [1, 2, 4, 8, 9]
    """
    if not causal(model):
        return None
    rows = torch.arange(min(sample.shape[0], anchors))
    sample = sample.take(rows)
    T = sample.shape[1]
    sizes = [n for n in (2**i for i in range(40)) if n < T] + [T]
    with inspection_mode(model), torch.no_grad():
        losses = [float(_at_end(model, sample, n).double().mean()) for n in sizes]
    return Context(sizes, [loss - losses[-1] for loss in losses], losses[-1])


def _at_end(model: nn.Module, sample: Sample, n: int) -> Tensor:
    """The loss of each row's last step, given its last n inputs (B,)."""
    rows = torch.arange(sample.shape[0])
    part = sample.windows(rows, (sample.lengths - n).clamp(min=0), n)
    terms = losses(model, features(model, part), part)
    return terms if terms.dim() == 1 else terms.gather(1, (part.lengths - 1).clamp(min=0)[:, None])[:, 0]
