"""The filter and the most probable path of a hidden Markov model, in plain Torch and in logarithms: what csrc/hmm.cpp
and csrc/viterbi.cpp compute.

Letters: K hidden states, `start` (K,) and `transition` (K, K, from row to column) probabilities, x (B, T, K) the
log-likelihood log p(o[t] | z[t] = k) of each observation in each state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elman.kernels.reference.elementwise import log, log_sum_exp
from elman.kernels.reference.loop import loop
from elman.lengths import zero_past


def hmm_filter(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log p(o[t] | o[<t]) (B, T), the predictions p(z[t+1] | o[<=t]) (B, T, K), and the last of them (B, K).

    f = q + x - log_c,  log_c = log sum exp(q + x),  q'_j = log sum_i exp(f_i) transition_ij, from q = log state, or
    log start at a reset: in logarithms, where no state is ever too improbable for a number. An observation of
    probability zero has log_c = -inf, and leaves nothing until the next reset.
    """
    log_start, into = log(start), log(transition).mT  # `into` (K, K) from column to row

    def step(xt: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        y = q + xt
        log_c = log_sum_exp(y)[:, None]
        # -inf minus -inf must not be computed at all: a NaN would come back through the gradient of `where`.
        f = y - torch.where(log_c > -math.inf, log_c, 0.0)
        after = log_sum_exp(f[:, None] + into)
        return torch.cat([log_c, torch.exp(after)], -1), after

    x = zero_past(x, lengths)  # of a NaN there the gradient of `where` would be NaN, that of every step before it too
    out, last = loop(step, x, log(state), log_start.expand_as(state), lengths, reset, 1 + x.shape[-1])
    assert isinstance(last, Tensor)
    return out[..., 0], out[..., 1:], torch.where((lengths > 0)[:, None], torch.exp(last), state)


def hmm_log_prob(x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> Tensor:
    """log p(o[t] | o[<t]) (B, T)."""
    return hmm_filter(x, start, transition, state, lengths, reset)[0]


def hmm_expected(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sum log p(o[t] | o[<t]), and its gradients with respect to x, start and transition."""
    with torch.enable_grad():
        x, start, transition = (v.detach().requires_grad_() for v in (x, start, transition))
        total = hmm_log_prob(x, start, transition, start.expand(len(x), -1), lengths, reset).sum()
        wanted = (x, start, transition)
        gx, gs, gt = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
    return total.detach(), gx, gs, gt


def hmm_posterior(
    x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The first two of `hmm_expected`."""
    return hmm_expected(x, start, transition, lengths, reset)[:2]


def best_path(
    x: Tensor, start: Tensor, transition: Tensor, stop: Tensor | None, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The states of the best path (B, T), -1 past the lengths, and its score (B,).

    d[t, j] = max_i (d[t-1, i] + transition[i, j]) + x[t, j], stop[j] more at the end; of equal ones the first is taken.
    """
    B, T, K = x.shape
    best, came_from = start.expand(B, K), []
    total = x.new_zeros(B, dtype=torch.float64)
    for t in range(T):
        fresh = reset[:, t, None] if t else torch.ones_like(reset[:, :1])
        top, argtop = best.max(-1, keepdim=True)
        onward, origin = (best[:, :, None] + transition).max(1)
        came_from.append(torch.where(fresh, argtop, origin))
        fresh_base = start if t == 0 else top + start
        new = torch.where(fresh, fresh_base, onward) + x[:, t]
        # What is common to all states is kept apart, so that float32 does not lose the differences in a long sum.
        peak = new.amax(-1, keepdim=True)
        peak = torch.where(peak.isfinite(), peak, 0.0)
        valid = t < lengths
        total = torch.where(valid, total + peak[:, 0].double(), total)
        best = torch.where(valid[:, None], new - peak, best)
    score, state = (best if stop is None else best + stop).max(-1)
    path = torch.full((B, T), -1, dtype=torch.long, device=x.device)
    for t in range(T - 1, -1, -1):
        valid = t < lengths
        path[:, t] = torch.where(valid, state, -1)
        state = torch.where(valid, came_from[t].gather(1, state[:, None])[:, 0], state)
    empty = lengths == 0
    return path, torch.where(empty, 0.0, total + score).to(x.dtype)
