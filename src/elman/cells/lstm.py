"""Long short-term memory, with the options that the field has given it.

    i = s(W_i h' + U_i x + b_i)        f = s(W_f h' + U_f x + b_f)        o = s(W_o h' + U_o x + b_o)
    g = tanh(W_g h' + U_g x + b_g)     c = f * c' + i * g                 h = o * tanh(c)        y = h

    peephole      the gates see the cell: i and f add p_i * c' and p_f * c', o adds p_o * c
    coupled       f = 1 - i: what is written replaces what is forgotten, and there is no W_f, U_f, b_f
    projection    h = P (o * tanh(c)): a wide cell, a narrow output and recurrence
    layer_norm    LN(W h') + LN(U x) + b, both over all gates together, and h = o * tanh(LN(c))
    candidate     "logistic": g = s(...), so that the cell only ever adds

S. Hochreiter, J. Schmidhuber, Neural Computation 9 (1997). Forget gate: F. A. Gers, J. Schmidhuber, F. Cummins (2000).
Peephole: F. A. Gers, J. Schmidhuber (2000). Coupled: K. Greff et al., LSTM: a search space odyssey (2017).
Projection: H. Sak, A. Senior, F. Beaufays (2014). Chrono: C. Tallec, Y. Ollivier, Can recurrent nets warp time (2018).
Layer norm: J. L. Ba, J. R. Kiros, G. E. Hinton (2016), equations 20 to 22; one bias does for the three added there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.norm import layer_norm as norm
from elman.cells.options import Activation, choice, flag, number, whole
from elman.core import Core
from elman.errors import InputError
from elman.kernels import GatedOptions

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot

CANDIDATES: dict[str, Activation] = {"tanh": kernels.tanh, "logistic": kernels.sigmoid}


class LSTMState(NamedTuple):
    h: Tensor  # (B, output_size)
    c: Tensor  # (B, H)


class LSTM(Core):
    """c = f * c' + i * g, h = o * tanh(c). W, U and b hold i, f, g, o in PyTorch's order (i, g, o when coupled).

    `size` is the width of the cell; the output is as wide, or `projection` wide. `t_max` is the longest dependency that
    is expected: it replaces the forget bias by the chrono initialisation.

    >>> y, state = LSTM(3, 8, projection=4, peephole=True).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape, state.c.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]), torch.Size([2, 8]))
    """

    emits_state = True
    undecayed: ClassVar[tuple[str, ...]] = ("p",)
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"peephole": True},
        {"coupled": True},
        {"projection": 3},
        {"layer_norm": True},
        {"candidate": "logistic"},
        {"t_max": 20.0},
        {"peephole": True, "projection": 3, "layer_norm": True},
        {"peephole": True, "coupled": True, "projection": 3, "layer_norm": True, "candidate": "logistic", "t_max": 9.0},
    )
    p: nn.Parameter | None  # rows i, f, o (i, o when coupled)
    P: nn.Parameter | None
    gain_W: nn.Parameter | None
    gain_U: nn.Parameter | None
    gain_c: nn.Parameter | None
    b_c: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        peephole: bool = False,
        coupled: bool = False,
        projection: int | None = None,
        layer_norm: bool = False,
        candidate: str = "tanh",
        forget_bias: float = 1.0,
        t_max: float | None = None,
    ) -> None:
        super().__init__(input_size, size if projection is None else whole("projection", projection))
        self.size = whole("size", size)
        self.peephole, self.coupled = flag("peephole", peephole), flag("coupled", coupled)
        self.layer_norm = flag("layer_norm", layer_norm)
        self.candidate = choice("candidate", candidate, CANDIDATES)
        self.forget_bias = number("forget_bias", forget_bias, -100.0, 100.0)
        self.t_max = None if t_max is None else number("t_max", t_max, 2.0, 1e30)
        self._refuse_what_does_not_combine()
        self.gates = "igo" if coupled else "ifgo"
        rows = len(self.gates) * size
        self.W = nn.Parameter(torch.empty(rows, self.output_size))
        self.U = nn.Parameter(torch.empty(rows, input_size))
        self.b = nn.Parameter(torch.empty(rows))
        self.p = nn.Parameter(torch.empty(len(self.gates) - 1, size)) if peephole else None
        self.P = nn.Parameter(torch.empty(self.output_size, size)) if projection is not None else None
        self.gain_W = nn.Parameter(torch.empty(rows)) if layer_norm else None
        self.gain_U = nn.Parameter(torch.empty(rows)) if layer_norm else None
        self.gain_c = nn.Parameter(torch.empty(size)) if layer_norm else None
        self.b_c = nn.Parameter(torch.empty(size)) if layer_norm else None
        self.reset_parameters()

    def _refuse_what_does_not_combine(self) -> None:
        if self.layer_norm and self.size == 1:
            raise InputError("layer_norm with size 1 would normalise the one cell to zero; take size 2 or more")
        if self.t_max is not None and self.forget_bias != 1.0:
            raise InputError(
                f"t_max is {self.t_max:g} and forget_bias {self.forget_bias:g}; both set the bias of the forget gate: "
                "give one of them"
            )

    def reset_parameters(self) -> None:
        initial.recurrent(self.W, gates=len(self.gates))
        initial.input(self.U, gates=len(self.gates))
        self._reset_biases()
        if self.p is not None:
            nn.init.zeros_(self.p)  # a peephole starts shut: the plain LSTM, until opening it helps
        if self.P is not None:
            nn.init.orthogonal_(self.P)  # it is on the way from h' to h, so it keeps lengths
        for gain in (self.gain_W, self.gain_U, self.gain_c):
            if gain is not None:
                nn.init.ones_(gain)
        if self.b_c is not None:
            nn.init.zeros_(self.b_c)

    @torch.no_grad()
    def _reset_biases(self) -> None:
        """Zero, except for the time that the cell remembers at the start, about 1 + exp(b_f) steps."""
        nn.init.zeros_(self.b)
        b = dict(zip(self.gates, self.b.chunk(len(self.gates)), strict=True))
        if self.t_max is None:  # with f = 1/2 a gradient would be gone in ten steps (Jozefowicz et al., 2015)
            forget = torch.full_like(b["i"], self.forget_bias)
        else:  # equation 16: times spread evenly over [1, t_max - 1], and i = 1 - f so that the cell stays bounded
            forget = torch.empty_like(b["i"]).uniform_(1.0, self.t_max - 1.0).log()
            b["i"].copy_(-forget)
        if self.coupled:  # 1 - i = s(forget)
            b["i"].copy_(-forget)
        else:
            b["f"].copy_(forget)

    def init_state(self, batch_size: int) -> LSTMState:
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.size))

    def recur(self, u: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """u = U x + b (B, gates * H), normalised with layer_norm."""
        h, c = state
        v = u + norm(kernels.linear(h, self.W), self.gain_W)
        i, f, g, o = self._split(v)
        if self.p is not None:
            i, f = i + self.p[0] * c, f + self.p[-2] * c
        i = kernels.sigmoid(i)
        f = 1 - i if self.coupled else kernels.sigmoid(f)
        c = f * c + i * CANDIDATES[self.candidate](g)
        if self.p is not None:
            o = o + self.p[-1] * c
        h = kernels.sigmoid(o) * kernels.tanh(norm(c, self.gain_c, self.b_c))
        if self.P is not None:
            h = kernels.linear(h, self.P)
        return h, LSTMState(h, c)

    def _split(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gates' parts of v (B, gates * H), i standing in for f where they are coupled."""
        if self.coupled:
            i, g, o = v.chunk(3, -1)
            return i, i, g, o
        i, f, g, o = v.chunk(4, -1)
        return i, f, g, o

    def _project(self, x: Tensor) -> Tensor:
        """U x + b (..., gates * H), normalised with layer_norm."""
        if self.gain_U is None:
            return kernels.linear(x, self.U, self.b)
        return norm(kernels.linear(x, self.U), self.gain_U, self.b)

    def step(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        h, state = self.recur(self._project(x), state)
        return h.to(x.dtype), state

    @property
    def _kind(self) -> str:
        """The native loop that computes this cell, with `_options`."""
        return "lstm" + "_coupled" * self.coupled + "_logistic" * (self.candidate == "logistic")

    @property
    def _options(self) -> GatedOptions:
        return GatedOptions(self.p, self.P, self.gain_W, self.gain_U, self.gain_c, self.b_c)

    def _scan(
        self, x: Tensor, state: LSTMState, lengths: Tensor, reset: Tensor, every: int | None = None
    ) -> tuple[Tensor, LSTMState]:
        y, last = kernels.gated(
            self._kind, x, (self.W,), state, lengths, reset, self.recur, self.U, self.b, self._options, self._project,
            every,
        )  # fmt: skip
        return y.to(x.dtype), LSTMState(*last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.gated(self._kind, x, self.U, self.b, (self.W,), state, self._options)
