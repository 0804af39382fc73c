"""Leaky firing rates: the network of units that neuroscience simulates.

    n = phi(W h' + B x + b)        h = (1 - a) h' + a n        a = dt / tau        y = h + baseline

With Dale's law each unit excites or inhibits all others: |W| diag(sign) takes the place of W, so that no step of
an optimiser can break it.
H. F. Song, G. R. Yang, X.-J. Wang, Training excitatory-inhibitory recurrent neural networks, PLoS Comput. Biol. (2016).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import PHI
from elman.cells.gated import Gated, Gates, Loop
from elman.errors import InputError
from elman.options import choice, number


class RateState(NamedTuple):
    h: Tensor  # (B, H)


class Rate(Gated[RateState]):
    """h = (1 - a) h' + a phi(W h' + B x + b) with a = dt / tau, y = h + baseline; phi is "relu" or "tanh".

    `dale` is the fraction of units that excite, the first ones; the rest inhibit. None means no constraint. It is a
    law about rates that are not negative: with "tanh" it holds for the weights only. `dt` and `tau` are in one unit of
    time, by default milliseconds as in the paper.

    >>> weights = Rate(3, 10, dale=0.8).weights()
    >>> (weights[:, :8] >= 0).all().item(), (weights[:, 8:] <= 0).all().item()
    (True, True)
    """

    state_weights = ("W",)
    variants = ({}, {"phi": "tanh", "dt": 1.0, "tau": 1.0}, {"dale": 0.8, "baseline": 0.5})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        dt: float = 20.0,
        tau: float = 100.0,
        phi: str = "relu",
        dale: float | None = None,
        baseline: float = 0.0,
    ) -> None:
        super().__init__(input_size, size)
        self.a = _leak(dt, tau)
        self.phi = choice("phi", phi, PHI)
        self.dale = None if dale is None else number("dale", dale, 0.0, 1.0)
        self.baseline = number("baseline", baseline, -1e30, 1e30)
        self.output_is_state = self.baseline == 0.0
        self.W = nn.Parameter(torch.empty(size, size))
        self.B = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.recurrent(self.W)
        if self.dale is not None:
            self._balance()
        initial.input(self.B)
        nn.init.zeros_(self.b)

    @torch.no_grad()
    def _balance(self) -> None:
        """No matrix of these signs is orthogonal: excitation and inhibition cancel in each row, the radius is 1.

        Otherwise the units of the larger kind alone would drive the network (Song et al., Methods).
        """
        nn.init.normal_(self.W).abs_()
        excites = self._signs() > 0
        if excites.any() and not excites.all():
            for columns in (excites, ~excites):
                self.W[:, columns] /= self.W[:, columns].sum(1, keepdim=True)
        self.W.div_(torch.linalg.eigvals(self.weights()).abs().max().clamp(min=1e-6))

    def weights(self) -> Tensor:
        """The recurrent weights (H, H) in force: column j is what unit j does to the others."""
        return self.W if self.dale is None else self.W.abs() * self._signs()

    def _signs(self) -> Tensor:
        excitatory = round((self.dale or 0.0) * self.output_size)
        unit = torch.arange(self.output_size, device=self.W.device)
        return torch.where(unit < excitatory, 1.0, -1.0).to(self.W.dtype)

    def init_state(self, batch_size: int) -> RateState:
        return RateState(self.zeros(batch_size, self.output_size))

    def recurrent(self) -> dict[str, Tensor]:
        W = self.weights()
        return {"(1 - a) + a W": (1 - self.a) * torch.eye(len(W), dtype=W.dtype, device=W.device) + self.a * W}

    def loop(self) -> Loop:
        W = self.weights()
        return Loop(f"rate_{self.phi}", self.B, self.b, (W, W.new_full((1,), self.a)))

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.B, self.b)

    def gates(self, u: Tensor, state: RateState) -> Gates:
        return self.prepare()(u, state)

    def prepare(self) -> Callable[[Tensor, RateState], Gates]:
        W = self.weights()
        return lambda u, state: {"n": PHI[self.phi](u + kernels.linear(state.h, W))}

    def update(self, gates: Gates, state: RateState) -> RateState:
        return RateState((1 - self.a) * state.h + self.a * gates["n"])

    def read(self, h: Tensor) -> Tensor:
        return h + self.baseline


def _leak(dt: float, tau: float) -> float:
    for name, value in (("dt", dt), ("tau", tau)):
        number(name, value, 1e-30, 1e30)
    if dt > tau:
        raise InputError(f"dt is {dt:g} and tau {tau:g}; dt must not exceed tau: a step past the target oscillates")
    return dt / tau
