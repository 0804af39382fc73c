"""The table of a stream that is being built: a cell's equation, run once on values that are not there yet.

A `Traced` value is a slot of a builder. An operation on it appends itself to the builder and gives the value that it
will fill, so that one description of a step serves both. The names and arguments are those of `reference`; operations
on parameters alone are computed at once, and go into it as constants. What is not listed here raises
Unstreamable, and the module is scanned in steps of one instead.

    linear, windows, sigmoid, tanh, softplus, silu, log, exp, sin, cos, torch.relu, sqrt, abs
    layer_norm, rms_norm, l2_norm
    +, -, *, /, torch.maximum and clamp with a value, a number or a tensor, as wide or of one column on the right
    torch.where(value > 0, a, b), a and b values or numbers
    of the last axis: chunk, split into given widths, x[..., a:b:step], x[..., [columns]], repeat_interleave, and
    torch.cat of values
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import torch
from torch import Tensor

from elman import state as states
from elman.kernels.builder import Builder, Slot, Slots, Unstreamable
from elman.kernels.reference import Step
from elman.state import State


@dataclass(frozen=True, eq=False, repr=False)
class Traced:
    """The value (B, width) of a slot of the builder."""

    builder: Builder
    slot: Slot

    @property
    def dtype(self) -> torch.dtype:
        return self.builder.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return 1, self.slot.width

    def is_complex(self) -> bool:
        return False

    def to(self, dtype: torch.dtype) -> Traced:
        if dtype != self.dtype:
            raise Unstreamable(f"a value in {dtype} with a builder in {self.dtype}")
        return self

    def __add__(self, other: Traced | Tensor | float) -> Traced:
        return Traced(self.builder, self.builder.add(self.slot, self._beside(other)))

    def __mul__(self, other: Traced | Tensor | float) -> Traced:
        return Traced(self.builder, self.builder.mul(self.slot, self._beside(other)))

    def __neg__(self) -> Traced:
        return Traced(self.builder, self.builder.negative(self.slot))

    def __sub__(self, other: Traced | Tensor | float) -> Traced:
        return self + -other

    def __rsub__(self, other: Tensor | float) -> Traced:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__  # a sum and a product have the same bits in either order

    def __truediv__(self, other: Traced | Tensor | float) -> Traced:
        return Traced(self.builder, self.builder.div(self.slot, self._beside(other)))

    def __gt__(self, other: object) -> Positive:
        if isinstance(other, Traced | Tensor) or other != 0:
            raise Unstreamable("a comparison with anything but 0 cannot be streamed")
        return Positive(self)

    def __getitem__(self, at: object) -> Traced:
        """Columns: x[..., a:b] or x[..., [2, 0, 0]]."""
        if not (isinstance(at, tuple) and len(at) == 2 and at[0] is Ellipsis and isinstance(at[1], slice | list)):
            raise Unstreamable("an index of anything but columns cannot be streamed")
        if isinstance(at[1], list):
            return Traced(self.builder, self.builder.gather(self.slot, at[1]))
        columns = range(self.slot.width)[at[1]]
        if columns.step != 1:
            return Traced(self.builder, self.builder.gather(self.slot, columns))
        return Traced(self.builder, self.builder.cut(self.slot, columns.start, len(columns)))

    def abs(self) -> Traced:
        return Traced(self.builder, self.builder.map("abs", self.slot))

    def maximum(self, other: Traced | Tensor | float) -> Traced:
        return Traced(self.builder, self.builder.maximum(self.slot, self._beside(other)))

    def clamp(self, least: float, most: float) -> Traced:
        raised = self.maximum(least)
        return Traced(self.builder, self.builder.minimum(raised.slot, self._beside(most)))

    def chunk(self, parts: int, dim: int = 0) -> tuple[Traced, ...]:
        return self.split([self.slot.width // parts] * parts, dim)

    def split(self, widths: int | Sequence[int], dim: int = 0) -> tuple[Traced, ...]:
        if dim != -1 or isinstance(widths, int) or sum(widths) != self.slot.width:
            raise Unstreamable(f"a value of width {self.slot.width} cut along axis {dim} into {widths}")
        starts = [sum(widths[:i]) for i in range(len(widths))]
        return tuple(
            Traced(self.builder, self.builder.cut(self.slot, start, width))
            for start, width in zip(starts, widths, strict=True)
        )

    def repeat_interleave(self, repeats: int, dim: int = 0) -> Traced:
        if dim != -1:
            raise Unstreamable(f"a value repeated along axis {dim}")
        columns = [column for column in range(self.slot.width) for _ in range(repeats)]
        return Traced(self.builder, self.builder.gather(self.slot, columns))

    def _constant(self, value: float) -> Traced:
        return Traced(self.builder, self.builder.constant(torch.full((self.slot.width,), value)))

    def _beside(self, other: Traced | Tensor | float) -> Slot:
        """The slot of the other operand."""
        if isinstance(other, Traced):
            slot = other.slot
        else:
            values = torch.as_tensor(other, dtype=self.dtype)
            slot = self.builder.constant(values.expand(self.slot.width) if values.dim() == 0 else values.flatten())
        if slot.width == 1 < self.slot.width:  # one column is combined with each of many
            return self.builder.gather(slot, [0] * self.slot.width)
        if slot.width != self.slot.width:
            raise Unstreamable(f"values of widths {self.slot.width} and {slot.width} in one operation")
        return slot

    def _refuse(self, *_: object) -> NoReturn:
        raise Unstreamable("a quotient of a number, a power or a comparison cannot be streamed")

    __iter__ = __len__ = __bool__ = __float__ = __int__ = _refuse
    __rtruediv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __lt__ = __le__ = __ge__ = __eq__ = __ne__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # a protocol that somebody asks for, not an operation
        raise Unstreamable(f"`.{name}` cannot be streamed")

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: Sequence[Traced],
        kwargs: dict[str, object] | None = None,
    ) -> Traced:
        """What Torch asks when it meets a traced value, in torch.relu(v) or tensor * v."""
        name = function.__name__.removeprefix("__").removesuffix("__")  # torch.mul is Tensor.__mul__
        if name not in _TORCH or kwargs:
            raise Unstreamable(f"torch.{name} cannot be streamed")
        return _TORCH[name](*args)


@dataclass(frozen=True, eq=False, repr=False)
class Positive:
    """Where a value is above zero: what torch.where takes."""

    value: Traced

    def where(self, x: Traced | float, y: Traced | float) -> Traced:
        builder = self.value.builder
        slots = (self.value._beside(given) for given in (x, y))
        return Traced(builder, builder.choose(self.value.slot, *slots))

    def _refuse(self, *_: object) -> NoReturn:
        raise Unstreamable("a comparison can be streamed only in torch.where")

    __bool__ = __and__ = __or__ = __invert__ = __mul__ = __rmul__ = __add__ = __radd__ = _refuse
    __torch_function__ = Traced.__torch_function__


def _cat(parts: Sequence[Traced], dim: int = 0) -> Traced:
    if dim != -1 or not all(isinstance(part, Traced) for part in parts):
        raise Unstreamable(f"values side by side along axis {dim}, or tensors among them")
    return Traced(parts[0].builder, parts[0].builder.concat([part.slot for part in parts]))


def __getattr__(name: str) -> object:
    """Any other operation of `elman.kernels`."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unstreamable(f"kernels.{name} cannot be streamed")


def _map_function(function: str) -> Callable[[Traced], Traced]:
    return lambda x: Traced(x.builder, x.builder.map(function, x.slot))


# Of `tensor * value` the value comes second.
_TORCH: dict[str, Callable[..., Traced]] = {
    "relu": _map_function("relu"),
    "add": lambda x, y: y + x,
    "mul": lambda x, y: y * x,
    "sub": lambda x, y: -y + x,
    "maximum": lambda x, y: x.maximum(y) if isinstance(x, Traced) else y.maximum(x),
    "where": lambda condition, x, y: _positive(condition).where(x, y),
    "cat": _cat,
    "zeros_like": lambda x: x._constant(0.0),
    "ones_like": lambda x: x._constant(1.0),
}


def _positive(condition: object) -> Positive:
    if not isinstance(condition, Positive):
        raise Unstreamable("torch.where can be streamed only with a comparison with 0")
    return condition


sigmoid, tanh, softplus = (_map_function(name) for name in ("sigmoid", "tanh", "softplus"))
silu, log, exp, sqrt = (_map_function(name) for name in ("silu", "log", "exp", "sqrt"))
sin, cos = _map_function("sin"), _map_function("cos")


def linear(x: Traced, weight: Tensor, bias: Tensor | None) -> Traced:
    return Traced(x.builder, x.builder.linear(x.slot, weight, bias))


def windows(x: Traced, weight: Tensor, bias: Tensor | None, stride: int) -> Traced:
    return Traced(x.builder, x.builder.windows(x.slot, weight, bias, stride))


def layer_norm(x: Traced, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Traced:
    return Traced(x.builder, x.builder.layer_norm(x.slot, gain, bias, eps, heads))


def rms_norm(x: Traced, gain: Tensor, eps: float, heads: int = 1) -> Traced:
    return Traced(x.builder, x.builder.rms_norm(x.slot, gain, eps, heads))


def l2_norm(x: Traced, eps: float, heads: int = 1) -> Traced:
    return Traced(x.builder, x.builder.l2_norm(x.slot, eps, heads))


def traced(builder: Builder, slot: Slot) -> Tensor:
    """The slot as what an equation takes: it looks like a tensor to those who only compute with it."""
    return cast(Tensor, Traced(builder, slot))


def slot_of(builder: Builder, value: Tensor) -> Slot:
    """The slot of what an equation has given; a constant for what does not depend on the input."""
    given = cast(Traced | Tensor, value)
    return given.slot if isinstance(given, Traced) else builder.constant(given)


def step_through(builder: Builder, step: Step, x: Slot, state: Slots, like: State) -> Slot:
    """Append the equation `step`, from x and the state to y and the new state; the slot of y.

    `state` has slots for leaves, in the structure of `like`.
    """
    if any(leaf.dtype == torch.float64 != builder.dtype for leaf in states.leaves(like)):
        raise Unstreamable("a leaf of float64 in an equation of float32")
    if any(leaf.is_complex() for leaf in states.leaves(like)):  # their slots have pairs, whose product is another one
        raise Unstreamable("a leaf of complex numbers in an equation")
    slots = cast(State, state)
    y, after = step(traced(builder, x), states.map(lambda _, slot: traced(builder, slot), like, slots))
    before: list[Slot] = []
    found = [slot_of(builder, y)]

    def pair(leaf: Tensor, slot: Slot, value: Tensor) -> Tensor:
        before.append(slot)
        found.append(slot_of(builder, value))
        return leaf

    states.map(pair, like, slots, after)
    # What is still to be read from a leaf is copied before the leaf changes: one leaf may take over another.
    kept = [builder.cut(slot, 0, slot.width) if slot in before else slot for slot in found]
    for slot, new in zip(before, kept[1:], strict=True):
        builder.assign(slot, new)
    return kept[0]
