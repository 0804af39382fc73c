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

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import Activation
from elman.cells.functions import layer_norm as norm
from elman.cells.gated import Gated, Gates, Loop
from elman.errors import InputError
from elman.kernels import GatedOptions
from elman.options import choice, flag, number, whole

CANDIDATES: dict[str, Activation] = {"tanh": kernels.tanh, "logistic": kernels.sigmoid}


class LSTMState(NamedTuple):
    h: Tensor  # (B, output_size)
    c: Tensor  # (B, H)


class LSTM(Gated[LSTMState]):
    """c = f * c' + i * g, h = o * tanh(c). W, U and b have i, f, g, o in PyTorch's order (i, g, o when coupled).

    `size` is the width of the cell; the output is as wide, or `projection` wide. `peephole` shows c to the gates,
    `coupled` makes f = 1 - i, `layer_norm` normalises what the gates and tanh(c) read, `candidate` "logistic" makes g
    positive. `forget_bias` is what b_f starts at. `t_max` is the longest dependency that is expected: it replaces the
    forget bias by the chrono initialisation.

    >>> y, state = LSTM(3, 8, projection=4, peephole=True).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape, state.c.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]), torch.Size([2, 8]))
    """

    state_weights = ("W",)
    variants = (
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
    no_weight_decay = ("p",)
    sigmoid_gates, keep_gate = ("i", "f", "o"), "f"

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
        self.letters = "igo" if coupled else "ifgo"  # the gates that have rows of their own, in their order
        rows = len(self.letters) * size
        self.W = nn.Parameter(torch.empty(rows, self.output_size))
        self.U = nn.Parameter(torch.empty(rows, input_size))
        self.b = nn.Parameter(torch.empty(rows))
        self.p = nn.Parameter(torch.empty(len(self.letters) - 1, size)) if peephole else None  # rows i, f, o or i, o
        self.P = nn.Parameter(torch.empty(self.output_size, size)) if projection is not None else None
        self.gain_W = nn.Parameter(torch.empty(rows)) if layer_norm else None
        self.gain_U = nn.Parameter(torch.empty(rows)) if layer_norm else None
        self.gain_c = nn.Parameter(torch.empty(size)) if layer_norm else None
        self.b_c = nn.Parameter(torch.empty(size)) if layer_norm else None
        self.reset_parameters()

    def _refuse_what_does_not_combine(self) -> None:
        if self.layer_norm and self.size == 1:
            raise InputError("layer_norm with size 1 would normalise the one cell to zero; use size 2 or more")
        if self.t_max is not None and self.forget_bias != 1.0:
            raise InputError(
                f"t_max is {self.t_max:g} and forget_bias {self.forget_bias:g}; both set the bias of the forget gate: "
                "set one of them"
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        initial.recurrent(self.W, gates=len(self.letters))
        initial.input(self.U, gates=len(self.letters))
        initial.zeros(self.b, self.b_c, self.p)  # a peephole starts shut: the plain LSTM, until opening it helps
        initial.ones(self.gain_W, self.gain_U, self.gain_c)
        b = dict(zip(self.letters, self.b.chunk(len(self.letters)), strict=True))
        initial.memory(b["i"], b.get("f"), self.forget_bias, self.t_max)
        if self.P is not None:
            nn.init.orthogonal_(self.P)  # it is on the way from h' to h, so it keeps lengths

    def init_state(self, batch_size: int) -> LSTMState:
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.size))

    def recurrent(self) -> dict[str, Tensor]:
        if self.P is not None:  # W reads h, which is narrower than what it writes to
            return {}
        return {f"W_{gate}": block for gate, block in zip(self.letters, self.W.chunk(len(self.letters)), strict=True)}

    def gate_factors(self, gates: Gates) -> tuple[float, ...] | None:
        return None if self.layer_norm or self.P is not None else (1.0,) * len(self.letters)

    def loop(self) -> Loop:
        kind = "lstm" + "_coupled" * self.coupled + "_logistic" * (self.candidate == "logistic")
        options = GatedOptions(self.p, self.P, self.gain_W, self.gain_U, self.gain_c, self.b_c)
        return Loop(kind, self.U, self.b, (self.W,), options)

    def project(self, x: Tensor) -> Tensor:
        if self.gain_U is None:
            return kernels.linear(x, self.U, self.b)
        return norm(kernels.linear(x, self.U), self.gain_U, self.b)

    def gates(self, u: Tensor, state: LSTMState) -> Gates:
        """i, f, g, o, and the new c, which o sees through its peephole."""
        h, c = state
        i, *f, g, o = (u + norm(kernels.linear(h, self.W), self.gain_W)).chunk(len(self.letters), -1)
        if self.p is not None:
            i, *f = (v + p * c for v, p in zip((i, *f), self.p[:-1], strict=True))
        i = kernels.sigmoid(i)
        forget = kernels.sigmoid(f[0]) if f else 1 - i
        g = CANDIDATES[self.candidate](g)
        c = forget * c + i * g
        o = kernels.sigmoid(o if self.p is None else o + self.p[-1] * c)
        return {"i": i, "f": forget, "g": g, "o": o, "c": c}

    def update(self, gates: Gates, state: LSTMState) -> LSTMState:
        o, c = gates["o"], gates["c"]
        h = o * kernels.tanh(norm(c, self.gain_c, self.b_c))
        return LSTMState(h if self.P is None else kernels.linear(h, self.P), c)
