"""minGRU, the gated unit whose gate does not see the state (Feng et al., 2024, "Were RNNs All We Needed?").

    z = s(U_z x + b_z)
    n = g(U_n x + b_n)
    h = (1 - z) * h' + z * n

Without the state in the gate this is a linear scan. form="plain" takes g(v) = v. form="log" takes the g of the paper's
log-space form, g(v) = v + 1/2 for v >= 0 and s(v) below, which is positive. The paper needs that because it computes
with logarithms of the state; the scan here does not, so that a carried state may have any sign in both forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.options import Activation, choice
from elman.core import Core
from elman.kernels.stream import Unstreamable

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


def positive(v: Tensor) -> Tensor:
    """g(v) = v + 1/2 for v >= 0, s(v) below: continuous, increasing and above zero.

    >>> positive(torch.tensor([-100., 0., 2.])).tolist()[1:]
    [0.5, 2.5]
    """
    return torch.where(v >= 0, v + 0.5, kernels.sigmoid(v))


def identity(v: Tensor) -> Tensor:
    """g(v) = v."""
    return v


FORMS: dict[str, Activation] = {"plain": identity, "log": positive}


class MinGRUState(NamedTuple):
    h: Tensor  # (B, H)


class MinGRU(Core):
    """h = (1 - z) * h' + z * g(U_n x + b_n), z = s(U_z x + b_z).

    >>> y, state = MinGRU(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    emits_state = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"form": "log"})

    def __init__(self, input_size: int, size: int, *, form: str = "plain") -> None:
        super().__init__(input_size, size)
        self.form = choice("form", form, FORMS)
        self.U = nn.Parameter(torch.empty(2 * size, input_size))  # rows z, n
        self.b = nn.Parameter(torch.empty(2 * size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.input(self.U, gates=2)
        nn.init.zeros_(self.b)  # z starts around 1/2: a memory of a few steps, which the data then stretches

    def init_state(self, batch_size: int) -> MinGRUState:
        return MinGRUState(self.zeros(batch_size, self.output_size))

    def step(self, x: Tensor, state: MinGRUState) -> tuple[Tensor, MinGRUState]:
        keep, drive = self.coefficients(x, state.h.dtype)
        h = keep * state.h + drive
        return h.to(x.dtype), MinGRUState(h)

    def _scan(self, x: Tensor, state: MinGRUState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, MinGRUState]:
        keep, drive = self.coefficients(x, state.h.dtype)
        h, last = kernels.linear_scan(keep, drive, state.h, lengths, reset)
        return h.to(x.dtype), MinGRUState(last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        if self.form != "plain":
            raise Unstreamable("minGRU with the candidate of the log form")
        v, H = program.linear(x, self.U, self.b), self.output_size
        z, n = program.cut(v, 0, H), program.cut(v, H, H)
        drive = program.mul(program.map("sigmoid", z), n)
        return program.scan(program.map("sigmoid", program.negative(z)), drive, state.h)

    def coefficients(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """x (..., D) -> 1 - z and z * n, each (..., H)."""
        z, n = kernels.linear(x, self.U, self.b).to(dtype).chunk(2, -1)
        # s(-v), not 1 - s(v): the difference is 0 in float32 from v = 17 on.
        return kernels.sigmoid(-z), kernels.sigmoid(z) * FORMS[self.form](n)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, form={self.form!r}"
