"""What acts on each time step by itself and remembers nothing: Dense, GLU and Norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from elman import kernels
from elman.core import Core
from elman.errors import UnknownNameError
from elman.kernels.builder import Builder, Slot, Slots
from elman.lengths import zero_past

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "sigmoid": kernels.sigmoid,
    "silu": kernels.silu,
    "softplus": kernels.softplus,
    "tanh": kernels.tanh,
}
NORMS = ("layer", "rms")


class Pointwise(Core):
    """y[t] = pointwise(x[t]): a core that remembers nothing."""

    def init_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return self.pointwise(x).to(x.dtype), ()

    def _scan(self, x: Tensor, state: tuple[()], lengths: Tensor, reset: Tensor) -> tuple[Tensor, tuple[()]]:
        return zero_past(self.pointwise(x).to(x.dtype), lengths), ()  # a bias acts in the padding too

    def pointwise(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., H)."""
        raise NotImplementedError


class Dense(Pointwise):
    """y = phi(U x + b) at each time step on its own. `activation` names phi: a key of ACTIVATIONS.

    >>> Dense(3, 2, activation="tanh").scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 2])
    """

    def __init__(self, input_size: int, size: int, *, activation: str = "none") -> None:
        super().__init__(input_size, size)
        if activation not in ACTIVATIONS:
            raise UnknownNameError("activation", activation, ACTIVATIONS)
        self.activation = activation
        self.U = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Outputs as large as inputs: relu and silu let half through (He et al., 2015), the others about all, near zero.
        nn.init.kaiming_uniform_(self.U, nonlinearity="relu" if self.activation in ("relu", "silu") else "linear")
        nn.init.zeros_(self.b)

    def pointwise(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](kernels.linear(x, self.U, self.b))

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        y = builder.linear(x, self.U, self.b)
        return y if self.activation == "none" else builder.map(self.activation, y)


class GLU(Pointwise):
    """y = (U v + b) * sigmoid(V v + c), v = silu(x): a gated linear unit (Dauphin et al., 2017), which mixes channels.

    What follows a linear recurrence in the papers of S4, S5 and the LRU, with silu where they have gelu.

    >>> GLU(3, 2).scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 2])
    """

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.U = nn.Parameter(torch.empty(2 * size, input_size))  # rows U, V
        self.b = nn.Parameter(torch.empty(2 * size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Near zero silu halves what it reads and the gate halves it again: a sum that is small beside the residual.
        nn.init.kaiming_uniform_(self.U, nonlinearity="linear")
        nn.init.zeros_(self.b)

    def pointwise(self, x: Tensor) -> Tensor:
        value, gate = kernels.linear(kernels.silu(x), self.U, self.b).chunk(2, -1)
        return value * kernels.sigmoid(gate)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        both, H = builder.linear(builder.map("silu", x), self.U, self.b), self.output_size
        return builder.mul(builder.cut(both, 0, H), builder.map("sigmoid", builder.cut(both, H, H)))


class Norm(Pointwise):
    """Each time step brought to one scale, then scaled by a learned gain g.

    kind="layer": y = g (x - mean(x)) / sqrt(var(x) + eps) + b (Ba et al., 2016).
    kind="rms":   y = g x / sqrt(mean(x x) + eps) (Zhang and Sennrich, 2019).

    >>> Norm(2, kind="rms").scan(torch.full((1, 1, 2), 7.0))[0].round(decimals=3).tolist()
    [[[1.0, 1.0]]]
    """

    def __init__(self, size: int, *, kind: str = "layer", eps: float = 1e-5) -> None:
        super().__init__(size, size)
        if kind not in NORMS:
            raise UnknownNameError("norm", kind, NORMS)
        self.kind, self.eps = kind, eps
        self.g = nn.Parameter(torch.empty(size))
        self.b = nn.Parameter(torch.empty(size)) if kind == "layer" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.g)
        if self.b is not None:
            nn.init.zeros_(self.b)

    def pointwise(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, self.g.dtype))
        if self.kind == "rms":
            return kernels.rms_norm(x, self.g, self.eps)
        return kernels.layer_norm(x, self.g, self.b, self.eps)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        if self.kind == "rms":
            return builder.rms_norm(x, self.g, self.eps)
        return builder.layer_norm(x, self.g, self.b, self.eps)
