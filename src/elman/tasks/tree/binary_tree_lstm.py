"""The binary Tree-LSTM, with a forget gate for each child, which sees both.

    i = s(W_i [h_1; h_2] + U_i x + b_i)      g = tanh(W_g [h_1; h_2] + U_g x + b_g)
    o = s(W_o [h_1; h_2] + U_o x + b_o)      f_k = s(W_fk [h_1; h_2] + U_f x + b_f)
    c = i * g + f_1 * c_1 + f_2 * c_2        h = o * tanh(c)

K. S. Tai, R. Socher, C. D. Manning, ACL (2015), equations 9 to 14 with N = 2.
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


class BinaryTreeLSTM(TreeCore):
    """c = i * g + f_1 * c_1 + f_2 * c_2, h = o * tanh(c). W holds i, g, o, f_1, f_2; U and b hold i, g, o, f.

    >>> core = BinaryTreeLSTM(3, 4)
    >>> zero = LSTMState(torch.zeros(2, 2, 4), torch.zeros(2, 2, 4))
    >>> core.combine(torch.zeros(2, 3), zero).h.shape
    torch.Size([2, 4])
    """

    places = 2
    keep_gate = "f"

    def __init__(self, input_size: int, size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, size)
        self.forget_bias = number("forget_bias", forget_bias, -100.0, 100.0)
        self.W = nn.Parameter(torch.empty(5 * size, 2 * size))
        self.U = nn.Parameter(torch.empty(4 * size, input_size))
        self.b = nn.Parameter(torch.empty(4 * size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        initial.recurrent(self.W, gates=5)
        initial.input(self.U, gates=4)
        initial.zeros(self.b)
        self.b[3 * self.output_size :] = self.forget_bias  # what a child says is kept until training says otherwise

    def init_state(self, batch_size: int) -> LSTMState:
        return LSTMState(*(self.zeros(batch_size, self.output_size) for _ in range(2)))

    def combine(self, x: Tensor, children: LSTMState) -> LSTMState:
        c_k = nn.functional.pad(children.c, (0, 0, 0, 2 - children.c.shape[1]))
        i, g, o, f_1, f_2 = self._sums(x, children.h)
        c = kernels.sigmoid(i) * kernels.tanh(g)
        for k, f in enumerate((f_1, f_2)):
            c = c + kernels.sigmoid(f) * c_k[:, k]
        return LSTMState(kernels.sigmoid(o) * kernels.tanh(c), c)

    def gates(self, x: Tensor, children: LSTMState) -> dict[str, Tensor]:
        i, _, o, *f = self._sums(x, children.h)
        return {"i": kernels.sigmoid(i), "o": kernels.sigmoid(o), "f": kernels.sigmoid(torch.stack(f, 1))}

    def _sums(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """What i, g, o, f_1 and f_2 squash."""
        h = nn.functional.pad(h, (0, 0, 0, 2 - h.shape[1]))
        u = _twice(kernels.linear(x, self.U, self.b), self.output_size)
        return (kernels.linear(h.flatten(1), self.W) + u).split(self.output_size, 1)

    def _gathered(self, x: Tensor, gather: Gather, inside: bool, state: LSTMState | None) -> LSTMState:
        H, b = self.output_size, _twice(self.b, self.output_size)
        if inside:
            u = kernels.linear(x, _twice(self.U.t(), H).t(), b)
        else:  # at a leaf there is nothing to forget
            u = kernels.linear(x, self.U[: 3 * H], self.b[: 3 * H])
        return LSTMState(*kernels.gathered("lstm", u, self.W, b, gather, state))


def _twice(u: Tensor, H: int) -> Tensor:
    """(..., 4 H) -> (..., 5 H): what x says to one forget gate it says to both."""
    return torch.cat([u, u[..., 3 * H :]], -1)
