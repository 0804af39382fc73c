"""The forward filter of a hidden Markov model, in log space.

    x = log p(o(t) | z)                        what the emissions say of each of N hidden states
    y = h' + x                                 log p(z(t), o(t) | o(1) ... o(t-1))
    l = log sum_i exp(y_i)                     log p(o(t) | o(1) ... o(t-1))
    h_j = log sum_i exp(y_i - l + log P_ij)    log p(z(t+1) = j | o(1) ... o(t)), at first log pi

The log-likelihood of a sequence is the sum of l over its valid steps (past the lengths y is zero, as for every core:
leave those out). y is normalised before the transition, h is not normalised after it, and log P and log pi are used as
they are: so the gradients of the log-likelihood with respect to x, log P and log pi are the posterior marginals and the
expected counts of transitions and of first states (Baum et al., 1970). The rows of P and pi sum to one when the core is
made; gradient steps straight on log P and log pi would not keep them so, normalised logits put in their place do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman.core import Core
from elman.errors import InputError


def log_sum_exp(v: Tensor, dim: int) -> Tensor:
    """log sum exp v along `dim`. Where all of v is -inf so is the sum, and its gradient is zero, not NaN.

    >>> log_sum_exp(torch.tensor([[0., 0.], [-torch.inf, -torch.inf]]), -1)
    tensor([0.6931,   -inf])
    """
    top = v.detach().amax(dim, keepdim=True)
    top = torch.where(top == -math.inf, torch.zeros_like(top), top)
    total = torch.exp(v - top).sum(dim)
    none = total == 0
    # The logarithm must not see the zero at all: its gradient there is infinite, and infinity times zero is NaN.
    log = torch.log(torch.where(none, torch.ones_like(total), total)) + top.squeeze(dim)
    return torch.where(none, torch.full_like(log, -math.inf), log)


class HMMState(NamedTuple):
    h: Tensor  # (B, N) log p(z(t+1) | o(1) ... o(t))


class HMM(Core):
    """From log p(o(t) | z) to log p(z(t), o(t) | o(1) ... o(t-1)): filtering.

    >>> hmm = HMM(2, 2)
    >>> y, state = hmm.scan(torch.log(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])))
    >>> log_likelihood = log_sum_exp(y, -1).sum()
    >>> transitions = torch.autograd.grad(log_likelihood, hmm.log_P)[0]  # expected counts: of two steps, one in all
    >>> bool(transitions.sum().isclose(torch.tensor(1.0)))
    True
    """

    undecayed = ("log_P",)  # a logarithm that shrinks is a probability that grows to one

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
            log_p.copy_(torch.log_softmax(torch.randn_like(log_p), -1))

    def init_state(self, batch_size: int) -> HMMState:
        zeros = self.zeros(batch_size, self.output_size)
        return HMMState(self.log_pi.to(zeros.dtype).expand_as(zeros))

    def step(self, x: Tensor, state: HMMState) -> tuple[Tensor, HMMState]:
        y = state.h + x
        l = log_sum_exp(y, -1)[:, None]  # noqa: E741
        # After observations of probability zero y, l and h are -inf for good; -inf minus -inf would be NaN.
        z = y - torch.where(l == -math.inf, torch.zeros_like(l), l)
        h = log_sum_exp(z[:, :, None] + self.log_P, 1)
        return y.to(x.dtype), HMMState(h)
