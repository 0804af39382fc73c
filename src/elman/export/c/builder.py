"""The builder that writes C: a step as calls of the functions of runtime.c, one after the other.

Every method is an operation of kernels/builder.py. It appends calls on slots: stretches of floats in the state, among
the weights, in the input or in the room that a step has on its stack, where slots that are not needed at the same time
share their place. Sums run in the order of csrc/, so that the bits are those of a Stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError
from elman.export.c.calls import KINDS, WITH_EXTRA, Argument, Call, Gated, Part, Stretch
from elman.export.c.weights import Floats, Place, Weights
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.kernels.reference import GatedOptions

FUNCTIONS = {
    "sigmoid": "sigmoid", "tanh": "tanh_of", "softplus": "softplus", "silu": "silu", "log": "log_of", "exp": "exp_of",
    "relu": "relu", "abs": "absolute", "sqrt": "root_of", "sin": "sine_of", "cos": "cosine_of",
}  # fmt: skip


@dataclass
class CProgram(Builder):
    """A step in C: its calls, the weights that they read, and how wide the state is."""

    weights: Weights = field(default_factory=Weights)
    dtype: torch.dtype = torch.float32
    calls: list[Call] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    state_width: int = 0
    given: int = 0  # numbers that a step is given
    symbols: int = 0  # how many, where a step is given one of them
    rooms: list[int] = field(default_factory=list)  # how wide each is

    def input(self, width: int) -> Slot:
        self.given = width
        return self._slot("x", width)

    def lookup(self, table: Tensor) -> Slot:
        self.symbols, width = table.shape
        y = self._room(width)
        return self._call("lookup", width, self._weights(table), "symbol", y, fills=y)

    def state(self, width: int) -> Slot:
        self.state_width += width
        return self._slot("state", width, self.state_width - width)

    def constant(self, values: Tensor) -> Slot:
        place = self._weights(values)
        return self._slot(place.array, values.numel(), place.at)

    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        y = self._room(len(weight))
        self._product(_floats(weight), x, None if bias is None else self._weights(bias), y)
        return y

    def gated(
        self, kind: str, x: Slot, U: Tensor, b: Tensor | None, weights: tuple[Tensor, ...], state: Sequence[Slot],
        options: GatedOptions = GatedOptions(),  # noqa: B008  (a value)
        fed: Slot | None = None,
    ) -> Slot:  # fmt: skip
        if fed is not None:
            raise Unstreamable("a cell with attention, whose memory is no part of a file")
        facts, R = KINDS[kind], state[0].width
        H = R if options.P is None else state[1].width
        per_unit = None
        if facts.bias_last or kind in WITH_EXTRA:
            extra = _floats(weights[-1]).ravel() if len(weights) > facts.matrix else np.zeros(1, np.float32)
            per_unit = self._slot_of(np.broadcast_to(extra, (H,)))
        u = self._input_sums(facts, H, x, U, b, options)
        a = self._gates(facts, H, u, weights, per_unit, state[0], options) if facts.matrix else u
        self._cell(kind, H, a, u, per_unit, state, options)
        return state[0]

    def _input_sums(self, facts: Gated, H: int, x: Slot, U: Tensor, b: Tensor | None, options: GatedOptions) -> Slot:
        """U x + b, or U x normalised + b."""
        u = self._room(facts.gates * H)
        bias = None if b is None else self._weights(b)
        self._product(_floats(U), x, None if options.gain_U is not None else bias, u)
        if options.gain_U is not None:
            start = self._slot_of(np.zeros(facts.gates * H, np.float32) if b is None else _floats(b))
            self._norm_gates(facts, H, 0, facts.gates, options.gain_U, [(start, g * H) for g in range(facts.gates)], u)
        return u

    def _gates(
        self, facts: Gated, H: int, u: Slot, weights: tuple[Tensor, ...], per_unit: Slot | None, h: Slot,
        options: GatedOptions,
    ) -> Slot:  # fmt: skip
        """The sums of all gates: from u, over h and then over what comes between."""
        w, gain = _floats(weights[0]), options.gain
        first = facts.gates - facts.second
        a = self._room(facts.gates * H) if gain is not None or facts.bias_last else u
        starts: list[tuple[Slot, int]] = [(u, g * H) for g in range(facts.gates)]
        if per_unit is not None and facts.bias_last:
            starts[-1] = per_unit, 0
        if gain is None and facts.bias_last:
            self._product(w[: (first - 1) * H], h, u, a)
            self._product(w[(first - 1) * H :], h, per_unit, Part(a, (first - 1) * H))
        else:
            self._product(w[: first * H], h, None if gain is not None else u, a)
        if gain is not None:
            self._norm_gates(facts, H, 0, first, gain, starts, a)
        if facts.second:
            q = self._room(H)
            self._call(f"{facts.function}_between", H, a, h, q)
            rest = Part(a, first * H)
            self._product(w[first * H :], q, None if gain is not None else Part(u, first * H), rest)
            if gain is not None:
                self._norm_gates(facts, H, first, facts.gates, gain, starts, a)
        return a

    def _norm_gates(
        self, facts: Gated, H: int, first: int, end: int, gain: Tensor, starts: Sequence[tuple[Slot, int]], a: Slot
    ) -> None:
        """Normalise gates [first, end): those of a product together, the last one that starts from a bias by itself."""
        together = facts.gates - (1 if facts.bias_last else facts.second)
        gains = _floats(gain)
        for left, right in ((first, min(together, end)), (max(together, first), end)):
            if left < right:
                start = Part(*starts[left])
                weights = self.weights.floats(gains[left * H : right * H])
                self._call("norm_gates", right - left, H, weights, start, Part(a, left * H))

    def _cell(
        self, kind: str, H: int, a: Slot, u: Slot, per_unit: Slot | None, state: Sequence[Slot], options: GatedOptions
    ) -> None:
        facts, h = KINDS[kind], state[0]
        cells = h if options.P is None else self._room(H)
        if facts.function == "lstm":
            peepholes = None if options.peephole is None else self._weights(options.peephole)
            self._call("lstm", H, a, peepholes, *facts.flags, int(options.gain_c is not None), state[1], cells)
        elif facts.bias_last:
            self._call(facts.function, H, a, Part(u, 2 * H), cells)
        else:
            self._call(facts.function, H, a, *([] if per_unit is None else [per_unit]), cells)
        if options.gain_c is not None and options.bias_c is not None:
            self._call("norm_c", H, state[1], self._weights(options.gain_c), self._weights(options.bias_c), cells)
        if options.P is not None:
            self._product(_floats(options.P), cells, None, h)

    def attend(
        self, query: Slot, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None, each: int
    ) -> tuple[Slot, Slot]:
        raise Unstreamable("attention, whose memory is no part of a file")

    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        if is_complex:
            return self._call("complex_scan", h.width // 2, a, b, h, fills=h)
        return self._call("linear_scan", h.width, a, b, h, fills=h)

    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        y = self._room(x.width)
        return self._call("selective", *A.shape, x, delta, self._weights(A), B, C, h, y, fills=y)

    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        y = self._room(x.width)
        return self._call("bank", *a.shape[:2], x, *map(self._weights, (a, b, c)), h, y, fills=y)

    def matrix(
        self, shape: tuple[int, int, int], q: Slot, k: Slot, v: Slot, a: Slot | None, S: Slot,
        b: Slot | None = None, alpha: Slot | None = None, beta: Slot | None = None,
    ) -> Slot:  # fmt: skip
        H, K, V = shape
        y, by_key = self._room(H * V), int(a is not None and a.width != H)
        corrections = (value for part in (alpha, beta) for value in (part, part.width // K if part else 0))
        return self._call("matrix", H, K, V, q, k, q.width // K, v, a, by_key, b, *corrections, S, y, fills=y)

    def filter(self, x: Slot, transition: Tensor, p: Slot) -> Slot:
        return self._call("filter", p.width, x, self._weights(transition), self._room(p.width), p, fills=p)

    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        (K, D), y = weight.shape, self._room(x.width)
        return self._call("convolution", D, K, x, self._weights(weight), self._weights(bias), window, y, fills=y)

    def map(self, function: str, x: Slot) -> Slot:
        y = self._room(x.width)
        return self._call(FUNCTIONS[function], x.width, x, y, fills=y)

    def add(self, x: Slot, y: Slot) -> Slot:
        return self._combine("add", x, y)

    def mul(self, x: Slot, y: Slot) -> Slot:
        return self._combine("multiply", x, y)

    def div(self, x: Slot, y: Slot) -> Slot:
        return self._combine("divide", x, y)

    def maximum(self, x: Slot, y: Slot) -> Slot:
        return self._combine("maximum", x, y)

    def minimum(self, x: Slot, y: Slot) -> Slot:
        return self._combine("minimum", x, y)

    def choose(self, condition: Slot, x: Slot, y: Slot) -> Slot:
        z = self._room(x.width)
        return self._call("choose", x.width, condition, x, y, z, fills=z)

    def gather(self, x: Slot, columns: Sequence[int]) -> Slot:
        y = self._room(len(columns))
        return self._call("gather", len(columns), x, self.weights.numbers(list(columns)), y, fills=y)

    def lags(self, x: Slot, delays: Sequence[int], past: Slot) -> Slot:
        y, ago = self._room(len(delays) * x.width), self.weights.numbers(list(delays))
        return self._call("lags", x.width, len(delays), ago, max(delays), x, past, y, fills=y)

    def mean(self, decay: float, x: Slot, weight: Slot, sum: Slot, total: Slot) -> Slot:
        y = self._room(x.width)
        return self._call("mean", x.width, weight.width, decay, x, weight, sum, total, y, fills=y)

    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Slot:
        return self._norm(1, x, gain, bias, eps, heads)

    def rms_norm(self, x: Slot, gain: Tensor, eps: float, heads: int = 1) -> Slot:
        return self._norm(0, x, gain, None, eps, heads)

    def concat(self, parts: Sequence[Slot]) -> Slot:
        y, at = self._room(sum(part.width for part in parts)), 0
        for part in parts:
            self._call("copy", part.width, part, Part(y, at))
            at += part.width
        return y

    def cut(self, x: Slot, first: int, width: int) -> Slot:
        if not 0 <= first <= first + width <= x.width:
            raise InputError(f"the columns {first} to {first + width} were requested; the slot has {x.width}")
        at = self.stretches[x.number]
        if at.home != "state":  # which changes
            return self._slot(at.home, width, at.first + first, at.room)
        y = self._room(width)
        return self._call("copy", width, Part(x, first), y, fills=y)

    def student_t(self, df: Slot, mean: Slot, scale: Slot) -> Slot:
        raise Unstreamable("paths that are drawn")

    def assign(self, state: Slot, x: Slot) -> Slot:
        return self._call("copy", x.width, x, state, fills=state)

    def _combine(self, function: str, x: Slot, y: Slot) -> Slot:
        z = self._room(x.width)
        return self._call(function, x.width, x, y, z, fills=z)

    def _norm(self, centred: int, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int) -> Slot:
        N, y = x.width // heads, self._room(x.width)
        if heads == 1 or gain.shape == (N,):
            weights = self._weights(gain), None if bias is None else self._weights(bias)
            return self._call("norm", heads, N, x, centred, eps, *weights, y, fills=y)
        self._call("norm", heads, N, x, centred, eps, None, None, y)
        z = self.mul(y, self.constant(gain))
        return z if bias is None else self.add(z, self.constant(bias))

    def _product(self, w: Floats, x: Slot, start: Argument, y: Slot | Part) -> None:
        function, weights = self.weights.product(w)
        self._call(function, w.shape[1], len(w), x, *weights, start, y)

    def _call(self, function: str, *arguments: Argument, fills: Slot | None = None) -> Slot:
        self.calls.append(Call(function, arguments))
        return fills or Slot(-1, 0)

    def _weights(self, values: Tensor) -> Place:
        return self.weights.floats(_floats(values))

    def _slot_of(self, values: Floats) -> Slot:
        place = self.weights.floats(values)
        return self._slot(place.array, values.size, place.at)

    def _room(self, width: int) -> Slot:
        self.rooms.append(width)
        return self._slot("room", width, 0, len(self.rooms) - 1)

    def _slot(self, home: str, width: int, first: int = 0, room: int = -1) -> Slot:
        self.stretches.append(Stretch(home, width, first, room))
        return Slot(len(self.stretches) - 1, width)


def _floats(values: Tensor) -> Floats:
    if values.device.type != "cpu":
        raise Unstreamable("parameters that are not on the CPU")
    array: Floats = values.detach().to(torch.float32).contiguous().numpy()
    return array
