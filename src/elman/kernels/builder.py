"""How a module describes one step of itself: by appending operations to a builder, in the order in which they run.

A Core takes part by `describe_step`, the counterpart of `_scan`:

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot

`x` is the slot (rows, input_size) that holds the input; `state` has the structure of `init_state`, with a slot in the
place of each leaf. It appends to `builder` what turns x and the state into y, updating the state in place, and returns
the slot of y:

    return builder.gated("gru", x, self.U, self.b, (self.W, self.c), (state.h,))    # a gated cell, by its base class
    return builder.add(x, self.inner.describe_step(builder, x, state))              # a residual
    return step_through(builder, self.step, x, state, self.init_state(1))           # any equation: kernels/trace.py
    for core, part in zip(self.cores, state):                                       # a stack
        x = core.describe_step(builder, x, part)

An embedding has `describe_step(builder) -> Slot`, the vectors of the symbols that a step is given; a read-out has
`describe_step(builder, y) -> Slot`, the parameters of its distribution. What a module, or an option of it, has no form
for raises `Unstreamable`.

A leaf of more than two axes is a slot of all its numbers in a row; a complex one, of (real, imaginary) pairs. A leaf of
float64 beside float32 is a slot of twice its width, and for `mean` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.errors import KernelError
from elman.kernels.reference import GatedOptions

WEIGHTS = ("bfloat16", "int8")  # how a program can store the weights of its products, beside as they are


class Unstreamable(KernelError):
    """A module, or an option of it, whose step cannot be described to a builder."""


@dataclass(frozen=True)
class Slot:
    """An array (rows, width) of what is being built; its number is the builder's own."""

    number: int
    width: int


Slots = Slot | tuple["Slots", ...]  # a state with a slot in the place of each leaf


class Builder(ABC):
    """One step of a module, as a list of operations on slots. Every method returns the slot that it fills."""

    dtype: torch.dtype  # of all slots, but of leaves in float64

    @abstractmethod
    def input(self, width: int) -> Slot:
        """What a step is given, (rows, width)."""

    @abstractmethod
    def lookup(self, table: Tensor) -> Slot:
        """The rows of `table` (V, width) that the symbols of a step name: what a step is given, in place of `input`."""

    @abstractmethod
    def state(self, width: int) -> Slot:
        """A leaf of the state, (rows, width)."""

    @abstractmethod
    def constant(self, values: Tensor) -> Slot:
        """`values` (width,), the same in every row."""

    @abstractmethod
    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        """x W^T + b, W (N, D), b (N,)."""

    def windows(self, x: Slot, weight: Tensor, bias: Tensor | None, stride: int) -> Slot:
        """The same of every window of K columns of x, `stride` apart, W (N, K): their outputs side by side."""
        K = weight.shape[1]
        starts = range(0, x.width - K + 1, stride)
        return self.concat([self.linear(self.cut(x, start, K), weight, bias) for start in starts])

    @abstractmethod
    def gated(
        self, kind: str, x: Slot, U: Tensor, b: Tensor | None, weights: tuple[Tensor, ...], state: Sequence[Slot],
        options: GatedOptions = GatedOptions(),  # noqa: B008  (a value)
        fed: Slot | None = None,
    ) -> Slot:  # fmt: skip
        """A gated cell over U [x, fed] + b; `kind`, `weights`, `options` as in `kernels.gated`. y is its first state.

        `fed` is what `kernels.attended` would feed to a step; for the kinds and options that it has a native loop for.
        """

    def loops(self, kind: str, options: GatedOptions) -> bool:
        """Whether `gated` takes these; a cell is described by its equation where it does not."""
        return True

    def backwards(self, x: Slot, describe: Callable[[Slot], Slot]) -> Slot:
        """What `describe` makes of x, both read from each row's last input to its first. Steps know no last input;
        only a builder of whole sequences has it."""
        raise Unstreamable("what reads the future has no step")

    def fed(self, x: Slot, fed: Slot, describe: Callable[[Slot], Slot]) -> Slot | None:
        """What `describe` makes of [x, fed], where `fed` waits for the step before. None of a builder whose sums are
        those of the native loop, to the bit: the `fed` of `gated` is for that."""
        return None

    @abstractmethod
    def attend(
        self, query: Slot, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None, each: int
    ) -> tuple[Slot, Slot]:
        """The context and the weights that `kernels.attend` finds for the query of each row. The memory keys (B, S, A),
        values (B, S, M), lengths (B,) is copied; the rows from `each` * i on read row i of it."""

    def first(self, values: Tensor, each: int) -> tuple[Slot, Slot]:
        """The first of the values (B, S, M) of each row of a memory, as `attend` has it: attention to one place alone
        has the weight 1, whatever is asked, so what it finds is that vector to the bit."""
        one, query = values[:, :1], self.constant(torch.zeros(values.shape[2]))
        return self.attend(query, one, one, torch.ones(len(values), dtype=torch.int64), None, each)

    @abstractmethod
    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        """h = a * h + b, in place; slots of (real, imaginary) pairs if `is_complex`."""

    @abstractmethod
    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        """h = exp(delta A) * h + delta x B, in place, h (D * N) and A (D, N): sum_n C[n] h[:, n]."""

    @abstractmethod
    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        """h = a h + b x, in place, h (D * N) pairs and a, b, c (D, N, 2): sum_n Re(c[:, n] h[:, n])."""

    @abstractmethod
    def matrix(
        self, shape: tuple[int, int, int], q: Slot, k: Slot, v: Slot, a: Slot | None, S: Slot,
        b: Slot | None = None, alpha: Slot | None = None, beta: Slot | None = None,
    ) -> Slot:  # fmt: skip
        """A step of `kernels.matrix_scan`, its S (H * K * V) in place, `shape` = (H, K, V): y (H * V). Slots have all
        numbers of a row side by side; a is H wide for one decay a head, or H * K wide for one a key."""

    @abstractmethod
    def filter(self, x: Slot, transition: Tensor, p: Slot) -> Slot:
        """p = (p * exp(x)) A, divided by the sum of p * exp(x), in place: the filter of a hidden Markov model."""

    @abstractmethod
    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        """bias + sum_k weight[k] * (the last K values of x)[k], weight (K, D), `window` ((K - 1) * D) in place."""

    @abstractmethod
    def map(self, function: str, x: Slot) -> Slot:
        """The sigmoid, tanh, softplus, silu, log, exp, relu, abs, sqrt, sin or cos of every element."""

    @abstractmethod
    def add(self, x: Slot, y: Slot) -> Slot:
        """x + y."""

    @abstractmethod
    def mul(self, x: Slot, y: Slot) -> Slot:
        """x * y."""

    @abstractmethod
    def div(self, x: Slot, y: Slot) -> Slot:
        """x / y."""

    @abstractmethod
    def maximum(self, x: Slot, y: Slot) -> Slot:
        """The larger of x and y; NaN where one of them is."""

    @abstractmethod
    def minimum(self, x: Slot, y: Slot) -> Slot:
        """The smaller of x and y; NaN where one of them is."""

    @abstractmethod
    def choose(self, condition: Slot, x: Slot, y: Slot) -> Slot:
        """x where the condition is above zero, else y."""

    @abstractmethod
    def gather(self, x: Slot, columns: Sequence[int]) -> Slot:
        """These columns of x, in any order; a column may be named often."""

    @abstractmethod
    def lags(self, x: Slot, delays: Sequence[int], past: Slot) -> Slot:
        """The inputs of `delays` steps ago side by side, 0 for x itself; `past` ((longest delay) * D) in place."""

    @abstractmethod
    def mean(self, decay: float, x: Slot, weight: Slot, sum: Slot, total: Slot) -> Slot:
        """sum = decay * sum + x, total = decay * total + weight, leaves of float64 in place: sum / total, 0 where that
        is 0. `weight` and `total` are as wide as x, or one column that counts for all."""

    def negative(self, x: Slot) -> Slot:
        """-x."""
        return self.mul(x, self.constant(torch.full((x.width,), -1.0)))

    @abstractmethod
    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Slot:
        """gain * (x - mean x) / sqrt(var x + eps) + bias, for each of the heads of each row; gain and bias as wide as
        x, or as a head."""

    @abstractmethod
    def rms_norm(self, x: Slot, gain: Tensor, eps: float, heads: int = 1) -> Slot:
        """gain * x / sqrt(mean x^2 + eps), for each of the heads of each row; gain as wide as x, or as a head."""

    def l2_norm(self, x: Slot, eps: float, heads: int = 1) -> Slot:
        """x / sqrt(sum x^2 + eps), for each of the heads of each row."""
        N = x.width // heads
        return self.rms_norm(x, torch.full((N,), N**-0.5, dtype=self.dtype), eps / N, heads)

    @abstractmethod
    def concat(self, parts: Sequence[Slot]) -> Slot:
        """The columns of all parts side by side."""

    @abstractmethod
    def cut(self, x: Slot, first: int, width: int) -> Slot:
        """`width` columns of x from column `first` on."""

    @abstractmethod
    def student_t(self, df: Slot, mean: Slot, scale: Slot) -> Slot:
        """mean + scale t, t drawn by each row's draws as `elman.random.student_t` has it. For paths, not for steps."""

    @abstractmethod
    def assign(self, state: Slot, x: Slot) -> Slot:
        """The leaf `state` becomes x."""
