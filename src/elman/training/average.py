"""The mean of the weights at the last few evaluations: what is evaluated and kept as the best while a run continues.

Weights wander about a minimum while the learning rate is not small; their mean lies nearer to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elman.errors import FileError


class Average:
    """The weights of a model at its last evaluations, at most `last` of them; with 1 nothing is kept or changed.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = Average(model, 2)
    >>> for weight in (1.0, 3.0):
    ...     _ = nn.init.constant_(model.weight, weight)
    ...     with average.weights():
    ...         print(model.weight.item())
    1.0
    2.0
    >>> model.weight.item()
    3.0
    """

    def __init__(self, model: nn.Module, last: int = 1) -> None:
        self.model, self.last = model, last
        self.kept: list[dict[str, Tensor]] = []  # the latest last

    @contextmanager
    @torch.no_grad()
    def weights(self) -> Iterator[None]:
        """Note the weights as they are; in the block the model has the mean of those that were noted."""
        if self.last == 1:
            yield
            return
        now = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.kept = [*self.kept, now][-self.last :]
        for name, p in self.model.named_parameters():
            p.copy_(torch.stack([kept[name] for kept in self.kept]).mean(0))
        try:
            yield
        finally:
            for name, p in self.model.named_parameters():
                p.copy_(now[name])

    def tensors(self) -> dict[str, Tensor]:
        """What was noted, for a file."""
        return {f"{i}.{name}": tensor for i, kept in enumerate(self.kept) for name, tensor in kept.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        found: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            number, _, parameter = name.partition(".")
            found.setdefault(int(number), {})[parameter] = tensor
        names = {name for name, _ in self.model.named_parameters()}
        if any(kept.keys() != names for kept in found.values()):
            raise FileError("the averaged weights of the checkpoint are those of another model")
        self.kept = [found[i] for i in sorted(found)]
