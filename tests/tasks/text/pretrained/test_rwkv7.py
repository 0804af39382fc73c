"""RWKV-7 against the package `rwkv` of its authors, which computes in a process of its own: it is configured by the
environment, and compiles what it imports."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from theirs import check_laws, check_odd_files, tokens, worst_error, write_folder
from torch import Tensor

import elman

D, LAYERS, HEAD, SYMBOLS, WIDTH, RANKS = 32, 3, 16, 300, 48, {"w": 6, "a": 5, "v": 3, "g": 7}
THEIRS = """
import sys, torch
from rwkv.model import RWKV
model = RWKV(model=sys.argv[1], strategy="cpu fp32")
tokens = torch.load(sys.argv[2])
torch.save(torch.stack([model.forward(row.tolist(), None, full_output=True)[0] for row in tokens]), sys.argv[3])
"""


def pth_tensors() -> dict[str, Tensor]:
    """Random weights under the names of the .pth of the authors."""
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int, mean: float = 0.0, std: float = 0.3) -> Tensor:
        return mean + std * torch.randn(shape, generator=random)

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": draw(D, mean=1.0), f"{name}.bias": draw(D)}

    found = {"emb.weight": draw(SYMBOLS, D), "head.weight": draw(SYMBOLS, D), **norm("ln_out"), **norm("blocks.0.ln0")}
    for i in range(LAYERS):
        at, ffn = f"blocks.{i}.att.", f"blocks.{i}.ffn."
        found |= norm(f"blocks.{i}.ln1") | norm(f"blocks.{i}.ln2") | norm(f"{at}ln_x")
        found |= {f"{at}x_{name}": torch.rand(1, 1, D, generator=random) for name in "rwkvag"}
        found |= {f"{at}{name}0": draw(1, 1, D) for name in ("wav" if i else "wa")}
        for name in "wavg" if i else "wag":
            found |= {f"{at}{name}1": draw(D, RANKS[name]), f"{at}{name}2": draw(RANKS[name], D)}
        found |= {f"{at}k_k": draw(1, 1, D, mean=0.8), f"{at}k_a": draw(1, 1, D, mean=1.0)}
        found |= {f"{at}r_k": draw(D // HEAD, HEAD)}
        for name in ("receptance", "key", "value", "output"):
            found[f"{at}{name}.weight"] = draw(D, D, std=0.2)
        found |= {f"{ffn}x_k": torch.rand(1, 1, D, generator=random)}
        found |= {f"{ffn}key.weight": draw(WIDTH, D, std=0.2), f"{ffn}value.weight": draw(D, WIDTH, std=0.2)}
    return found


def fla_tensors() -> tuple[dict, dict[str, Tensor]]:
    """The same weights as fla-hub has them."""
    theirs = pth_tensors()
    rows = {
        "emb.weight": "model.embeddings.weight",
        "head.weight": "lm_head.weight",
        "blocks.0.ln0": "layers.0.pre_norm",
    }
    names = {
        "ln1": "attn_norm", "ln2": "ffn_norm", "att.ln_x": "attn.g_norm", "att.receptance": "attn.r_proj",
        "att.key": "attn.k_proj", "att.value": "attn.v_proj", "att.output": "attn.o_proj",
    }  # fmt: skip
    found = {rows["emb.weight"]: theirs["emb.weight"], rows["head.weight"]: theirs["head.weight"]}
    for kind in ("weight", "bias"):
        found[f"model.layers.0.pre_norm.{kind}"] = theirs[f"blocks.0.ln0.{kind}"]
        found[f"model.norm.{kind}"] = theirs[f"ln_out.{kind}"]
    for i in range(LAYERS):
        before, after = f"blocks.{i}.", f"model.layers.{i}."
        for old, new in names.items():
            for kind in ("weight", "bias"):
                if f"{before}{old}.{kind}" in theirs:
                    found[f"{after}{new}.{kind}"] = theirs[f"{before}{old}.{kind}"]
        for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "r_k"):
            found[f"{after}attn.{name}"] = theirs[f"{before}att.{name}"]
        for name in ("k_k", "k_a"):
            found[f"{after}attn.{name}"] = theirs[f"{before}att.{name}"].flatten()
        for name in "wavg" if i else "wag":
            lora = f"{after}attn.{name}_lora.lora."
            found[f"{lora}0.weight"] = theirs[f"{before}att.{name}1"].T
            found[f"{lora}2.weight"] = theirs[f"{before}att.{name}2"].T
            if name != "g":
                found[f"{lora}2.bias"] = theirs[f"{before}att.{name}0"].flatten()
        found[f"{after}ffn.x_k"] = theirs[f"{before}ffn.x_k"].flatten()
        for name in ("key", "value"):
            found[f"{after}ffn.{name}.weight"] = theirs[f"{before}ffn.{name}.weight"]
    config = {
        "model_type": "rwkv7", "hidden_size": D, "num_hidden_layers": LAYERS, "vocab_size": SYMBOLS, "head_dim": HEAD,
        "hidden_act": "sqrelu", "norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return config, found


def write_world(folder: Path) -> None:
    """A vocabulary as theirs, of bytes and two longer tokens."""
    tokens = [*(bytes([byte]) for byte in range(256)), b" the", b"th"]
    lines = [f"{i} {token!r} {len(token)}" for i, token in enumerate(tokens, 1)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def pth(tmp_path: Path) -> Path:
    torch.save(pth_tensors(), tmp_path / "theirs.pth")
    write_world(tmp_path)
    return tmp_path / "theirs.pth"


def test_the_package_of_the_authors_computes_the_same(pth: Path) -> None:
    if importlib.util.find_spec("rwkv") is None:
        pytest.skip("could not import rwkv")
    lm, x = elman.from_pretrained(pth), tokens(symbols=SYMBOLS)
    torch.save(x, pth.with_name("tokens"))
    command = [
        sys.executable,
        "-c",
        THEIRS,
        str(pth.with_suffix("")),
        str(pth.with_name("tokens")),
        str(pth.with_name("y")),
    ]
    environment = {**os.environ, "RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    want = torch.load(pth.with_name("y"))
    assert worst_error(lm, x, want) < 1e-4 and float(want.abs().max()) > 1
    assert elman.Stream(lm.model, 1).native and lm.config.cell == "rwkv7"
    assert lm.vocabulary.encode("the the").tolist()[-1] == 257


def test_a_folder_of_fla_is_the_same_model(pth: Path, tmp_path: Path) -> None:
    config, tensors = fla_tensors()
    folder = write_folder(tmp_path / "fla", config, tensors)
    # Theirs has the eps of a head of 64 in the norm whatever its width; that of fla is as wide as the head.
    ours, fla = elman.from_pretrained(pth), elman.from_pretrained(folder)
    for part in fla.model.core.modules():
        if hasattr(part, "r_k"):
            assert part.eps == HEAD * 1e-5
            part.eps = 64e-5
    x = tokens(symbols=SYMBOLS)
    with torch.no_grad():
        assert worst_error(fla, x, ours.model.scan(x)[0].logits) < 1e-5


def test_values_of_the_first_layer_that_nobody_uses_are_left_out(pth: Path) -> None:
    """Some files have v0, v1 and v2 of the first layer, where there is nothing to mix its values with."""
    want, x = elman.from_pretrained(pth), tokens(symbols=SYMBOLS)
    extra = {f"blocks.0.att.v{i}": torch.randn(shape) for i, shape in enumerate([(1, 1, D), (D, 3), (3, D)])}
    torch.save({**pth_tensors(), **extra}, pth)
    assert torch.equal(elman.from_pretrained(pth).model.scan(x)[0].logits, want.model.scan(x)[0].logits)


def test_the_first_models_of_fla_have_all_mixtures_in_one_matrix(tmp_path: Path) -> None:
    config, tensors = fla_tensors()
    want, x = elman.from_pretrained(write_folder(tmp_path / "new", config, tensors)), tokens(symbols=SYMBOLS)
    for i in range(LAYERS):
        parts = [tensors.pop(f"model.layers.{i}.attn.x_{name}").flatten() for name in "rwkvag"]
        tensors[f"model.layers.{i}.attn.x_x"] = torch.stack(parts)
    old = elman.from_pretrained(write_folder(tmp_path / "old", config, tensors))
    assert torch.equal(old.model.scan(x)[0].logits, want.model.scan(x)[0].logits)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hidden_act", "relu"), ("norm_first", False), ("norm_bias", False), ("norm_eps", 1e-6), ("value_dim", 64),
        ("attn", {"layers": [1]}),
    ],
)  # fmt: skip
def test_another_network_of_fla_is_refused(setting: str, value: object, tmp_path: Path) -> None:
    config, tensors = fla_tensors()
    with pytest.raises(elman.ElmanError, match=f"{setting} is "):
        elman.from_pretrained(write_folder(tmp_path / "fla", {**config, setting: value}, tensors))


def test_the_laws_hold(pth: Path) -> None:
    check_laws(elman.from_pretrained(pth))


def test_a_file_that_could_run_code_is_refused_in_one_line(tmp_path: Path) -> None:
    torch.save({"a": Path("x")}, tmp_path / "theirs.pth")
    with pytest.raises(elman.ElmanError, match="tensors alone") as raised:
        elman.from_pretrained(tmp_path / "theirs.pth")
    assert "\n" not in str(raised.value)


def test_a_truncated_file_is_refused(pth: Path) -> None:
    pth.write_bytes(pth.read_bytes()[:1000])
    with pytest.raises(elman.ElmanError, match="whole"):
        elman.from_pretrained(pth)


@pytest.mark.slow
def test_odd_files_are_read_or_refused(tmp_path: Path) -> None:
    check_odd_files(tmp_path / "fla", *fla_tensors())
    tensors = pth_tensors()
    write_world(tmp_path)
    for name, tensor in tensors.items():
        for other in (tensor.sum(), tensor.flatten()[:-1], tensor[:0]):
            torch.save({**tensors, name: other}, tmp_path / "odd.pth")
            with pytest.raises(elman.ElmanError) as raised:
                elman.from_pretrained(tmp_path / "odd.pth")
            assert "\n" not in str(raised.value)
