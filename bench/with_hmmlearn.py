"""hmmlearn's scaled implementation, what it does after the emissions: C++ passes, and numpy between them."""

from typing import Any

import numpy as np
from hmmlearn import _hmmc

from bench import inputs
from bench.worker import Outputs, Run


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    arrays = inputs.hmm(case["B"], case["T"], case["K"], "float64")
    x, start, transition = arrays["x"], arrays["start"], arrays["transition"]

    def score() -> Any:
        return sum(_hmmc.forward_scaling(start, transition, np.exp(row))[0] for row in x)

    def path() -> Any:
        return np.stack([_hmmc.viterbi(start, transition, row)[1] for row in x])

    def posteriors(row: Any) -> tuple[Any, ...]:
        likelihood = np.exp(row)
        _, forward, scaling = _hmmc.forward_scaling(start, transition, likelihood)
        backward = _hmmc.backward_scaling(start, transition, likelihood, scaling)
        posterior = forward * backward
        posterior /= posterior.sum(1, keepdims=True)
        return posterior, forward, backward, likelihood

    def smooth() -> Any:
        return [posteriors(row)[0] for row in x], None

    def expectation() -> Any:
        out, total = [], np.zeros_like(transition)
        for row in x:
            posterior, forward, backward, likelihood = posteriors(row)
            total += _hmmc.compute_scaling_xi_sum(forward, transition, backward, likelihood)
            out.append(posterior)
        return out, total

    if case["mode"] == "score":
        return score, lambda s: {"score": np.array([s])}
    if case["mode"] == "viterbi":
        return path, lambda p: {"score": inputs.path_score(arrays, p)}
    if case["mode"] == "posteriors":
        return smooth, lambda r: {"posterior": np.concatenate(r[0])}
    return expectation, lambda r: {"posterior": np.concatenate(r[0]), "transition": r[1]}
