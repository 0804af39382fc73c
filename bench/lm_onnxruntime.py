"""The same language model as an ONNX graph: the prompt in one call, then one step a call, symbol, logits and state
bound to arrays that are there; sampling in numpy."""

from itertools import cycle
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import elman
from bench import lm_inputs
from bench.with_onnxruntime import binding, session_of
from bench.worker import Outputs, Run


def prepare(case: dict[str, Any]) -> tuple[Run, Outputs]:
    lm = lm_inputs.language_model(case["cell"])
    session, whole = (session_of(_graph(lm, prompt), case["threads"]) for prompt in (False, True))
    prompt = np.array([0, *lm.vocabulary.encode(lm_inputs.PROMPT).tolist()])[:, None]
    first = {f"h{k}": np.zeros((1, 1, 256), np.float32) for k in range(2)}
    token, logits = np.zeros((1, 1), np.int64), np.empty((1, lm.vocabulary.size), np.float32)
    before, after = ({k: np.empty((1, 1, 256), np.float32) for k in first} for _ in range(2))

    def bound(read: dict[str, Any], written: dict[str, Any]) -> Any:
        out = {"logits": logits, **{f"{k}n": v for k, v in written.items()}}
        return binding(session, {"token": token, **read}, out)

    there, back = bound(before, after), bound(after, before)

    def read() -> Any:
        """The logits after the prompt, which is one call."""
        found, *state = whole.run(["logits", "h0n", "h1n"], {"token": prompt, **first})
        for k, value in zip(first, state, strict=True):
            before[k][:] = value
        return found[0]

    def run() -> str:
        last, bindings = read(), cycle((there, back))
        uniform, symbols = np.random.default_rng(0).random(lm_inputs.TOKENS).tolist(), []
        for u in uniform:
            p = np.exp(last - last.max()).cumsum()
            token[0, 0] = p.searchsorted(u * p[-1])
            symbols.append(int(token[0, 0]))
            session.run_with_iobinding(next(bindings))
            last = logits[0]
        return lm.vocabulary.decode(symbols)

    def outputs(_: Any) -> dict[str, Any]:
        """After the prompt; and after one step more, by the arrays that are bound."""
        found = read()
        token[0, 0] = lm_inputs.NEXT
        session.run_with_iobinding(there)
        each = {"log_probs": found, "next_log_probs": logits[0]}
        return {name: x - np.log(np.exp(x).sum()) for name, x in each.items()}

    return run, outputs


def _graph(lm: elman.LanguageModel, prompt: bool) -> Any:
    """Gather, two GRU nodes (ONNX orders the gates z, r, h), and Gemm of the last state of the second. Of one step the
    first one's state is its output; of a prompt, as long as one likes, its outputs are read. Time first."""
    gru, weights = elman.to_torch(lm.model.core), {}
    nodes = [helper.make_node("Gather", ["E", "token"], ["x0"])]
    for k in range(2):
        for name, letter in (("weight_ih", "W"), ("weight_hh", "R")):
            weights[f"{letter}{k}"] = _zrh(getattr(gru, f"{name}_l{k}"))[None]
        biases = [_zrh(getattr(gru, f"{name}_l{k}")) for name in ("bias_ih", "bias_hh")]
        weights[f"B{k}"] = np.concatenate(biases)[None]
        names = [f"x{k}", f"W{k}", f"R{k}", f"B{k}", "", f"h{k}"]
        results = ["y" if prompt and k == 0 else "", f"h{k}n"]
        nodes.append(helper.make_node("GRU", names, results, hidden_size=256, linear_before_reset=1))
        if k == 0:
            given = ("Squeeze", ["y", "one"]) if prompt else ("Identity", ["h0n"])
            nodes.append(helper.make_node(*given, ["x1"]))
    readout = lm.model.readout.linear
    weights |= {"E": lm.model.embed.weight.detach().numpy(), "V": readout.weight.detach().numpy()}
    weights |= {"c": readout.bias.detach().numpy(), "zero": np.array([0])} | ({"one": np.array([1])} if prompt else {})
    nodes.append(helper.make_node("Squeeze", ["h1n", "zero"], ["last"]))
    nodes.append(helper.make_node("Gemm", ["last", "V", "c"], ["logits"], transB=1))
    state = [helper.make_tensor_value_info(f"h{k}", TensorProto.FLOAT, [1, 1, 256]) for k in range(2)]
    after = [helper.make_tensor_value_info(f"h{k}n", TensorProto.FLOAT, [1, 1, 256]) for k in range(2)]
    token = helper.make_tensor_value_info("token", TensorProto.INT64, [None, 1])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, lm.vocabulary.size])
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "lm", [token, *state], [logits, *after], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _zrh(stacked: Any) -> Any:
    r, z, n = stacked.detach().numpy().reshape(3, 256, -1)
    whole = np.concatenate([z, r, n])
    return whole if stacked.ndim == 2 else whole[:, 0]
