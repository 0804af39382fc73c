"""Mamba, Falcon Mamba and Mamba-2, as transformers saves them: x + cell(norm(x)), and a last norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.cells.mamba import NORM_EPS, Mamba
from elman.cells.mamba2 import Mamba2
from elman.cells.matrix import EPS
from elman.compose import Norm, Residual, Stack
from elman.core import Core
from elman.errors import FileError
from elman.files.artifact import Content
from elman.tasks.text.pretrained.family import Family
from elman.tasks.text.pretrained.source import Config, Tensors


def _settings(config: Config, tensors: Tensors) -> Content:
    config.require("hidden_act", "silu")
    config.require("use_bias", False)
    config.require("use_conv_bias", True)
    size, inner = config("hidden_size"), tensors.shape("backbone.layers.0.mixer.out_proj.weight")[1]
    if inner % size:
        raise FileError(
            f"a layer of {tensors.path} has {inner} channels inside; a multiple of {size}, its size, can be read"
        )
    return {
        "size": size, "layers": config("num_hidden_layers"), "symbols": config("vocab_size"),
        "eps": config("layer_norm_epsilon", EPS, kind=float), "state_size": config("state_size"),
        "expand": inner // size, "conv": config("conv_kernel", 4),
    }  # fmt: skip


def mamba_settings(config: Config, tensors: Tensors) -> Content:
    rank = config("time_step_rank", "auto", kind=(int, str))
    return {**_settings(config, tensors), "dt_rank": rank}


def falcon_settings(config: Config, tensors: Tensors) -> Content:
    config.require("mixer_rms_eps", NORM_EPS)
    return {**mamba_settings(config, tensors), "norm": True}


def mamba2_settings(config: Config, tensors: Tensors) -> Content:
    settings = _settings(config, tensors)
    config.require("layer_norm_epsilon", EPS)
    no_limit = [0.0, {"__float__": "Infinity"}]  # how transformers writes it, for JSON has no infinity
    config.require("time_step_limit", no_limit, [0.0, float("inf")])
    return {**settings, "heads": config("num_heads"), "groups": config("n_groups")}


def _core(cell: type[Core], size: int, layers: int, settings: Content) -> Core:
    options: dict[str, Any] = {name: value for name, value in settings.items() if name != "eps"}
    eps = settings["eps"]
    blocks = [Residual(Stack(Norm(size, kind="rms", eps=eps), cell(size, size, **options))) for _ in range(layers)]
    return Stack(*blocks, Norm(size, kind="rms", eps=eps))


def mamba_core(size: int, layers: int, settings: Content) -> Core:
    return _core(Mamba, size, layers, settings)


def mamba2_core(size: int, layers: int, settings: Content) -> Core:
    return _core(Mamba2, size, layers, settings)


def copy(core: Core, tensors: Tensors) -> None:
    *blocks, last = core.cores  # type: ignore[misc]
    for i, block in enumerate(blocks):
        norm, cell = block.core.cores
        layer = f"backbone.layers.{i}."
        tensors.copy(norm.g, f"{layer}norm.weight")
        _copy_cell(cell, tensors, f"{layer}mixer.")
    tensors.copy(last.g, "backbone.norm_f.weight")


def _copy_cell(cell: Mamba | Mamba2, tensors: Tensors, at: str) -> None:
    tensors.copy(cell.U, f"{at}in_proj.weight")
    tensors.copy(cell.w, f"{at}conv1d.weight", make=taps)
    tensors.copy(cell.c, f"{at}conv1d.bias")
    tensors.copy(cell.A_log, f"{at}A_log")
    tensors.copy(cell.D, f"{at}D")
    if isinstance(cell, Mamba):
        tensors.copy(cell.S, f"{at}x_proj.weight")
        tensors.copy(cell.W, f"{at}dt_proj.weight")
        tensors.copy(cell.b, f"{at}dt_proj.bias")
        tensors.copy(cell.V, f"{at}out_proj.weight")
    else:
        tensors.copy(cell.b, f"{at}dt_bias")
        tensors.copy(cell.g, f"{at}norm.weight")
        tensors.copy(cell.O, f"{at}out_proj.weight")


def taps(*weights: Tensor) -> Tensor:
    """Weights (C, 1, K) of convolutions, channel by channel -> (K, C), the channels of all side by side."""
    return torch.cat([weight[:, 0] for weight in weights]).t()


EMBEDDING, HEAD = "backbone.embeddings.weight", "lm_head.weight"
MAMBA = Family("mamba", EMBEDDING, HEAD, mamba_settings, mamba_core, copy)
FALCON_MAMBA = Family("mamba", EMBEDDING, HEAD, falcon_settings, mamba_core, copy)
MAMBA2 = Family("mamba2", EMBEDDING, HEAD, mamba2_settings, mamba2_core, copy)
