"""minGRU, the gated unit whose gate does not see the state (Feng et al., 2024, "Were RNNs All We Needed?").

    z = s(U_z x + b_z)
    n = g(U_n x + b_n)
    h = (1 - z) * h' + z * n

Without the state in the gate this is a linear scan. form="plain" takes g(v) = v. form="log" takes the g of the paper's
log-space form, g(v) = v + 1/2 for v >= 0 and s(v) below, which is positive. The paper needs that because it computes
with logarithms of the state; the scan here does not, so that a carried state may have any sign in both forms.

chrono=T starts the units with memories of 1 to T steps: z = 1 / (1 + u), u uniform from 1 to T (Tallec and Ollivier,
2018, "Can recurrent neural networks warp time?").
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.diagonal import Diagonal, wide
from elman.cells.functions import Activation, identity
from elman.options import choice, whole


def positive(v: Tensor) -> Tensor:
    """g(v) = v + 1/2 for v >= 0, s(v) below: continuous, increasing and above zero.

    >>> positive(torch.tensor([-100., 0., 2.])).tolist()[1:]
    [0.5, 2.5]
    """
    above = torch.relu(v)
    return above + kernels.sigmoid(v - above)  # s(0) = 1/2


FORMS: dict[str, Activation] = {"plain": identity, "log": positive}


class MinGRUState(NamedTuple):
    h: Tensor  # (B, H)


class MinGRU(Diagonal[MinGRUState]):
    """h = (1 - z) * h' + z * g(U_n x + b_n), z = s(U_z x + b_z).

    `form` is "plain", g(v) = v, or "log", the positive g of the paper. `chrono` starts the units with memories of 1 to
    so many steps.

    >>> y, state = MinGRU(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    output_is_state = True
    variants = ({}, {"form": "log"}, {"chrono": 50})

    def __init__(self, input_size: int, size: int, *, form: str = "plain", chrono: int | None = None) -> None:
        super().__init__(input_size, size)
        self.form = choice("form", form, FORMS)
        self.chrono = None if chrono is None else whole("chrono", chrono)
        self.U = nn.Parameter(torch.empty(2 * size, input_size))  # rows z, n
        self.b = nn.Parameter(torch.empty(2 * size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.input(self.U, gates=2)
        nn.init.zeros_(self.b)  # z starts around 1/2: a memory of a few steps, which the data then stretches
        if self.chrono is not None:
            with torch.no_grad():
                self.b[: self.output_size] = -torch.log(torch.empty(self.output_size).uniform_(1, self.chrono))

    def init_state(self, batch_size: int) -> MinGRUState:
        return MinGRUState(self.zeros(batch_size, self.output_size))

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, n = wide(kernels.linear(x, self.U, self.b)).chunk(2, -1)
        # s(-v), not 1 - s(v): the difference is 0 in float32 from v = 17 on.
        return kernels.sigmoid(-z), kernels.sigmoid(z) * FORMS[self.form](n), x

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, form={self.form!r}"
