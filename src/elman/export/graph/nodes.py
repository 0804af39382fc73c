"""Nodes of an ONNX graph: one method for each operation, which appends nodes and returns the name of the result.

A graph is of whole sequences (B, T, width), or the body of a Scan, of steps (B, width). All operations but those on
time act on the last axis, so that both are written alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor

Array = NDArray[Any]
MAPS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "softplus": "Softplus", "log": "Log", "exp": "Exp", "relu": "Relu",
        "abs": "Abs", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos"}  # fmt: skip


class Store:
    """The arrays of a model, each once, and the names that are taken: what a graph shares with the bodies in it."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.initializers: list[onnx.TensorProto] = []
        self.domains = {""}  # whose operations the graph has
        self._names: dict[bytes, str] = {}
        self._taken = 0

    def name(self, of: str) -> str:
        self._taken += 1
        return f"{of}_{self._taken}"

    def numbers(self, values: Tensor | Array | Sequence[float]) -> Array:
        """Numbers in the dtype of the model."""
        found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        return np.ascontiguousarray(found, self.dtype)

    def array(self, values: Array) -> str:
        key = b"%s %s %s" % (values.dtype.str.encode(), repr(values.shape).encode(), values.tobytes())
        if key not in self._names:
            self._names[key] = self.name("array")
            contiguous = np.asarray(values, order="C")  # ascontiguousarray would give a number an axis
            self.initializers.append(numpy_helper.from_array(contiguous, self._names[key]))
        return self._names[key]


class Graph:
    """A list of nodes under construction; `lead` is how many axes stand before the last: 2 of sequences, 1 of steps."""

    def __init__(self, store: Store, lead: int) -> None:
        self.store, self.lead = store, lead
        self.nodes: list[onnx.NodeProto] = []

    def add(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node: the name of its output, or a list of several."""
        names = [self.store.name(operation.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(operation, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    # Arrays

    def array(self, values: Tensor | Array | Sequence[float]) -> str:
        """Numbers of the graph's dtype."""
        return self.store.array(self.store.numbers(values))

    def whole(self, values: Sequence[int]) -> str:
        """Whole numbers, which say shapes and places."""
        return self.store.array(np.asarray(values, np.int64))

    def cast(self, x: str, dtype: Any) -> str:
        return self.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def constant(self, values: Tensor) -> str:
        """`values` (width,), the same everywhere."""
        return self.array(values.reshape(*[1] * self.lead, -1))

    # On the last axis

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        if self.lead == 1:
            return self.add("Gemm", x, self.array(weight), *([] if bias is None else [self.array(bias)]), transB=1)
        y = self.add("MatMul", x, self.array(weight.T))
        return y if bias is None else self.add("Add", y, self.array(bias))

    def map(self, function: str, x: str) -> str:
        if function == "softplus" and self.store.dtype == np.float64:  # ONNX Runtime has it in float32 alone
            small = self.add(
                "Log", self.add("Add", self.array([1.0]), self.add("Exp", self.add("Neg", self.add("Abs", x))))
            )
            return self.add("Add", self.add("Max", x, self.array([0.0])), small)
        return self.add("Mul", x, self.add("Sigmoid", x)) if function == "silu" else self.add(MAPS[function], x)

    def above(self, x: str, least: float) -> str:
        return self.add("Greater", x, self.array([least]))

    def gather(self, x: str, columns: Sequence[int]) -> str:
        return self.add("Gather", x, self.whole(columns), axis=-1)

    def cut(self, x: str, first: int, end: int, axis: int = -1) -> str:
        return self.add("Slice", x, *(self.whole([at]) for at in (first, end, axis)))

    def split(self, x: str, *widths: int) -> str:
        """The last axis as several."""
        return self.add("Reshape", x, self.whole([*[0] * self.lead, *widths]))

    def join(self, x: str, width: int) -> str:
        """The axes behind the leading ones as one."""
        return self.add("Reshape", x, self.whole([*[0] * self.lead, width]))

    def mean(self, x: str) -> str:
        return self.add("ReduceMean", x, self.whole([-1]), keepdims=1)

    def total(self, x: str, axis: int = -1, keepdims: int = 1) -> str:
        return self.add("ReduceSum", x, self.whole([axis]), keepdims=keepdims)

    def norm(
        self, x: str, width: int, gain: Tensor, bias: Tensor | None, eps: float, heads: int, *, centred: bool
    ) -> str:
        """(x - mean x) / sqrt(var x + eps), or x / sqrt(mean x^2 + eps), of each head; times gain, plus bias."""
        N = width // heads
        y = self.split(x, heads, N) if heads > 1 else x
        if centred:
            y = self.add("Sub", y, self.mean(y))
        root = self.add("Sqrt", self.add("Add", self.mean(self.add("Mul", y, y)), self.array([eps])))
        y = self.add("Div", y, root)
        each = heads > 1 and gain.shape[0] == N
        if heads > 1 and not each:
            y = self.join(y, width)
        y = self.add("Mul", y, self.array(gain))
        y = y if bias is None else self.add("Add", y, self.array(bias))
        return self.join(y, width) if each else y

    # On time, in a graph of sequences

    def expand(self, x: str, like: str, width: int) -> str:
        """A constant in every row and at every step of `like`."""
        shape = self.add("Concat", self.add("Shape", like, start=0, end=self.lead), self.whole([width]), axis=0)
        return self.add("Expand", x, shape)
