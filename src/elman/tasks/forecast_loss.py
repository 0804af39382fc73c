"""What a forecaster minimises: - log P of each value given those before; of quantiles, the pinball loss in scales."""

from __future__ import annotations

from torch import Tensor

from elman.data import Batch
from elman.distributions import Categorical, Distribution
from elman.model import SequenceModel
from elman.quantiles import QuantileGrid
from elman.state import State
from elman.training.unit import Loss


def loss(model: SequenceModel, batch: Batch, state: State | None) -> Loss:
    """The sum over values that are there, their number, and the state that the next windows go on from."""
    y, counted = batch.y
    assert isinstance(batch.x, Tensor) and isinstance(y, Tensor) and isinstance(counted, Tensor)
    hidden, after = model.core(model.embed(batch.x), state, lengths=batch.lengths, reset=batch.reset)
    # The others are not read at all: in the padding the scale is zero, and a NaN there would reach the gradients.
    terms = _terms(model.readout(hidden[counted]), y[counted], hidden[counted])
    return terms.sum(), max(1, len(terms)), after


def _terms(predicted: Distribution, y: Tensor, hidden: Tensor) -> Tensor:
    if isinstance(predicted, QuantileGrid):
        scale = hidden[..., -y.shape[-1] :]  # what the read-out has it from
        return QuantileGrid(predicted.values / scale[..., None], predicted.levels).pinball(y / scale)
    return -predicted.log_prob(y[..., 0].long() if isinstance(predicted, Categorical) else y)
