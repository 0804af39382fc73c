"""The gated recurrent unit.

    r = s(W_r h' + U_r x + b_r)        z = s(W_z h' + U_z x + b_z)        h = (1 - z) * n + z * h'        y = h
    n = tanh(U_n x + b_n + r * (W_n h' + c))        reset_after, as PyTorch and cuDNN: one product for all gates
    n = tanh(U_n x + b_n + W_n (r * h'))            otherwise, as in the paper

With layer_norm, U x and W h' are normalised separately, and in each of them n apart from r and z.

K. Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP (2014).
J. L. Ba, J. R. Kiros, G. E. Hinton, Layer normalization (2016), equations 22 to 25; z is there what 1 - z is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.norm import layer_norm as norm
from elman.cells.options import flag
from elman.core import Core
from elman.errors import InputError
from elman.kernels import GatedOptions

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class GRUState(NamedTuple):
    h: Tensor  # (B, H)


class GRU(Core):
    """h = (1 - z) * n + z * h'. W (3H, H), U (3H, D) and b (3H,) hold r, z, n in PyTorch's order.

    `reset_after`: r acts on W_n h' + c, as in PyTorch; else on h', as in the paper. `layer_norm`: as Ba et al.

    >>> y, state = GRU(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    emits_state = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"reset_after": False},
        {"layer_norm": True},
        {"reset_after": False, "layer_norm": True},
    )
    c: nn.Parameter | None
    gain_W: nn.Parameter | None
    gain_U: nn.Parameter | None

    def __init__(self, input_size: int, size: int, *, reset_after: bool = True, layer_norm: bool = False) -> None:
        super().__init__(input_size, size)
        if flag("layer_norm", layer_norm) and size == 1:
            raise InputError("layer_norm with size 1 would normalise the one candidate to zero; take size 2 or more")
        self.reset_after = flag("reset_after", reset_after)
        self.layer_norm = layer_norm
        self.W = nn.Parameter(torch.empty(3 * size, size))
        self.U = nn.Parameter(torch.empty(3 * size, input_size))
        self.b = nn.Parameter(torch.empty(3 * size))
        self.c = nn.Parameter(torch.empty(size)) if reset_after else None
        self.gain_W = nn.Parameter(torch.empty(3 * size)) if layer_norm else None
        self.gain_U = nn.Parameter(torch.empty(3 * size)) if layer_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.recurrent(self.W, gates=3)
        initial.input(self.U, gates=3)
        nn.init.zeros_(self.b)  # z starts at 1/2: half of the state is kept, and r lets half of it through
        if self.c is not None:
            nn.init.zeros_(self.c)
        for gain in (self.gain_W, self.gain_U):
            if gain is not None:
                nn.init.ones_(gain)

    def init_state(self, batch_size: int) -> GRUState:
        return GRUState(self.zeros(batch_size, self.output_size))

    def recur(self, u: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        """u = U x + b (B, 3H), normalised with layer_norm."""
        h, H = state.h, self.output_size
        u_rz, u_n = u[..., : 2 * H], u[..., 2 * H :]
        if self.c is not None:
            v_rz, v_n = self._normed(kernels.linear(h, self.W), self.gain_W).split([2 * H, H], -1)
            r, z = kernels.sigmoid(u_rz + v_rz).chunk(2, -1)
            n = kernels.tanh(u_n + r * (v_n + self.c))
        else:
            gain_rz, gain_n = (None, None) if self.gain_W is None else self.gain_W.split([2 * H, H])
            v_rz = norm(kernels.linear(h, self.W[: 2 * H]), gain_rz)
            r, z = kernels.sigmoid(u_rz + v_rz).chunk(2, -1)
            n = kernels.tanh(u_n + norm(kernels.linear(r * h, self.W[2 * H :]), gain_n))
        h = (1 - z) * n + z * h
        return h, GRUState(h)

    def _project(self, x: Tensor) -> Tensor:
        """U x + b (..., 3H), normalised with layer_norm."""
        if self.gain_U is None:
            return kernels.linear(x, self.U, self.b)
        return self._normed(kernels.linear(x, self.U), self.gain_U) + self.b

    def _normed(self, v: Tensor, gain: Tensor | None) -> Tensor:
        """v (..., 3H): the gates r and z normalised together, the candidate by itself."""
        if gain is None:
            return v
        parts = [2 * self.output_size, self.output_size]
        return torch.cat([norm(part, g) for part, g in zip(v.split(parts, -1), gain.split(parts), strict=True)], -1)

    def step(self, x: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        h, state = self.recur(self._project(x), state)
        return h.to(x.dtype), state

    @property
    def _kind(self) -> str:
        """The native loop that computes this cell."""
        return "gru" if self.reset_after else "gru_before"

    @property
    def _weights(self) -> tuple[Tensor, ...]:
        return (self.W,) if self.c is None else (self.W, self.c)

    @property
    def _options(self) -> GatedOptions:
        return GatedOptions(gain=self.gain_W, gain_U=self.gain_U)

    def _scan(
        self, x: Tensor, state: GRUState, lengths: Tensor, reset: Tensor, every: int | None = None
    ) -> tuple[Tensor, GRUState]:
        y, last = kernels.gated(
            self._kind, x, self._weights, state, lengths, reset, self.recur, self.U, self.b, self._options,
            self._project, every,
        )  # fmt: skip
        return y.to(x.dtype), GRUState(*last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.gated(self._kind, x, self.U, self.b, self._weights, state, self._options)
