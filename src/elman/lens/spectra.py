"""Eigenvalues, Lyapunov exponents and singular values: how the state acts on itself.

J[t] = ds[t] / ds[t-1]                                      the Jacobian of a step, complex numbers as two real ones
spectrum    eigenvalues of the recurrent matrices, or a of h = a h' + b; a mode's time constant is -1 / ln |a|, its
            period 2 pi / |arg a|
lyapunov    lim 1/T ln of the singular values of J[T] ... J[1], by QR of tangent vectors: Q R = J[t] Q', and each
            exponent is the mean of ln |R_ii| (Benettin et al., 1980). Where a cell is h = a h' + b they are the
            time means of ln |a| over the first row, as all of these are, and that is taken
isometry    singular values of J[t] and of J[t] ... J[t-tau+1] at some steps: all one if no direction grows or dies
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.lens.layers import NUMBERS, Layer, decays, flat, jacobian, one_step, trajectory, unflat

WIDEST = 1024  # numbers in a state for which whole Jacobians are computed
SETTLE = 0.1  # the share of the steps after which tangent vectors have found their directions
STRETCH = 6.0  # nats by which tangent vectors may grow apart between two QR


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a layer, and the name of what has them."""

    layer: str
    name: str
    values: Tensor  # complex (N,)

    @property
    def time_constants(self) -> Tensor:
        """-1 / ln |value|, infinite from 1 on: the steps in which a mode falls to 1 / e."""
        size = self.values.abs().double()
        return torch.where(size < 1, -1 / size.clamp(min=1e-300).log(), torch.inf)

    @property
    def periods(self) -> Tensor:
        """2 pi / |arg value|: the steps in which a mode turns once; infinite if it does not turn."""
        angle = self.values.angle().abs().double()
        return torch.where(angle > 1e-6, 2 * math.pi / angle.clamp(min=1e-6), torch.inf)


@torch.no_grad()
def spectrum(layer: Layer) -> list[Spectrum]:
    """The eigenvalues of a layer: of its matrices, of its diagonal, or else of the Jacobian in the middle of a row."""
    a = decays(layer)
    if a is not None:
        # Where it depends on the input: its mean size over time.
        values = a[0] if len(a) == 1 else a.abs().double().clamp(min=1e-300).log().mean(0).exp()
        return [Spectrum(layer.name, "a", values.to(torch.complex128))]
    matrices = layer.cell.recurrent()
    if not matrices and layer.size <= WIDEST:
        with torch.enable_grad():
            middle = max(0, int(layer.lengths[0]) // 2)
            before = trajectory(layer.rows(slice(0, 1)))[:, middle]
            matrices = {"J": jacobian(layer, layer.x[:1, middle], before)[0]}
    finite = {name: matrix for name, matrix in matrices.items() if bool(matrix.isfinite().all())}
    return [Spectrum(layer.name, name, torch.linalg.eigvals(matrix.double())) for name, matrix in finite.items()]


def jacobians(layer: Layer, states: Tensor, start: int, end: int) -> Iterator[Tensor]:
    """J of the steps start ... end - 1 of the first row, some (M, N, N) at a time; states (T + 1, N)."""
    N = states.shape[1]
    for steps in torch.arange(start, end).split(max(1, NUMBERS // max(1, N * N))):
        yield jacobian(layer, layer.x[0, steps], states[steps])


def lyapunov(layer: Layer, k: int | None = None) -> Tensor:
    """The first k exponents, or all, of the first row of a layer: nats a step, largest first.

    >>> from elman.cells import cell
    >>> from elman.lens import layers_of, Sample
    >>> [layer] = layers_of(cell("gru", 3, 4), Sample(torch.randn(1, 50, 3)))
    >>> bool((lyapunov(layer) < 0.1).all())
    True
    """
    a = decays(layer)
    if a is not None:
        return _of_diagonal(a)[:k]
    one, N = layer.rows(slice(0, 1)), layer.size
    states = trajectory(one)[0]
    T, k = int(layer.lengths[0]), N if k is None else min(k, N)
    if N > WIDEST or 4 * k < N:
        return _exponents(_pull_back(one, states, T, k), T)
    Q = torch.linalg.qr(torch.randn(N, k, dtype=states.dtype, generator=torch.Generator().manual_seed(0)))[0]
    return _exponents(_push_forward(one, states, T, Q.double() if N <= 64 else Q), T)


def _of_diagonal(a: Tensor) -> Tensor:
    log = a.abs().double().clamp(min=1e-300).log().mean(0)
    if a.is_complex():  # each is a plane, which has two
        log = log.repeat_interleave(2)
    return log.sort(descending=True).values


def _push_forward(layer: Layer, states: Tensor, T: int, Q: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Tangent vectors Q (N, k) pushed forward through all Jacobians: the steps since the last QR, ln |R_ii| (k,)."""
    waiting, every, done, seen = 0, 1, 0, []
    for block in jacobians(layer, states, 0, T):
        for J in block.to(Q.dtype):
            Q, waiting, done = J @ Q, waiting + 1, done + 1
            if waiting >= every or done == _settling(T):
                Q, R = torch.linalg.qr(Q)
                logs = R.diagonal().abs().double().log()
                yield waiting, logs
                seen.append(logs / waiting)
                waiting, every = 0, _every(torch.stack(seen[-8:]).mean(0))
    if waiting:
        yield waiting, torch.linalg.qr(Q)[1].diagonal().abs().double().log()


def _pull_back(layer: Layer, states: Tensor, T: int, k: int) -> Iterator[tuple[int, Tensor]]:
    """The same with the transposed Jacobians, backwards in time, for few vectors in a wide state: one backward pass of
    k equal rows a step, and no Jacobian. The product has the same singular values either way."""
    generator = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(states.shape[1], k, dtype=states.dtype, generator=generator))[0]
    waiting, every = 0, 1
    like, cell = layer.cell.init_state(k), layer.first(k)
    for t in range(T - 1, -1, -1):
        before = states[t].expand(k, -1).clone().requires_grad_()
        after = flat(one_step(cell, layer.x[:, t].expand(k, -1), unflat(before, like))[1])
        (back,) = torch.autograd.grad(after, before, Q.mT, allow_unused=True, materialize_grads=True)
        Q, waiting = back.mT, waiting + 1
        if waiting >= every or t in (0, T - _settling(T)):
            Q, R = torch.linalg.qr(Q)
            logs = R.diagonal().abs().double().log()
            yield waiting, logs
            waiting, every = 0, _every(logs / waiting)


def _every(rates: Tensor) -> int:
    """The steps after which tangent vectors that grow at these rates (k,) must be made orthogonal again."""
    apart = float(rates.max() - rates.min())
    return max(1, min(16, int(STRETCH / apart))) if 0 < apart < math.inf else 16 if apart == 0 else 1


def _settling(T: int) -> int:
    """The steps before those that count; a QR is computed at their end."""
    return int(SETTLE * T)


def _exponents(factors: Iterator[tuple[int, Tensor]], T: int) -> Tensor:
    total, counted, done = None, 0, 0
    for steps, logs in factors:
        done += steps
        if done > _settling(T):
            total, counted = logs if total is None else total + logs, counted + steps
    assert total is not None
    return (total / counted).sort(descending=True).values


@dataclass(frozen=True)
class Isometry:
    """Singular values at some steps of a layer, of products of tau Jacobians, largest first."""

    layer: str
    tau: list[int]
    values: list[Tensor]  # (steps, N) for each tau


def isometry(layer: Layer, places: int = 3, furthest: int = 16) -> Isometry | None:
    """Singular values of J and of its products over 1, 4, 16 ... steps; None if the state is too wide."""
    T = int(layer.lengths[0])
    if layer.size > WIDEST or layer.size == 0:
        return None
    taus = [tau for tau in (4**i for i in range(20)) if tau <= min(furthest, T)]
    one = layer.rows(slice(0, 1))
    states = trajectory(one)[0]
    values: list[list[Tensor]] = [[] for _ in taus]
    for end in torch.linspace(taus[-1], T, places).long().unique().tolist():
        product = torch.eye(layer.size, dtype=states.dtype)
        steps = torch.cat([*jacobians(one, states, end - taus[-1], end)]).flip(0)  # the latest first
        for i, J in enumerate(steps, 1):
            product = product @ J
            if i in taus:
                values[taus.index(i)].append(torch.linalg.svdvals(product))
    return Isometry(layer.name, taus, [torch.stack(part) for part in values])
