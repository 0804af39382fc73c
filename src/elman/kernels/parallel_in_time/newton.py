"""A nonlinear recurrence over all time steps at once, by Newton's method.

    s[t] = f(x[t], s[t-1])                      T equations for T states; r[t] = f(x[t], s[t-1]) - s[t] is what is left
    d[t] = rho A[t] d[t-1] + r[t]               a linear scan; A[t] = df / ds[t-1], whole or its diagonal alone
    s[t] <- s[t] + d[t]

rho = 1 is Newton's method (with the diagonal of A, a quasi-Newton method). It need not converge from afar: where the
recurrence expands, a correction grows from step to step beyond the region in which A can be trusted. So rho is the size
of a trust region, one for each row: a correction that makes the row's residual more than twice as large, or not finite,
is not taken, and rho halved. (To ask that it shrink is too much: an error may grow on its way to the row's end, while
each correction makes at least one more state exact.) rho = 0 is the plain sweep s[t] <- f(x[t], s[t-1]), which is taken
whenever it is finite.

Y. H. Lim et al., Parallelizing non-linear sequential models over the sequence length, ICLR (2024): full A.
X. Gonzalez et al., Towards scalable and stable parallelization of nonlinear RNNs, NeurIPS (2024): diagonal, and trust
regions, there by a Kalman smoother.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.errors import UnknownNameError
from elman.kernels.parallel_in_time import adjoint
from elman.kernels.reference import Step
from elman.lengths import masked
from elman.options import positive, whole
from elman.state import State

JACOBIANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"full": adjoint.jacobian, "diagonal": adjoint.diagonal}
SMALLEST = 2.0**-4  # a region smaller than this is the plain sweep


class NewtonReport(NamedTuple):
    """How each row was solved."""

    iterations: Tensor  # (B,) corrections tried
    fallback: Tensor  # (B,) bool: it did not converge, and was computed by the loop
    residual: Tensor  # (B,) the largest |r[t, i]| / (1 + max(|s[t-1, i]|, |s[t, i]|)), when the iterations ended


class _Point(NamedTuple):
    """Guessed states, and what the recurrence says of them."""

    s: Tensor  # (B, T, N)
    r: Tensor  # (B, T, N)
    A: Tensor  # (B, T, N, N), or (B, T, N)
    residual: Tensor  # (B,)


def newton_scan(
    step: Step,
    x: Tensor,
    state: State,
    init: State,
    lengths: Tensor,
    reset: Tensor,
    size: int,
    *,
    jacobian: str = "full",
    tolerance: float | None = None,
    max_iterations: int = 100,
) -> tuple[Tensor, State, NewtonReport]:
    """`loop`, argument by argument, by Newton iterations over all time steps: y (B, T, size), the last state, a report.

    A row has converged when its residual is at most `tolerance` (100 roundings of the state's dtype if None), each
    number of each step measured against its own size; a row that has not after `max_iterations` is computed by the
    loop, and the report says so. The tolerance bounds the error of each step; where the recurrence forgets, that is the
    error of the whole. Differentiable, by `parallel_bptt`.
    Memory: about 4 B T N^2 numbers for the full Jacobian, 6 B T N for its diagonal (without gradients).

    >>> from elman.cells import cell
    >>> gru, x = cell("gru", 3, 4), torch.ones(2, 9, 3)
    >>> zero, whole, none = gru.init_state(2), torch.full((2,), 9), torch.zeros(2, 9, dtype=torch.bool)
    >>> y, last, report = newton_scan(gru.step, x, zero, zero, whole, none, gru.output_size)
    >>> torch.allclose(y, gru.scan(x)[0], atol=1e-5), report.fallback.any().item()
    (True, False)
    """
    adjoint.check(x, state, init, lengths, reset)
    if jacobian not in JACOBIANS:
        raise UnknownNameError("jacobian", jacobian, JACOBIANS)
    max_iterations = whole("max_iterations", max_iterations, least=0)
    rounding = 100 * torch.finfo(adjoint.flat(state).dtype).eps
    tolerance = rounding if tolerance is None else positive("tolerance", tolerance)
    with torch.no_grad():
        problem = _Problem(step, x, state, init, lengths, reset, JACOBIANS[jacobian])
        s, report = _solve(problem, tolerance, max_iterations)
        rows = report.fallback.nonzero()[:, 0]
        if len(rows):
            left = (states.take(part, rows) for part in (x, state, init, lengths, reset))
            s[rows] = adjoint.states_by_loop(step, *left)  # type: ignore[arg-type]
    return *adjoint.along(step, x, s, state, init, lengths, reset, size), report


class _Problem(NamedTuple):
    step: Step
    x: Tensor
    state: State
    init: State
    lengths: Tensor
    reset: Tensor
    jacobian: Callable[[Tensor, Tensor], Tensor]

    def at(self, s: Tensor) -> _Point:
        """What is left of each equation at the states s (B, T, N), and the derivatives there."""
        B, T, _ = s.shape
        then, _ = adjoint.before(s, self.state, self.init, self.lengths, self.reset)
        with torch.enable_grad():
            then.requires_grad_()
            _, new = self.step(self.x.flatten(0, 1), adjoint.unflat(then.flatten(0, 1), self.state))
            after = adjoint.flat(new).unflatten(0, (B, T))
            A = self.jacobian(after, then)
        r = masked(after.detach() - s, self.lengths)
        # Each number against its own size: beside one that grows, what is left of the others would look like nothing.
        relative = r.abs() / (1 + torch.maximum(then.detach().abs(), s.abs()))
        return _Point(s, r, A, masked(relative, self.lengths).nan_to_num(nan=torch.inf, posinf=torch.inf).amax((1, 2)))

    def correction(self, point: _Point, rho: Tensor) -> Tensor:
        """d (B, T, N), with a trust region rho (B,) for each row."""
        _, cut = adjoint.before(point.s, self.state, self.init, self.lengths, self.reset)
        A = point.A * rho.view(-1, *[1] * (point.A.dim() - 1))
        if A.dim() == 4:
            return adjoint.affine_scan(A, point.r, cut)
        return kernels.linear_scan(A, point.r, torch.zeros_like(point.r[:, 0]), self.lengths, cut)[0]


def _solve(problem: _Problem, tolerance: float, max_iterations: int) -> tuple[Tensor, NewtonReport]:
    """States (B, T, N) that fit each other to the tolerance, as far as the report says so."""
    B, T = problem.x.shape[:2]
    s = adjoint.flat(problem.state)[:, None].repeat(1, T, 1)
    iterations = torch.zeros(B, dtype=torch.long, device=s.device)
    if s.numel() == 0:
        return s, NewtonReport(iterations, iterations > 0, s.new_zeros(B))
    point, rho = problem.at(s), torch.ones_like(s[:, 0, 0])
    while (going := point.residual > tolerance).any() and iterations.max() < max_iterations:
        iterations += going
        tried = problem.at(point.s + problem.correction(point, rho))
        good = tried.residual < 2 * point.residual
        point = _choose(going & (good | (rho == 0) & tried.residual.isfinite()), tried, point)
        rho = torch.where(good, (2 * rho).clamp(SMALLEST, 1), rho / 2)
        rho = torch.where(rho < SMALLEST, 0.0, rho)
    return point.s, NewtonReport(iterations, point.residual > tolerance, point.residual)


def _choose(rows: Tensor, new: _Point, old: _Point) -> _Point:
    """Row by row, `new` where `rows` (B,) is true."""
    return _Point(*states.leaves(states.where(rows, new, old)))
