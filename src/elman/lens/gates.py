"""Gates, time scales and health: what the units of a layer do.

gates       for each gate and unit, the share of steps at which it is below 0.1, and above 0.9
timescale   -1 / mean of ln |ds_i[t] / ds_i[t-1]| over some steps of the first row: the steps in which number i of the
            state alone falls to 1 / e
dead        numbers of the state that do not move: their standard deviation over all steps is at most 1e-5 of the
            layer's median one
saturated   numbers of a state that stays within -1 and 1: beyond 0.99 at more than 95 % of the steps
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elman.cells.diagonal import Diagonal
from elman.compose.attention import Bound
from elman.lengths import valid
from elman.lens.layers import NUMBERS, Layer, decays, flat, jacobian, unflat

LOW, HIGH = 0.1, 0.9
WIDEST = 1024
SAMPLED = 16  # steps at which time scales are measured


@dataclass(frozen=True)
class Gate:
    """A gate of a layer: the mean over time of each unit, and the shares of steps at which it is shut and open."""

    layer: str
    name: str
    mean: Tensor  # (H,)
    low: Tensor  # (H,) share of steps below 0.1
    high: Tensor  # (H,) share of steps above 0.9
    keeps: bool  # whether it is the share of the state that is kept

    @property
    def saturation(self) -> float:
        """The share of units and steps at which it is shut or open."""
        return float((self.low + self.high).mean())


@torch.no_grad()
def gates(layer: Layer, states: Tensor) -> list[Gate]:
    """The gates of a layer that lie between 0 and 1, given its states (B, T + 1, N) by `trajectory`."""
    if isinstance(layer.cell, Bound):
        layer, states = _inner(layer, layer.cell, states)
    inside = valid(layer.lengths, layer.x.shape[1])
    keeps = "a"
    if isinstance(layer.cell, Diagonal):
        a = layer.cell.decays(layer.x)
        values = {} if a.is_complex() or a.dim() < 3 else {"a": a[inside]}
    else:
        values, keeps = _gates_by_name(layer, states, inside), layer.cell.keep_gate
    return [
        Gate(layer.name, name, v.mean(0), (v < LOW).float().mean(0), (v > HIGH).float().mean(0), name == keeps)
        for name, v in values.items()
    ]


def _inner(layer: Layer, bound: Bound, states: Tensor) -> tuple[Layer, Tensor]:
    """The core inside a decoder as a layer, with its inputs at each step, and its states."""
    given, own = [], []
    for t in range(layer.x.shape[1]):
        x, state = bound.decoder.reads(layer.x[:, t], unflat(states[:, t], layer.state), bound.memory)
        given.append(x)
        own.append(flat(state))
    after = unflat(states[:, -1], layer.state)
    own.append(flat(bound.decoder.reads(layer.x[:, -1], after, bound.memory)[1]))
    return layer._replace(cell=bound.decoder.core, x=torch.stack(given, 1)), torch.stack(own, 1)


def _gates_by_name(layer: Layer, states: Tensor, inside: Tensor) -> dict[str, Tensor]:
    x, before = layer.x[inside], states[:, :-1][inside]
    parts: dict[str, list[Tensor]] = {}
    for rows in torch.arange(len(x)).split(max(1, NUMBERS // (8 * before.shape[1] or 1))):
        gates = layer.cell.named_gates(x[rows], unflat(before[rows], layer.cell.init_state(len(rows))))
        for name, values in gates.items():
            parts.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in parts.items()}


def timescale(layer: Layer, states: Tensor) -> Tensor | None:
    """The time scale of each number of the state (N,), in steps, on the first row; infinite if it grows; None if the
    state is too wide."""
    a = decays(layer)
    if a is not None:
        log = a.abs().double().clamp(min=1e-300).log().mean(0)
        return _steps(log.repeat_interleave(2) if a.is_complex() else log)
    if layer.size > WIDEST:
        return None
    T = int(layer.lengths[0])
    at = torch.linspace(T // 4, T - 1, min(T, SAMPLED)).long().unique()
    own = jacobian(layer, layer.x[0, at], states[0, at]).diagonal(dim1=1, dim2=2)
    return _steps(own.abs().double().clamp(min=1e-300).log().mean(0))


def _steps(log: Tensor) -> Tensor:
    return torch.where(log < 0, -1 / log.clamp(max=-1e-300), torch.inf)


@dataclass(frozen=True)
class Health:
    """What is wrong with the units of a layer."""

    layer: str
    units: int
    dead: list[int]
    saturated: list[int]
    not_finite: int | None  # the first step at which a number of the state is not finite
    largest: float  # |s|


def health(layer: Layer, states: Tensor) -> Health:
    """Dead and saturated units, and the first step that is not finite; states (B, T + 1, N)."""
    after = states[:, 1:]
    inside = valid(layer.lengths, layer.x.shape[1])
    wrong = ((~after.isfinite()).any(-1) & inside).any(0).nonzero()
    values = torch.nan_to_num(after[inside], 0.0, 0.0, 0.0)
    spread = values.std(0) if len(values) > 1 else torch.ones(values.shape[1])
    whole = float(spread.median()) or float(spread.max())
    dead = (spread <= 1e-5 * whole).nonzero()[:, 0].tolist() if whole else list(range(values.shape[1]))
    bounded = bool((values.abs() <= 1).all())
    full = (values.abs() > 0.99).float().mean(0) > 0.95 if bounded else torch.zeros(values.shape[1], dtype=torch.bool)
    step = int(wrong[0]) if len(wrong) else None
    return Health(layer.name, values.shape[1], dead if len(values) > 1 else [], full.nonzero()[:, 0].tolist(), step,
                  float(values.abs().max()))  # fmt: skip
