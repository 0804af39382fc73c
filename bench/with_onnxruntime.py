"""ONNX Runtime: one GRU or LSTM node, time first; for a stream, one step a call with the state passed in and out."""

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
    arrays = inputs.gated(case["cell"], case["B"], case["T"], case["D"], case["K"])
    session = _session(_model(case, arrays), threads)
    if case["family"] == "stream":
        return _stream(case, session, arrays["x"])
    return lambda: session.run(["y"], {"x": arrays["x"]}), lambda r: {"y": r[0][:, 0].swapaxes(0, 1)}


def _stream(case: dict[str, Any], session: ort.InferenceSession, x: inputs.Array) -> tuple[Run, Outputs]:
    states = ["h", "c"] if case["cell"] == "lstm" else ["h"]
    feed = {"x": x, **{f"{s}0": np.zeros((1, case["B"], case["K"]), np.float32) for s in states}}
    names = ["y", *states]

    def run() -> Any:
        y, *new = session.run(names, feed)
        for s, value in zip(states, new, strict=True):
            feed[f"{s}0"] = value
        return y

    return run, lambda y: {"y": y[0, 0]}


def _session(model: onnx.ModelProto, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
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
    node = helper.make_node(cell.upper(), given, ["y", *states], hidden_size=K, **options)

    def value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node], cell,
        [value("x", [T, B, D]), *(value(f"{s}0", [1, B, K]) for s in states)],
        [value("y", [T, 1, B, K]), *(value(s, [1, B, K]) for s in states)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
