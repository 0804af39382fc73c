"""The forward filter of a hidden Markov model: an HMM is a recurrence like any other.

    x_k = log p(o(t) | z(t) = k)             (K,) what the emissions say of each of K hidden states
    y = log p' + x                           log p(z(t), o(t) | o(1) ... o(t-1))
    p = transition^T softmax(y)              p(z(t+1) | o(1) ... o(t)), the state; p(0) = start

    start = softmax(pi), transition = softmax(A) by rows: a logit of -inf is a step that is never taken, and
    stays so in training.

log p(o(t) | o(1) ... o(t-1)) is the log-sum-exp of y[t], so the log-likelihood of a sequence is their sum over
its valid steps; its
gradients are the posterior marginals (for x) and the expected counts (for log start, log transition): Baum et
al., 1970.
The state is a probability, and not its logarithm, so that a chunk hands over exactly what the next step would
have read.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.core import Core
from elman.errors import InputError


class HMMState(NamedTuple):
    p: Tensor  # (B, K) p(z(t+1) | o(1) ... o(t))


class HMM(Core):
    """From log p(o(t) | z) to log p(z(t), o(t) | o(1) ... o(t-1)): filtering.

    >>> hmm = HMM(2, 2)
    >>> y, state = hmm.scan(torch.log(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])))
    >>> bool(torch.allclose(y.softmax(-1)[0, -1] @ hmm.transition, state.p[0]))
    True
    """

    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        if input_size != size:
            raise InputError(
                f"input_size is {input_size}, size {size}; they must be equal, for the input is one "
                f"log-likelihood per hidden state"
            )
        self.pi = nn.Parameter(torch.empty(size))
        self.A = nn.Parameter(torch.empty(size, size))  # from row to column
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Not uniform: states that are alike get equal gradients, and would stay alike for ever.
        nn.init.normal_(self.pi)
        nn.init.normal_(self.A)

    @property
    def start(self) -> Tensor:
        """p(z(1)) (K,)."""
        return torch.softmax(self.pi, -1)

    @property
    def transition(self) -> Tensor:
        """p(z(t+1) = column | z(t) = row) (K, K)."""
        return torch.softmax(self.A, -1)

    def init_state(self, batch_size: int) -> HMMState:
        zeros = self.zeros(batch_size, self.output_size)
        return HMMState(self.start.to(zeros.dtype).expand_as(zeros))

    def step(self, x: Tensor, state: HMMState) -> tuple[Tensor, HMMState]:
        y = kernels.log(state.p) + x
        # An observation of probability zero leaves nothing: softmax would make NaN of it.
        possible = (y > -torch.inf).any(-1, keepdim=True)
        filtered = torch.where(possible, torch.softmax(torch.where(possible, y, 0.0), -1), 0.0)
        return y.to(x.dtype), HMMState(kernels.linear(filtered, self.transition.T))

    def _scan(self, x: Tensor, state: HMMState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, HMMState]:
        _, p, last = kernels.hmm_filter(x.to(state.p.dtype), self.start, self.transition, state.p, lengths, reset)
        valid = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        return torch.where(valid, kernels.log(p) + x, 0.0).to(x.dtype), HMMState(last)
