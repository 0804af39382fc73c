"""The pure models of flash-linear-attention (Yang and Zhang, 2024): gated linear attention, retention, DeltaNet, gated
DeltaNet, each as x + cell(norm(x)), then x + feedforward(norm(x)). One with attention in some layers is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elman.cells.deltanet import DeltaNet
from elman.cells.gated_deltanet import GatedDeltaNet
from elman.cells.gla import GLA
from elman.cells.retnet import RetNet
from elman.compose import Norm, Residual, Stack
from elman.compose.feedforward import FeedForward
from elman.core import Core
from elman.files.artifact import Content
from elman.tasks.text.pretrained.family import Family
from elman.tasks.text.pretrained.mamba import taps
from elman.tasks.text.pretrained.source import Config, Tensors

NUMBER = (int, float)


def _settings(config: Config, tensors: Tensors) -> Content:
    config.require("attn", None)
    config.require("hidden_act", "swish", "silu")
    return {
        "size": config("hidden_size"), "layers": config("num_hidden_layers"), "symbols": config("vocab_size"),
        "width": tensors.shape("model.layers.0.mlp.down_proj.weight")[1], "eps": config("norm_eps", 1e-6, kind=float),
    }  # fmt: skip


def _heads(config: Config, expand_k: float, expand_v: float, heads: int) -> Content:
    """The sizes of heads where a config has them as parts of the whole."""
    size, heads = config("hidden_size"), config("num_heads", heads)
    keys = round(size * config("expand_k", expand_k, kind=NUMBER))
    values = round(size * config("expand_v", expand_v, kind=NUMBER))
    return {"heads": heads, "key_size": keys // heads, "value_size": values // heads}


def _plain(config: Config) -> None:
    """What gated linear attention and retention have in common."""
    config.require("feature_map", None)
    config.require("use_short_conv", False)
    config.require("use_output_gate", True)
    config.require("elementwise_affine", True)
    config.require("num_kv_heads", None, config.content.get("num_heads"))


def gla_settings(config: Config, tensors: Tensors) -> Content:
    _plain(config)
    config.require("clamp_min", None)
    rank = tensors.shape("model.layers.0.attn.gk_proj.0.weight")[0]
    return {**_settings(config, tensors), **_heads(config, 0.5, 1.0, 4), "rank": rank}


def retnet_settings(config: Config, tensors: Tensors) -> Content:
    _plain(config)
    return {**_settings(config, tensors), **_heads(config, 1.0, 2.0, 8)}


def delta_net_settings(config: Config, tensors: Tensors) -> Content:
    config.require("use_gate", False)
    config.require("use_short_conv", True)
    config.require("use_beta", True)
    config.require("use_output_norm", True)
    config.require("qk_norm", "l2")
    config.require("qk_activation", "silu")
    config.require("allow_neg_eigval", False)
    return {**_settings(config, tensors), **_heads(config, 1.0, 1.0, 16), "conv": config("conv_size", 4)}


def gated_deltanet_settings(config: Config, tensors: Tensors) -> Content:
    config.require("use_gate", True)
    config.require("output_gate_activation", "swish", "silu")
    config.require("use_short_conv", True)
    config.require("allow_neg_eigval", False)
    keys, groups = config("head_dim", 256), config("num_heads", 6)
    return {
        **_settings(config, tensors), "heads": config("num_v_heads", groups), "groups": groups, "key_size": keys,
        "value_size": int(keys * config("expand_v", 2.0, kind=NUMBER)), "conv": config("conv_size", 4),
    }  # fmt: skip


def _core(cell: type[Core]) -> Callable[[int, int, Content], Core]:
    def core(size: int, layers: int, settings: Content) -> Core:
        options: dict[str, Any] = {name: value for name, value in settings.items() if name != "width"}
        eps = settings["eps"]
        parts: list[Core] = []
        for _ in range(layers):
            for inner in (cell(size, size, **options), FeedForward(size, settings["width"])):
                parts.append(Residual(Stack(Norm(size, kind="rms", eps=eps), inner)))
        return Stack(*parts, Norm(size, kind="rms", eps=eps))

    return core


def copy(core: Core, tensors: Tensors) -> None:
    *parts, last = core.cores  # type: ignore[misc]
    for i, (first, second) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        (norm, cell), (norm_2, feed) = first.core.cores, second.core.cores
        layer, at = f"model.layers.{i}.", f"model.layers.{i}.attn."
        tensors.copy(norm.g, f"{layer}attn_norm.weight")
        tensors.copy(norm_2.g, f"{layer}mlp_norm.weight")
        _copy_cell(cell, tensors, at)
        up = f"{layer}mlp.up_proj.weight"  # the first models have the gate above it, in one matrix
        tensors.copy(feed.U, f"{layer}mlp.gate_proj.weight", *([up] if up in tensors else []))
        tensors.copy(feed.V, f"{layer}mlp.down_proj.weight")
    tensors.copy(last.g, "model.norm.weight")


def _copy_cell(cell: Any, tensors: Tensors, at: str) -> None:
    inputs = {GLA: "qkvg", RetNet: "qkvg", DeltaNet: "qkvb", GatedDeltaNet: "qkvgba"}[type(cell)]
    tensors.copy(cell.U, *(f"{at}{name}_proj.weight" for name in inputs))
    tensors.copy(cell.O, f"{at}o_proj.weight")
    if isinstance(cell, GLA | RetNet):
        fused = f"{at}g_norm_swish_gate.weight"
        tensors.copy(cell.g, fused if fused in tensors else f"{at}g_norm.weight")
    else:
        tensors.copy(cell.g, f"{at}o_norm.weight")
        tensors.copy(cell.w, *(f"{at}{name}_conv1d.weight" for name in "qkv"), make=taps)
    if isinstance(cell, GLA):
        tensors.copy(cell.W_1, f"{at}gk_proj.0.weight")
        tensors.copy(cell.W_2, f"{at}gk_proj.1.weight")
        tensors.copy(cell.b, f"{at}gk_proj.1.bias")
    if isinstance(cell, GatedDeltaNet):
        tensors.copy(cell.A_log, f"{at}A_log")
        tensors.copy(cell.dt, f"{at}dt_bias")


EMBEDDING, HEAD = "model.embeddings.weight", "lm_head.weight"
FLA_GLA = Family("gla", EMBEDDING, HEAD, gla_settings, _core(GLA), copy)
FLA_RETNET = Family("retnet", EMBEDDING, HEAD, retnet_settings, _core(RetNet), copy)
FLA_DELTA_NET = Family("deltanet", EMBEDDING, HEAD, delta_net_settings, _core(DeltaNet), copy)
FLA_GATED_DELTANET = Family("gated_deltanet", EMBEDDING, HEAD, gated_deltanet_settings, _core(GatedDeltaNet), copy)
