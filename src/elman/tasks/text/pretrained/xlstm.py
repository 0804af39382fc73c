"""xLSTM as in its 7B model (Beck et al., 2025): x + mlstm(norm(x)), x + feedforward(norm(x)); a cap on the logits."""

from __future__ import annotations

from typing import Any

from elman.cells.mlstm import CAP, EPS, MLSTM
from elman.compose import Norm, Residual, Stack
from elman.compose.feedforward import FeedForward
from elman.core import Core
from elman.files.artifact import Content
from elman.tasks.text.pretrained.family import Family
from elman.tasks.text.pretrained.source import Config, Tensors


def settings(config: Config, tensors: Tensors) -> Content:
    config.require("use_bias", False)
    config.require("add_out_norm", True)
    config.require("gate_soft_cap", CAP)
    config.require("eps", EPS)
    config.require("norm_eps", EPS)
    size = config("hidden_size", config.content.get("embedding_dim"))
    heads = config("num_heads")
    return {
        "size": size, "layers": config("num_hidden_layers", config.content.get("num_blocks")),
        "symbols": config("vocab_size"), "heads": heads,
        "key_size": int(size * config("qk_dim_factor", 0.5, kind=(int, float))) // heads,
        "value_size": int(size * config("v_dim_factor", 1.0, kind=(int, float))) // heads,
        "width": tensors.shape("backbone.blocks.0.ffn.proj_down.weight")[1],
        "cap": config("output_logit_soft_cap", 30.0, kind=(int, float)),
    }  # fmt: skip


def core(size: int, layers: int, settings: Content) -> Core:
    options: dict[str, Any] = {name: settings[name] for name in ("heads", "key_size", "value_size")}
    parts: list[Core] = []
    for _ in range(layers):
        parts.append(Residual(Stack(Norm(size, kind="rms", eps=EPS), MLSTM(size, size, **options))))
        parts.append(Residual(Stack(Norm(size, kind="rms", eps=EPS), FeedForward(size, settings["width"]))))
    return Stack(*parts, Norm(size, kind="rms", eps=EPS))


def copy(core: Core, tensors: Tensors) -> None:
    *parts, last = core.cores  # type: ignore[misc]
    fused = "backbone.blocks.0.mlstm_layer.qkv_opreact.weight" in tensors  # the same rows, in one matrix
    gates = ["ifgate_preact"] if fused else ["igate_preact", "fgate_preact"]
    for i, (first, second) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        (norm, cell), (norm_2, feed) = first.core.cores, second.core.cores
        layer, at = f"backbone.blocks.{i}.", f"backbone.blocks.{i}.mlstm_layer."
        tensors.copy(norm.g, f"{layer}norm_mlstm.weight")
        tensors.copy(norm_2.g, f"{layer}norm_ffn.weight")
        inputs = ["qkv_opreact"] if fused else ["q", "k", "v", "ogate_preact"]
        tensors.copy(cell.U, *(f"{at}{name}.weight" for name in inputs))
        tensors.copy(cell.W, *(f"{at}{name}.weight" for name in gates))
        tensors.copy(cell.b, *(f"{at}{name}.bias" for name in gates))
        tensors.copy(cell.g, f"{at}multihead_norm.weight")
        tensors.copy(cell.O, f"{at}out_proj.weight")
        up = ["proj_up_gate_z"] if fused else ["proj_up_gate", "proj_up"]
        tensors.copy(feed.U, *(f"{layer}ffn.{name}.weight" for name in up))
        tensors.copy(feed.V, f"{layer}ffn.proj_down.weight")
    tensors.copy(last.g, "backbone.out_norm.weight")


XLSTM = Family("mlstm", "backbone.embeddings.weight", "lm_head.weight", settings, core, copy)
