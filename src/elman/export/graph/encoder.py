"""The graph of an encoder: it puts out what the decoder reads, by the names of the decoder's inputs.

    x (B, S), lengths (B,)  ->  memory.keys, memory.values, memory.lengths, state.PATH ...

What the decoder does not read is left out. The keys are computed here, once for each source, and so is the bridge from
the last state to the decoder's first: tasks/translate/seq2seq.py has the equations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from elman.compose.attention import Decoder
from elman.export.graph.loops import Unroller
from elman.export.graph.memory import KEYS, VALUES, Memory
from elman.export.graph.model import Content, Options, conditional, refusing
from elman.export.graph.nodes import Store
from elman.export.graph.recorder import Recorder, leaves_of
from elman.export.graph.sequences import Sequences
from elman.kernels.trace import slot_of, traced
from elman.tasks.translate.seq2seq import Bridge, EncoderDecoder, Summary


def graph(model: EncoderDecoder, decoder: Content, options: Options) -> tuple[onnx.ModelProto, Content]:
    """The graph of the encoder, and what to say of it; `decoder` is what is said of the decoder's."""
    record, wanted = options.recorder(model.encoder), {}
    with refusing(model.encoder):
        y = model.encoder.describe_step(record, model.source.describe_step(record), leaves_of(record, model.encoder))
        if isinstance(model.decoder, Decoder) and model.summary is None:
            keys = slot_of(record, model.decoder.keys(traced(record, y)))
            wanted = {KEYS: record.now(keys), VALUES: record.now(y)}
    assembly = _Assembly(model, record, decoder, wanted)
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", "time"]),
              helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"])]  # fmt: skip
    made = conditional(assembly.store, inputs, assembly.outputs(), assembly.full(), assembly.empty(), options.opset)
    read = [{"name": "x", "shape": [], "symbols": len(model.source.weight)}]
    kept = {name: decoder[name] for name in ("memory", "state", "packed")}
    return made, {"part": "encoder", "inputs": read, **kept}


class _Assembly:
    """What is done with sources, and with nothing: `wanted` are the values that become a memory."""

    def __init__(self, model: EncoderDecoder, record: Recorder, decoder: Content, wanted: dict[str, int]) -> None:
        self.bridge: Bridge = model.bridge
        self.summary: Summary | None = model.summary
        self.record, self.decoder, self.wanted = record, decoder, wanted
        self.store = Store(np.dtype(str(record.dtype).removeprefix("torch.")))
        self.dtypes = [np.dtype(leaf["dtype"]) for leaf in decoder["state"]]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        """The memory, its lengths and the state, as the decoder's graph reads them."""
        widths = self.decoder["memory"]
        memory = Memory(widths.get(KEYS), widths[VALUES]).inputs(self.store.dtype) if widths else []
        if self.decoder["packed"]:
            shapes = {"state": ([sum(self.bridge.widths)], np.result_type(*self.dtypes))}
        else:
            pairs = zip(self.decoder["state"], self.dtypes, strict=True)
            shapes = {leaf["name"]: (leaf["shape"], dtype) for leaf, dtype in pairs}
        return memory + [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), ["batch", *shape])
            for name, (shape, dtype) in shapes.items()
        ]

    def full(self) -> tuple[Sequences, list[str]]:
        g = self._begun()
        unroller = Unroller(self.record, self.wanted.values())
        unroller.run(g, {source.value: cast(str, source.make(g, "x")) for source in self.record.sources})
        memory = [g.masked(unroller.names[number]) for number in self.wanted.values()]
        return g, self._given(g, memory, g.after)

    def empty(self) -> tuple[Sequences, list[str]]:
        """Over nothing ONNX Runtime runs no loop: the state is the first one."""
        g, zero = self._begun(), numpy_helper.from_array(np.zeros(1, self.store.dtype))
        shapes = [
            g.add("Concat", g.add("Shape", "x"), g.whole([self.decoder["memory"][name]]), axis=0)
            for name in self.wanted
        ]
        return g, self._given(g, [g.add("ConstantOfShape", shape, value=zero) for shape in shapes], g.before)

    def _begun(self) -> Sequences:
        g = Sequences(self.store, "x", "lengths")
        g.begin(self.record.leaves.values())
        return g

    def _given(self, g: Sequences, memory: list[str], state: dict[str, str]) -> list[str]:
        """All outputs, of a memory and of the leaves of the encoder's last state."""
        leaves = self.record.leaves.values()
        s = g.add("Concat", *(g.cast(state[leaf.name], self.store.dtype) for leaf in leaves), axis=1)
        lengths = [g.add("Identity", "lengths")] if memory else []
        if self.summary is not None:
            vector = g.map("tanh", g.linear(s, self.summary.W, self.summary.b))
            memory = [g.add("Unsqueeze", vector, g.whole([1]))]
            one = numpy_helper.from_array(np.ones(1, np.int64))
            lengths = [g.add("ConstantOfShape", g.add("Shape", "lengths"), value=one)]
        first = g.map("tanh", g.linear(s, self.bridge.W, self.bridge.b))
        return [*memory, *lengths, *self._leaves(g, first)]

    def _leaves(self, g: Sequences, first: str) -> Iterable[str]:
        """The first state of the decoder, all leaves of it side by side, as its graph reads it."""
        if self.decoder["packed"]:
            yield g.cast(first, np.result_type(*self.dtypes))
            return
        at = 0
        for leaf, dtype, width in zip(self.decoder["state"], self.dtypes, self.bridge.widths, strict=True):
            part = g.cut(first, at, at + width)
            yield g.cast(g.add("Reshape", part, g.whole([0, *leaf["shape"]])), dtype)
            at += width
