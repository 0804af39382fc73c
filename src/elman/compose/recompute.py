"""Long sequences in little memory: keep the state every so many steps, compute what lies between them again.

A scan of T steps in pieces of `every` keeps T / every states; the backward pass holds what one piece saves. Both are
O(sqrt(T)) where every = sqrt(T), for one more forward pass. A cell that is one native loop does all this inside it.

Or keep all of it in half of the memory, for gradients of fewer digits: `save_bfloat16`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from elman import kernels
from elman import state as states
from elman.cells.gated import Gated
from elman.compose.dropout import Dropout, WeightDrop, lend, one_scan, seed_of_scan
from elman.compose.structure import Wrapper, name_of
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.reference import Context
from elman.options import whole_or_auto
from elman.state import State

M = TypeVar("M", bound=torch.nn.Module)
Drawn = tuple[Tensor, list[int], list[Tensor]]  # the states of the random generators: of the CPU, of which devices


def save_bfloat16(module: M) -> M:
    """The module, whose gated cells from now on store what the backward pass needs in bfloat16: their gates and cells,
    rounded to the nearest. Outputs and states keep their bits; gradients differ by some parts in a thousand.

    It is about native loops in float32. What other cells, other dtypes, the reference kernels, loops with attention
    inside and Recompute(cell) store stays as it is. Model files do not know of it.

    >>> from elman.compose import stack
    >>> core = save_bfloat16(stack("gru", 8, 16, layers=2, bidirectional=True))
    """
    cells = [part for part in module.modules() if isinstance(part, Gated) and part.has_loop()]
    if not cells:
        raise InputError(
            f"save_bfloat16 was given a {type(module).__name__} without a gated cell of a native loop (rate, mgu, "
            "gru, lstm), and would change nothing; Recompute(core) saves memory for every causal core"
        )
    for part in cells:
        part.saves_bfloat16 = True
    return module


class Recompute(Wrapper):
    """The core, which for the backward pass remembers its input, and its state every `every` steps, and no more.

    every="auto" is the square root of T, rounded up. Masks of dropout are drawn again as they were, and hold through a
    scan where they do so in the core. T. Chen et al., Training deep nets with sublinear memory cost (2016).

    >>> from elman.cells import cell
    >>> y, state = Recompute(cell("gru", 3, 4)).scan(torch.ones(1, 100, 3))
    """

    def __init__(self, core: Core, every: int | str = "auto") -> None:
        super().__init__(core)
        if not core.causal:
            raise InputError(
                f"Recompute was given {name_of(core)}, which reads the future and cannot be cut into pieces: "
                "put it inside, Reverse(Recompute(core))"
            )
        self.every = whole_or_auto("every", every)
        self.output_is_state = core.output_is_state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.core.step(x, state)

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        leaves, weights = states.leaves(state), dict(self.core.named_parameters())
        wanted = any(t.requires_grad for t in (x, *leaves, *weights.values()))
        T = x.shape[1]
        if not (torch.is_grad_enabled() and wanted and T):
            return self.core.scan_unchecked(x, state, lengths, reset)
        every = self.every or math.ceil(math.sqrt(T))
        native = kernels.native_for(x, *leaves, *weights.values())
        if native and isinstance(self.core, Gated) and self.core.has_loop():
            return self.core.scan_recomputed(x, state, lengths, reset, every)  # all this inside one native loop
        device = x.device.type
        draws = any(part.training and isinstance(part, Dropout | WeightDrop) for part in self.core.modules())
        pieces = _Pieces(
            core=self.core,
            names=tuple(weights),
            cuts=tuple(itertools.pairwise((*range(0, T, every), T))),
            state=states.detach(state),
            lengths=lengths,
            reset=reset,
            kernels=kernels.active(),
            precision=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
            training={part: part.training for part in self.core.modules()},
            seed=seed_of_scan(x.device) if draws else None,
        )
        y, *last = _Recomputed.apply(pieces, x, *leaves, *weights.values())
        return y, _rebuild(state, last)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return self.core.describe_step(builder, x, state)  # a stream has no backward pass

    def extra_repr(self) -> str:
        return f"every={self.every or 'auto'!r}"


@dataclass(frozen=True)
class _Pieces:
    """A scan that runs piece by piece, and what it takes to run a piece again just as it was."""

    core: Core
    names: tuple[str, ...]  # of the core's parameters
    cuts: tuple[tuple[int, int], ...]
    state: State  # for its structure
    lengths: Tensor
    reset: Tensor
    kernels: str
    precision: torch.dtype | None  # of autocast, None where it is off
    training: dict[torch.nn.Module, bool]
    seed: int | None

    def run(
        self, scan: Callable[..., tuple[Tensor, State]], x: Tensor, leaves: list[Tensor], cut: tuple[int, int]
    ) -> tuple[Tensor, list[Tensor]]:
        """The piece x of the sequence that `cut` bounds, from and to the leaves of a state."""
        start, end = cut
        lengths = (self.lengths - start).clamp(0, end - start)
        autocast = torch.autocast(x.device.type, self.precision, enabled=self.precision is not None)
        with one_scan(self.seed, x.device), autocast:
            y, state = scan(x, _rebuild(self.state, leaves), lengths, self.reset[:, start:end])
        return y, states.leaves(state)

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """The kernels and the modes that the forward pass had."""
        now = {part: part.training for part in self.training}
        try:
            for part, training in self.training.items():
                part.training = training
            with kernels.use(self.kernels):
                yield
        finally:
            for part, training in now.items():
                part.training = training


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, pieces: _Pieces, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        number = len(tensors) - len(pieces.names)
        leaves, weights = list(tensors[:number]), tensors[number:]
        kept, ctx.random = [], []
        y = x.new_empty(0)
        for start, end in pieces.cuts:
            kept.append(leaves)
            ctx.random.append((torch.get_rng_state(), *get_device_states(x)))
            part, leaves = pieces.run(pieces.core._scan, x[:, start:end], leaves, (start, end))
            if start == 0:
                y = part.new_empty(*x.shape[:2], part.shape[-1])
            y[:, start:end] = part
        ctx.pieces, ctx.number = pieces, number
        ctx.save_for_backward(x, *weights, *itertools.chain(*kept))
        ctx.mark_non_differentiable(*(leaf for leaf in leaves if not _differentiable(leaf)))
        ctx.set_materialize_grads(False)
        return y, *leaves

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, *glast: Tensor | None) -> tuple[Tensor | None, ...]:
        pieces: _Pieces = ctx.pieces
        x, *saved = ctx.saved_tensors
        weights, saved = saved[: len(pieces.names)], saved[len(pieces.names) :]
        kept = [saved[i * ctx.number : (i + 1) * ctx.number] for i in range(len(pieces.cuts))]
        # A graph of the backward pass, for second derivatives, holds everything anyway.
        run = _backward_at_once if torch.is_grad_enabled() else _backward_by_pieces
        with pieces.as_it_was(), torch.random.fork_rng(ctx.random[0][1]), torch.enable_grad():
            return None, *run(pieces, x, weights, kept, ctx.random, gy, list(glast), ctx.needs_input_grad[1:])


def _backward_by_pieces(
    pieces: _Pieces,
    x: Tensor,
    weights: list[Tensor],
    kept: list[list[Tensor]],
    random: list[Drawn],
    gy: Tensor | None,
    gleaves: list[Tensor | None],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """From the last piece to the first, each computed again from the state that was kept before it."""
    gx = torch.zeros_like(x) if needs[0] else None
    weights = [w.detach().requires_grad_(need) for w, need in zip(weights, needs[1 + len(kept[0]) :], strict=True)]
    scan = lend(pieces.core, pieces.core._scan, dict(zip(pieces.names, weights, strict=True)))
    for cut, before, drawn in reversed(list(zip(pieces.cuts, kept, random, strict=True))):
        part = x[:, slice(*cut)].detach().requires_grad_(needs[0])
        leaves = [leaf.detach().requires_grad_(_differentiable(leaf)) for leaf in before]
        _set_random(drawn)
        y, last = pieces.run(scan, part, leaves, cut)
        outputs, gradients = _with_gradients([y, *last], [None if gy is None else gy[:, slice(*cut)], *gleaves])
        inputs = [tensor for tensor in (part, *leaves, *weights) if tensor.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, gradients, inputs=inputs)
        gleaves = [leaf.grad for leaf in leaves]
        if gx is not None and part.grad is not None:
            gx[:, slice(*cut)] = part.grad
    return [gx, *gleaves, *(w.grad for w in weights)]


def _backward_at_once(
    pieces: _Pieces,
    x: Tensor,
    weights: list[Tensor],
    kept: list[list[Tensor]],
    random: list[Drawn],
    gy: Tensor | None,
    gleaves: list[Tensor | None],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """The same through one graph of all pieces, which can be differentiated again."""
    scan = lend(pieces.core, pieces.core._scan, dict(zip(pieces.names, weights, strict=True)))
    parts, leaves = [], kept[0]
    for cut, drawn in zip(pieces.cuts, random, strict=True):
        _set_random(drawn)
        part, leaves = pieces.run(scan, x[:, slice(*cut)], leaves, cut)
        parts.append(part)
    outputs, gradients = _with_gradients([torch.cat(parts, 1), *leaves], [gy, *gleaves])
    inputs = [t for t, need in zip((x, *kept[0], *weights), needs, strict=True) if need]
    results = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=True, allow_unused=True))
    return [next(results) if need else None for need in needs]


def _with_gradients(outputs: list[Tensor], gradients: list[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs at which a gradient arrives, and it."""
    pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None and y.requires_grad]
    return [y for y, _ in pairs], [g for _, g in pairs]


def _set_random(drawn: Drawn) -> None:
    torch.set_rng_state(drawn[0])
    set_device_states(*drawn[1:])


def _rebuild(state: State, leaves: list[Tensor]) -> State:
    remaining = iter(leaves)
    return states.map(lambda _: next(remaining), state)


def _differentiable(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()
