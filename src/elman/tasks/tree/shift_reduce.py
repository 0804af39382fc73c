"""A tree as a sequence of steps, children before parents: shift pushes a leaf, reduce makes one node of several.

x[t] = [vector, arity]: arity 0 shifts; arity k takes k nodes off a stack, the one that was pushed first being the first
child, and pushes what `combine` makes of them. The stack is the state, so a tree streams, saves and forks as any state.

The stack has `depth` places. A node that is pushed onto a full one makes the lowest fall out; a child that is not there
is a state of zeros.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.kernels import Gather, native_for
from elman.options import whole
from elman.state import AnyState, State, leaves
from elman.tasks.tree.core import TreeCore
from elman.tasks.tree.forest import Shape


class ShiftReduce(Core):
    """A `Core` of a `TreeCore`: y[t] is the node that step t pushes, the state the stack, the top first.

    >>> from elman.tasks.tree import tree
    >>> y, state = ShiftReduce(tree("recursive", 3, 4), depth=8).scan(torch.zeros(2, 5, 4))
    >>> y.shape, state.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 8, 4]))
    """

    def __init__(self, tree: TreeCore, *, depth: int) -> None:
        super().__init__(tree.input_size + 1, tree.output_size)
        self.tree, self.depth = tree, whole("depth", depth)
        self.most = min(self.depth, self.depth if tree.places is None else tree.places)

    def init_state(self, batch_size: int) -> AnyState:
        zero = self.tree.init_state(batch_size * self.depth)
        return states.map(lambda leaf: leaf.view(batch_size, self.depth, *leaf.shape[1:]), zero)

    def step(self, x: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        arity = self._arity(x[:, -1])
        order = torch.arange(self.depth, device=x.device)
        children = _places(state, arity[:, None] - 1 - order[: self.most])
        new = self.tree.combine(x[:, :-1], children)
        rest = _places(state, torch.where(order + arity[:, None] < self.depth, order + arity[:, None], -1))
        stack = states.map(lambda top, rest: torch.cat([top[:, None], rest[:, :-1]], 1), new, rest)
        return leaves(new)[0], stack

    def _arity(self, column: Tensor) -> Tensor:
        return column.detach().nan_to_num().round().clamp(0, self.most).long()

    def _scan(self, x: Tensor, state: AnyState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, AnyState]:
        if not (self.tree.has_kernel and native_for(x, *leaves(state), *self.parameters())):
            return super()._scan(x, state, lengths, reset)
        B, T = x.shape[:2]
        made = _Nodes(self._arity(x[..., -1]), lengths, reset, self.depth)
        before = states.map(lambda leaf: leaf.flatten(0, 1), state)
        made_states = self.tree._gathered(x[made.b, made.t, :-1], made.gather(self.tree.places), True, before)
        y = x.new_zeros(B, T, self.output_size)
        if len(made.b):
            y[made.b[made.order], made.t[made.order]] = leaves(made_states)[0][B * self.depth :]
        return y, states.map(lambda leaf: _or_zero(leaf, made.stacks), made_states)


def _places(state: State, places: Tensor) -> State:
    """The places (B, K) of stacks, zeros for those below 0."""
    rows = torch.arange(len(places), device=places.device)[:, None]

    def some(leaf: Tensor) -> Tensor:
        return torch.where((places >= 0)[..., None], leaf[rows, places.clamp(min=0)], 0.0)

    return states.map(some, state)


def _or_zero(leaf: Tensor, rows: Tensor) -> Tensor:
    return torch.where((rows >= 0)[..., None], leaf[rows.clamp(min=0)], 0.0)


class _Nodes:
    """The nodes that steps make, and where each finds its children: in the stacks that are given, or among themselves.

    Rows are the B * S places that are given, then the nodes by level, row of the batch and time.
    """

    def __init__(self, arity: Tensor, lengths: Tensor, reset: Tensor, depth: int) -> None:
        B, T = arity.shape
        given = B * depth
        stacks: list[list[int]] = []
        children: list[list[int]] = []  # of each node
        level: list[int] = []
        b_of, t_of = [], []
        counts, ends, resets = arity.tolist(), lengths.tolist(), reset.tolist()
        for b in range(B):
            stack = list(range(b * depth, (b + 1) * depth))
            for t in range(ends[b]):
                if resets[b][t]:
                    stack = [-1] * depth
                taken = stack[: counts[b][t]][::-1]
                height = max(
                    (max(level[row - given], 0) if row >= given else 0 for row in taken if row >= 0), default=-1
                )
                stack = [given + len(level), *stack[counts[b][t] :], *[-1] * counts[b][t]][:depth]
                children.append(taken)
                level.append(height + 1)
                b_of.append(b)
                t_of.append(t)
            stacks.append(stack)
        self.order = torch.from_numpy(np.argsort(np.array(level, np.int64), kind="stable"))
        place = torch.cat([torch.arange(given), torch.empty(len(level), dtype=torch.int64)])
        place[given + self.order] = torch.arange(given, given + len(level))
        self.b, self.t = torch.tensor(b_of, dtype=torch.int64), torch.tensor(t_of, dtype=torch.int64)
        self.stacks = _move(torch.tensor(stacks, dtype=torch.int64).view(B, depth), place)
        self._children, self._place, self._given = children, place, given
        sizes = np.bincount(np.array(level, np.int64), minlength=1)
        self._levels = torch.from_numpy(given + np.concatenate([[0], np.cumsum(sizes)]))
        self._group = torch.cat([torch.arange(given) // depth, self.b[self.order]])

    def gather(self, places: int | None) -> Gather:
        source = torch.cat([torch.full((self._given,), -1), self.order])
        ordered = [self._children[i] for i in self.order.tolist()]
        if places is None:
            there = [[row for row in rows if row >= 0] for rows in ordered]
            counts = torch.tensor([0] * (self._given + 1) + [len(rows) for rows in there])
            edges = torch.tensor([row for rows in there for row in rows], dtype=torch.int64)
            return Gather(self._levels, self._place[edges], counts.cumsum(0), source, self._group)
        padded = torch.full((self._given + len(ordered), places), -1)
        for n, rows in enumerate(ordered, self._given):
            padded[n, : len(rows)] = torch.tensor(rows, dtype=torch.int64)
        return Gather(self._levels, _move(padded, self._place), None, source, self._group)


def _move(rows: Tensor, place: Tensor) -> Tensor:
    return torch.where(rows >= 0, place[rows.clamp(min=0)], -1) if len(place) else rows


def steps(x: Tensor, shapes: list[Shape]) -> list[Tensor]:
    """The steps of trees whose nodes come after their children, one a tree: (n, D + 1). x (M, D), as `scan` reads it.

    >>> from elman.tasks.tree.forest import shape
    >>> steps(torch.ones(2, 1), [shape([2, 2, -1], [True, True, False])])[0].tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    """
    series, at = [], 0
    for tree in shapes:
        n = len(tree.parents)
        stack: list[int] = []
        arity = np.bincount(tree.parents[tree.parents >= 0], minlength=n)
        for node in range(n):
            taken = stack[len(stack) - arity[node] :]
            if [int(tree.parents[i]) for i in taken] != [node] * int(arity[node]):
                raise InputError(f"node {node} does not follow its children: number the nodes in post-order")
            stack = [*stack[: len(stack) - arity[node]], node]
        rows = torch.from_numpy(np.cumsum(tree.reads) - 1 + at)
        vectors = (
            torch.where(torch.from_numpy(tree.reads)[:, None], x[rows.clamp(min=0)], 0.0)
            if len(x)
            else x.new_zeros(n, x.shape[1])
        )
        series.append(torch.cat([vectors, torch.from_numpy(arity)[:, None].to(x)], 1))
        at += int(tree.reads.sum())
    return series
