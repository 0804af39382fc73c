"""The forward filter of a hidden Markov model (Baum et al., 1970).

    x = log p(o(t) | z)              what the emissions say of each of N hidden states
    u = p' * exp(x)                  p(z(t), o(t) | o(1) ... o(t-1))
    l = log sum_i u_i                log p(o(t) | o(1) ... o(t-1)): what the filter normalises by
    p_j = sum_i u_i P_ij / exp(l)    p(z(t+1) = j | o(1) ... o(t)), the prediction: the state, and y
    p = pi                           at first, and at a reset

The state is the prediction itself, not its logarithm, which would round where a sequence is cut. A chain starts at pi
and not at zero, so pi is an argument of the kernel, which uses it at a reset.

The log-likelihood of sequences is the sum of l over their steps (`log_prob`). log P and log pi are used as they are: so
the gradients of the log-likelihood with respect to x, log P and log pi are the posterior marginals and the expected
counts of transitions and of first states. The rows of P and pi sum to one when the core is made; gradient steps
straight on log P and log pi would not keep them so, `elman.tasks.hmm.model.Chain` does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot
from elman.kernels.reference import log, log_sum_exp


class HMMState(NamedTuple):
    p: Tensor  # (B, N) p(z(t+1) | o(1) ... o(t))

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("p",)  # which is pi, a parameter already


class HMM(Core):
    """From log p(o(t) | z) to p(z(t+1) | o(1) ... o(t)): filtering.

    >>> hmm = HMM(2, 2)
    >>> x = torch.log(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]))
    >>> y, state = hmm.scan(x)
    >>> transitions = torch.autograd.grad(hmm.log_prob(x).sum(), hmm.log_P)[0]  # expected counts: of two steps, one
    >>> bool(transitions.sum().isclose(torch.tensor(1.0)))
    True
    """

    output_is_state = True
    no_weight_decay = ("log_P",)  # a logarithm that shrinks is a probability that grows to one

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        if input_size != size:
            raise InputError(
                f"input_size is {input_size}, size {size}; they must be equal: "
                "the input is one log-likelihood for each hidden state"
            )
        self.log_pi = nn.Parameter(torch.empty(size))
        self.log_P = nn.Parameter(torch.empty(size, size))  # from row to column
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        # Not uniform: states that are alike get equal gradients, and would stay alike for ever.
        for log_p in (self.log_pi, self.log_P):
            log_p.copy_(torch.log_softmax(log_p.normal_(), -1))

    @property
    def start(self) -> Tensor:
        """pi (N,)."""
        return self.log_pi.exp()

    @property
    def transition(self) -> Tensor:
        """P (N, N), from row to column."""
        return self.log_P.exp()

    def init_state(self, batch_size: int) -> HMMState:
        zeros = self.zeros(batch_size, self.output_size)
        return HMMState(self.start.to(zeros.dtype).expand_as(zeros))

    def step(self, x: Tensor, state: HMMState) -> tuple[Tensor, HMMState]:
        log_u = log(state.p) + x
        l = log_sum_exp(log_u)[:, None]  # noqa: E741
        # After observations of probability zero l is -inf and p is zero for good; -inf minus -inf would be NaN.
        p = torch.exp(log_u - torch.where(l == -math.inf, 0.0, l)) @ self.transition.to(log_u.dtype)
        return p.to(x.dtype), HMMState(p)

    def _scan(self, x: Tensor, state: HMMState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, HMMState]:
        _, y, p = kernels.hmm_filter(x, self.start, self.transition, state.p, lengths, reset)
        return y.to(x.dtype), HMMState(p)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot]) -> Slot:
        (p,) = state
        return builder.filter(x, self.transition, p)

    def log_prob(self, x: Tensor, *, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """l (B, T), zero past the lengths, of sequences that begin with x[:, 0] and wherever `reset` is true."""
        B, T = x.shape[:2]
        lengths = torch.full((B,), T, device=x.device) if lengths is None else lengths
        reset = torch.zeros(B, T, dtype=torch.bool, device=x.device) if reset is None else reset
        start = self.start
        return kernels.hmm_log_prob(x, start, self.transition, start.expand(B, -1), lengths, reset)
