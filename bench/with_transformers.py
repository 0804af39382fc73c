"""transformers' own functions of matrix states in plain PyTorch, as its models use on a CPU: in chunks, or by step."""

from typing import Any

import torch
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import (
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from bench import inputs
from bench.with_torch import functional
from bench.worker import Outputs, Run


def prepare(case: dict[str, Any], threads: int) -> tuple[Run, Outputs]:
    torch.set_num_threads(threads)
    rule, chunk = case["rule"], case.get("chunk")
    arrays = inputs.matrix(rule, case["B"], case["T"], case["H"], case["K"])
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    g, A = tensors.pop("g"), torch.full((case["H"],), -1.0)

    def forward(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, b: Tensor) -> Tensor:
        if rule == "ssd":
            y: Tensor = mamba2_chunk_scan(v, b, A, k, q, chunk, return_final_states=True)[0]
            return y
        more = {"g": decay, "beta": b, "initial_state": None, "output_final_state": True}
        if chunk is None:
            by_step = recurrent_kimi_delta_attention if rule == "kda" else torch_recurrent_gated_delta_rule
            return by_step(q, k, v, **more)[0]
        function = chunk_kimi_delta_attention if rule == "kda" else torch_chunk_gated_delta_rule
        return function(q, k, v, chunk_size=chunk, **more)[0]

    return functional(case, forward, tensors, g)
