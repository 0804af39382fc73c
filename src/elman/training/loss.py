"""The part of a training step that is wrapped for several processes; everything else stays where it is."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from elman.data import Batch
from elman.model import SequenceModel
from elman.state import State

Loss = tuple[Tensor, int, State | None]  # a sum, the number of its terms, and the state after them


class HasLoss(Protocol):
    """What a `LossModule` asks of a task."""

    def loss(self, model: nn.Module, batch: Batch, state: State | None) -> Loss: ...


class LossModule(nn.Module):
    """The loss of a batch, as the task has it, on the model's device."""

    def __init__(self, task: HasLoss, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch, state: State | None) -> Loss:
        device = next(self.model.parameters()).device
        return self.task.loss(self.model, batch.to(device), state)


def negative_log_likelihood(model: nn.Module, batch: Batch, state: State | None) -> Loss:
    """- sum of log P(y | x): one term a row, or one for each t < lengths, as the model's distribution has them.

    A core that reads the future begins anew in every batch: its backward half starts at the end of the row, where no
    reset can reach it.
    """
    assert isinstance(model, SequenceModel) and isinstance(batch.y, Tensor)  # else the task writes its own loss
    carried = state if model.core.causal else None
    predicted, after = model.scan(batch.x, carried, lengths=batch.lengths, reset=batch.reset)
    total, terms = predicted.log_prob_sum(batch.y, batch.lengths)
    return -total, terms, after if model.core.causal else None
