"""The same language model as an ONNX graph, one step a call with the state passed in and out; sampling in numpy."""

from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import elman
from bench import lm_inputs
from bench.worker import Outputs, Run


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    lm = lm_inputs.language_model(case["cell"])
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(_graph(lm).SerializeToString(), options, providers=["CPUExecutionProvider"])
    prompt = [0, *lm.vocabulary.encode(lm_inputs.PROMPT).tolist()]

    def read() -> tuple[Any, dict[str, Any]]:
        state = {"h0": np.zeros((1, 1, 256), np.float32), "h1": np.zeros((1, 1, 256), np.float32)}
        for token in prompt:
            logits, state = _step(session, token, state)
        return logits, state

    def run() -> str:
        logits, state = read()
        generator, symbols = np.random.default_rng(0), []
        for _ in range(lm_inputs.TOKENS):
            p = np.exp(logits - logits.max()).cumsum()
            symbols.append(int(np.searchsorted(p, generator.random() * p[-1])))
            logits, state = _step(session, symbols[-1], state)
        return lm.vocabulary.decode(symbols)

    def outputs(_: Any) -> dict[str, Any]:
        logits = read()[0]
        return {"log_probs": logits - np.log(np.exp(logits).sum())}

    return run, outputs


def _step(session: ort.InferenceSession, token: int, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    logits, h0, h1 = session.run(["logits", "h0n", "h1n"], {"token": np.array([[token]]), **state})
    return logits[0, 0], {"h0": h0, "h1": h1}


def _graph(lm: elman.LanguageModel) -> Any:
    """Gather, two GRU nodes (ONNX orders the gates z, r, h), MatMul, Add."""
    gru, weights = elman.to_torch(lm.model.core), {}
    nodes = [helper.make_node("Gather", ["E", "token"], ["x0"])]
    for k in range(2):
        for name, letter in (("weight_ih", "W"), ("weight_hh", "R")):
            weights[f"{letter}{k}"] = _zrh(getattr(gru, f"{name}_l{k}"))[None]
        biases = [_zrh(getattr(gru, f"{name}_l{k}")) for name in ("bias_ih", "bias_hh")]
        weights[f"B{k}"] = np.concatenate(biases)[None]
        names = [f"x{k}", f"W{k}", f"R{k}", f"B{k}", "", f"h{k}"]
        nodes.append(helper.make_node("GRU", names, [f"y{k}", f"h{k}n"], hidden_size=256, linear_before_reset=1))
        nodes.append(helper.make_node("Squeeze", [f"y{k}", "one"], [f"x{k + 1}"]))
    readout = lm.model.readout.linear
    weights |= {"E": lm.model.embed.weight.detach().numpy(), "V": readout.weight.detach().numpy().T.copy()}
    weights |= {"c": readout.bias.detach().numpy(), "one": np.array([1])}
    nodes += [helper.make_node("MatMul", ["x2", "V"], ["z"]), helper.make_node("Add", ["z", "c"], ["logits"])]
    state = [helper.make_tensor_value_info(f"h{k}", TensorProto.FLOAT, [1, 1, 256]) for k in range(2)]
    after = [helper.make_tensor_value_info(f"h{k}n", TensorProto.FLOAT, [1, 1, 256]) for k in range(2)]
    token = helper.make_tensor_value_info("token", TensorProto.INT64, [1, 1])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, lm.vocabulary.size])
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "lm", [token, *state], [logits, *after], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _zrh(stacked: Any) -> Any:
    r, z, n = stacked.detach().numpy().reshape(3, 256, -1)
    whole = np.concatenate([z, r, n])
    return whole if stacked.ndim == 2 else whole[:, 0]
