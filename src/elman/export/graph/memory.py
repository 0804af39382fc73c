"""The memory of a decoder, as inputs of its graph: bound to its rows, and no part of its state.

    memory.keys (B, S, A), memory.values (B, S, M), memory.lengths (B,)     of Fixed the values and the lengths alone

    a = softmax over j < lengths of e[j],   c = sum over j of a[j] m[j]     compose/attention has the equations of e

What is past the lengths is never seen, whatever stands there; a row of length 0, and a memory of no places, give c = 0.
The node Softmax has no form for nothing at all, so it sees one place more, which counts for nothing beside any other.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from torch import Tensor

from elman.export.graph.nodes import Graph
from elman.export.graph.sequences import Sequences

KEYS, VALUES, LENGTHS = "memory.keys", "memory.values", "memory.lengths"


class Memory:
    """The widths of what a decoder reads; `read` appends what all its steps share."""

    def __init__(self, keys: int | None, values: int) -> None:
        self.widths = {VALUES: values} if keys is None else {KEYS: keys, VALUES: values}

    def inputs(self, dtype: np.dtype[np.generic]) -> list[onnx.ValueInfoProto]:
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        return [
            *(helper.make_tensor_value_info(name, kind, ["batch", "memory", n]) for name, n in self.widths.items()),
            helper.make_tensor_value_info(LENGTHS, TensorProto.INT64, ["batch"]),
        ]

    def read(self, g: Sequences) -> None:
        """The places that count, (B, 1, S), and the values with zeros past them: bodies of loops see these too."""
        seen = g.inside(VALUES, LENGTHS)
        self.values = g.add("Where", g.add("Unsqueeze", seen, g.whole([2])), VALUES, g.array([0.0]))
        self.seen = g.add("Unsqueeze", seen, g.whole([1]))

    def attend(self, g: Graph, query: str, v: Tensor | None) -> str:
        """What queries (B, T, A), or of a step (B, A), find: as wide as the values are."""
        time = g.whole([1])
        queries = query if g.lead == 2 else g.add("Unsqueeze", query, time)
        lowest = float(np.finfo(g.store.dtype).min)
        scores = g.add("Where", self.seen, self._scores(g, queries, v), g.array([lowest]))
        further = g.add("Pad", scores, g.whole([0, 0, 0, 0, 0, 1]), g.store.array(np.asarray(lowest, g.store.dtype)))
        weights = g.cut(g.add("Softmax", further, axis=-1), 0, -1)
        found = g.add("MatMul", g.add("Where", self.seen, weights, g.array([0.0])), self.values)
        return found if g.lead == 2 else g.add("Squeeze", found, time)

    def _scores(self, g: Graph, queries: str, v: Tensor | None) -> str:
        """q . m[j], or with v, v . tanh(q + m[j]): (B, T, S)."""
        if v is None:
            return g.add("MatMul", queries, g.add("Transpose", KEYS, perm=[0, 2, 1]))
        both = g.add("Add", g.add("Unsqueeze", queries, g.whole([2])), g.add("Unsqueeze", KEYS, g.whole([1])))
        return g.add("Squeeze", g.add("MatMul", g.add("Tanh", both), g.array(v[:, None])), g.whole([3]))

    def first(self, g: Sequences) -> str:
        """The first place, at every step: (B, T, M)."""
        shape = g.add("Concat", g.add("Shape", g.valid, start=0, end=2), g.whole([self.widths[VALUES]]), axis=0)
        return g.add("Expand", g.cut(self.values, 0, 1, axis=1), shape)
