"""The protocol. Everything recurrent in Elman, from one cell to a bidirectional stack, is a Core.

Letters, here and everywhere: B batch, T time, D input width, H output width, N state width, V vocabulary.
Batch first, time second, features last.

For every row and every t < lengths: if reset[t], the state becomes init_state; then y[t], state = step(x[t], state).
Past lengths the state holds and y is zero. So there is no sorting, no packing and no left padding, ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elman import kernels
from elman import state as states
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.lengths import checked, zero_past
from elman.options import whole
from elman.state import AnyState, State

Options = dict[str, Any]  # keyword arguments of a cell
NARROW = (torch.bfloat16, torch.float16)  # what activations may be where parameters and states are wider


class Block(NamedTuple):
    """What a cell needs around it to be a layer of a deep network: x + mix(cell(norm(x)))."""

    norm: str  # "layer" or "rms"
    mixes: bool  # a gated linear unit after the cell mixes its channels; otherwise the cell does that itself


class Core(nn.Module):
    """A recurrence. A subclass defines `init_state` and `step`, and can scan; `laws.check` checks whether it is right.

    >>> class Sum(Core):
    ...     def init_state(self, batch_size):
    ...         return torch.zeros(batch_size, self.output_size)
    ...     def step(self, x, state):
    ...         return x + state, x + state
    >>> y, state = Sum(1, 1).scan(torch.ones(1, 3, 1))
    >>> y.flatten().tolist(), state.tolist()
    ([1.0, 2.0, 3.0], [[3.0]])
    """

    causal: bool = True  # False for what reads the future (Reverse): it has no step
    output_is_state: bool = False  # True where y is the first leaf of the state
    no_weight_decay: ClassVar[tuple[str, ...]] = ()  # own parameters with two axes that weight decay must leave alone
    state_weights: ClassVar[tuple[str, ...]] = ()  # own matrices that multiply the state, for WeightDrop
    poles: ClassVar[tuple[str, ...]] = ()  # own parameters that say how fast it forgets and turns, whatever it reads
    variants: ClassVar[tuple[Options, ...]] = ({},)  # the option sets that the conformance table covers
    block: ClassVar[Block | None] = None  # what its paper puts around it; None if nothing
    keep_gate: str = ""  # the one of `named_gates` that is the share of the state that stays
    remedy: str = ""  # what makes it remember for longer, if that is not another cell
    _state_kind: ClassVar[type[tuple[State, ...]] | None] = None  # of its state, where `init_state` names a NamedTuple

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        state = _returned(cls.init_state)
        cls._state_kind = None
        if isinstance(state, type) and issubclass(state, tuple) and hasattr(state, "_fields"):
            states.name_for_export(state)
            cls._state_kind = state
        if "step" in cls.__dict__:
            cls.step = _checking(cls.step)  # type: ignore[method-assign]

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size = whole("input_size", input_size)
        self.output_size = whole("size", output_size)

    def init_state(self, batch_size: int) -> AnyState:
        """The state before the first input, `batch_size` rows of it."""
        raise NotImplementedError(f"{type(self).__name__} must define init_state(batch_size)")

    def step(self, x: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        """One input x (B, D) and the state before it: the output (B, H) and the state after it. The definition."""
        raise NotImplementedError(f"{type(self).__name__} must define step(x, state)")

    def scan(
        self,
        x: Tensor,
        state: AnyState = None,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, AnyState]:
        """A batch of sequences x (B, T, D): the outputs y (B, T, H) and the state after each row's last valid input.

        `state` None means init_state(B). `lengths` (B,) whole numbers in [0, T]: y is zero past them.
        `reset` (B, T) bool: x[:, t] is the first input of a new episode.
        """
        self._check_input(x)
        B, T = x.shape[:2]
        if state is None:
            state = self.init_state(B)
        else:
            self._check_state(x, state)
        if lengths is None:
            lengths = torch.full((B,), T, device=x.device)
        else:
            lengths = checked(lengths, x)
            if not self.skips_padding(x):  # a NaN there would come back as 0 * NaN in the gradient of an input weight
                x = zero_past(x, lengths)
        reset = torch.zeros(B, T, dtype=torch.bool, device=x.device) if reset is None else _checked_reset(reset, x)
        return self._scan(x, state, lengths, reset)

    forward = scan

    def has_hooks(self) -> bool:
        """Whether anybody listens to calls of this core."""
        hooks = (self._forward_pre_hooks, self._forward_hooks, self._backward_pre_hooks, self._backward_hooks)
        return any(hooks)

    def scan_unchecked(self, x: Tensor, state: AnyState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, AnyState]:
        """What a combinator calls of a core that it wraps: `_scan`, or the whole call where hooks listen to it."""
        if self.has_hooks():
            result: tuple[Tensor, AnyState] = self(x, state, lengths=lengths, reset=reset)
            return result
        return self._scan(x, state, lengths, reset)

    def _scan(self, x: Tensor, state: AnyState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, AnyState]:
        """The loop over `step`. Override it only to call a kernel: law 7 compares the two."""
        init = self.init_state(len(x))
        return kernels.loop(self.step, x, state, init, lengths, reset, self.output_size)

    def skips_padding(self, x: Tensor) -> bool:
        """Whether a scan of x does not even read what is past the lengths, so that nobody has to make it zero."""
        return False

    @property
    def title(self) -> str:
        """What the lens calls it."""
        return type(self).__name__.lower()

    def named_gates(self, x: Tensor, state: AnyState) -> dict[str, Tensor]:
        """Its gates that lie between 0 and 1, by name (M, H), at steps that are independent: x (M, D), M states."""
        return {}

    def describe_step(self, builder: Builder, x: Slot, state: AnyState) -> Slot:
        """Append to `builder` what makes y and the next state of x and the state, given as slots: the slot of y.

        kernels/builder.py shows how. A core that does not say is streamed by scans of one step.
        """
        raise Unstreamable(f"{type(self).__name__} does not describe its step")

    def parts(self, state: AnyState) -> Sequence[tuple[Core, AnyState]] | None:
        """The cores inside, each with its part of a state; None of a core that is one recurrence, as every cell is.

        The lens looks at what it finds so: at each recurrence by itself.
        """
        return None

    def recurrent(self) -> dict[str, Tensor]:
        """The matrices (N, N) by which the state acts on itself, by name: the lens shows their eigenvalues."""
        return {}

    def take(self, rows: Tensor | Sequence[int]) -> Core:
        """The core for some rows of a batch: itself, unless bound to what has rows (compose/attention/bound.py)."""
        return self

    def repeat(self, times: int) -> Core:
        """The core for a batch whose rows are repeated, as `state.repeat` does it."""
        return self

    def zeros(self, batch_size: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A leaf (batch_size, *shape) of zeros on the parameters' device, as wide as they are and at least `dtype`."""
        if not torch.compiler.is_compiling():  # a compiled graph may have a symbol in its place
            batch_size = whole("batch_size", batch_size, least=0)
        like = next(self.parameters(), None)
        if like is None:
            return torch.zeros(batch_size, *shape, dtype=dtype)
        return torch.zeros(batch_size, *shape, dtype=torch.promote_types(like.dtype, dtype), device=like.device)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}"

    def _check_input(self, x: Tensor) -> None:
        if isinstance(x, PackedSequence):
            raise InputError(
                "x is a PackedSequence; rows of different lengths need no packing here, nor sorting: unpack them with "
                "x, lengths = torch.nn.utils.rnn.pad_packed_sequence(x, batch_first=True), and call "
                "core(x, lengths=lengths)"
            )
        if not isinstance(x, Tensor):
            raise InputError(
                f"x is a {type(x).__name__}; scan takes a tensor (B, T, {self.input_size}): torch.as_tensor(x)"
            )
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            hint = (
                "add the missing axis with x[None] or x[:, None]"
                if x.dim() == 2
                else "batch first, time second, features last"
            )
            raise InputError(f"x has shape {list(x.shape)}; scan takes (B, T, {self.input_size}): {hint}")
        self._check_type(x)

    def _check_type(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise InputError(
                f"x is {x.dtype}; a core takes floating-point features: embed symbols first, or call x.float()"
            )
        like = next(self.parameters(), None)
        if like is None:
            return
        if x.device != like.device:
            raise InputError(f"x is on {x.device}, the core on {like.device}; move one with .to(device)")
        if x.dtype not in (like.dtype, *NARROW):
            raise InputError(
                f"x is {x.dtype}, the parameters {like.dtype}; x may be as wide as they are, or bfloat16 or float16. "
                f"Convert with x.to({like.dtype}) or core.to({x.dtype})."
            )

    def _check_step(self, x: Tensor, state: State) -> None:
        """What a step can check for next to nothing: its definition would broadcast one row to many, in silence."""
        if x.dim() != 2 or x.shape[1] != self.input_size:
            raise InputError(f"x has shape {list(x.shape)}; step takes one input for each row, (B, {self.input_size})")
        self._check_type(x)
        kind = self._state_kind
        if kind is not None and not isinstance(state, kind):
            raise InputError(
                f"the state is {states.describe(state)}, a {type(state).__name__}; that of {type(self).__name__} has "
                f"the fields {', '.join(kind._fields)}, in a {kind.__name__}. "  # type: ignore[attr-defined]
                "Pass what init_state or an earlier step of the same core returned; of what torch.nn returned, "
                "elman.state_from_torch(core, state) makes such a state."
            )
        leaves = states.leaves(state)
        for leaf in leaves:
            if leaf.shape[:1] != x.shape[:1]:
                raise InputError(
                    f"x has {len(x)} rows, a leaf of the state {list(leaf.shape)}: each row has a state of its own. "
                    "Use state.take or state.repeat to change the rows of a state."
                )
        # An initial state to compare with costs as much as all else here; most often it can tell nothing new.
        if any(leaf.dtype != x.dtype for leaf in leaves) or (kind is not None and states.has_sums(kind)):
            self._check_state(x, state)

    def _check_state(self, x: Tensor, state: State) -> None:
        like = self.init_state(0)
        if x.dtype in NARROW:  # wider states beside narrow activations are fine
            like = states.map(lambda leaf, given: leaf.to(torch.promote_types(leaf.dtype, given.dtype)), like, state)
        states.check(state, like, len(x))


def _checking(step: Callable[..., tuple[Tensor, AnyState]]) -> Callable[..., tuple[Tensor, AnyState]]:
    """A core's `step` after the checks, which are left out if a subclass calls it, whose state may have more parts, or
    if it is traced (kernels/trace.py), since then there are no rows yet."""

    @functools.wraps(step)
    def checked_step(self: Core, x: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        if type(self).step is checked_step and isinstance(x, Tensor) and not torch.compiler.is_compiling():
            self._check_step(x, state)
        return step(self, x, state)

    return checked_step


def _returned(method: Callable[..., object]) -> object:
    """The declared return type of a method; None if it cannot be resolved."""
    try:
        return get_type_hints(method).get("return")
    except (NameError, AttributeError, TypeError, SyntaxError):  # a class inside a function, or not imported here
        return None


def _checked_reset(reset: Tensor, x: Tensor) -> Tensor:
    B, T = x.shape[:2]
    if not isinstance(reset, Tensor) or reset.shape != (B, T) or reset.dtype != torch.bool:
        raise InputError(
            f"reset is {states.describe(reset)}; expected bool[{B}, {T}]: True where x[:, t] starts an episode"
        )
    if reset.device != x.device:
        raise InputError(f"reset is on {reset.device}, x on {x.device}; move one with .to(device)")
    return reset
