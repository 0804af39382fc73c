"""A recursion over trees: the state of a node is combined from its input and the states of its children.

It is not a `Core`, for a node has several predecessors. `combine` is the definition; `scan` goes through a forest level
by level, all trees at once. `ShiftReduce` makes a `Core` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from elman import state as states
from elman.core import Options
from elman.errors import InputError
from elman.kernels import Gather
from elman.options import whole
from elman.state import AnyState, State, leaves
from elman.tasks.tree.forest import Forest


class TreeCore(nn.Module):
    """Subclass it and give it `init_state` and `combine`, and it scans; `laws.tree.check` tells if it is right.

    >>> class Sum(TreeCore):
    ...     def init_state(self, batch_size):
    ...         return torch.zeros(batch_size, self.output_size)
    ...     def combine(self, x, children):
    ...         return x + children.sum(1)
    >>> from elman.tasks.tree.forest import Forest, shape
    >>> forest = Forest.of([shape([2, 2, -1])])
    >>> Sum(1, 1).scan(torch.tensor([[1.], [2.], [3.]]), forest)[0][forest.roots]
    tensor([[6.]])
    """

    places: ClassVar[int | None] = None  # the children that a node may have; None for any number
    ordered: ClassVar[bool] = True  # whether it matters which child is which
    variants: ClassVar[Sequence[Options]] = ({},)  # option sets that the tests cover
    keep_gate: ClassVar[str] = ""  # the gate that says how much of a child stays

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = whole("input_size", input_size), whole("size", output_size)

    def init_state(self, batch_size: int) -> AnyState:
        """Zeros, (batch_size, H) each: what stands for a child that is not there."""
        raise NotImplementedError(f"{type(self).__name__} has no init_state")

    def combine(self, x: Tensor, children: AnyState) -> AnyState:
        """x (B, D), zeros where a node has no input; children a state of (B, K, H) leaves, zeros for a child that is
        not there, K >= 0 -> the state of the nodes, (B, H)."""
        raise NotImplementedError(f"{type(self).__name__} has no combine")

    def gates(self, x: Tensor, children: AnyState) -> dict[str, Tensor]:
        """The gates between 0 and 1 by name, (B, H), or (B, K, H) where each child has its own: the lens shows them."""
        return {}

    def scan(self, x: Tensor, forest: Forest) -> tuple[Tensor, AnyState]:
        """x (M, D), the inputs that `forest.source` numbers: y (N, H) of each row of the forest, and their states."""
        if x.dim() != 2 or x.shape[1] != self.input_size or not x.is_floating_point():
            raise InputError(
                f"{type(self).__name__}: x is {x.dtype} {tuple(x.shape)}; it must be numbers (inputs, "
                f"{self.input_size}), one row for each node that reads one"
            )
        inputs = int(forest.source.max()) + 1 if len(forest.source) else 0
        if len(x) != inputs:
            raise InputError(f"x has {len(x)} rows; the nodes of this forest read {inputs}")
        most = int((forest.first[1:] - forest.first[:-1]).max()) if len(forest.source) else 0
        if self.places is not None and most > self.places:
            raise InputError(
                f"a node of this forest has {most} children; {type(self).__name__} takes {self.places} at most. "
                "Take child_sum_tree_lstm, or make the trees binary."
            )
        state = self._scan(x, forest)
        return leaves(state)[0], state

    forward = scan

    def _gathered(self, x: Tensor, gather: Gather, inside: bool, state: AnyState) -> AnyState:
        """The kernel that does the same, where there is one: `inside` says whether nodes with children read inputs,
        `state` is the state of the rows in front."""
        raise NotImplementedError(f"{type(self).__name__} has no kernel")

    @property
    def has_kernel(self) -> bool:
        return type(self)._gathered is not TreeCore._gathered

    def _scan(self, x: Tensor, forest: Forest) -> AnyState:
        if not self.has_kernel:
            return self._by_definition(x, forest)
        return self._gathered(x, gather_of(forest, self.places), reads_inside(forest), None)

    def _by_definition(self, x: Tensor, forest: Forest) -> AnyState:
        """Combine level by level: what a kernel must agree with."""
        like = self.init_state(1)
        x = torch.cat([x, x.new_zeros(1, self.input_size)])  # what -1 reads
        places, cuts = forest.places, forest.levels.tolist()
        if self.places is not None:
            places = nn.functional.pad(places, (0, self.places - places.shape[1]), value=-1)
        levels = [states.map(lambda leaf: leaf.to(x.dtype), like)]  # of each level, the zero state first
        begins = torch.cat([forest.levels.new_zeros(1), forest.levels + 1])
        for first, end in pairwise(cuts):
            # Rows are one later than in the forest, after the zero state, which is what -1 becomes.
            children = _gathered(levels, places[first:end] + 1, begins)
            levels.append(self.combine(x[forest.source[first:end]], children))
        return states.map(lambda leaf: leaf[1:], states.concat(levels))

    def zeros(self, batch_size: int, *shape: int) -> Tensor:
        """Zeros on the device and in the dtype of the parameters."""
        like = next(self.parameters(), torch.empty(0))
        return like.new_zeros((batch_size, *shape))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}"


def _gathered(levels: list[State], rows: Tensor, begins: Tensor) -> State:
    """The states of rows (B, K), from the levels that have them: concatenating all would be quadratic in levels."""
    needed, place = torch.unique(torch.bucketize(rows, begins[1:], right=True), return_inverse=True)
    sizes = begins[needed + 1] - begins[needed]
    shift = (sizes.cumsum(0) - sizes - begins[needed])[place]
    some = states.concat([levels[i] for i in needed.tolist()])
    return states.map(lambda leaf: leaf[rows + shift], some)


def gather_of(forest: Forest, places: int | None) -> Gather:
    """Where the rows of a forest find their children: at `places` of their own, or, for None, added up."""
    if places is None:
        return Gather(forest.levels, forest.children, forest.first, forest.source, forest.tree)
    before = forest.places
    before = nn.functional.pad(before, (0, places - before.shape[1]), value=-1)
    return Gather(forest.levels, before, None, forest.source, forest.tree)


def reads_inside(forest: Forest) -> bool:
    """Whether a node with children has an input."""
    leaf_rows = int(forest.levels[1]) if len(forest.levels) > 1 else 0
    return bool((forest.source[leaf_rows:] >= 0).any())
