"""Elman's filter, gradients and path, for bench.with_elman."""

from typing import Any

import torch

from bench import inputs
from bench.worker import Outputs, Run
from elman import kernels
from elman.tasks.hmm.fit import posterior
from elman.tasks.hmm.sequences import rows
from elman.tasks.hmm.steps import expected


def prepare(case: dict[str, Any]) -> tuple[Run, Outputs]:
    arrays = {k: torch.from_numpy(v) for k, v in inputs.hmm(case["B"], case["T"], case["K"], case["dtype"]).items()}
    x, start, transition = arrays["x"], arrays["start"], arrays["transition"]
    B, T, K = x.shape
    where = rows((T,) * B)
    state, flat = start.expand(B, K), x.reshape(-1, K)

    def score() -> Any:
        with torch.no_grad():
            return kernels.hmm_log_prob(x, start, transition, state, where.lengths, where.reset).sum()

    def path() -> Any:
        return kernels.viterbi(x, start, transition, where.lengths, where.reset)[0]

    def posteriors() -> Any:
        return posterior(flat, start, transition, where)[1]

    def expectation() -> Any:
        return expected(flat, start, transition, where)

    if case["mode"] == "score":
        return score, lambda s: {"score": s.numpy()[None]}
    if case["mode"] == "viterbi":
        return path, lambda p: {"score": inputs.path_score(arrays, p.numpy())}
    if case["mode"] == "posteriors":
        return posteriors, lambda p: {"posterior": p.numpy()}
    return expectation, lambda e: {"posterior": e.posterior.numpy(), "transition": e.transition.numpy()}
