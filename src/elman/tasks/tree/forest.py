"""Trees side by side, as a network reads them: all their nodes as rows, the lowest level first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.errors import InputError

Numbers = NDArray[np.int64]


class Shape(NamedTuple):
    """A tree as the parents of its nodes, -1 for the root; children are in the order of their numbers."""

    parents: Numbers  # (n,)
    heights: Numbers  # (n,): 0 for a leaf
    reads: NDArray[np.bool_]  # (n,): whether the node has an input


def shape(parents: Sequence[int], reads: Sequence[bool] | None = None) -> Shape:
    """A tree whose nodes have these parents, and, where it is not said, an input each.

    >>> shape([2, 2, -1]).heights.tolist()
    [0, 0, 1]
    """
    n = len(parents)
    mask = np.ones(n, bool) if reads is None else np.array(reads, bool)
    if n == 0 or len(mask) != n or sum(p < 0 for p in parents) != 1 or any(p >= n for p in parents):
        raise InputError(
            f"the parents {list(parents)[:20]} are not those of a tree: there must be nodes, each with the number of "
            f"its parent (0 to {n - 1}), and one root, whose parent is -1"
        )
    heights, waiting = [0] * n, [0] * n
    for p in parents:
        if p >= 0:
            waiting[p] += 1
    ready, done = [i for i in range(n) if not waiting[i]], 0
    while ready:  # a node whose children are all done; no recursion, for a tree may be deep
        i = ready.pop()
        done += 1
        if (p := parents[i]) >= 0:
            heights[p] = max(heights[p], heights[i] + 1)
            waiting[p] -= 1
            if not waiting[p]:
                ready.append(p)
    if done < n:
        cycle = [i for i in range(n) if waiting[i]]
        raise InputError(f"the nodes {cycle[:20]} are their own ancestors: parents {list(parents)[:20]} have a cycle")
    return Shape(np.array(parents, np.int64), np.array(heights, np.int64), mask)


class Forest(NamedTuple):
    """Trees as rows, by height, then by tree, then by number: int64 throughout.

    >>> forest = Forest.of([shape([2, 2, -1]), shape([-1])])
    >>> forest.levels.tolist(), forest.rows.tolist(), forest.roots.tolist()
    ([0, 3, 4], [0, 1, 3, 2], [3, 2])
    """

    levels: Tensor  # (L + 1,): the rows of height l are levels[l] to levels[l + 1]
    children: Tensor  # (E,): rows, those of one parent side by side
    first: Tensor  # (N + 1,): row n has the children first[n] to first[n + 1]
    source: Tensor  # (N,): the input that a row reads, -1 for none
    tree: Tensor  # (N,): which tree a row belongs to
    rows: Tensor  # (N,): the row of each node, trees one after the other and nodes by number
    roots: Tensor  # (B,): the row of each tree's root

    @staticmethod
    def of(shapes: Sequence[Shape]) -> Forest:
        """Some trees side by side; inputs are numbered tree by tree, node by node."""
        sizes = np.array([len(s.parents) for s in shapes], np.int64)
        tree = np.repeat(np.arange(len(shapes)), sizes)
        begins = np.cumsum(sizes) - sizes
        nothing = [np.zeros(0, np.int64)]
        heights = np.concatenate([s.heights for s in shapes] or nothing)
        parents = np.concatenate([s.parents for s in shapes] or nothing)
        reads = np.concatenate([s.reads for s in shapes] or [np.zeros(0, bool)])
        order = np.argsort(heights, kind="stable")  # nodes come tree by tree already
        rows = np.empty(len(order), np.int64)
        rows[order] = np.arange(len(order))
        inner = parents >= 0
        parent_rows = rows[(parents + begins[tree])[inner]] if len(order) else parents
        edges = np.argsort(parent_rows, kind="stable")
        counts = np.bincount(parent_rows, minlength=len(order))
        levels = np.bincount(heights) if len(order) else np.zeros(0, np.int64)
        source = np.where(reads, np.cumsum(reads) - 1, -1)[order]
        found = (
            _from_zero(levels), rows[inner][edges], _from_zero(counts), source, tree[order], rows, rows[~inner],
        )  # fmt: skip
        return Forest(*(torch.from_numpy(np.ascontiguousarray(part, np.int64)) for part in found))

    @property
    def places(self) -> Tensor:
        """(N, K): the children of each row, -1 past the last; K is the largest number of them, 1 at least."""
        counts = self.first[1:] - self.first[:-1]
        table = torch.full((len(counts), max(1, int(counts.max())) if len(counts) else 1), -1, device=counts.device)
        parent = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        table[parent, torch.arange(len(parent), device=counts.device) - self.first[parent]] = self.children
        return table


def _from_zero(counts: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(counts)])
