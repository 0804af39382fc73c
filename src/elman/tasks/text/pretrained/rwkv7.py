"""RWKV-7: the .pth of its authors, and the folders of fla-hub. Time mixing and channel mixing in each layer, each as
x + f(norm(x)), a norm before the first; the values of the first layer go beside x through all layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from elman.compose import Columns, Norm, Parallel, Stack
from elman.compose.feedforward import ChannelMixing
from elman.compose.value_residual import Carry, FirstTimeMixing, LaterTimeMixing
from elman.core import Core
from elman.errors import FileError
from elman.files.artifact import Content
from elman.tasks.text.pretrained.family import Family
from elman.tasks.text.pretrained.source import Config, Tensors

EPS = 1e-5  # of the norms over a layer


def pth_settings(config: Config, tensors: Tensors) -> Content:
    """All is in the shapes of the tensors."""
    symbols, size = tensors.shape("emb.weight")
    layers = 0
    while f"blocks.{layers}.ln1.weight" in tensors:
        layers += 1
    later = "blocks.1." if layers > 1 else "blocks.0."
    if "blocks.0.att.r_k" not in tensors:
        raise FileError(f"{tensors.path} is not an RWKV-7: it has no blocks.0.att.r_k. Other versions are not read")
    heads, head_size = tensors.shape("blocks.0.att.r_k")
    return {
        "size": size, "layers": layers, "symbols": symbols, "heads": heads, "head_size": head_size, "eps": 64 * EPS,
        "rank": tensors.shape("blocks.0.att.w1")[1], "a_rank": tensors.shape("blocks.0.att.a1")[1],
        "gate_rank": tensors.shape("blocks.0.att.g1")[1],
        "value_rank": tensors.shape(f"{later}att.v1")[1] if layers > 1 else 1,
        "width": tensors.shape("blocks.0.ffn.key.weight")[0],
    }  # fmt: skip


def fla_settings(config: Config, tensors: Tensors) -> Content:
    config.require("hidden_act", "sqrelu")
    config.require("norm_first", True)
    config.require("norm_bias", True)
    config.require("attn", None)
    config.require("norm_eps", EPS)
    size, layers = config("hidden_size"), config("num_hidden_layers")
    at = "model.layers.0.attn."
    heads, head_size = tensors.shape(f"{at}r_k")
    config.require("value_dim", None, size, [size] * min(layers, len(tensors.shapes)))
    ranks = {"rank": f"{at}w_lora", "a_rank": f"{at}a_lora", "gate_rank": f"{at}g_lora"}
    if layers > 1:
        ranks["value_rank"] = "model.layers.1.attn.v_lora"
    return {
        "size": size, "layers": layers, "symbols": config("vocab_size"), "heads": heads, "head_size": head_size,
        "eps": head_size * EPS, "width": tensors.shape("model.layers.0.ffn.key.weight")[0], "value_rank": 1,
        **{name: tensors.shape(f"{lora}.lora.0.weight")[0] for name, lora in ranks.items()},
    }  # fmt: skip


def core(size: int, layers: int, settings: Content) -> Core:
    options: dict[str, Any] = dict(settings)
    width, value_rank = options.pop("width"), options.pop("value_rank")
    first = FirstTimeMixing(size, size, **options)
    values = first.output_size - size
    parts: list[Core] = [Norm(size), Carry(Stack(Norm(size), first), size)]
    for i in range(layers):
        if i:
            later = LaterTimeMixing(size, size, value_rank=value_rank, **options)
            normed = Stack(Columns(size + values, 0, size), Norm(size))
            parts.append(Carry(Stack(Parallel(normed, Columns(size + values, size, values)), later), size))
        mixing = Stack(Columns(size + values, 0, size), Norm(size), ChannelMixing(size, width))
        parts.append(Carry(mixing, size))
    return Stack(*parts, Columns(size + values, 0, size), Norm(size))


def _layers(core: Core) -> Iterator[tuple[int, Any, Any, Any, Any]]:
    """Each layer: norm, time mixing, norm, channel mixing."""
    _, *parts, _, _ = core.cores  # type: ignore[misc]
    for i, (time, channels) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        before, mixing = time.core.cores
        norm = before.cores[0].cores[1] if i else before
        _, second, feed = channels.core.cores
        yield i, norm, mixing, second, feed


def _copy_norm(norm: Norm, tensors: Tensors, name: str) -> None:
    tensors.copy(norm.g, f"{name}.weight")
    tensors.copy(norm.b, f"{name}.bias")


def _flat(*parts: Tensor) -> Tensor:
    """Vectors in whatever shape, one below the other."""
    return torch.stack([part.flatten() for part in parts]).squeeze(0)


def pth_copy(core: Core, tensors: Tensors) -> None:
    first, *_, last = core.cores  # type: ignore[misc]
    _copy_norm(first, tensors, "blocks.0.ln0")
    for i, norm, mixing, second, feed in _layers(core):
        at = f"blocks.{i}.att."
        _copy_norm(norm, tensors, f"blocks.{i}.ln1")
        _copy_norm(second, tensors, f"blocks.{i}.ln2")
        _copy_mixing(mixing, tensors, at, ("receptance", "key", "value", "output"), "ln_x")
        for ours, theirs in {"D": "w", "A": "a", "G": "g", **({"V": "v"} if i else {})}.items():
            for number in (1, 2):
                tensors.copy(getattr(mixing, f"{ours}_{number}"), f"{at}{theirs}{number}", make=Tensor.t)
        for ours, theirs in {"w_0": "w0", "a_0": "a0", **({"v_0": "v0"} if i else {})}.items():
            tensors.copy(getattr(mixing, ours), f"{at}{theirs}", make=_flat)
        _copy_feed(feed, tensors, f"blocks.{i}.ffn.")
    tensors.ignore(f"blocks.0.att.v{number}" for number in range(3))  # there in some files, and used by nobody
    _copy_norm(last, tensors, "ln_out")


def fla_copy(core: Core, tensors: Tensors) -> None:
    first, *_, last = core.cores  # type: ignore[misc]
    _copy_norm(first, tensors, "model.layers.0.pre_norm")
    for i, norm, mixing, second, feed in _layers(core):
        layer, at = f"model.layers.{i}.", f"model.layers.{i}.attn."
        _copy_norm(norm, tensors, f"{layer}attn_norm")
        _copy_norm(second, tensors, f"{layer}ffn_norm")
        _copy_mixing(mixing, tensors, at, ("r_proj", "k_proj", "v_proj", "o_proj"), "g_norm")
        for ours, theirs in {"D": "w", "A": "a", "G": "g", **({"V": "v"} if i else {})}.items():
            tensors.copy(getattr(mixing, f"{ours}_1"), f"{at}{theirs}_lora.lora.0.weight")
            tensors.copy(getattr(mixing, f"{ours}_2"), f"{at}{theirs}_lora.lora.2.weight")
        for ours, theirs in {"w_0": "w", "a_0": "a", **({"v_0": "v"} if i else {})}.items():
            tensors.copy(getattr(mixing, ours), f"{at}{theirs}_lora.lora.2.bias")
        _copy_feed(feed, tensors, f"{layer}ffn.")
    _copy_norm(last, tensors, "model.norm")


def _copy_mixing(mixing: Any, tensors: Tensors, at: str, products: tuple[str, ...], norm: str) -> None:
    for parameter, name in zip((mixing.W_r, mixing.W_k, mixing.W_v, mixing.O), products, strict=True):
        tensors.copy(parameter, f"{at}{name}.weight")
    if f"{at}x_x" in tensors:  # as the first models of fla-hub have them
        tensors.copy(mixing.mu, f"{at}x_x")
    else:
        tensors.copy(mixing.mu, *(f"{at}x_{name}" for name in "rwkvag"), make=_flat)
    for name in ("k_k", "k_a", "r_k"):
        tensors.copy(getattr(mixing, name), f"{at}{name}", make=_flat)
    tensors.copy(mixing.g, f"{at}{norm}.weight")
    tensors.copy(mixing.c, f"{at}{norm}.bias")


def _copy_feed(feed: ChannelMixing, tensors: Tensors, at: str) -> None:
    tensors.copy(feed.mu, f"{at}x_k", make=_flat)
    tensors.copy(feed.U, f"{at}key.weight")
    tensors.copy(feed.V, f"{at}value.weight")


PTH = Family("rwkv7", "emb.weight", "head.weight", pth_settings, core, pth_copy)
FLA = Family("rwkv7", "model.embeddings.weight", "lm_head.weight", fla_settings, core, fla_copy)
