"""dynamax, jitted and mapped over sequences; compiled before any time is taken."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dynamax.hidden_markov_model import hmm_filter, hmm_posterior_mode, hmm_smoother

from bench import inputs
from bench.worker import Outputs, Run

smoother = getattr(hmm_smoother, "__wrapped__", hmm_smoother)  # its own jit would trace the flag


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    arrays = {k: jnp.asarray(v) for k, v in inputs.hmm(case["B"], case["T"], case["K"], "float32").items()}
    x, start, transition = arrays["x"], arrays["start"], arrays["transition"]

    def smooth(row: Any, counts: bool) -> Any:
        post = smoother(start, transition, row, compute_trans_probs=counts)
        return post.smoothed_probs, post.trans_probs

    functions = {
        "score": lambda row: hmm_filter(start, transition, row).marginal_loglik,
        "viterbi": lambda row: hmm_posterior_mode(start, transition, row),
        "posteriors": lambda row: smooth(row, False)[0],
        "em": lambda row: smooth(row, True),
    }
    compiled = jax.jit(jax.vmap(functions[case["mode"]]))

    def run() -> Any:
        return jax.block_until_ready(compiled(x))

    def outputs(result: Any) -> dict[str, Any]:
        K = case["K"]
        if case["mode"] == "score":
            return {"score": np.asarray(result).sum()[None]}
        if case["mode"] == "viterbi":
            return {"score": inputs.path_score(arrays, np.asarray(result))}
        if case["mode"] == "posteriors":
            return {"posterior": np.asarray(result).reshape(-1, K)}
        return {"posterior": np.asarray(result[0]).reshape(-1, K), "transition": np.asarray(result[1]).sum(0)}

    return run, outputs
