"""The part of a training step that is wrapped for several processes; everything else stays where it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.data import Batch
from elman.model import SequenceModel


class Unit(nn.Module):
    """loss = - sum over t < lengths of log P(y[t] | x[..t]); with the number of terms, and the state after them."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, state: Any) -> tuple[Tensor, int, Any]:
        device = next(self.parameters()).device
        batch = Batch(*(part.to(device) for part in batch))
        predicted, state = self.model.scan(batch.x, state, lengths=batch.lengths, reset=batch.reset)
        log_prob = predicted.log_prob(batch.y)
        t = torch.arange(batch.y.shape[1], device=batch.y.device)
        valid = t < batch.lengths[:, None]
        return -torch.where(valid, log_prob, torch.zeros_like(log_prob)).sum(), int(batch.lengths.sum()), state
