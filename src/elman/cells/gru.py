"""The gated recurrent unit.

    r = s(W_r h' + U_r x + b_r)        z = s(W_z h' + U_z x + b_z)        h = (1 - z) * n + z * h'        y = h
    n = tanh(U_n x + b_n + r * (W_n h' + c))        reset_after, as PyTorch and cuDNN: one product for all gates
    n = tanh(U_n x + b_n + W_n (r * h'))            otherwise, as in the paper

With layer_norm, U x and W h' are normalised separately, and in each of them n apart from r and z.

K. Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP (2014).
J. L. Ba, J. R. Kiros, G. E. Hinton, Layer normalization (2016), equations 22 to 25; z is there what 1 - z is here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import layer_norm as norm
from elman.cells.gated import Gated, Gates, Loop
from elman.errors import InputError
from elman.kernels import GatedOptions
from elman.options import flag


class GRUState(NamedTuple):
    h: Tensor  # (B, H)


class GRU(Gated[GRUState]):
    """h = (1 - z) * n + z * h'. W (3H, H), U (3H, D) and b (3H,) have r, z, n in PyTorch's order.

    `reset_after`: r acts on W_n h' + c, as in PyTorch; else on h', as in the paper. `layer_norm`: as Ba et al.

    >>> y, state = GRU(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    sigmoid_gates, keep_gate = ("r", "z"), "z"
    state_weights = ("W",)
    variants = ({}, {"reset_after": False}, {"layer_norm": True}, {"reset_after": False, "layer_norm": True})

    def __init__(self, input_size: int, size: int, *, reset_after: bool = True, layer_norm: bool = False) -> None:
        super().__init__(input_size, size)
        if flag("layer_norm", layer_norm) and size == 1:
            raise InputError("layer_norm with size 1 would normalise the one candidate to zero; use size 2 or more")
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
        initial.zeros(self.b, self.c)  # z starts at 1/2: half of the state is kept, and r lets half of it through
        initial.ones(self.gain_W, self.gain_U)

    def init_state(self, batch_size: int) -> GRUState:
        return GRUState(self.zeros(batch_size, self.output_size))

    def recurrent(self) -> dict[str, Tensor]:
        return {f"W_{gate}": block for gate, block in zip("rzn", self.W.chunk(3), strict=True)}

    def gate_factors(self, gates: Gates) -> tuple[Tensor | float, ...] | None:
        return None if self.layer_norm or self.c is None else (1.0, 1.0, gates["r"])

    def loop(self) -> Loop:
        options = GatedOptions(gain=self.gain_W, gain_U=self.gain_U)
        if self.c is None:
            return Loop("gru_before", self.U, self.b, (self.W,), options)
        return Loop("gru", self.U, self.b, (self.W, self.c), options)

    def project(self, x: Tensor) -> Tensor:
        if self.gain_U is None:
            return kernels.linear(x, self.U, self.b)
        u_rz, u_n = self._parts(kernels.linear(x, self.U))
        gain_rz, gain_n = self._parts(self.gain_U)
        return torch.cat([norm(u_rz, gain_rz), norm(u_n, gain_n)], -1) + self.b

    def gates(self, u: Tensor, state: GRUState) -> Gates:
        h = state.h
        u_rz, u_n = self._parts(u)
        gain_rz, gain_n = (None, None) if self.gain_W is None else self._parts(self.gain_W)
        if self.c is not None:
            v_rz, v_n = self._parts(kernels.linear(h, self.W))
            r, z = kernels.sigmoid(u_rz + norm(v_rz, gain_rz)).chunk(2, -1)
            n = kernels.tanh(u_n + r * (norm(v_n, gain_n) + self.c))
        else:
            W_rz, W_n = self.W.split([2 * self.output_size, self.output_size])
            r, z = kernels.sigmoid(u_rz + norm(kernels.linear(h, W_rz), gain_rz)).chunk(2, -1)
            n = kernels.tanh(u_n + norm(kernels.linear(r * h, W_n), gain_n))
        return {"r": r, "z": z, "n": n}

    def update(self, gates: Gates, state: GRUState) -> GRUState:
        z, n = gates["z"], gates["n"]
        return GRUState((1 - z) * n + z * state.h)

    def _parts(self, v: Tensor) -> tuple[Tensor, ...]:
        """v (..., 3H) -> what belongs to r and z (..., 2H), and to the candidate (..., H)."""
        return v.split([2 * self.output_size, self.output_size], -1)
