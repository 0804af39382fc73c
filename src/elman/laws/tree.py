"""The laws every recursion over trees keeps, and a checker that anyone can run on their own: `print(check(core))`.

1. The scan is the recursive definition: values, and gradients with respect to inputs and parameters.
2. A tree in any batch is that tree alone.
3. The order of the children is irrelevant, where the core says so (`ordered` is False).
4. Shift and reduce, step by step, is the scan.
5. A single node, unary chains, a chain of 5,000 levels and a forest without trees are trees as well.
6. On the native kernels, laws 2 and 4 hold bit for bit.

Laws 1 to 5 make a core correct, law 6 makes it exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elman import state as states
from elman.errors import InputError
from elman.laws.report import Report, distance, dtype_of, error, try_laws
from elman.state import State, leaves
from elman.tasks.tree import ShiftReduce, TreeCore, steps
from elman.tasks.tree.forest import Forest, Shape, shape

TITLES = {
    1: "the scan is the recursive definition, gradients included",
    2: "a tree in any batch is that tree alone",
    3: "the order of children is irrelevant where the core says so",
    4: "shift and reduce, step by step, is the scan",
    5: "single nodes, chains, deep ones too, and no trees at all",
    6: "laws 2 and 4 hold bit for bit on the native kernels",
}
DEEP = 5000  # levels, more than recursion could go


@dataclass(frozen=True)
class TreeSample:
    """Trees, in post-order, and their inputs x (M, D)."""

    shapes: list[Shape]
    x: Tensor


def check(core: TreeCore, *, seed: int = 0) -> Report:
    """Try every law on a core, on the kernels in use, in the dtype of its parameters.

    >>> from elman.tasks.tree import tree
    >>> bool(check(tree("recursive", 3, 4)))
    True
    """
    if not isinstance(core, TreeCore):
        raise InputError(f"laws.tree.check was given a {type(core).__name__}; it takes a TreeCore")
    core = copy.deepcopy(core).eval()
    return try_laws(core, draw(core, dtype_of(core), seed), LAWS, TITLES, bitwise=6)


def draw(core: TreeCore, dtype: torch.dtype, seed: int = 0) -> TreeSample:
    """Trees of every form that a core takes: some nodes read an input and some do not."""
    random = torch.Generator().manual_seed(seed)
    most = 4 if core.places is None else core.places
    shapes = [shape([-1]), shape([1, 2, -1])]
    shapes += [random_tree(int(torch.randint(2, 12, (1,), generator=random)), most, random) for _ in range(4)]
    inputs = sum(int(s.reads.sum()) for s in shapes)
    return TreeSample(shapes, torch.randn(inputs, core.input_size, generator=random, dtype=dtype))


def random_tree(leaf_count: int, most: int, random: torch.Generator) -> Shape:
    """A tree of so many leaves, nodes of 1 to `most` children, in post-order; all leaves read, of the others some."""

    def below(n: int) -> int:
        return int(torch.randint(n, (1,), generator=random))

    parents: list[int] = []
    stack: list[int] = []
    reads: list[bool] = []
    left = leaf_count
    while left or len(stack) > 1:
        count = 1 + below(min(most, len(stack))) if stack and (not left or below(2)) else 0
        if count == 1 and (not left or below(3)):  # some unary nodes, without end at no place
            count = min(2, len(stack)) if most > 1 else count
        for child in stack[len(stack) - count :] if count else ():
            parents[child] = len(parents)
        stack = [*stack[: len(stack) - count], len(parents)]
        parents.append(-1)
        reads.append(not count or not below(2))
        left -= not count
    return shape(parents, reads)


def scan_is_definition(core: TreeCore, sample: TreeSample) -> float:
    forest = Forest.of(sample.shapes)
    scanned = _with_gradients(core, sample.x, lambda x: core.scan(x, forest)[1])
    wanted = _with_gradients(core, sample.x, lambda x: _recursive(core, sample.shapes, x, forest))
    return max(error(a, b) for a, b in zip(scanned, wanted, strict=True))


def _recursive(core: TreeCore, shapes: list[Shape], x: Tensor, forest: Forest) -> State:
    """One node after the other, as the equation has it: rows of the forest."""
    states_: list[State] = []
    read = 0
    for tree in shapes:
        own: list[State] = []
        for node, reads in enumerate(tree.reads.tolist()):
            children = [own[i] for i in range(node) if tree.parents[i] == node]
            own_x = x[read : read + 1] if reads else x.new_zeros(1, x.shape[1])
            own.append(core.combine(own_x, _side_by_side(core, children)))
            read += int(reads)
        states_ += own
    order = torch.empty_like(forest.rows)
    order[forest.rows] = torch.arange(len(order))
    return states.take(states.concat(states_), order)


def _side_by_side(core: TreeCore, children: list[State]) -> State:
    """States of (1, H) as one of (1, K, H)."""
    if not children:
        return states.map(lambda leaf: leaf[:, None][:, :0], core.init_state(1))
    return states.map(lambda leaf: leaf[None], states.concat(children))


def _with_gradients(core: TreeCore, x: Tensor, run: Callable[[Tensor], State]) -> list[Tensor]:
    x = x.detach().requires_grad_()
    outputs = leaves(run(x))
    wanted = [x, *(p for p in core.parameters() if p.requires_grad)]
    total = torch.stack([(y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs]).sum()
    gradients = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*outputs, *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients, strict=True))]


@torch.no_grad()
def batch_is_alone(core: TreeCore, sample: TreeSample) -> float:
    forest = Forest.of(sample.shapes)
    _, state = core.scan(sample.x, forest)
    worst, node, read = 0.0, 0, 0
    for tree in sample.shapes:
        own, inputs = Forest.of([tree]), int(tree.reads.sum())
        _, alone = core.scan(sample.x[read : read + inputs], own)
        rows = forest.rows[node : node + len(tree.parents)]
        worst = max(worst, distance(states.take(state, rows), states.take(alone, own.rows)))
        node, read = node + len(rows), read + inputs
    return worst


@torch.no_grad()
def order_is_irrelevant(core: TreeCore, sample: TreeSample) -> float:
    if core.ordered:
        return 0.0
    forest = Forest.of(sample.shapes)
    turned = forest.children.clone()
    for first, end in zip(forest.first[:-1].tolist(), forest.first[1:].tolist(), strict=True):
        turned[first:end] = turned[first:end].flip(0)
    return distance(core.scan(sample.x, forest)[1], core.scan(sample.x, forest._replace(children=turned))[1])


@torch.no_grad()
def steps_are_scan(core: TreeCore, sample: TreeSample) -> float:
    forest, shift = Forest.of(sample.shapes), ShiftReduce(core, depth=16)
    y, _ = core.scan(sample.x, forest)
    worst, node = 0.0, 0
    for x in steps(sample.x, sample.shapes):
        rows = y[forest.rows[node : node + len(x)]]
        whole, _ = shift.scan(x[None])
        state, outputs = shift.init_state(1), []
        for t in range(len(x)):
            one, state = shift.scan(x[None, t : t + 1], state)
            outputs.append(one[0])
        worst = max(worst, error(whole[0], rows), error(torch.cat(outputs), rows))
        node += len(x)
    return worst


@torch.no_grad()
def odd_forests_work(core: TreeCore, sample: TreeSample) -> float:
    """The deep chain is compared with the definition, node by node."""
    empty, _ = core.scan(sample.x[:0], Forest.of([]))
    chain = shape([*range(1, DEEP), -1], [True, *[False] * (DEEP - 1)])
    forest = Forest.of([chain])
    _, state = core.scan(sample.x[:1], forest)
    combined = core.combine(sample.x[:1], _side_by_side(core, []))
    nothing = torch.zeros_like(sample.x[:1])
    for _ in range(DEEP - 1):
        combined = core.combine(nothing, _side_by_side(core, [combined]))
    return max(float(len(empty)), distance(states.take(state, forest.roots), combined))


def exact(core: TreeCore, sample: TreeSample) -> float:
    return max(batch_is_alone(core, sample), steps_are_scan(core, sample))


LAWS: dict[int, Callable[[TreeCore, TreeSample], float]] = {
    1: scan_is_definition,
    2: batch_is_alone,
    3: order_is_irrelevant,
    4: steps_are_scan,
    5: odd_forests_work,
    6: exact,
}
