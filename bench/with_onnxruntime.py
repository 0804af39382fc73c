"""ONNX Runtime at its best: one GRU, LSTM (time first) or LinearAttention node, inputs and outputs bound to
arrays that are there (IOBinding); for a stream, one step a call, the state it writes bound as what the next one
reads."""

from itertools import cycle
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bench import inputs
from bench.worker import Outputs, Run

# ONNX orders gates z, r, h and i, o, f, c; PyTorch r, z, n and i, f, g, o.
ORDER = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    if case["family"] == "lm":
        from bench import lm_onnxruntime  # it reads our weights, and imports Elman for them

        return lm_onnxruntime.prepare(case)
    if case["family"] == "matrix":
        return _matrix(case, threads)
    arrays = inputs.gated(case["cell"], case["B"], case["T"], case["D"], case["K"])
    session = session_of(_model(case, arrays), threads)
    if case["family"] == "stream":
        return _stream(case, session, arrays["x"])
    y = np.empty((case["T"], 1, case["B"], case["K"]), np.float32)
    bound = binding(session, {"x": arrays["x"]}, {"y": y})

    def run() -> Any:
        session.run_with_iobinding(bound)
        return y

    return run, lambda y: {"y": y[:, 0].swapaxes(0, 1)}


def _matrix(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    """Its own LinearAttention, heads side by side."""
    rule, B, T, H, K = case["rule"], case["B"], case["T"], case["H"], case["K"]
    arrays = inputs.prepared(rule, inputs.matrix(rule, B, T, H, K))
    given = {name: arrays[name].reshape(B, T, -1) for name in ("q", "k", "v", "decay", "b")}
    given["S"] = np.zeros((B, H, K, K), np.float32)
    order = ["q", "k", "v", "S", "decay", "b"]
    if rule == "ssd":
        given.pop(order.pop())
    node = helper.make_node(
        "LinearAttention", order, ["y", "last"], domain="com.microsoft", q_num_heads=H, kv_num_heads=H,
        update_rule="gated" if rule == "ssd" else "gated_delta", scale=1.0,
    )  # fmt: skip
    results = {"y": np.empty((B, T, H * K), np.float32), "last": np.empty((B, H, K, K), np.float32)}

    def values(of: dict[str, inputs.Array]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, of[name].shape) for name in of]

    graph = helper.make_graph([node], rule, values(given), values(results))
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    session = session_of(helper.make_model(graph, opset_imports=opsets, ir_version=11), threads)
    bound = binding(session, given, results)

    def run() -> Any:
        session.run_with_iobinding(bound)
        return results["y"]

    return run, lambda y: {"y": y.reshape(B, T, H, K).copy()}


def _stream(case: dict[str, Any], session: ort.InferenceSession, given: inputs.Array) -> tuple[Run, Outputs]:
    """Inputs and outputs stay where they are, and the state goes to and fro between two arrays. Of one step the
    output is the state h, so the node has no other."""
    states = ["h", "c"] if case["cell"] == "lstm" else ["h"]
    B, K = case["B"], case["K"]
    x = np.zeros_like(given)
    before, after = ({s: np.zeros((1, B, K), np.float32) for s in states} for _ in range(2))

    def bound(read: dict[str, inputs.Array], written: dict[str, inputs.Array]) -> Any:
        return binding(session, {"x": x, **{f"{s}0": read[s] for s in states}}, written)

    turns = cycle([(bound(before, after), after["h"]), (bound(after, before), before["h"])])

    def run() -> Any:
        np.copyto(x, given)  # what a caller brings
        binding, h = next(turns)
        session.run_with_iobinding(binding)
        return h

    return run, lambda h: {"y": h[0].copy()}


def binding(session: ort.InferenceSession, given: dict[str, inputs.Array], results: dict[str, inputs.Array]) -> Any:
    """Arrays by name that a session reads and writes where they are: no call allocates or copies any."""
    bound = session.io_binding()
    for name, array in given.items():
        bound.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in results.items():
        bound.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    bound.arrays = (given, results)  # a binding has addresses alone: the arrays must live as long as it does
    return bound


def session_of(model: onnx.ModelProto, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _model(case: dict[str, Any], arrays: dict[str, inputs.Array]) -> onnx.ModelProto:
    cell, stream = case["cell"], case["family"] == "stream"
    T, B, D, K = case["T"], case["B"], case["D"], case["K"]

    def reordered(w: inputs.Array) -> inputs.Array:
        gates = np.split(w, len(ORDER[cell]))
        return np.ascontiguousarray(np.concatenate([gates[i] for i in ORDER[cell]])[None])

    bias = np.concatenate([reordered(arrays["b"]), reordered(arrays["c"])], 1)
    weights = {"W": reordered(arrays["U"]), "R": reordered(arrays["W"]), "B": bias}
    states = (["h", "c"] if cell == "lstm" else ["h"]) if stream else []
    options = {"linear_before_reset": 1} if cell == "gru" else {}
    given = ["x", "W", "R", "B", "", *(f"{s}0" for s in states)] if stream else ["x", "W", "R", "B"]
    node = helper.make_node(cell.upper(), given, ["" if stream else "y", *states], hidden_size=K, **options)

    def value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node], cell,
        [value("x", [T, B, D]), *(value(f"{s}0", [1, B, K]) for s in states)],
        [value(s, [1, B, K]) for s in states] if stream else [value("y", [T, 1, B, K])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
