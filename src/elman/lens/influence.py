"""Which inputs the loss at a step depends on.

    influence[t, s] = | dL[t] / dx[s] |                             "gradient", x the features that the core reads
                    = sum over features of x[s] dL[t] / dx[s]       "input": gradient times input
                    = x[s] . integral over a of dL[t](a x) / dx[s]  "integrated", from features of zero (a = 0) to x

Integrated gradients add up to L[t](x) - L[t](0) (Sundararajan et al., 2017): by how much they do not is the residual,
relative to that difference where it is above one. The integral is a Gauss-Legendre sum, with more terms until the
residual is below 1e-3, or falls too slowly to get there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from elman import state as states
from elman.lens.layers import inspection_mode
from elman.lens.sample import Sample, causal, core_of, features, losses
from elman.options import choice
from elman.state import State

KINDS = ("gradient", "input", "integrated")
RESIDUAL = 1e-3
MOST = 256  # terms of the sum
FEW = 64


@dataclass(frozen=True)
class Influence:
    """influence[t, s] of the inputs `start` ... of the first row; a model that predicts once per row has one t."""

    kind: str
    start: int
    values: Tensor  # (t, s)
    residual: float | None  # of integrated gradients


def influence(model: nn.Module, sample: Sample, kind: str = "gradient", window: int = 96) -> Influence:
    """Of the last `window` inputs of the first row.

    >>> from elman.cells import cell
    >>> influence(cell("gru", 3, 4), Sample(torch.randn(1, 9, 3)), window=5).values.shape
    torch.Size([5, 5])
    """
    choice("kind", kind, KINDS)
    with inspection_mode(model):
        start, part, x, state = _window(model, sample, window)
        if kind == "gradient":
            return Influence(kind, start, _gradient(model, x, part, state)[1].norm(dim=-1), None)
        if kind == "input":
            return Influence(kind, start, (_gradient(model, x, part, state)[1] * x).sum(-1).detach(), None)
        values, residual = _integrated_gradient(model, x, part, state)
        return Influence(kind, start, values, residual)


def _window(model: nn.Module, sample: Sample, window: int) -> tuple[int, Sample, Tensor, State | None]:
    """Where it starts, its rows (one for each t), what they read, and the state before."""
    T = int(sample.lengths[0])
    start = max(0, T - window)
    one, first = sample.take(torch.zeros(1, dtype=torch.int64)), torch.zeros(1, dtype=torch.int64)
    if not causal(model):  # each t needs the whole row
        part = one.windows(first, first, min(T, window))
        t = torch.arange(min(T, window) if sample.each else 1)
        part = part.take(torch.zeros_like(t))
        return 0, part, features(model, part), None
    state = None
    if start:
        before = one.windows(first, first, start)
        _, state = core_of(model, before)(
            features(model, before), before.state, lengths=before.lengths, reset=before.reset
        )
    part = one.windows(first, first + start, T - start)
    t = torch.arange(T - start)
    part = part.take(torch.zeros_like(t), t + 1)
    return start, part, features(model, part), None if state is None else states.repeat(states.detach(state), len(t))


def _gradient(model: nn.Module, x: Tensor, part: Sample, state: State | None) -> tuple[Tensor, Tensor]:
    """L[t] (t,) and dL[t]/dx (t, s, D)."""
    terms = losses(model, x, part, state)
    if terms.dim() > 1:
        last = torch.arange(len(terms)) if not causal(model) else part.lengths - 1
        terms = terms.gather(1, last[:, None])[:, 0]
    if not terms.requires_grad:
        return terms, torch.zeros_like(x)
    return terms.detach(), torch.autograd.grad(terms.sum(), x)[0]


def _integrated_gradient(model: nn.Module, x: Tensor, part: Sample, state: State | None) -> tuple[Tensor, float]:
    here, _ = _gradient(model, x, part, state)
    nothing, _ = _gradient(model, torch.zeros_like(x).requires_grad_(), part, state)
    terms, before = 8, math.inf
    while True:
        nodes, weights = np.polynomial.legendre.leggauss(terms)
        total = torch.zeros_like(x)
        for node, weight in zip(nodes, weights, strict=True):
            at = ((node + 1) / 2 * x).detach().requires_grad_()
            total = total + weight / 2 * _gradient(model, at, part, state)[1]
        values = (total * x).sum(-1).detach()
        change = (here - nothing).double()
        residual = float(((values.double().sum(-1) - change).abs() / change.abs().clamp(min=1)).max())
        if residual < RESIDUAL / 2 or terms >= MOST or _hopeless(residual, before, terms):
            return values, residual
        terms, before = 2 * terms, residual


def _hopeless(residual: float, before: float, terms: int) -> bool:
    """Whether a residual that keeps falling at this rate would be too large with the most terms, as after a relu. With
    few terms the rate is not known."""
    return terms >= FEW and not residual * (residual / before) ** math.log2(MOST / terms) < RESIDUAL
