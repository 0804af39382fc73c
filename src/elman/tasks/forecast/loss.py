"""What a forecaster minimises: - log P of each value given those before; of quantiles, the pinball loss in scales.

With feedback by samples, some of the values that it reads are its own (scheduled sampling, Bengio et al. 2015, in two
passes as Mihaylova and Martins 2019): a first pass over the true values says what it would have drawn for each.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from elman.data import Batch
from elman.nn.distributions import Categorical, Distribution
from elman.nn.quantiles import QuantileGrid
from elman.state import State
from elman.tasks.forecast.network import Network
from elman.training.loss import Loss


def loss(model: Network, batch: Batch, state: State | None) -> Loss:
    """The sum over values that are there, their number, and the state that the next windows go on from."""
    y, counted = batch.y
    assert isinstance(batch.x, Tensor) and isinstance(y, Tensor) and isinstance(counted, Tensor)
    x = _own(model, batch, state, counted) if model.sampled else batch.x
    hidden, after = model.core(model.embed(x), state, lengths=batch.lengths, reset=batch.reset)
    # The others are not read at all: in the padding the scale is zero, and a NaN there would reach the gradients.
    places = counted.any(-1).flatten().nonzero()[:, 0]
    judged, truth, there = (part.flatten(0, 1).index_select(0, places) for part in (hidden, y, counted))
    terms = _terms(model.readout(judged), truth, there, judged)
    return terms.sum(), max(1, len(terms)), after


def _terms(predicted: Distribution, y: Tensor, there: Tensor, hidden: Tensor) -> Tensor:
    if not isinstance(predicted, QuantileGrid):
        return -log_prob(predicted, y, there)
    scale = hidden[..., -y.shape[-1] :]  # what the read-out has it from
    grid, y = QuantileGrid(predicted.values / scale[..., None], predicted.levels), y / scale
    if bool(there.all()):
        return grid.pinball(y)
    return torch.where(there, _apart(grid).pinball(y[..., None]), 0.0).sum(-1)  # type: ignore[attr-defined]


def log_prob(predicted: Distribution, y: Tensor, there: Tensor) -> Tensor:
    """log P (...) of those of the values y (..., C) that are there (..., C); zero where none is."""
    if isinstance(predicted, Categorical):
        return torch.where(there[..., 0], predicted.log_prob(y[..., 0].long()), 0.0)
    every, some = there.all(-1), there.any(-1)
    whole = torch.where(every, predicted.log_prob(y), 0.0)
    if bool((every == some).all()):
        return whole
    # A value that is not there stands at the mode: its term, which is left out, must not be infinite in the gradient.
    terms = _apart(predicted).log_prob(torch.where(there, y, predicted.mode.to(y.dtype).detach())[..., None])
    return torch.where(every, whole, torch.where(there, terms, 0.0).sum(-1))


def _apart(predicted: Distribution) -> Distribution:
    """The targets as events of their own: parameters (..., C) become (..., C, 1)."""
    if isinstance(predicted, QuantileGrid):
        return QuantileGrid(predicted.values.unsqueeze(-2), predicted.levels)
    assert is_dataclass(predicted)
    return type(predicted)(*(getattr(predicted, one.name)[..., None] for one in fields(predicted)))


@torch.no_grad()
def _own(model: Network, batch: Batch, state: State | None, counted: Tensor) -> Tensor:
    """The inputs (B, T, D), with draws of the model for some of the values: x[t] has the value of t - 1."""
    x = batch.x
    assert isinstance(x, Tensor)
    hidden, _ = model.core(model.embed(x), state, lengths=batch.lengths, reset=batch.reset)
    chosen = counted.any(-1) & (torch.rand(counted.shape[:2]) < model.sampled)
    chosen[:, -1] = False  # its value is read in the next window
    chosen[:, :-1] &= ~batch.reset[:, 1:]  # the next input would be of another series
    predicted = model.readout(hidden[chosen])
    draws = torch.stack([torch.randint(2**62, (int(chosen.sum()),)), torch.zeros(int(chosen.sum())).long()], 1)
    drawn = predicted.sample(draws)
    values = drawn.to(x.dtype)[:, None] if isinstance(predicted, Categorical) else drawn.to(x.dtype)
    changed = x.clone()
    rows, steps = chosen.nonzero(as_tuple=True)
    before = changed[rows, steps + 1, : values.shape[1]]
    changed[rows, steps + 1, : values.shape[1]] = torch.where(counted[rows, steps], values, before)
    return changed
