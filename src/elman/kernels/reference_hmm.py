"""The filter and the most probable path of a hidden Markov model, in plain Torch: what csrc/hmm.cpp and
csrc/viterbi.cpp do, written as it is defined.

Letters: K hidden states, `start` (K,) and `transition` (K, K, from row to column) probabilities, x (B, T, K) the
log-likelihood log p(o[t] | z[t] = k) of each observation in each state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elman.kernels.reference import log, loop


def hmm_filter(
    x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log p(o[t] | o[<t]) (B, T), the predictions p(z[t] | o[<t]) (B, T, K), and the prediction after the last
    step (B, K).

    y = log p + x,  log_c = log sum exp y,  p[t+1] = transition^T exp(y - log_c), from p[0] = state, or `start`
    at a reset.
    An observation of probability zero has log_c = -inf, and leaves p at zero until the next reset.
    """

    def step(xt: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        y = log(p) + xt
        log_c = log_sum_exp(y)
        possible = (log_c > -math.inf)[:, None]
        # -inf minus -inf must not be computed at all: a NaN would come back through the gradient of `where`.
        filtered = torch.exp(torch.where(possible, y - torch.where(possible, log_c[:, None], 0.0), -math.inf))
        return torch.cat([log_c[:, None], p], -1), filtered @ transition

    K = x.shape[-1]
    out, last = loop(step, x, state, start.expand_as(state), lengths, reset, 1 + K)
    assert isinstance(last, Tensor)
    return out[..., 0], out[..., 1:], last


def hmm_log_prob(x: Tensor, start: Tensor, transition: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> Tensor:
    """log p(o[t] | o[<t]) (B, T)."""
    return hmm_filter(x, start, transition, state, lengths, reset)[0]


def viterbi(x: Tensor, start: Tensor, transition: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable states (B, T), -1 past the lengths, and the log of their probability jointly with the
    data (B,).

    d[t, j] = max_i (d[t-1, i] + log transition[i, j]) + x[t, j]; of equal ones the first is taken.
    """
    B, T, K = x.shape
    log_start, log_transition = start.log(), transition.log()
    best, came_from = log_start.expand(B, K), []
    total = x.new_zeros(B, dtype=torch.float64)
    for t in range(T):
        fresh = reset[:, t, None] if t else torch.ones_like(reset[:, :1])
        top, argtop = best.max(-1, keepdim=True)
        onward, origin = (best[:, :, None] + log_transition).max(1)
        came_from.append(torch.where(fresh, argtop, origin))
        fresh_base = log_start if t == 0 else top + log_start
        new = torch.where(fresh, fresh_base, onward) + x[:, t]
        # What is common to all states is kept apart, so that float32 does not lose the differences in a long sum.
        peak = new.amax(-1, keepdim=True)
        peak = torch.where(peak.isfinite(), peak, 0.0)
        valid = t < lengths
        total = torch.where(valid, total + peak[:, 0].double(), total)
        best = torch.where(valid[:, None], new - peak, best)
    score, state = best.max(-1)
    path = torch.full((B, T), -1, dtype=torch.long, device=x.device)
    for t in range(T - 1, -1, -1):
        valid = t < lengths
        path[:, t] = torch.where(valid, state, -1)
        state = torch.where(valid, came_from[t].gather(1, state[:, None])[:, 0], state)
    empty = lengths == 0
    return path, torch.where(empty, 0.0, total + score).to(x.dtype)


def log_sum_exp(y: Tensor) -> Tensor:
    """log sum exp over the last axis; where all is -inf so is the sum, and its gradient is zero, not NaN."""
    top = y.detach().amax(-1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    return log(torch.exp(y - top).sum(-1)) + top[..., 0]
