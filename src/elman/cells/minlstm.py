"""minLSTM, the LSTM whose gates do not see the state (Feng et al., 2024, "Were RNNs All We Needed?").

    f = s(U_f x + b_f)      i = s(U_i x + b_i)
    n = g(U_n x + b_n)
    h = f / (f + i) * h' + i / (f + i) * n

The gates are normalised to sum to one, so the scale of h does not depend on time. `form` chooses g as in minGRU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.diagonal import Diagonal, wide
from elman.cells.mingru import FORMS
from elman.options import choice


class MinLSTMState(NamedTuple):
    h: Tensor  # (B, H)


class MinLSTM(Diagonal[MinLSTMState]):
    """h = f / (f + i) * h' + i / (f + i) * g(U_n x + b_n), f = s(U_f x + b_f), i = s(U_i x + b_i).

    `form` is "plain", g(v) = v, or "log", the positive g of the paper.

    >>> y, state = MinLSTM(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    output_is_state = True
    variants = ({}, {"form": "log"})

    def __init__(self, input_size: int, size: int, *, form: str = "plain") -> None:
        super().__init__(input_size, size)
        self.form = choice("form", form, FORMS)
        self.U = nn.Parameter(torch.empty(3 * size, input_size))  # rows f, i, n
        self.b = nn.Parameter(torch.empty(3 * size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.input(self.U, gates=3)
        nn.init.zeros_(self.b)
        with torch.no_grad():
            self.b[: self.output_size] = 1.0  # remember at first, as in the LSTM (Jozefowicz et al., 2015)

    def init_state(self, batch_size: int) -> MinLSTMState:
        return MinLSTMState(self.zeros(batch_size, self.output_size))

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f, i, n = wide(kernels.linear(x, self.U, self.b)).chunk(3, -1)
        # f / (f + i) = s(log f - log i) and log s(v) = -softplus(-v): no 0 / 0 when both gates are closed.
        ratio = kernels.softplus(-i) - kernels.softplus(-f)
        return kernels.sigmoid(ratio), kernels.sigmoid(-ratio) * FORMS[self.form](n), x

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, form={self.form!r}"
