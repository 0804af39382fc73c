"""One graph: a core, or an embedding, a core and a read-out, over time; its inputs, outputs and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from elman import state as states
from elman.compose.attention import Covering
from elman.core import Core
from elman.errors import InputError
from elman.export.graph import words
from elman.export.graph.linear_attention import MICROSOFT, SINCE, STANDARD
from elman.export.graph.loops import Unroller
from elman.export.graph.nodes import Graph, Store
from elman.export.graph.record import Input, Leaf
from elman.export.graph.recorder import Recorder, leaves_of
from elman.export.graph.sequences import Sequences
from elman.kernels.builder import Slot, Unstreamable
from elman.kernels.trace import Traced, slot_of, traced
from elman.nn.crf import CRF
from elman.nn.embed import Embed
from elman.nn.readout import Readout
from elman.state import REAL
from elman.tasks.tag.word_features import SentenceEmbedding

Content = dict[str, Any]
Infos = list[onnx.ValueInfoProto]
Branch = tuple[Graph, Sequence[str]]  # and the names of what it gives
LEAST, NEWEST = 18, 26  # versions of ONNX's operations: what the graphs need, and what ONNX Runtime 1.31 runs


@dataclass(frozen=True)
class Options:
    """How a graph is written; `ExportRequest` says what these are."""

    pack_state: bool = False
    with_reset: bool = False
    opset: int = NEWEST
    for_onnxruntime: bool = False

    def recorder(self, core: Core) -> Recorder:
        """The builder for a core; as ONNX Runtime has the nodes, they are for cells in float32, and know no resets."""
        dtype = dtype_of(core)
        domain = MICROSOFT if self.for_onnxruntime else STANDARD if self.opset >= SINCE else None
        return Recorder(dtype, native=dtype == torch.float32 and not self.with_reset, domain=domain)


def graph(
    core: Core, embed: nn.Module | None, readout: nn.Module | None, options: Options
) -> tuple[onnx.ModelProto, Content]:
    """The graph of a core, or of a model where there are an embedding and a read-out; and what to say of it."""
    if isinstance(core, Covering):
        raise InputError("Covering cannot be exported: its state grows with the memory; export core.decoder.given(...)")
    record = options.recorder(core)
    with refusing(core):
        y = core.describe_step(record, _embedded(record, embed, core.input_size), leaves_of(record, core))
        columns, y = _outputs(record, readout, y)
    assembly = _Assembly(record, options, core.causal)
    return assembly.model(y), {**assembly.about(columns), "chain": _chain(readout)}


@contextmanager
def refusing(core: Core) -> Iterator[None]:
    """What cannot be described is refused, in the words of those who export."""
    try:
        yield
    except Unstreamable as error:
        raise InputError(
            f"{type(core).__name__} cannot be exported: {error}. What `Stream` can describe can be: the cells, "
            "combinators and read-outs of elman, and cells of your own whose step has the operations of "
            "elman/kernels/trace.py."
        ) from error


def dtype_of(core: Core) -> torch.dtype:
    numbers = [t for t in (*core.parameters(), *core.buffers()) if t.is_floating_point()]
    leaves = [leaf for leaf in states.leaves(core.init_state(1)) if leaf.dtype != torch.float64 or not numbers]
    found = {REAL.get(t.dtype, t.dtype) for t in (*numbers, *leaves)} or {torch.float32}
    if len(found) != 1 or not found <= {torch.float32, torch.float64}:
        raise InputError(f"a core of {', '.join(map(str, found))} cannot be exported; convert it with core.float()")
    return found.pop()


def _embedded(record: Recorder, embed: nn.Module | None, width: int) -> Slot:
    if embed is None or isinstance(embed, nn.Identity):
        return record.input(width)
    if isinstance(embed, SentenceEmbedding):
        return words.embedded(record, embed)
    if hasattr(embed, "describe_step"):
        return cast(Embed, embed).describe_step(record)
    if not hasattr(embed, "input_size"):
        raise Unstreamable(f"its inputs are made by a {type(embed).__name__}, which does not describe how")
    return slot_of(record, embed(traced(record, record.input(cast(int, embed.input_size)))))


def _outputs(record: Recorder, readout: nn.Module | None, y: Slot) -> tuple[dict[str, int], Slot]:
    """The parameters of the distribution side by side, with the width of each; y itself without a read-out."""
    if readout is None:
        return {"y": y.width}, y
    if isinstance(readout, CRF):
        emissions = record.linear(y, readout.linear.weight, readout.linear.bias)
        return {"emissions": emissions.width}, emissions
    if not hasattr(readout, "describe_step"):
        raise Unstreamable(f"{type(readout).__name__} does not describe its step")
    readout = cast(Readout[Any], readout)
    values = readout.describe_step(record, y)
    try:
        found = readout.distribution(traced(record, values))
    except (Unstreamable, TypeError, AttributeError):  # its parameters are more than a stream can compute
        return {"values": values.width}, values
    parts = {name: part.slot for name, part in vars(found).items() if isinstance(part, Traced)}
    if not parts:
        return {"logits": values.width}, values
    return {name: slot.width for name, slot in parts.items()}, record.concat(list(parts.values()))


def _chain(readout: nn.Module | None) -> Content | None:
    """The scores of a CRF beside its emissions."""
    if not isinstance(readout, CRF):
        return None
    scores = {"start": readout.start, "stop": readout.stop, "transition": readout.transition}
    return {name: values.detach().tolist() for name, values in scores.items()}


def conditional(
    store: Store, inputs: Infos, outputs: Infos, full: Branch, empty: Branch, opset: int
) -> onnx.ModelProto:
    """A graph that does one thing if x has any numbers, and another with nothing."""
    chosen = Graph(store, 2)
    some = chosen.add("Greater", chosen.add("Size", "x"), store.array(np.asarray(0, np.int64)))
    branches = {"then_branch": _branch("full", *full, outputs), "else_branch": _branch("empty", *empty, outputs)}
    choice = helper.make_node("If", [some], [output.name for output in outputs], **branches)
    graph = helper.make_graph([*chosen.nodes, choice], "elman", inputs, outputs, store.initializers)
    opsets = [helper.make_opsetid(domain, 1 if domain else opset) for domain in sorted(store.domains)]
    model = helper.make_model(graph, producer_name="elman", opset_imports=opsets)
    model.ir_version = min(model.ir_version, helper.find_min_ir_version_for(opsets[:1]))
    return model


def _branch(name: str, g: Graph, values: Sequence[str], outputs: Infos) -> onnx.GraphProto:
    """A graph that gives the outputs, under names of its own."""
    own = [g.add("Identity", value) for value in values]
    infos = []
    for output, value in zip(outputs, own, strict=True):
        infos.append(onnx.ValueInfoProto())
        infos[-1].CopyFrom(output)
        infos[-1].name = value
    return helper.make_graph(g.nodes, name, [], infos)


class _Assembly:
    """The inputs and outputs of a graph around what a record says."""

    def __init__(self, record: Recorder, options: Options, causal: bool) -> None:
        self.record, self.options, self.causal = record, options, causal
        dtype = np.dtype(str(record.dtype).removeprefix("torch."))
        self.store = Store(dtype)
        self.leaves = list(record.leaves.values())
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def model(self, y: Slot) -> onnx.ModelProto:
        full, empty = self._branches(y)
        return conditional(self.store, self.inputs, self.outputs, full, empty, self.options.opset)

    def _branches(self, y: Slot) -> tuple[Branch, Branch]:
        """What is done with sequences, and with nothing, over which ONNX Runtime runs no loop: the state stays."""
        record = self.record
        float_type = helper.np_dtype_to_tensor_dtype(self.store.dtype)
        g, last = Sequences(self.store, "x", "lengths"), record.now(y)
        names = [[self._read(each) for each in source.inputs] for source in record.sources]
        self.inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]))
        if self.options.with_reset:
            self.inputs.append(helper.make_tensor_value_info("reset", TensorProto.BOOL, ["batch", "time"]))
            g.read_reset()
        if record.memory is not None:
            self.inputs += record.memory.inputs(self.store.dtype)
            record.memory.read(g)
        self._before(g)
        pairs = zip(record.sources, names, strict=True)
        values = {source.value: cast(str, source.make(g, *inputs)) for source, inputs in pairs}
        unroller = Unroller(record, [last])
        unroller.run(g, values)
        value = unroller.names[last]
        if last in record.constants:
            value = g.expand(value, g.valid, y.width)
        if not any(op.native and last in op.outputs for op in record.operations):
            value = g.masked(value)
        nothing = Graph(self.store, 2)
        shape = nothing.add("Concat", nothing.add("Shape", "x", start=0, end=2), nothing.whole([y.width]), axis=0)
        zero = numpy_helper.from_array(np.zeros(1, self.store.dtype))
        self.outputs.append(helper.make_tensor_value_info("y", float_type, ["batch", "time", y.width]))
        full, empty = [value], [nothing.add("ConstantOfShape", shape, value=zero)]
        for after, before in self._after(g):
            full.append(after)
            empty.append(nothing.add("Identity", before))
        return (g, full), (nothing, empty)

    def _read(self, each: Input) -> str:
        dtype = self.store.dtype if each.symbols is None else np.dtype(np.int64)
        shape = ["batch", "time", *(size or f"{each.name} size" for size in each.shape)]
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self.inputs.append(helper.make_tensor_value_info(each.name, kind, shape))
        return each.name

    def _before(self, g: Sequences) -> None:
        """The leaves of the state before, (B, width)."""
        if not self.causal:  # it starts anew with every row
            if self.options.pack_state:
                raise InputError("pack_state is set, and this core reads the future: it has no state to pack")
            g.begin(self.leaves)
        elif self.options.pack_state:
            self._unpack(g)
        else:
            for leaf in self.leaves:
                kind = helper.np_dtype_to_tensor_dtype(leaf.first.dtype)
                self.inputs.append(helper.make_tensor_value_info(leaf.name, kind, ["batch", *leaf.first.shape]))
                flat = leaf.first.ndim == 1
                g.before[leaf.name] = leaf.name if flat else g.add("Reshape", leaf.name, g.whole([0, leaf.width]))

    def _after(self, g: Sequences) -> Iterator[tuple[str, str]]:
        """The outputs of the state: their values, and the inputs that they are if nothing is read."""
        if not self.causal:
            return
        if self.options.pack_state:
            wide = self._packed()
            parts = [
                g.after[leaf.name] if leaf.first.dtype == wide else g.cast(g.after[leaf.name], wide)
                for leaf in self.leaves
            ]
            kind = helper.np_dtype_to_tensor_dtype(wide)
            self.outputs.append(helper.make_tensor_value_info("next", kind, ["batch", self._width()]))
            yield g.add("Concat", *parts, axis=1), "state"
            return
        for leaf in self.leaves:
            value, kind = g.after[leaf.name], helper.np_dtype_to_tensor_dtype(leaf.first.dtype)
            if leaf.first.ndim != 1:
                value = g.add("Reshape", value, g.whole([0, *leaf.first.shape]))
            self.outputs.append(helper.make_tensor_value_info(_next(leaf), kind, ["batch", *leaf.first.shape]))
            yield value, leaf.name

    def _packed(self) -> np.dtype[Any]:
        """The dtype of a state in one tensor: the widest of its leaves."""
        return np.result_type(*(leaf.first.dtype for leaf in self.leaves))

    def _width(self) -> int:
        return sum(leaf.width for leaf in self.leaves)

    def _unpack(self, g: Sequences) -> None:
        if not self.leaves:
            raise InputError("pack_state is set, and this core remembers nothing: it has no state to pack")
        wide, at = self._packed(), 0
        kind = helper.np_dtype_to_tensor_dtype(wide)
        self.inputs.append(helper.make_tensor_value_info("state", kind, ["batch", self._width()]))
        for leaf in self.leaves:
            part = g.cut("state", at, at + leaf.width, axis=1)
            g.before[leaf.name] = part if leaf.first.dtype == wide else g.cast(part, leaf.first.dtype)
            at += leaf.width

    def about(self, columns: dict[str, int]) -> Content:
        leaves = [
            {"name": leaf.name, "next": _next(leaf), "shape": list(leaf.first.shape), "dtype": str(leaf.first.dtype),
             "first": _plain(leaf.first)}
            for leaf in self.leaves
        ]  # fmt: skip
        return {
            "inputs": [
                {"name": each.name, "shape": list(each.shape), "symbols": each.symbols}
                for source in self.record.sources for each in source.inputs
            ],
            "outputs": columns, "causal": self.causal, "reset": self.options.with_reset,
            "packed": self.options.pack_state, "state": leaves if self.causal else [],
            "memory": self.record.memory.widths if self.record.memory else {},
        }  # fmt: skip


def _next(leaf: Leaf) -> str:
    return "next" + leaf.name.removeprefix("state")


def _plain(first: Any) -> Any:
    """The numbers of a leaf as JSON; nothing where all are zero."""
    if not np.any(first):
        return None
    return np.vectorize(lambda v: float(v) if np.isfinite(v) else str(float(v)).replace("inf", "Infinity"), [object])(
        first
    ).tolist()
