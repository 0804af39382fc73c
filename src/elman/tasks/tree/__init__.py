"""Recursions over trees. One cell, one file, the equation on top; a line in TREES, a page in docs/reference/trees."""

from __future__ import annotations

from elman.errors import UnknownNameError
from elman.options import refuse_unknown
from elman.tasks.tree.binary_tree_lstm import BinaryTreeLSTM
from elman.tasks.tree.child_sum_tree_lstm import ChildSumTreeLSTM
from elman.tasks.tree.climb import Climb, climbs, deepest
from elman.tasks.tree.core import TreeCore
from elman.tasks.tree.forest import Forest, shape
from elman.tasks.tree.recursive import Recursive
from elman.tasks.tree.shift_reduce import ShiftReduce, steps

__all__ = ["TREES", "Climb", "Forest", "ShiftReduce", "TreeCore", "climbs", "deepest", "shape", "steps", "tree"]

TREES: dict[str, type[TreeCore]] = {
    "recursive": Recursive,
    "binary_tree_lstm": BinaryTreeLSTM,
    "child_sum_tree_lstm": ChildSumTreeLSTM,
}


def tree(name: str, input_size: int, size: int, **options: object) -> TreeCore:
    """The tree cell called `name`, from `input_size` features to `size`.

    >>> tree("binary_tree_lstm", 3, 4)
    BinaryTreeLSTM(3, 4)
    """
    if name not in TREES:
        raise UnknownNameError("tree cell", name, TREES)
    refuse_unknown(name, TREES[name], options)
    return TREES[name](input_size, size, **options)
