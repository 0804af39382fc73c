"""How far an online gradient points from the true one: what a rule leaves out, layer by layer, as the past grows.

Of the loss of the last of L steps alone, g is the gradient by the rule and g* that by back-propagation through all L;
the angle between them is arccos(g g* / |g| |g*|), 0 where the rule is exact and 90 degrees where it knows nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elman.errors import InputError
from elman.model import SequenceModel
from elman.online.learner import Learner
from elman.online.optim import Optim


class Angle(NamedTuple):
    """The angle of the gradient of a layer's weights after so many steps, in degrees; NaN if it has none."""

    layer: str
    steps: int
    degrees: float


def angles(
    model: SequenceModel,
    x: Tensor,
    y: Tensor,
    *,
    rule: str = "spatial",
    steps: Sequence[int] = (1, 2, 4, 8, 16, 32),
    window: int = 16,
) -> list[Angle]:
    """For the last L of the steps of x (B, T, ...) and y (B, T, ...), with L each of `steps` that is not above T.

    A layer is a module of the model with weights of its own, by its name.

    >>> import elman
    >>> from elman.nn.readout import GaussianReadout
    >>> _ = torch.manual_seed(0)
    >>> core = elman.stack("mingru", 2, 4, layers=2)
    >>> model = elman.SequenceModel(torch.nn.Identity(), core, GaussianReadout(4, 1))
    >>> found = angles(model, torch.randn(8, 6, 2), torch.randn(8, 6, 1), steps=[1, 6])
    >>> [angle.degrees < 0.1 for angle in found if angle.layer == "core.cores.1"]
    [True, True]
    """
    T = x.shape[1]
    chosen = [L for L in steps if 1 <= L <= T]
    if not chosen:
        raise InputError(f"steps are {list(steps)}, and the sequences have {T}: name at least one from 1 to {T}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is an approximation is what is being measured
        learner = Learner(model, rule=rule, optim=Optim(lr=0.0), window=window, example=x[:1, 0])
    found = []
    for L in chosen:
        state = learner.init_state(len(x))
        if L > 1:
            state = learner.accumulate(state, x[:, T - L : T - 1], y[:, T - L : T - 1])[1]
        online = learner.accumulate(state, x[:, T - 1 :], y[:, T - 1 :])[0]
        true = _true(model, x[:, T - L :], y[:, T - 1])
        for layer in dict.fromkeys(name.rpartition(".")[0] for name in true):
            names = [name for name in true if name.rpartition(".")[0] == layer]
            pair = (torch.cat([gradient[name].flatten() for name in names]).double() for gradient in (online, true))
            found.append(Angle(layer, L, _degrees(*pair)))
    return found


def _true(model: SequenceModel, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    weights = dict(model.named_parameters())
    state = model.init_state(len(x))
    for t in range(x.shape[1]):
        predicted, state = model.step(x[:, t], state)
    gradients = torch.autograd.grad(-predicted.log_prob(y).sum(), list(weights.values()), allow_unused=True)
    return {n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(weights.items(), gradients, strict=True)}


def _degrees(one: Tensor, other: Tensor) -> float:
    length = one.norm() * other.norm()
    if length == 0:
        return math.nan
    # Of small angles the cosine has no digits: the sine is the length of what one has that the other has not.
    cosine, sine = one @ other / length, (one / one.norm() - (one @ other / length) * other / other.norm()).norm()
    return math.degrees(math.atan2(float(sine), float(cosine)))
