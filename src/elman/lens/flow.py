"""How the gradient travels back through time.

    flow[t]     = | dL / ds[t-1] |,                     L the loss of all steps, s[t-1] the state that enters step t
    reach[tau]  = mean over anchors a of | dL[a] / ds[a-tau] |,    L[a] the loss at step a; tau = 1, 2, ...
    relative    = reach / reach[1]
    half_life   the first tau at which relative is at most 1/2 (between two of them, on a straight line)
    horizon     the last tau at which relative is at least 1 %
    slope       of ln reach over tau = 1 ... horizon, by least squares: nats a step

s[t] is what is carried from step t to step t + 1, and nothing else: the other outputs of a step do not count.
These are not dL/dW, which is a sum over time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.files.config import Json
from elman.lens.layers import Layer, flat, innermost, inspection_mode, record_layers, title
from elman.lens.sample import Sample, causal, core_of, features, losses, losses_of
from elman.state import State

PIECE = 1 << 23  # numbers of states that are in a graph at a time
ANCHORS = 64
STEPS = 256  # before which flow is computed
IN_MEMORY = 1 << 26  # numbers of features at a time
DEAD = 1e-9  # of the largest: a gradient too small to learn from
LEAST = 0.01  # of the gradient one step back: where the horizon is

Choose = Callable[[Tensor, Tensor], Tensor]  # losses (B, T) or (B,) of some rows (B,) -> what is differentiated


@dataclass(frozen=True)
class Reach:
    """How strongly the loss depends on the state of a layer some steps back.

    >>> reach = Reach("0 gru", list(range(1, 11)), [0.5 ** tau for tau in range(1, 11)])
    >>> reach.half_life, reach.horizon, round(reach.slope, 3)
    (2.0, 7, -0.693)
    """

    name: str
    tau: list[int]
    raw: list[float]
    steps: int = 0  # how far back there are inputs; 0 for the last tau, which is as far unless the gradient died before

    @property
    def furthest(self) -> int:
        return self.steps or self.tau[-1]

    @property
    def relative(self) -> list[float]:
        """Relative to the first of them that is not zero."""
        first = next((value for value in self.raw if value > 0), 1.0)
        return [value / first for value in self.raw]

    @property
    def half_life(self) -> float:
        """Infinite if it does not fall to a half."""
        values = self.relative
        for i, value in enumerate(values):
            if value <= 0.5 and any(v > 0.5 for v in values[:i]):
                above, before = values[i - 1], self.tau[i - 1]
                return before + (above - 0.5) / (above - value) * (self.tau[i] - before)
        return math.inf

    @property
    def horizon(self) -> int:
        return max((tau for tau, value in zip(self.tau, self.relative, strict=True) if value >= LEAST), default=0)

    @property
    def slope(self) -> float:
        """Zero if there are fewer than two numbers."""
        pairs = zip(self.tau, self.raw, strict=True)
        points = [(tau, math.log(v)) for tau, v in pairs if tau <= self.horizon and 0 < v < math.inf]
        if len(points) < 2:
            return 0.0
        middle = sum(tau for tau, _ in points) / len(points)
        mean = sum(value for _, value in points) / len(points)
        spread = sum((tau - middle) ** 2 for tau, _ in points)
        return sum((tau - middle) * (value - mean) for tau, value in points) / spread

    def to_json(self) -> dict[str, Json]:
        return {
            "layer": self.name, "tau": [*self.tau], "raw": [*self.raw], "relative": [*self.relative],
            "half_life": self.half_life, "horizon": self.horizon, "steps": self.furthest, "slope": self.slope,
        }  # fmt: skip


@dataclass(frozen=True)
class Flow:
    """The gradient with respect to the states of a layer, in the order of the inputs."""

    name: str
    steps: list[int]  # before which inputs
    norm: Tensor  # (steps,) mean over the rows that are so long
    units: Tensor  # (steps, N) of the first row: |dL/ds|, number by number


class StateGradients(NamedTuple):
    """dL/ds of a layer before some steps, for some rows."""

    rows: Tensor
    name: str
    backwards: bool
    lengths: Tensor
    values: Tensor  # (rows, borders, N); the first ones are not there where the gradient had died before


def gradients(
    model: nn.Module, sample: Sample, borders: list[int], choose: Choose, least: float = 0.0
) -> Iterator[StateGradients]:
    """The gradient of the chosen loss with respect to the states before the steps `borders`: some rows at a time.

    A causal model is gone through once, and then backwards from border to border, as long as the gradient of some layer
    is not below `least` of what it was at first. One that reads the future has layers that go either way: each is
    scanned by itself.
    """
    B, T = sample.shape
    with inspection_mode(model):
        size = max([layer.size for layer in layers_of(model, sample.take(torch.arange(1)))], default=0)
        if size == 0:
            return
        if causal(model):
            width = features(model, sample.take(torch.arange(1))).shape[-1]
            for rows in torch.arange(B).split(max(1, IN_MEMORY // (T * width))):
                yield from _backwards(model, sample.take(rows), rows, borders, choose, least)
            return
        for rows in torch.arange(B).split(max(1, PIECE // (T * size))):
            part = sample.take(rows)
            with record_layers(core_of(model, part)) as layers:
                terms = losses(model, features(model, part), part)
            for layer, outside in zip(layers, _outside(choose(terms, rows), layers), strict=True):
                yield StateGradients(
                    rows, layer.name, layer.backwards, layer.lengths, state_gradients(layer, outside, borders)
                )


def _backwards(
    model: nn.Module, part: Sample, rows: Tensor, borders: list[int], choose: Choose, least: float
) -> Iterator[StateGradients]:
    """All layers of a causal core: forward without a graph, then from the last border to the first with one."""
    core, x = core_of(model, part), features(model, part).detach()
    pieces = [*pairwise([*borders, part.shape[1]])]

    def scan(state: State, start: int, end: int) -> tuple[Tensor, State]:
        lengths = (part.lengths - start).clamp(0, end - start)
        y, state = core.scan_unchecked(x[:, start:end], state, lengths, part.reset[:, start:end])
        return y, state

    state: State = states.detach(core.init_state(len(rows)) if part.state is None else part.state)
    before, outputs = [], []
    with torch.no_grad():
        for start, end in pieces:
            before.append(state)
            y, state = scan(state, start, end)
            outputs.append(y)
    y = torch.cat(outputs, 1).requires_grad_()
    (outside,) = torch.autograd.grad(choose(losses_of(model, y, part), rows), y)
    gradient, gradients = states.map(torch.zeros_like, state), []
    most: list[float] = []
    for (start, end), state_before in reversed([*zip(pieces, before, strict=True)]):
        node = states.map(lambda leaf: leaf.clone().requires_grad_(), state_before)
        y, after = scan(node, start, end)
        gradient = _pull_back(y, after, node, outside[:, start:end].to(y.dtype), gradient)
        gradients.append([flat(own) for _, own in innermost(core, gradient)])
        norms = [float(own.norm()) for own in gradients[-1]]
        most = [max(pair) for pair in zip(norms, most or norms, strict=True)]
        if all(norm < least * top for norm, top in zip(norms, most, strict=True)):
            break
    for i, (cell, _) in enumerate(innermost(core, before[0])):
        values = torch.stack([own[i] for own in reversed(gradients)], 1)
        yield StateGradients(rows, title(i, cell), False, part.lengths, values)


def _pull_back(y: Tensor, after: State, node: State, outside: Tensor, gradient: State) -> State:
    """The gradient at the state before a piece, from those at its outputs and at the state after it."""
    outputs = [(y, outside), *zip(states.leaves(after), states.leaves(gradient), strict=True)]
    wanted = [(value, arriving) for value, arriving in outputs if value.requires_grad]
    leaves = states.leaves(node)
    if not wanted:
        return states.map(torch.zeros_like, states.detach(node))
    found = iter(
        torch.autograd.grad(
            [value for value, _ in wanted], leaves, [arriving for _, arriving in wanted], allow_unused=True,
            materialize_grads=True,
        )
    )  # fmt: skip
    return states.map(lambda _: next(found), node)


def layers_of(model: nn.Module, sample: Sample) -> list[Layer]:
    """The recurrences of a model, with their inputs when it reads a sample."""
    with record_layers(core_of(model, sample)) as layers:
        losses(model, features(model, sample), sample)
    return layers


def _outside(loss: Tensor, layers: list[Layer]) -> list[Tensor]:
    """The gradient that reaches the outputs of each layer from above, (B, T, H)."""
    if not layers or not loss.requires_grad:
        return [torch.zeros_like(layer.y) for layer in layers]
    outputs = [layer.y for layer in layers]
    return list(torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True, materialize_grads=True))


def state_gradients(layer: Layer, outside: Tensor, borders: list[int]) -> Tensor:
    """dL/ds before each of the steps `borders` (B, borders, N), from the gradient that reaches the outputs (B, T, H).

    The layer is scanned from border to border: the state that crosses one is in the graph.
    """
    T = layer.x.shape[1]
    state: State = states.map(lambda leaf: leaf.clone().requires_grad_(), layer.state)
    nodes, outputs, arriving = [], [], []
    for start, end in pairwise([*borders, T]):
        state = states.map(lambda leaf: leaf.view_as(leaf), state)  # a node of its own, apart from the output
        nodes.append(state)
        whole = torch.full((len(layer.x),), end - start)
        y, state = layer.cell.scan_unchecked(layer.x[:, start:end], state, whole, layer.reset[:, start:end])
        if y.requires_grad:
            outputs.append(y)
            arriving.append(outside[:, start:end].to(y.dtype))
    leaves = [leaf for node in nodes for leaf in states.leaves(node)]
    found = iter(
        torch.autograd.grad(outputs, leaves, arriving, allow_unused=True, materialize_grads=True)
        if outputs
        else [torch.zeros_like(leaf) for leaf in leaves]
    )
    return torch.stack([flat(states.map(lambda _: next(found), node)).detach() for node in nodes], 1)


def evenly_spaced(T: int, most: int) -> list[int]:
    """Some of the steps 0 ... T - 1 at equal distances, the first included: all if there are at most `most`.

    >>> evenly_spaced(10, 4)
    [0, 3, 6, 9]
    """
    return list(range(0, T, -(-T // most)))


def lags(T: int) -> list[int]:
    """The tau at which reach is computed: each up to 64, then each a few percent larger than the last, and T.

    >>> lags(3), len(lags(1000))
    ([1, 2, 3], 137)
    """
    numbers = [1]
    while numbers[-1] < T:
        numbers.append(min(T, numbers[-1] + max(1, numbers[-1] // 24 if numbers[-1] >= 64 else 1)))
    return numbers


def flow(model: nn.Module, sample: Sample) -> list[Flow]:
    """The norm of dL/ds before each step, for each layer; if there are more than 256 steps, before every n-th.

    >>> from elman.cells import cell
    >>> [found] = flow(cell("gru", 3, 4), Sample(torch.randn(2, 9, 3)))
    >>> found.norm.shape, found.units.shape
    (torch.Size([9]), torch.Size([9, 4]))
    """
    borders = evenly_spaced(sample.shape[1], STEPS)
    norms: dict[str, list[Tensor]] = {}
    units: dict[str, Tensor] = {}
    for found in gradients(model, sample, borders, lambda terms, _: terms.sum()):
        values = found.values
        if found.backwards:  # its border b is after the input at lengths - 1 - b
            values = kernels.reverse(values, -(-found.lengths // (borders[1] if len(borders) > 1 else 1)))
        norms.setdefault(found.name, []).append(values.norm(dim=-1))
        units.setdefault(found.name, values[0].abs())
    inside = torch.tensor(borders) < sample.lengths[:, None]
    means = {name: torch.where(inside, torch.cat(part), 0.0).sum(0) for name, part in norms.items()}
    return [Flow(name, borders, total / inside.sum(0).clamp(min=1), units[name]) for name, total in means.items()]


def reach(model: nn.Module, sample: Sample, anchors: int = ANCHORS) -> list[Reach]:
    """How strongly the loss at a step depends on the state tau steps back, for each layer.

    An anchor is the end of a row. For a causal model with few rows, each row is cut into several that overlap, of half
    its length. If the model reads the future and predicts at every step, the anchor is in the middle of the row.
    tau ends when every layer's reach has fallen below 1e-9 of its largest, since nothing follows; and at the first
    input, if that is a reset: the state before it belongs to no episode.

    >>> from elman.cells import cell
    >>> [found] = reach(cell("gru", 3, 4), Sample(torch.randn(4, 20, 3)), anchors=4)
    >>> found.tau == list(range(1, 21))
    True
    """
    sample, at = anchor_rows(model, sample, anchors)
    T, begins = sample.shape[1], sample.reset[:, 0]
    even = bool((at == T - 1).all())
    borders = [T - tau for tau in reversed(lags(T))] if even else list(range(T))
    norms: dict[str, list[Tensor]] = {}
    there: dict[str, list[Tensor]] = {}
    for found in gradients(model, sample, borders, _at(at), DEAD if even else 0.0):
        own = found.lengths - 1 - at[found.rows] if found.backwards else at[found.rows]
        values = found.values.norm(dim=-1)
        # The state before step a - tau + 1 is the one tau steps before a.
        t = torch.arange(values.shape[1] - 1, -1, -1).expand_as(values) if even else own[:, None] - torch.arange(T)
        norms.setdefault(found.name, []).append(values.gather(1, t.clamp(min=0)))
        first = torch.tensor(borders[-values.shape[1] :])[t.clamp(min=0)] == 0
        there.setdefault(found.name, []).append((t >= 0) & ~(first & begins[found.rows][:, None]))
    taus = lags(T) if even else list(range(1, T + 1))
    longest = 0 if not even else T - 1 if T > 1 and int(begins.sum()) * 2 > len(begins) else T
    return [Reach(name, *_over_anchors(taus, _level(norms[name]), _level(there[name])), longest) for name in norms]


def _level(parts: list[Tensor]) -> Tensor:
    """Pieces of rows stacked, cut to the shortest."""
    width = min(part.shape[1] for part in parts)
    return torch.cat([part[:, :width] for part in parts])


def anchor_rows(model: nn.Module, sample: Sample, anchors: int) -> tuple[Sample, Tensor]:
    """Rows whose loss at one step is inspected, and that step (A,)."""
    B, T = min(sample.shape[0], anchors), sample.shape[1]
    rows = torch.arange(B)
    if not causal(model):
        return sample.take(rows), (sample.lengths[rows] - 1).clamp(min=0) // 2
    each, half = min(anchors // B, T // 2 + 1), T - T // 2
    if each > 1 and sample.each and bool((sample.lengths == T).all()):
        starts = (torch.linspace(0, T - half, each).round().long()).repeat(B)
        return sample.windows(rows.repeat_interleave(each), starts, half), torch.full((B * each,), half - 1)
    return sample.take(rows), (sample.lengths[rows] - 1).clamp(min=0)


def _at(at: Tensor) -> Choose:
    """The losses at these steps (A,); for a model that predicts once per row, those of the rows."""

    def choose(terms: Tensor, rows: Tensor) -> Tensor:
        return terms.sum() if terms.dim() == 1 else terms.gather(1, at[rows][:, None]).sum()

    return choose


def _over_anchors(taus: list[int], values: Tensor, there: Tensor) -> tuple[list[int], list[float]]:
    """The mean over the anchors (A, taus) that reach back so far, as long as half of them do."""
    most = max(1, int((there.sum(0) * 2 >= len(values)).sum()))
    mean = torch.where(there, values, 0.0).sum(0) / there.sum(0).clamp(min=1)
    return taus[:most], mean[:most].double().tolist()
