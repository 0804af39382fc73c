"""Leaky firing rates: the network of units that neuroscience simulates.

    h = (1 - a) h' + a phi(W h' + B x + b)        a = dt / tau        y = h + baseline

With Dale's law each unit excites or inhibits all others: |W| diag(sign) takes the place of W, so that no step of
an optimiser can break it.
H. F. Song, G. R. Yang, X.-J. Wang, Training excitatory-inhibitory recurrent neural networks, PLoS Comput. Biol. (2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.options import PHI, choice, number
from elman.core import Core
from elman.errors import InputError

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class RateState(NamedTuple):
    h: Tensor  # (B, H)


class Rate(Core):
    """h = (1 - a) h' + a phi(W h' + B x + b) with a = dt / tau, y = h + baseline; phi is "relu" or "tanh".

    `dale` is the fraction of units that excite, the first ones; the rest inhibit. None means no constraint. It is a
    law about rates that are not negative: with "tanh" it holds for the weights only. `dt` and `tau` are in one unit of
    time, by default milliseconds as in the paper.

    >>> weights = Rate(3, 10, dale=0.8).weights()
    >>> (weights[:, :8] >= 0).all().item(), (weights[:, 8:] <= 0).all().item()
    (True, True)
    """

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"phi": "tanh", "dt": 1.0, "tau": 1.0},
        {"dale": 0.8, "baseline": 0.5},
    )

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
        self.emits_state = self.baseline == 0.0
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

    def step(self, x: Tensor, state: RateState) -> tuple[Tensor, RateState]:
        h, state = self._recur(kernels.linear(x, self.B, self.b), state, self.weights())
        return (h + self.baseline).to(x.dtype), state

    def _recur(self, v: Tensor, state: RateState, W: Tensor) -> tuple[Tensor, RateState]:
        """v = B x + b (B, H)."""
        h = (1 - self.a) * state.h + self.a * PHI[self.phi](v + kernels.linear(state.h, W))
        return h, RateState(h)

    def _scan(self, x: Tensor, state: RateState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, RateState]:
        W = self.weights()  # once a scan, not once a step
        a = W.new_full((1,), self.a)
        h, last = kernels.gated(
            f"rate_{self.phi}",
            x,
            (W, a),
            state,
            lengths,
            reset,
            lambda v, state: self._recur(v, state, W),
            self.B,
            self.b,
        )
        valid = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        y = torch.where(valid, h + self.baseline, h)  # past lengths there is no rate, not even the baseline
        return y.to(x.dtype), RateState(*last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        a = self.b.new_full((1,), self.a)
        h = program.gated(f"rate_{self.phi}", x, self.B, self.b, (self.weights(), a), state)
        return program.add(h, program.constant(torch.full_like(self.b, self.baseline)))


def _leak(dt: float, tau: float) -> float:
    for name, value in (("dt", dt), ("tau", tau)):
        number(name, value, 1e-30, 1e30)
    if dt > tau:
        raise InputError(f"dt is {dt:g} and tau {tau:g}; dt must not exceed tau: a step past the target oscillates")
    return dt / tau
