"""RecurrentGemma (Botev et al., 2024), Griffin's network: RG-LRUs, and in every third layer attention to a window, each
followed by a gated feed-forward network, each as x + f(norm(x)).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.cells.rglru import RGLRU
from elman.compose import Norm, Residual, Stack
from elman.compose.attention.local import LocalAttention
from elman.compose.feedforward import FeedForward
from elman.core import Core
from elman.errors import FileError
from elman.files.artifact import Content
from elman.tasks.text.pretrained.family import Family
from elman.tasks.text.pretrained.source import Config, Tensors


def settings(config: Config, tensors: Tensors) -> Content:
    config.require("hidden_activation", "gelu_pytorch_tanh")
    config.require("attention_bias", False)
    size, heads = config("hidden_size"), config("num_attention_heads")
    head_size = config("head_dim", size // heads)
    kinds = config("block_types", ["recurrent", "recurrent", "attention"], kind=list)
    if not kinds or any(kind not in ("recurrent", "attention") for kind in kinds):
        raise FileError(f"block_types is {kinds} in {config.path}; layers are recurrent or attention")
    # In a mapping of its own since version 5.
    rope = Config(config.path, {**config.content, **config("rope_parameters", {}, kind=dict)})
    rope.require("rope_type", "default")
    return {
        "size": size, "layers": config("num_hidden_layers"), "symbols": config("vocab_size"), "kinds": kinds,
        "heads": heads, "groups": config("num_key_value_heads", heads), "head_size": head_size,
        "rotary": int(head_size * rope("partial_rotary_factor", 0.5, kind=(int, float))),
        "base": float(rope("rope_theta", 10000.0, kind=(int, float))),
        "window": config("attention_window_size", 2048), "lru": config("lru_width", size),
        "conv": config("conv1d_width", 4), "width": config("intermediate_size") // 2,
        "eps": config("rms_norm_eps", 1e-6, kind=float), "cap": config("logits_soft_cap", 30.0, kind=(int, float)),
        # Theirs rounds the root to bfloat16, in which the models were trained.
        "scale": float(torch.tensor(size**0.5, dtype=torch.bfloat16)),
    }  # fmt: skip


def core(size: int, layers: int, settings: Content) -> Core:
    names = ("heads", "groups", "head_size", "rotary", "base", "window")
    attention: dict[str, Any] = {name: settings[name] for name in names}
    recurrence: dict[str, Any] = {name: settings[name] for name in ("heads", "conv")} | {"width": settings["lru"]}
    parts: list[Core] = []
    for i in range(layers):
        attends = settings["kinds"][i % len(settings["kinds"])] == "attention"
        mixing = LocalAttention(size, size, **attention) if attends else RGLRU(size, size, **recurrence)
        feed = FeedForward(size, settings["width"], activation="gelu", bias=True)
        parts += [Residual(Stack(_norm(size, settings), inner)) for inner in (mixing, feed)]
    return Stack(*parts, _norm(size, settings))


def _norm(size: int, settings: Content) -> Norm:
    return Norm(size, kind="rms", eps=settings["eps"])


def copy(core: Core, tensors: Tensors) -> None:
    *parts, last = core.cores  # type: ignore[misc]
    for i, (first, second) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        (norm, mixing), (norm_2, feed) = first.core.cores, second.core.cores
        layer, at = f"model.layers.{i}.", f"model.layers.{i}.temporal_block."
        tensors.copy(norm.g, f"{layer}temporal_pre_norm.weight", make=_plus_one)
        tensors.copy(norm_2.g, f"{layer}channel_pre_norm.weight", make=_plus_one)
        if isinstance(mixing, LocalAttention):
            tensors.copy(mixing.U, *(f"{at}{name}_proj.weight" for name in "qkv"))
            tensors.copy(mixing.O, f"{at}o_proj.weight")
            tensors.copy(mixing.c, f"{at}o_proj.bias")
        else:
            _copy_recurrence(mixing, tensors, at)
        for ours, theirs in ((feed.U, "weight"), (feed.b, "bias")):
            tensors.copy(ours, f"{layer}mlp_block.gate_proj.{theirs}", f"{layer}mlp_block.up_proj.{theirs}")
        tensors.copy(feed.V, f"{layer}mlp_block.down_proj.weight")
        tensors.copy(feed.c, f"{layer}mlp_block.down_proj.bias")
    tensors.copy(last.g, "model.final_norm.weight", make=_plus_one)


def _copy_recurrence(cell: RGLRU, tensors: Tensors, at: str) -> None:
    tensors.copy(cell.U, f"{at}linear_x.weight", f"{at}linear_y.weight")
    tensors.copy(cell.b, f"{at}linear_x.bias", f"{at}linear_y.bias")
    tensors.copy(cell.w, f"{at}conv_1d.weight", make=lambda weight: weight[:, 0].t())
    tensors.copy(cell.c, f"{at}conv_1d.bias")
    tensors.copy(cell.L, f"{at}rg_lru.recurrent_param")
    for W, b, gate in ((cell.W_a, cell.b_a, "recurrent_gate"), (cell.W_x, cell.b_x, "input_gate")):
        tensors.copy(W, f"{at}rg_lru.{gate}_weight", make=lambda weight: weight.transpose(1, 2))
        tensors.copy(b, f"{at}rg_lru.{gate}_bias", make=lambda bias: bias.flatten())
    tensors.copy(cell.O, f"{at}linear_out.weight")
    tensors.copy(cell.o, f"{at}linear_out.bias")


def _plus_one(weight: Tensor) -> Tensor:
    """The gain of a norm, of which they store what it is above one."""
    return 1.0 + weight.float()


RECURRENT_GEMMA = Family("rglru", "model.embed_tokens.weight", "lm_head.weight", settings, core, copy)
