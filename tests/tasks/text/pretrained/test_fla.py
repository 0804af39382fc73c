"""The pure models of flash-linear-attention: their equations in plain loops, in float64, under their names of tensors.

Their own package is not installed here: its kernels need a GPU, and Triton beside it stops transformers on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from theirs import SYMBOLS, check_laws, check_odd_files, tokens, worst_error, write_folder
from torch import Tensor

import elman
from elman.tasks.text.pretrained.fla import _heads
from elman.tasks.text.pretrained.source import Config

D, LAYERS, H, WIDTH, EPS = 16, 2, 2, 24, 1e-3  # an eps that shows
Weights = dict[str, Tensor]


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gain


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def heads(x: Tensor, count: int = H) -> Tensor:
    """x (T, N) -> (T, H, N / H)."""
    return x.unflatten(-1, (count, -1))


def convolved(x: Tensor, w: Tensor) -> Tensor:
    """The causal convolution of x (T, C), channel by channel, with w (C, 1, 4); then silu."""
    padded = torch.cat([x.new_zeros(3, x.shape[1]), x])
    return silu(torch.stack([sum(w[:, 0, j] * padded[t + j] for j in range(4)) for t in range(len(x))]))


def gla(w: Weights, x: Tensor) -> Tensor:
    q, k, v, g = (heads(x @ w[f"{name}_proj.weight"].T) for name in "qkvg")
    a = heads(x @ w["gk_proj.0.weight"].T @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"])
    decay = torch.exp(torch.nn.functional.logsigmoid(a) / 16)
    S, ys = x.new_zeros(H, q.shape[-1], v.shape[-1]), []
    for t in range(len(x)):
        S = decay[t, :, :, None] * S + k[t, :, :, None] * v[t, :, None]
        ys.append(torch.einsum("hk,hkv->hv", q[t] * q.shape[-1] ** -0.5, S))
    return (rms(torch.stack(ys), w["g_norm_swish_gate.weight"]) * silu(g)).flatten(1) @ w["o_proj.weight"].T


def rotated(x: Tensor) -> Tensor:
    T, _, K = x.shape
    angle = torch.arange(T)[:, None] / 10000.0 ** (torch.arange(0, K, 2, dtype=x.dtype) / K)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def retnet(w: Weights, x: Tensor) -> Tensor:
    q, k, v, g = (heads(x @ w[f"{name}_proj.weight"].T) for name in "qkvg")
    q, k = rotated(q), rotated(k)
    S, ys = x.new_zeros(H, q.shape[-1], v.shape[-1]), []
    for t in range(len(x)):
        decay = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(H)], dtype=x.dtype)
        S = decay[:, None, None] * S + k[t, :, :, None] * v[t, :, None]
        ys.append(torch.einsum("hk,hkv->hv", q[t] * q.shape[-1] ** -0.5, S))
    return (rms(torch.stack(ys), w["g_norm_swish_gate.weight"]) * silu(g)).flatten(1) @ w["o_proj.weight"].T


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
    q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
    S, ys = q.new_zeros(v.shape[1], q.shape[-1], v.shape[-1]), []
    for t in range(len(q)):
        S = decay[t, :, None, None] * S
        error = v[t] - torch.einsum("hk,hkv->hv", k[t], S)
        S = S + k[t, :, :, None] * (beta[t, :, None] * error)[:, None]
        ys.append(torch.einsum("hk,hkv->hv", q[t], S))
    return torch.stack(ys)


def delta_net(w: Weights, x: Tensor) -> Tensor:
    q, k, v = (heads(convolved(x @ w[f"{n}_proj.weight"].T, w[f"{n}_conv1d.weight"])) for n in "qkv")
    beta = torch.sigmoid(x @ w["b_proj.weight"].T)
    y = delta_rule(q, k, v, beta, torch.ones_like(beta))
    return rms(y, w["o_norm.weight"]).flatten(1) @ w["o_proj.weight"].T


def gated_deltanet(w: Weights, x: Tensor) -> Tensor:
    """Four value heads on two heads of keys."""
    q, k, v = (convolved(x @ w[f"{n}_proj.weight"].T, w[f"{n}_conv1d.weight"]) for n in "qkv")
    q, k = (heads(p).repeat_interleave(2, 1) for p in (q, k))
    step = torch.nn.functional.softplus(x @ w["a_proj.weight"].T + w["dt_bias"])
    decay = torch.exp(-torch.exp(w["A_log"]) * step)
    y = delta_rule(q, k, heads(v, 4), torch.sigmoid(x @ w["b_proj.weight"].T), decay)
    gate = heads(x @ w["g_proj.weight"].T, 4)
    return (rms(y, w["o_norm.weight"]) * silu(gate)).flatten(1) @ w["o_proj.weight"].T


# The equation, the settings, and the shapes of the tensors of its layers.
Shapes = dict[str, tuple[int, ...]]
FAMILIES: dict[str, tuple[Callable[[Weights, Tensor], Tensor], dict, Shapes]] = {
    "gla": (
        gla, {"expand_k": 0.5, "expand_v": 1, "num_heads": H},
        {"q_proj.weight": (8, D), "k_proj.weight": (8, D), "v_proj.weight": (D, D), "g_proj.weight": (D, D),
         "gk_proj.0.weight": (5, D), "gk_proj.1.weight": (8, 5), "gk_proj.1.bias": (8,), "o_proj.weight": (D, D),
         "g_norm_swish_gate.weight": (8,)},
    ),
    "retnet": (
        retnet, {"expand_k": 1.0, "expand_v": 2.0, "num_heads": H},
        {"q_proj.weight": (D, D), "k_proj.weight": (D, D), "v_proj.weight": (2 * D, D), "g_proj.weight": (2 * D, D),
         "o_proj.weight": (D, 2 * D), "g_norm_swish_gate.weight": (D,)},
    ),
    "delta_net": (
        delta_net, {"expand_k": 1, "expand_v": 1, "num_heads": H},
        {"q_proj.weight": (D, D), "k_proj.weight": (D, D), "v_proj.weight": (D, D), "b_proj.weight": (H, D),
         "q_conv1d.weight": (D, 1, 4), "k_conv1d.weight": (D, 1, 4), "v_conv1d.weight": (D, 1, 4),
         "o_proj.weight": (D, D), "o_norm.weight": (8,)},
    ),
    "gated_deltanet": (
        gated_deltanet, {"expand_v": 1.5, "num_heads": H, "num_v_heads": 4, "head_dim": 6},
        {"q_proj.weight": (12, D), "k_proj.weight": (12, D), "v_proj.weight": (36, D), "g_proj.weight": (36, D),
         "a_proj.weight": (4, D), "b_proj.weight": (4, D), "A_log": (4,), "dt_bias": (4,),
         "q_conv1d.weight": (12, 1, 4), "k_conv1d.weight": (12, 1, 4), "v_conv1d.weight": (36, 1, 4),
         "o_proj.weight": (D, 36), "o_norm.weight": (9,)},
    ),
}  # fmt: skip


def draw(family: str) -> tuple[dict, Weights]:
    _, options, shapes = FAMILIES[family]
    layer: Shapes = {
        **{f"attn.{name}": shape for name, shape in shapes.items()}, "attn_norm.weight": (D,), "mlp_norm.weight": (D,),
        "mlp.gate_proj.weight": (WIDTH, D), "mlp.up_proj.weight": (WIDTH, D), "mlp.down_proj.weight": (D, WIDTH),
    }  # fmt: skip
    whole: Shapes = {"model.embeddings.weight": (SYMBOLS, D), "model.norm.weight": (D,), "lm_head.weight": (SYMBOLS, D)}
    whole |= {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    random = torch.Generator().manual_seed(0)
    tensors = {name: 0.4 * torch.randn(shape, generator=random) for name, shape in whole.items()}
    config = {
        "model_type": family, "hidden_size": D, "num_hidden_layers": LAYERS, "vocab_size": SYMBOLS, "norm_eps": EPS,
        "hidden_act": "swish", "bos_token_id": 1, "eos_token_id": 2, **options,
    }  # fmt: skip
    return config, tensors


def logits(family: str, tensors: Weights, x: Tensor) -> Tensor:
    """Of tokens x (T,)."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    h = w["model.embeddings.weight"][x]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        own = {name.removeprefix(f"{layer}attn."): t for name, t in w.items() if name.startswith(f"{layer}attn.")}
        h = h + FAMILIES[family][0](own, rms(h, w[f"{layer}attn_norm.weight"]))
        u = rms(h, w[f"{layer}mlp_norm.weight"])
        gate, up = u @ w[f"{layer}mlp.gate_proj.weight"].T, u @ w[f"{layer}mlp.up_proj.weight"].T
        h = h + (silu(gate) * up) @ w[f"{layer}mlp.down_proj.weight"].T
    return rms(h, w["model.norm.weight"]) @ w["lm_head.weight"].T


@pytest.mark.parametrize("family", FAMILIES)
def test_their_equations_give_the_same(family: str, tmp_path: Path) -> None:
    config, tensors = draw(family)
    lm = elman.from_pretrained(write_folder(tmp_path / "theirs", config, tensors))
    x = tokens()
    x[:, 0] = 1
    want = torch.stack([logits(family, tensors, row) for row in x])
    assert worst_error(lm, x, want, 1) < 1e-4 and float(want.abs().max()) > 0.5
    assert elman.Stream(lm.model, 1).native and not math.isnan(float(want.sum()))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_laws_hold(family: str, tmp_path: Path) -> None:
    check_laws(elman.from_pretrained(write_folder(tmp_path / "theirs", *draw(family))))


def test_the_first_models_have_gate_and_input_of_the_feedforward_network_in_one_matrix(tmp_path: Path) -> None:
    config, tensors = draw("gla")
    x = tokens(steps=20)
    want = elman.from_pretrained(write_folder(tmp_path / "new", config, tensors)).model.scan(x)[0].logits
    for i in range(LAYERS):
        up = tensors.pop(f"model.layers.{i}.mlp.up_proj.weight")
        gate = f"model.layers.{i}.mlp.gate_proj.weight"
        tensors[gate] = torch.cat([tensors[gate], up])
    old = elman.from_pretrained(write_folder(tmp_path / "old", config, tensors))
    assert torch.equal(old.model.scan(x)[0].logits, want)


def test_one_with_attention_in_some_layers_is_refused(tmp_path: Path) -> None:
    config, tensors = draw("gla")
    folder = write_folder(tmp_path / "theirs", {**config, "attn": {"layers": [1], "num_heads": 2}}, tensors)
    with pytest.raises(elman.ElmanError, match="attn is"):
        elman.from_pretrained(folder)


PLAIN = {
    "feature_map": "relu", "use_short_conv": True, "use_output_gate": False, "elementwise_affine": False,
    "num_kv_heads": 1,
}  # fmt: skip
OTHERS: dict[str, dict[str, object]] = {
    "gla": {**PLAIN, "clamp_min": -3.0, "hidden_act": "gelu"},
    "retnet": PLAIN,
    "delta_net": {
        "use_gate": True, "use_short_conv": False, "use_beta": False, "use_output_norm": False, "qk_norm": "sum",
        "qk_activation": "relu", "allow_neg_eigval": True,
    },
    "gated_deltanet": {
        "use_gate": False, "use_short_conv": False, "allow_neg_eigval": True, "output_gate_activation": "sigmoid",
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "setting"), [(family, name) for family, all_ in OTHERS.items() for name in all_])
def test_another_network_is_refused(family: str, setting: str, tmp_path: Path) -> None:
    """Tensors of some of these have the same names and shapes: only the config tells them apart."""
    config, tensors = draw(family)
    value = OTHERS[family][setting]
    with pytest.raises(elman.ElmanError, match=f"{setting} is {value!r}"):
        elman.from_pretrained(write_folder(tmp_path / "theirs", {**config, setting: value}, tensors))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_eps_is_theirs_where_none_is_said(family: str, tmp_path: Path) -> None:
    config, tensors = draw(family)
    del config["norm_eps"]
    lm = elman.from_pretrained(write_folder(tmp_path / "theirs", config, tensors))
    assert {part.eps for part in lm.model.core.modules() if isinstance(part, elman.Norm)} == {1e-6}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_odd_files_are_read_or_refused(family: str, tmp_path: Path) -> None:
    check_odd_files(tmp_path / "odd", *draw(family))


def test_widths_of_heads_are_rounded_as_theirs_are() -> None:
    """100 * 0.29 is 28.999999999999996 in a computer."""
    config = Config(Path("config.json"), {"hidden_size": 100, "num_heads": 1, "expand_k": 0.29, "expand_v": 0.57})
    assert _heads(config, 1.0, 1.0, 1) == {"heads": 1, "key_size": 29, "value_size": 57}
