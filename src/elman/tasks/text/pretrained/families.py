"""The families that can be read, by what config.json calls their model_type."""

from __future__ import annotations

from elman.tasks.text.pretrained.family import Family
from elman.tasks.text.pretrained.fla import FLA_DELTA_NET, FLA_GATED_DELTANET, FLA_GLA, FLA_RETNET
from elman.tasks.text.pretrained.mamba import FALCON_MAMBA, MAMBA, MAMBA2
from elman.tasks.text.pretrained.recurrent_gemma import RECURRENT_GEMMA
from elman.tasks.text.pretrained.rwkv7 import FLA as RWKV7_FLA
from elman.tasks.text.pretrained.rwkv7 import PTH as RWKV7_PTH
from elman.tasks.text.pretrained.xlstm import XLSTM

FAMILIES: dict[str, Family] = {
    "mamba": MAMBA, "falcon_mamba": FALCON_MAMBA, "mamba2": MAMBA2, "rwkv7": RWKV7_FLA, "rwkv7_pth": RWKV7_PTH,
    "xlstm": XLSTM,
    "recurrent_gemma": RECURRENT_GEMMA, "gla": FLA_GLA, "retnet": FLA_RETNET, "delta_net": FLA_DELTA_NET,
    "gated_deltanet": FLA_GATED_DELTANET,
}  # fmt: skip

# Those whose attention reaches back to the first symbol: their state grows with the text.
HYBRIDS = (
    "bailing_hybrid", "bamba", "falcon_h1", "glm5_next", "glm5_next_text", "granitemoehybrid", "jamba", "kimi_linear",
    "lfm2", "lfm2_moe", "lfm2_vl", "lfm3", "lfm3_vl", "minimax", "minimax_m1", "nemotron_h", "nemotron_h_omni",
    "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp",
    "qwen4_exp_text", "zamba", "zamba2",
)  # fmt: skip
