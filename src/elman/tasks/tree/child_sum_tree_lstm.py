"""The child-sum Tree-LSTM: any number of children, in no order, each with a forget gate that sees it alone.

    h~ = h_1 + ... + h_K
    i = s(W_i h~ + U_i x + b_i)      g = tanh(W_g h~ + U_g x + b_g)      o = s(W_o h~ + U_o x + b_o)
    f_k = s(W_f h_k + U_f x + b_f)   c = i * g + f_1 * c_1 + ... + f_K * c_K      h = o * tanh(c)

U_f x is part of the paper, though a much-copied example leaves it out. On a chain of nodes this is the LSTM.

K. S. Tai, R. Socher, C. D. Manning, ACL (2015), equations 2 to 8.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.lstm import LSTMState
from elman.kernels import Gather
from elman.options import number
from elman.tasks.tree.core import TreeCore


class ChildSumTreeLSTM(TreeCore):
    """c = i * g + sum of f_k * c_k, h = o * tanh(c). W, U and b hold i, g, o, f.

    >>> core = ChildSumTreeLSTM(3, 4)
    >>> core.combine(torch.zeros(2, 3), LSTMState(torch.zeros(2, 5, 4), torch.zeros(2, 5, 4))).h.shape
    torch.Size([2, 4])
    """

    ordered = False
    keep_gate = "f"

    def __init__(self, input_size: int, size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, size)
        self.forget_bias = number("forget_bias", forget_bias, -100.0, 100.0)
        self.W = nn.Parameter(torch.empty(4 * size, size))
        self.U = nn.Parameter(torch.empty(4 * size, input_size))
        self.b = nn.Parameter(torch.empty(4 * size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        initial.recurrent(self.W, gates=4)
        initial.input(self.U, gates=4)
        initial.zeros(self.b)
        self.b[3 * self.output_size :] = self.forget_bias  # what a child says is kept until training says otherwise

    def init_state(self, batch_size: int) -> LSTMState:
        return LSTMState(*(self.zeros(batch_size, self.output_size) for _ in range(2)))

    def combine(self, x: Tensor, children: LSTMState) -> LSTMState:
        i, g, o, f = self._sums(x, children.h)
        c = kernels.sigmoid(i) * kernels.tanh(g) + (kernels.sigmoid(f) * children.c).sum(1)
        return LSTMState(kernels.sigmoid(o) * kernels.tanh(c), c)

    def gates(self, x: Tensor, children: LSTMState) -> dict[str, Tensor]:
        i, _, o, f = self._sums(x, children.h)
        return {"i": kernels.sigmoid(i), "o": kernels.sigmoid(o), "f": kernels.sigmoid(f)}

    def _sums(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """What i, g, o (B, H) and f (B, K, H) squash."""
        H = self.output_size
        u = kernels.linear(x, self.U, self.b)
        own = (u[:, : 3 * H] + kernels.linear(h.sum(1), self.W[: 3 * H])).split(H, 1)
        return *own, u[:, None, 3 * H :] + kernels.linear(h, self.W[3 * H :])

    def _gathered(self, x: Tensor, gather: Gather, inside: bool, state: LSTMState | None) -> LSTMState:
        u = kernels.linear(x, self.U, self.b)
        return LSTMState(*kernels.gathered("child_sum", u, self.W, self.b, gather, state))
