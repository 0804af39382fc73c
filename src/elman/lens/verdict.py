"""The findings in sentences, and the usual remedies, each with its number.

exploding   reach rises to more than 10 times that of one step back
vanishing   reach falls below 1 % of it within the inspected steps, and stays there
stable      neither
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from elman.lens.context import Context
from elman.lens.flow import Reach
from elman.lens.gates import Gate, Health

RISE = 10.0


class Findings(NamedTuple):
    """What a verdict is based on; None or empty if it could not be computed."""

    reach: Sequence[Reach]
    exponents: dict[str, list[float]]  # by layer
    largest: dict[str, float]  # singular value of a step, by layer
    radius: dict[str, float]  # largest |eigenvalue| of a recurrent matrix or of a decay, by layer
    context: Context | None
    gates: Sequence[Gate]
    health: Sequence[Health]
    loss: float
    filters: frozenset[str] = frozenset()  # layers that are hidden Markov models
    longer: dict[str, str] = {}  # what would let a layer reach further, if that is not another cell


def kind(reach: Reach) -> str:
    """exploding, vanishing or stable.

    >>> kind(Reach("0 elman", [1, 2, 3], [1.0, 0.1, 0.001])), kind(Reach("0 elman", [1, 2], [1.0, 1.0]))
    ('vanishing', 'stable')
    """
    values = reach.relative
    if any(not math.isfinite(value) or value >= RISE for value in values):
        return "exploding"
    return "vanishing" if reach.horizon < reach.furthest else "stable"


def worst(reach: Sequence[Reach]) -> Reach | None:
    """The layer that explodes, otherwise the one with the shortest reach."""
    order = ["exploding", "vanishing", "stable"]
    return min(reach, key=lambda r: (order.index(kind(r)), r.horizon), default=None)


def verdict(seen: Findings) -> list[str]:
    """Five sentences or fewer."""
    parts = [_gradient(seen), _dynamics(seen), _memory(seen), _units(seen), _remedy(seen)]
    return [part for part in parts if part]


def _gradient(seen: Findings) -> str:
    r = worst(seen.reach)
    if r is None:
        return "The model has no state, so no gradient travels through time."
    far = r.furthest
    if not all(map(math.isfinite, r.raw)):
        return f"The gradient in layer {r.name} is not finite."
    if kind(r) == "exploding":
        top, tau = max(zip(r.relative, r.tau, strict=True))
        return (
            f"The gradient explodes in layer {r.name}: the loss depends {top:.3g} times as much on the state {tau} "
            f"steps back as on the one just before it ({r.slope:+.3f} nats a step)."
        )
    half = f"halved after {r.half_life:.1f} steps" if math.isfinite(r.half_life) else "never halved"
    if kind(r) == "vanishing":
        return (
            f"The gradient vanishes in layer {r.name}: it is {half} and below 1 % beyond {r.horizon} of the {far} "
            f"inspected steps ({r.slope:+.3f} nats a step)."
        )
    steps = _count(far, "step")
    return f"The gradient is stable: over {steps} back it is {half}, and still {r.relative[-1]:.0%} at the end."


def _dynamics(seen: Findings) -> str:
    if not seen.exponents:
        return ""
    name, values = max(seen.exponents.items(), key=lambda item: item[1][0])
    top = values[0]
    single = f", and a step stretches a direction by {seen.largest[name]:.2f} at most" if name in seen.largest else ""
    if top > 0.01:
        return f"The dynamics of layer {name} are chaotic: nearby states diverge by {top:.3f} nats a step{single}."
    if top > -0.01:
        return f"The dynamics of layer {name} are at the edge: the largest Lyapunov exponent is {top:+.4f}{single}."
    return (
        f"The states forget: the slowest direction, in layer {name}, shrinks by {-top:.3f} nats a step, "
        f"to 1 / e in {-1 / top:.1f} steps{single}."
        if math.isfinite(top)
        else f"Layer {name} keeps nothing: a step erases the whole state."
    )


def _memory(seen: Findings) -> str:
    c = seen.context
    if c is None:
        return f"The loss is {seen.loss:.3f}; the model reads the future, so there is no context to shorten."
    more = c.excess[0]
    if not math.isfinite(c.loss):
        return f"The loss is {c.loss} at the anchors."
    if c.effective <= 1:
        return f"The loss is {c.loss:.3f} at the anchors, and about the same with the last input alone ({more:+.3f})."
    return (
        f"The loss is {c.loss:.3f} at the anchors; the last {c.effective} inputs are as good as all {c.n[-1]}, "
        f"the last one alone costs {more:+.3f}."
    )


def _units(seen: Findings) -> str:
    for h in seen.health:
        if h.not_finite is not None:
            return f"Layer {h.layer} is not finite from step {h.not_finite} on: all later numbers are meaningless."
    total = sum(h.units for h in seen.health)
    dead, full = sum(len(h.dead) for h in seen.health), sum(len(h.saturated) for h in seen.health)
    if not total:
        return ""
    sentence = f"Of {_count(total, 'number')} in the state {dead} are dead and {full} saturated"
    if not seen.gates:
        return sentence + "."
    gate = max(seen.gates, key=lambda g: g.saturation)
    return f"{sentence}; gate {gate.name} of layer {gate.layer} is shut or open at {gate.saturation:.0%} of the steps."


def _remedy(seen: Findings) -> str:
    r = worst(seen.reach)
    if r is None:
        return ""
    radius, single = seen.radius.get(r.name), seen.largest.get(r.name)
    if any(h.not_finite is not None for h in seen.health):
        return "Remedy: a smaller learning rate, and clipping (optim.clip_norm 1)."
    if kind(r) == "exploding":
        why = f"the largest singular value of a step is {single:.2f}" if single else f"it rises by {r.slope:.2f} a step"
        return f"Remedy: clip the gradient (optim.clip_norm 1), start orthogonal (gain 1), or use a gated cell: {why}."
    if kind(r) == "stable":
        return "No remedy is needed for gradients."
    if r.name in seen.filters:
        return "No remedy is needed; a filter forgets once its observations determine the state."
    if seen.context is not None and seen.context.effective <= r.horizon // 2:
        return (
            f"No remedy is urgent: the loss uses {_count(seen.context.effective, 'input')} and the gradient "
            f"reaches {r.horizon} back; if the task needs more, train on longer windows."
        )
    if seen.context is not None and seen.context.effective > 2 * r.horizon:
        return (
            f"No remedy is needed if the loss is good: it uses {_count(seen.context.effective, 'input')} though small "
            f"changes reach {r.horizon} steps, since the state has latched. What matters for training is the reach of "
            "the fresh weights: see --at init."
        )
    return _longer(seen, r, radius)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _longer(seen: Findings, r: Reach, radius: float | None) -> str:
    if r.name in seen.longer:
        return f"Remedy, if the task needs more: {seen.longer[r.name]}."
    keep = next((g for g in seen.gates if g.layer == r.name and g.keeps), None)
    if keep is not None:
        mean = float(keep.mean.mean())
        steps = -1 / math.log(mean) if 0 < mean < 1 else math.inf
        how = {"f": "a larger forget bias (options: forget_bias, or t_max for the time that is needed)"}
        return (
            f"Remedy: gate {keep.name} keeps {mean:.2f} of the state a step on average, {steps:.1f} steps; "
            f"try {how.get(keep.name, 'a bias that keeps more')}, a norm before it, or a linear recurrence (lru)."
        )
    if radius is not None and radius < 0.95:
        return (
            f"Remedy: the largest eigenvalue of the recurrent matrix is {radius:.2f}; start orthogonal (gain 1), "
            "or use a gated cell (lstm, gru) or a linear recurrence (lru)."
        )
    return "Remedy: a gated cell (lstm, gru), a linear recurrence (lru, s5), or a norm before the layer."
