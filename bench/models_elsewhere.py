"""The models that bench.laws_elsewhere looks at: tiny, with random weights, called as their users call them."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

V, T, CUT = 64, 21, 9  # symbols; how many are read; how many of them at first


class Subject(NamedTuple):
    """A model as its users call it. `feed(x, state, mask)`: symbols (B, T) -> logits (B, T, V) and the next state."""

    name: str
    feed: Callable[[Tensor, Any, Tensor | None], tuple[Tensor, Any]]
    masks: bool = True  # whether it takes a mask of padding
    chunks: bool = True  # whether several symbols can follow a state
    rows: int = 2


class NotOffered(Exception):
    """A library has no such thing."""


TINY = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 8}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
NO_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
# Class, the name of its state, its config.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba": ("Mamba", "cache_params", {**TINY, "state_size": 8}),
    "falcon_mamba": ("FalconMamba", "cache_params", {**TINY, "state_size": 8}),
    "mamba2": (
        "Mamba2", "cache_params",
        {**TINY, "state_size": 8, "head_dim": 16, "num_heads": 4, "n_groups": 2, "chunk_size": 8},
    ),
    "xlstm": (
        "xLSTM", "cache_params",
        {"vocab_size": V, "hidden_size": 128, "embedding_dim": 128, "num_hidden_layers": 2, "num_blocks": 2,
         "num_heads": 4, "chunk_size": 8},  # narrower ones raise a RuntimeError
    ),
    "rwkv (version 4)": ("Rwkv", "state", {**TINY, "attention_hidden_size": 32}),
    "recurrent_gemma": (
        "RecurrentGemma", "past_key_values",
        {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1,
         "intermediate_size": 96, "lru_width": 32, "attention_window_size": 64},
    ),
    "jamba": (
        "Jamba", "past_key_values",
        {**TINY, **HEADS, "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 8, "attn_layer_period": 2,
         "attn_layer_offset": 1, "expert_layer_period": 4, "expert_layer_offset": 3},
    ),
    "bamba": ("Bamba", "past_key_values", {**TINY, **HEADS, **MAMBA2, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1", "past_key_values", {**TINY, **HEADS, **MAMBA2, "mamba_d_ssm": 64, "head_dim": 8}),
    "granitemoehybrid": (
        "GraniteMoeHybrid", "past_key_values",
        {**TINY, **HEADS, **MAMBA2, "layer_types": ["mamba", "attention"], "num_local_experts": 0,
         "shared_intermediate_size": 32},
    ),
    "qwen3_next": ("Qwen3Next", "past_key_values", {**TINY, **HEADS, **DELTA, **NO_EXPERTS, "head_dim": 8}),
    "olmo_hybrid": ("OlmoHybrid", "past_key_values", {**TINY, **HEADS, **DELTA, "pad_token_id": 0}),
    "lfm2": ("Lfm2", "past_key_values", {**TINY, **HEADS, "layer_types": ["conv", "full_attention"]}),
}  # fmt: skip


def of_transformers(name: str) -> Subject:
    import transformers

    kind, key, options = TRANSFORMERS[name]
    torch.manual_seed(0)
    model = (
        getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**options)).eval().float()
    )

    def feed(x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        given = {} if state is None else {key: state}
        masked = {} if mask is None else {"attention_mask": mask}
        out = model(input_ids=x, use_cache=True, **given, **masked)
        return out.logits, getattr(out, key, None)

    def feed_own(x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """As `generate` does it where a model returns no cache: the caller makes one, and passes it on."""
        cache = transformers.DynamicCache(config=model.config) if state is None else state
        return feed(x, cache, mask)[0], cache

    return Subject(f"transformers {name}", feed_own if name == "recurrent_gemma" else feed)


def of_torch(kind: type[nn.RNNBase]) -> Subject:
    """A layer with an embedding; padding is what a packed sequence leaves out, at the end of a row."""
    torch.manual_seed(0)
    embed, layer = nn.Embedding(V, 16), kind(16, 32, num_layers=2, batch_first=True)

    def feed(x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        if mask is None or mask.shape != x.shape:  # one more symbol: none is padding
            return layer(embed(x), state)
        if not mask[:, 0].all():
            raise NotOffered  # packed sequences have no padding before a row
        packed = nn.utils.rnn.pack_padded_sequence(embed(x), mask.sum(1), batch_first=True, enforce_sorted=False)
        y, state = layer(packed, state)
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], state

    return Subject(f"torch nn.{kind.__name__}, packed", feed)


def of_mambapy() -> Subject:
    from mambapy.mamba import Mamba, MambaConfig

    torch.manual_seed(0)
    embed, model = nn.Embedding(V, 16), Mamba(MambaConfig(d_model=16, n_layers=2))

    def feed(x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        if state is None and x.shape[1] != CUT:
            return model(embed(x)), None
        inner = model.config.d_inner
        empty = [(None, torch.zeros(len(x), inner, model.config.d_conv - 1)) for _ in range(2)]
        state, parts = empty if state is None else state, []
        for t in range(x.shape[1]):  # its scan takes and gives no state: what is carried is carried by steps
            y, state = model.step(embed(x[:, t]), state)
            parts.append(y)
        return torch.stack(parts, 1), state

    return Subject("mambapy Mamba", feed, masks=False, chunks=False)


def rwkv7_weights(width: int = 128, layers: int = 2, head: int = 64, rank: int = 8) -> dict[str, Tensor]:
    """Random weights in the layout of a .pth of RWKV-7."""
    g = torch.Generator().manual_seed(0)

    def of(*shape: int, scale: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=g) * (scale or shape[0] ** -0.5)

    C, z = width, {"emb.weight": of(V, width, scale=0.5), "head.weight": of(V, width, scale=0.1)}
    norms = ["ln_out", "blocks.0.ln0", *(f"blocks.{i}.{n}" for i in range(layers) for n in ("ln1", "ln2", "att.ln_x"))]
    for name in norms:
        z |= {f"{name}.weight": torch.ones(C), f"{name}.bias": torch.zeros(C)}
    for i in range(layers):
        a, f = f"blocks.{i}.att.", f"blocks.{i}.ffn."
        z |= {a + f"x_{n}": torch.rand(1, 1, C, generator=g) for n in "rwkvag"}
        z |= {a + f"{n}0": of(1, 1, C, scale=0.5) for n in "wav"}
        z |= {a + f"{n}1": of(C, rank) for n in "wavg"} | {a + f"{n}2": of(rank, C) for n in "wavg"}
        z |= {a + "k_k": torch.ones(1, 1, C), a + "k_a": torch.ones(1, 1, C), a + "r_k": of(C // head, head, scale=0.1)}
        z |= {a + f"{n}.weight": of(C, C) for n in ("receptance", "key", "value", "output")}
        z |= {
            f + "x_k": torch.rand(1, 1, C, generator=g),
            f + "key.weight": of(4 * C, C),
            f + "value.weight": of(C, 4 * C),
        }
    return z


def of_rwkv() -> Subject:
    os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="0", RWKV_CUDA_ON="0")
    from rwkv.model import RWKV

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        torch.save(rwkv7_weights(), f"{folder}/tiny.pth")
        model = RWKV(model=f"{folder}/tiny", strategy="cpu fp32")

    def feed(x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        y, state = model.forward(x[0].tolist(), state, full_output=True)
        return y.reshape(1, -1, V), state

    return Subject("rwkv RWKV-7, cpu fp32", feed, masks=False, rows=1)


def subjects() -> dict[str, Callable[[], Subject]]:
    layers = {f"nn.{kind.__name__}": (lambda kind=kind: of_torch(kind)) for kind in (nn.RNN, nn.GRU, nn.LSTM)}
    models = {name: (lambda name=name: of_transformers(name)) for name in TRANSFORMERS}
    return {**layers, **models, "mambapy": of_mambapy, "rwkv": of_rwkv}
