"""The recurrences inside a model, each with its inputs. The lens inspects them one by one.

    y[t], s[t] = step(x[t], s[t-1])

A layer is an innermost Core that has a state and was called: a cell in a stack, a cell inside Reverse (whose time runs
from right to left), or a user's core as a whole. `Core.parts` says what is inside a core; a decoder whose recurrence
reads the result of its attention is one layer with it. Given its inputs x, a layer is a recurrence of its own, whatever
is around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import state as states
from elman.cells.bank import Bank
from elman.cells.diagonal import Diagonal
from elman.cells.gated import Gated
from elman.compose import Reverse
from elman.core import Core
from elman.state import AnyState, State

NUMBERS = 1 << 25  # in memory at a time, about

Record = Callable[[Core, tuple[Tensor, ...], dict[str, Tensor | None], tuple[Tensor, State]], None]  # a forward hook


class Layer(NamedTuple):
    """A recurrence with its inputs (B, T, D) and outputs (B, T, H), in its own time."""

    name: str
    cell: Core
    x: Tensor
    state: State  # before the first input
    reset: Tensor  # (B, T)
    lengths: Tensor  # (B,)
    y: Tensor  # with its graph
    backwards: bool  # reads from right to left

    def rows(self, rows: Tensor | slice) -> Layer:
        """The layer for some of its rows."""
        state, cell = states.map(lambda leaf: leaf[rows], self.state), self.cell.take(torch.arange(len(self.x))[rows])
        x, y, reset, lengths = self.x[rows], self.y[rows], self.reset[rows], self.lengths[rows]
        return self._replace(cell=cell, x=x, state=state, reset=reset, lengths=lengths, y=y)

    def first(self, times: int) -> Core:
        """Its cell, for `times` rows that are all like the first."""
        return self.cell.take(torch.zeros(times, dtype=torch.int64))

    @property
    def size(self) -> int:
        """How many real numbers its state has."""
        return flat(self.cell.init_state(1)).shape[1]


@contextmanager
def inspection_mode(model: nn.Module) -> Iterator[None]:
    """Inside, a model is in evaluation mode, and its parameters need no gradient."""
    training = {part: part.training for part in model.modules()}
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for part, was in training.items():
            part.training = was
        for parameter in wanted:
            parameter.requires_grad_(True)


@contextmanager
def record_layers(core: Core) -> Iterator[list[Layer]]:
    """The layers of a core that are called inside the block, in order: the list is filled when the block ends."""
    called: list[tuple[str, Layer]] = []
    layers: list[Layer] = []
    hooks = []
    inside = dict(_cores_inside(core, core.init_state(0)))
    for name, part in core.named_modules():
        if isinstance(part, Core) and part in inside and states.leaves(part.init_state(0)):
            hooks.append(part.register_forward_hook(_record(called, name, inside[part]), with_kwargs=True))
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()
        layers.extend(_innermost(called))


def innermost(core: Core, state: State) -> Iterator[tuple[Core, State]]:
    """The recurrences inside a core and their parts of its state, in the order of `record_layers`."""
    inside = core.parts(state)
    if inside is not None:
        for inner, part in inside:
            yield from innermost(inner, part)
    elif states.leaves(state):
        yield core, state


def _cores_inside(core: Core, state: State, backwards: bool = False) -> Iterator[tuple[Core, bool]]:
    """A core and those inside that `parts` names, and whether each reads from right to left. A core that says that it
    has no parts at all (`[]`, not None) is not a recurrence."""
    inside = core.parts(state)
    if inside is None or inside:
        yield core, backwards
    for inner, part in inside or ():
        yield from _cores_inside(inner, part, backwards != isinstance(core, Reverse))


def title(number: int, cell: Core, backwards: bool = False) -> str:
    """The name of a layer.

    >>> from elman.cells import cell
    >>> title(0, cell("gru", 3, 4))
    '0 gru'
    """
    return f"{number} {cell.title}" + (" (right to left)" if backwards else "")


def _above(name: str) -> list[str]:
    """The modules that contain a module, outermost first.

    >>> _above("cores.0.core")
    ['', 'cores', 'cores.0']
    """
    parts = name.split(".") if name else []
    return [".".join(parts[:i]) for i in range(len(parts))]


def _record(called: list[tuple[str, Layer]], name: str, backwards: bool) -> Record:
    def record(
        cell: Core, arguments: tuple[Tensor, ...], named: dict[str, Tensor | None], result: tuple[Tensor, State]
    ) -> None:
        x, *rest = arguments
        B, T = x.shape[:2]
        lengths, reset = named.get("lengths"), named.get("reset")
        lengths = torch.full((B,), T, device=x.device) if lengths is None else lengths
        reset = torch.zeros(B, T, dtype=torch.bool, device=x.device) if reset is None else reset
        state = rest[0] if rest and rest[0] is not None else cell.init_state(B)
        called.append((name, Layer(name, cell, x.detach(), states.detach(state), reset, lengths, result[0], backwards)))

    return record


def _innermost(called: list[tuple[str, Layer]]) -> Iterator[Layer]:
    """Without those that contain others, and those that ran where no gradient passes (inside Recompute)."""
    graph = any(layer.y.requires_grad for _, layer in called)
    inside = [(name, layer) for name, layer in called if layer.y.requires_grad or not graph]
    around = {above for name, _ in inside for above in _above(name)}
    for i, layer in enumerate(layer for name, layer in inside if name not in around):
        yield layer._replace(name=title(i, layer.cell, layer.backwards))


def flat(state: State) -> Tensor:
    """The leaves of a state side by side as real numbers (B, N), a complex one as its two parts.

    >>> flat((torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.complex64))).shape
    torch.Size([2, 11])
    """
    return torch.cat([_real(leaf).flatten(1) for leaf in states.leaves(state)], 1)


def unflat(rows: Tensor, like: State) -> State:
    """The inverse: rows (M, N) as a state with M rows, of the structure of `like`."""
    widths = [_real(leaf[:1]).numel() for leaf in states.leaves(like)]
    parts = iter(rows.split(widths, 1))

    def part(leaf: Tensor) -> Tensor:
        values = next(parts)
        if leaf.is_complex():
            return torch.view_as_complex(values.reshape(-1, *leaf.shape[1:], 2))
        return values.reshape(-1, *leaf.shape[1:])

    return states.map(part, like)


def _real(leaf: Tensor) -> Tensor:
    return torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf


def one_step(cell: Core, x: Tensor, state: State) -> tuple[Tensor, State]:
    """A scan of one input x (B, D), natively where there is a kernel: y (B, H) and the state after it."""
    B = len(x)
    one, none = torch.ones(B, dtype=torch.int64, device=x.device), torch.zeros(B, 1, dtype=torch.bool, device=x.device)
    y, state = cell.scan_unchecked(x[:, None], state, one, none)
    return y[:, 0], state


def state_before(layer: Layer, t: int, state: State) -> State:
    """The state that enters step t: at a reset, the initial one."""
    if not bool(layer.reset[:, t].any()):
        return state
    return states.where(layer.reset[:, t], layer.cell.init_state(len(layer.x)), state)


@torch.no_grad()
def trajectory(layer: Layer) -> Tensor:
    """The state before each step, and after the last: (B, T + 1, N) real. If y is the state, one scan gives it."""
    leaves = states.leaves(layer.state)
    if layer.cell.output_is_state and len(leaves) == 1 and not leaves[0].is_complex() and not bool(layer.reset.any()):
        return torch.cat([flat(layer.state)[:, None], layer.y.detach().to(leaves[0].dtype).flatten(2)], 1)
    state, history = layer.state, [flat(layer.state)]
    for t in range(layer.x.shape[1]):
        _, state = one_step(layer.cell, layer.x[:, t], state_before(layer, t, state))
        history.append(flat(state))
    return torch.stack(history, 1)


@torch.no_grad()
def decays(layer: Layer) -> Tensor | None:
    """a of h = a h' + b at the steps of the first row (T, N), or (1, N) if it is constant; None for other cells."""
    cell = layer.cell
    if not isinstance(cell, Diagonal | Bank):
        return None
    a = cell.decays(layer.x[:1, : int(layer.lengths[0])])
    return a[0] if isinstance(cell, Diagonal) and a.dim() > 1 else a.flatten()[None]


def jacobian(layer: Layer, x: Tensor, before: Tensor) -> Tensor:
    """d s[t] / d s[t-1] (M, N, N) of M steps of the first row, which are independent: inputs x (M, D), states before
    (M, N) real."""
    result = _by_gates(layer.cell, x, before) if isinstance(layer.cell, Gated) else None
    return _by_rows(layer, x, before) if result is None else result


def _by_rows(layer: Layer, x: Tensor, before: Tensor) -> Tensor:
    """A backward pass for each number of the state."""
    before = before.detach().requires_grad_()
    _, new = one_step(layer.first(len(x)), x, unflat(before, layer.cell.init_state(len(x))))
    after, jacobians = flat(new), before.new_zeros(*before.shape, before.shape[1])
    if not after.requires_grad:
        return jacobians
    for i in range(before.shape[1]):
        unit = torch.zeros_like(after)
        unit[:, i] = 1.0
        (row,) = torch.autograd.grad(after, before, unit, retain_graph=True, allow_unused=True, materialize_grads=True)
        jacobians[:, i] = row
    return jacobians


def _by_gates(cell: Gated[tuple[Tensor, ...]], x: Tensor, before: Tensor) -> Tensor | None:
    """J = diag(d) + sum over gates g of diag(p_g ds/du_g) W_g, if all but W h' is unit by unit: a backward pass of
    ones gives each whole diagonal. None if the cell does not declare it."""
    leaves = [leaf.detach().requires_grad_() for leaf in states.leaves(unflat(before, cell.init_state(len(x))))]
    parts = iter(leaves)
    state: AnyState = states.map(lambda _: next(parts), cell.init_state(len(x)))
    u = cell.project(x).detach().requires_grad_()
    gates = cell.gates(u, state)
    factors, loop = cell.gate_factors(gates), cell.loop()
    if factors is None or loop is None:
        return None
    after = states.leaves(cell.update(gates, state))
    W = loop.weights[0].detach().unflatten(0, (len(factors), -1)).to(before.dtype)  # (gates, H, H)
    H = W.shape[1]
    jacobians = before.new_zeros(H, len(after), len(x), before.shape[1])  # for each number of a leaf, of all steps
    units = torch.arange(H)
    for i, leaf in enumerate(after):
        du, *direct = torch.autograd.grad(leaf.sum(), [u, *leaves], retain_graph=True, materialize_grads=True)
        by_gate = torch.stack([p * d for p, d in zip(factors, du.chunk(len(factors), -1), strict=True)]).detach()
        jacobians[:, i, :, :H] = torch.bmm(by_gate.permute(2, 1, 0), W.transpose(0, 1))
        direct[0] = direct[0] - torch.einsum("gmi,gij->mj", by_gate, W)
        for j, own in enumerate(direct):
            jacobians[units, i, :, j * H + units] += own.T
    return jacobians.permute(2, 1, 0, 3).flatten(1, 2)
