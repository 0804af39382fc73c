"""The way from a leaf up to the root as a sequence: what each ancestor makes of the node below it.

x[t] = [vector, at, others]: the node's own input (D), at which place the node below is (K, a one there), and the
states of the other children (K each, zeros at that place). The state is that of the node below:

    children = others + at * state        state = combine(vector, children)

So a step is an edge of the tree, and Jacobians, reach and exponents are those along its depth. Zero features are a node
without input or children.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from elman import state as states
from elman.core import Core
from elman.options import whole
from elman.state import AnyState, State, leaves
from elman.tasks.tree.core import TreeCore
from elman.tasks.tree.forest import Forest, Shape


class Climb(Core):
    """A `Core` of a `TreeCore`: y[t] is the output of the node that step t reaches, the state its state.

    >>> from elman.tasks.tree import tree
    >>> climb = Climb(tree("recursive", 3, 4), places=2)
    >>> climb.input_size, climb.scan(torch.zeros(1, 5, 13))[0].shape
    (13, torch.Size([1, 5, 4]))
    """

    def __init__(self, tree: TreeCore, *, places: int) -> None:
        sizes = [leaf.shape[1:].numel() for leaf in leaves(tree.init_state(1))]
        K = whole("places", places)
        super().__init__(tree.input_size + K * (1 + sum(sizes)), tree.output_size)
        self.tree, self.places, self._sizes = tree, K, sizes

    def init_state(self, batch_size: int) -> AnyState:
        return self.tree.init_state(batch_size)

    def step(self, x: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        new = self.tree.combine(*self._node_inputs(x, state))
        return leaves(new)[0], new

    @property
    def title(self) -> str:
        return type(self.tree).__name__.lower()

    @property
    def keep_gate(self) -> str:  # type: ignore[override]
        return self.tree.keep_gate

    @property
    def remedy(self) -> str:  # type: ignore[override]
        return "a larger forget_bias (model.options)" if self.keep_gate else "binary_tree_lstm, which has gates"

    def named_gates(self, x: Tensor, state: AnyState) -> dict[str, Tensor]:
        """Where each child has a gate of its own, that of the node below, of the steps that have one."""
        at = self._place(x)
        gates = self.tree.gates(*self._node_inputs(x, state))
        return {
            name: gate if gate.dim() == 2 else (gate * at[..., None]).sum(1)[at.any(1)] for name, gate in gates.items()
        }

    def _place(self, x: Tensor) -> Tensor:
        return x[:, self.tree.input_size : self.tree.input_size + self.places]

    def _node_inputs(self, x: Tensor, state: AnyState) -> tuple[Tensor, State]:
        """The input and the children of the node that a step reaches."""
        D, K = self.tree.input_size, self.places
        at = self._place(x)
        others = iter(x[:, D + K :].split([K * size for size in self._sizes], 1))

        def beside(below: Tensor) -> Tensor:
            own = next(others).view(len(x), K, *below.shape[1:])
            return own + at.view(len(x), K, *[1] * (below.dim() - 1)) * below[:, None]

        return x[:, :D], states.map(beside, state)


def deepest(tree: Shape) -> list[int]:
    """The nodes from the root's furthest descendant, the first of them, up to the root.

    >>> from elman.tasks.tree.forest import shape
    >>> deepest(shape([2, 2, 4, 4, -1]))
    [0, 2, 4]
    """
    node = int((tree.parents < 0).argmax())
    way = [node]
    while tree.heights[node]:
        below = np.flatnonzero(tree.parents == node)
        node = int(below[tree.heights[below].argmax()])
        way.append(node)
    return way[::-1]


def climbs(core: TreeCore, x: Tensor, shapes: Sequence[Shape], ways: Sequence[Sequence[int]]) -> list[Tensor]:
    """What `Climb` reads on these ways up, one for each tree: (steps, width). x (M, D), as `scan` reads it."""
    forest = Forest.of(shapes)
    _, state = core.scan(x, forest)
    by_node = [leaf[forest.rows].flatten(1) for leaf in leaves(state)]
    source = forest.source[forest.rows]
    K = max(core.places or 1, *(int(np.bincount(s.parents[s.parents >= 0], minlength=1).max()) for s in shapes))
    paths, begin = [], 0
    for tree, way in zip(shapes, ways, strict=True):
        pairs = zip([-1, *way[:-1]], way, strict=True)
        rows = [_features(tree, begin, below, node, x, source, by_node, K) for below, node in pairs]
        paths.append(torch.stack(rows))
        begin += len(tree.parents)
    return paths


def _features(
    tree: Shape, begin: int, below: int, node: int, x: Tensor, source: Tensor, by_node: list[Tensor], K: int
) -> Tensor:
    """Of one node, whose nodes in the forest's numbering begin at `begin`."""
    children = np.flatnonzero(tree.parents == node)
    at = x.new_zeros(K)
    at[: len(children)] = torch.from_numpy(children == below).to(x)
    reads = int(source[begin + node])
    vector = x[reads] if reads >= 0 else x.new_zeros(x.shape[1])
    others = [x.new_zeros(K, leaf.shape[1]) for leaf in by_node]
    for place, child in enumerate(children.tolist()):
        if child != below:
            for other, leaf in zip(others, by_node, strict=True):
                other[place] = leaf[begin + child]
    return torch.cat([vector, at, *(other.flatten() for other in others)])
