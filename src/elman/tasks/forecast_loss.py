"""What a forecaster minimises: - log P of each value given those before; of quantiles, the pinball loss in scales.

With feedback by samples, some of the values that it reads are its own (scheduled sampling, Bengio et al. 2015, in two
passes as Mihaylova and Martins 2019): a first pass over the true values says what it would have drawn for each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.data import Batch
from elman.distributions import Categorical, Distribution
from elman.quantiles import QuantileGrid
from elman.state import State
from elman.tasks.forecast_network import Network
from elman.training.unit import Loss


def loss(model: Network, batch: Batch, state: State | None) -> Loss:
    """The sum over values that are there, their number, and the state that the next windows go on from."""
    y, counted = batch.y
    assert isinstance(batch.x, Tensor) and isinstance(y, Tensor) and isinstance(counted, Tensor)
    x = _own(model, batch, state, counted) if model.sampled else batch.x
    hidden, after = model.core(model.embed(x), state, lengths=batch.lengths, reset=batch.reset)
    # The others are not read at all: in the padding the scale is zero, and a NaN there would reach the gradients.
    places = counted.flatten().nonzero()[:, 0]
    judged, truth = (part.flatten(0, 1).index_select(0, places) for part in (hidden, y))
    terms = _terms(model.readout(judged), truth, judged)
    return terms.sum(), max(1, len(terms)), after


def _terms(predicted: Distribution, y: Tensor, hidden: Tensor) -> Tensor:
    if isinstance(predicted, QuantileGrid):
        scale = hidden[..., -y.shape[-1] :]  # what the read-out has it from
        return QuantileGrid(predicted.values / scale[..., None], predicted.levels).pinball(y / scale)
    return -predicted.log_prob(y[..., 0].long() if isinstance(predicted, Categorical) else y)


@torch.no_grad()
def _own(model: Network, batch: Batch, state: State | None, counted: Tensor) -> Tensor:
    """The inputs (B, T, D), with draws of the model for some of the values: x[t] has the value of t - 1."""
    x = batch.x
    assert isinstance(x, Tensor)
    hidden, _ = model.core(model.embed(x), state, lengths=batch.lengths, reset=batch.reset)
    chosen = counted & (torch.rand(counted.shape) < model.sampled)
    chosen[:, -1] = False  # its value is read in the next window
    chosen[:, :-1] &= ~batch.reset[:, 1:]  # the next input would be of another series
    predicted = model.readout(hidden[chosen])
    draws = torch.stack([torch.randint(2**62, (int(chosen.sum()),)), torch.zeros(int(chosen.sum())).long()], 1)
    drawn = predicted.sample(draws)
    values = drawn.to(x.dtype)[:, None] if isinstance(predicted, Categorical) else drawn.to(x.dtype)
    changed = x.clone()
    rows, steps = chosen.nonzero(as_tuple=True)
    changed[rows, steps + 1, : values.shape[1]] = values
    return changed
