"""The gradient of a nonlinear recurrence, parallel in time: BPTT is a linear dynamical system.

    s[t] = f(x[t], s[t-1])                              the recurrence, s the state with its leaves side by side (N,)
    g[t] = A[t+1]^T g[t+1] + b[t]                       the gradient with respect to s[t]

where A[t] = ds[t] / ds[t-1] and b[t] is what reaches s[t] from outside. The maps g -> A^T g + b compose, so all g come
from one associative scan over the Jacobians. Then one call of the step with all B * T inputs and states side by side
has the gradients of inputs and parameters.

Memory: about 4 B T N^2 numbers in the backward pass; time: N backward passes through that call, and 2 B T products of
(N, N). That pays where a machine is wide and T long, with N small; the loop needs B T N numbers and T steps.
G. E. Blelloch, Prefix sums and their applications (1990).
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from elman import state as states
from elman.errors import InputError, KernelError
from elman.kernels import reference
from elman.kernels.reference import Context, Step
from elman.lengths import masked, valid
from elman.state import State


def parallel_bptt(
    step: Step, x: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor, size: int
) -> tuple[Tensor, State]:
    """`loop`, argument by argument and value by value, with a backward pass that is one scan over all time steps.

    `step` may draw nothing at random, and its state has real leaves of one dtype. Where products of Jacobians overflow,
    rows get their gradient step by step, and a RuntimeWarning says so.

    >>> from elman.cells import cell
    >>> gru, x = cell("gru", 3, 4), torch.ones(2, 9, 3)
    >>> zero, whole, none = gru.init_state(2), torch.full((2,), 9), torch.zeros(2, 9, dtype=torch.bool)
    >>> y, last = parallel_bptt(gru.step, x, zero, zero, whole, none, gru.output_size)
    >>> y.sum().backward()
    """
    check(x, state, init, lengths, reset)
    with torch.no_grad():
        trajectory = states_by_loop(step, x, state, init, lengths, reset)
    return along(step, x, trajectory, state, init, lengths, reset, size)


def check(x: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor) -> None:
    """Raise an InputError unless this is what `loop` takes, with a state whose leaves can be concatenated."""
    leaves = states.leaves(state)
    dtypes = {leaf.dtype for leaf in (*leaves, *states.leaves(init))}
    if not leaves or len(dtypes) > 1 or not leaves[0].is_floating_point():
        raise InputError(
            f"the state is {states.describe(state)}; parallel in time it must have leaves, real and of one dtype. "
            "A linear recurrence, complex or not, has kernels.linear_scan; a core without a state needs no scan."
        )
    if x.dim() != 3:
        raise InputError(f"x is {states.describe(x)}; expected (B, T, D): batch first, time second, features last")
    B, T = x.shape[:2]
    states.check(state, states.map(lambda leaf: leaf[:0], init), B)
    if lengths.shape != (B,) or lengths.dtype != torch.int64:
        raise InputError(f"lengths is {states.describe(lengths)}; expected int64[{B}]: torch.full(({B},), {T})")
    if reset.shape != (B, T) or reset.dtype != torch.bool:
        raise InputError(f"reset is {states.describe(reset)}; expected bool[{B}, {T}]: torch.zeros(..., dtype=bool)")


def flat(state: State) -> Tensor:
    """The leaves of a state side by side, (B, N)."""
    return torch.cat([leaf.flatten(1) for leaf in states.leaves(state)], 1)


def unflat(rows: Tensor, like: State) -> State:
    """The inverse: rows (M, N) as a state with M rows, of the structure of `like`."""
    parts = iter(rows.split([leaf.shape[1:].numel() for leaf in states.leaves(like)], 1))
    return states.map(lambda leaf: next(parts).reshape(-1, *leaf.shape[1:]), like)


def states_by_loop(step: Step, x: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor) -> Tensor:
    """The state after each step, (B, T, N), one step after the other."""

    def remembered(x: Tensor, state: State) -> tuple[Tensor, State]:
        _, after = step(x, state)
        return flat(after), after

    N = flat(state).shape[1]
    return reference.loop(remembered, x, state, init, lengths, reset, N)[0].to(flat(state).dtype)


def before(trajectory: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each step (B, T, N), and where (B, T) they do not come from the step before."""
    B, T, N = trajectory.shape
    fresh = reset | ~valid(lengths, T)  # in the padding: whatever is finite
    shifted = torch.cat([flat(state)[:, None], trajectory[:, :-1]], 1)
    cut = fresh | (torch.arange(T, device=reset.device) == 0)
    return torch.where(fresh[..., None], flat(init)[:, None], shifted), cut


def along(
    step: Step, x: Tensor, trajectory: Tensor, state: State, init: State, lengths: Tensor, reset: Tensor, size: int
) -> tuple[Tensor, State]:
    """The outputs and the last state, given all states (B, T, N); differentiable in all that the step sees."""
    B, T = x.shape[:2]
    if B * T == 0:
        return x.new_zeros(B, T, size), state
    then, cut = before(trajectory.detach(), state, init, lengths, reset)
    if torch.is_grad_enabled() and not then.requires_grad:
        then.requires_grad_()
    y, new = step(x.flatten(0, 1), unflat(then.flatten(0, 1), state))
    y, after = _Adjoint.apply(y.unflatten(0, (B, T)), flat(new).unflatten(0, (B, T)), then, cut)
    last = after[torch.arange(B, device=x.device), (lengths - 1).clamp(min=0)]
    last = torch.where((lengths > 0)[:, None], last, flat(state))
    return masked(y, lengths), unflat(last, state)


class _Adjoint(torch.autograd.Function):
    """Lets y (B, T, H) and the states after each step (B, T, N) through; turns the gradients that reach each state
    from outside into the gradients with respect to it, through all later steps."""

    @staticmethod
    def forward(ctx: Context, y: Tensor, after: Tensor, then: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(y, after, then, cut)
        return y.view_as(y), after.view_as(after)

    @staticmethod
    def backward(ctx: Context, gy: Tensor, gafter: Tensor) -> tuple[Tensor, Tensor, None, None]:
        if torch.is_grad_enabled():
            raise KernelError("parallel in time there is no second derivative; use kernels.loop for it")
        y, after, then, cut = ctx.saved_tensors
        (direct,) = torch.autograd.grad(y, then, gy, retain_graph=True, allow_unused=True, materialize_grads=True)
        direct = torch.where(cut[..., None], 0.0, direct)
        b = gafter + torch.cat([direct[:, 1:], torch.zeros_like(direct[:, :1])], 1)
        A = jacobian(after, then)
        # From the right: place t has the Jacobian of step t + 1, and the last place none.
        onward = torch.cat([A[:, 1:], torch.zeros_like(A[:, :1])], 1).mT.flip(1)
        ends = torch.cat([cut[:, 1:], torch.ones_like(cut[:, :1])], 1).flip(1)
        return gy, _finite_scan(onward, b.flip(1), ends).flip(1), None, None


def jacobian(after: Tensor, then: Tensor) -> Tensor:
    """A[..., i, j] = d after[..., i] / d then[..., j] (B, T, N, N), row by row of the graph between the two."""
    A = then.new_empty(*then.shape, then.shape[-1])
    for i in range(then.shape[-1]):
        A[..., i, :] = _row(after, then, i)
    return A


def diagonal(after: Tensor, then: Tensor) -> Tensor:
    """A[..., i, i] alone (B, T, N): as much time as the whole, an N-th of the memory."""
    return torch.stack([_row(after, then, i)[..., i] for i in range(then.shape[-1])], -1)


def _row(after: Tensor, then: Tensor, i: int) -> Tensor:
    unit = torch.zeros_like(after)
    unit[..., i] = 1.0
    return torch.autograd.grad(after, then, unit, retain_graph=True, allow_unused=True, materialize_grads=True)[0]


def affine_scan(A: Tensor, b: Tensor, cut: Tensor) -> Tensor:
    """h[t] = A[t] h[t-1] + b[t], h[t] = b[t] where `cut` (B, T) and at the first t. A (B, T, N, N); b, h (B, T, N).

    Neighbours are joined, the half as long problem is solved, and gives every second h; the others are one step off.
    """
    T = b.shape[1]
    if T <= 1:
        return b
    end = T - T % 2
    left, right = slice(0, end, 2), slice(1, end, 2)
    joined = _push(A[:, right], b[:, left], b[:, right], cut[:, right])
    odd = affine_scan(A[:, right] @ A[:, left], joined, cut[:, left] | cut[:, right])
    h = torch.empty_like(b)
    h[:, 1::2], h[:, 0] = odd, b[:, 0]
    h[:, 2::2] = _push(A[:, 2::2], odd[:, : (T - 1) // 2], b[:, 2::2], cut[:, 2::2])
    return h


def _finite_scan(A: Tensor, b: Tensor, cut: Tensor) -> Tensor:
    """`affine_scan`; of rows where that is not finite, one step after the other, and a warning if that helps.

    A product of Jacobians can overflow though no gradient ever gets so large, and infinity times zero is NaN.
    """
    h = affine_scan(A, b, cut)
    rows = (~h.isfinite()).flatten(1).any(1).nonzero()[:, 0]
    if not len(rows):
        return h
    stepwise = _affine_loop(A[rows], b[rows], cut[rows])
    helped = (stepwise.isfinite() & ~h[rows].isfinite()).flatten(1).any(1)
    h[rows] = stepwise
    if bool(helped.any()):
        warnings.warn(
            f"products of Jacobians overflow in {int(helped.sum())} of {len(h)} rows: the recurrence expands. Their "
            "gradients were computed step by step; kernels.loop does that faster.",
            RuntimeWarning,
            stacklevel=2,
        )
    return h


def _affine_loop(A: Tensor, b: Tensor, cut: Tensor) -> Tensor:
    """What `affine_scan` computes, in T steps: a vector goes through the matrices, which are never multiplied."""
    h = [b[:, 0]]
    for t in range(1, b.shape[1]):
        h.append(_push(A[:, t], h[-1], b[:, t], cut[:, t]))
    return torch.stack(h, 1)


def _push(A: Tensor, h: Tensor, b: Tensor, cut: Tensor) -> Tensor:
    """A h + b, or b where cut: by `where`, since an infinity times zero is NaN."""
    return torch.where(cut[..., None], b, (A @ h[..., None])[..., 0] + b)
