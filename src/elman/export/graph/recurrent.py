"""The cells that ONNX has as nodes: RNN, GRU and LSTM, where their equations are ours to the letter.

    ours                      ONNX
    elman_tanh, elman_relu    RNN    activations Tanh, Relu
    gru                       GRU    linear_before_reset = 1: what the reset gate multiplies is the product with h
    gru_before                GRU    linear_before_reset = 0: it is h
    lstm, with peepholes      LSTM   gates in another order: i, o, f, c
    lstm_logistic             LSTM   activations Sigmoid, Sigmoid, Tanh

ONNX Runtime gives a last state of zeros where a row has no valid input; it is the state before, here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.export.graph.nodes import Array, Store
from elman.export.graph.sequences import Sequences


class Kind(NamedTuple):
    """A node, what it calls our gates (each by its place in ours), and its attributes."""

    node: str
    gates: tuple[int, ...]
    attributes: dict[str, Any]


NATIVE = {
    "elman_tanh": Kind("RNN", (0,), {"activations": ["Tanh"]}),
    "elman_relu": Kind("RNN", (0,), {"activations": ["Relu"]}),
    "gru": Kind("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "gru_before": Kind("GRU", (1, 0, 2), {"linear_before_reset": 0}),
    "lstm": Kind("LSTM", (0, 3, 1, 2), {}),
    "lstm_logistic": Kind("LSTM", (0, 3, 1, 2), {"activations": ["Sigmoid", "Sigmoid", "Tanh"]}),
}


@dataclass
class Native:
    """A cell as a node; `kind`, `U`, `b`, `weights` as `Builder.gated` has them, `p` the peepholes (i, f, o)."""

    kind: str
    U: Tensor
    b: Tensor | None
    weights: tuple[Tensor, ...]
    p: Tensor | None
    backwards: bool

    def __call__(self, g: Sequences, x: str, leaves: list[str]) -> str:
        """Append the node, which reads x (B, T, D): the name of y. The last states are noted in the graph."""
        node, _, attributes = NATIVE[self.kind]
        H = self.weights[0].shape[1]
        before = [g.add("Unsqueeze", g.before[leaf], g.whole([0])) for leaf in leaves]
        inputs = [g.time_first(x), *self._arrays(g.store), g.lengths32, *before]
        inputs += [""] * (self.p is not None and 7 - len(inputs)) + self._peepholes(g.store)
        direction = {"direction": "reverse"} if self.backwards else {}
        y, *after = g.add(node, *inputs, outputs=1 + len(leaves), hidden_size=H, **attributes, **direction)
        for leaf, last in zip(leaves, after, strict=True):
            g.after[leaf] = g.where_any(g.add("Squeeze", last, g.whole([0])), g.before[leaf])
        return g.batch_first(g.add("Squeeze", y, g.whole([1])))

    def _arrays(self, store: Store) -> list[str]:
        """W, R and B, the biases of the input and of the state side by side."""
        W, *c = self.weights
        b = self.U.new_zeros(len(self.U)) if self.b is None else self.b
        other = torch.zeros_like(b)
        if c:  # of a GRU's candidate
            other[-len(c[0]) :] = c[0].detach()
        return [store.array(self._ordered(part, store)) for part in (self.U, W)] + [
            store.array(_joined(self._ordered(b, store), self._ordered(other, store)))
        ]

    def _peepholes(self, store: Store) -> list[str]:
        return [] if self.p is None else [store.array(store.numbers(self.p[[0, 2, 1]].reshape(1, -1)))]

    def _ordered(self, rows: Tensor, store: Store) -> Array:
        """Rows of all gates in the order of the node, (1, ...)."""
        gates = NATIVE[self.kind].gates
        blocks = rows.detach().chunk(len(gates))
        return store.numbers(torch.cat([blocks[gate] for gate in gates])[None])


def _joined(b: Array, c: Array) -> Array:
    import numpy as np

    return np.concatenate([b, c], 1)
