"""Mamba, Falcon Mamba and Mamba-2 against transformers: the same logits in one go, in chunks and in steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from theirs import SYMBOLS, check_laws, randomise, save, tokens, worst_error

import elman

transformers = pytest.importorskip("transformers", exc_type=ImportError)
# No setting that can be another is what it is by default, in theirs or in ours: that would hide that it is not read.
SIZES = {"vocab_size": SYMBOLS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "conv_kernel": 3}
MAMBA = {"layer_norm_epsilon": 1e-2, "time_step_rank": 3, "expand": 3}
FAMILIES = {
    "mamba": ("Mamba", {**MAMBA, "bos_token_id": 0, "eos_token_id": 0}),
    "falcon_mamba": ("FalconMamba", {**MAMBA, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}),
    "mamba2": ("Mamba2", {
        "bos_token_id": 0, "eos_token_id": 2, "num_heads": 6, "head_dim": 8, "expand": 3, "n_groups": 2,
    }),
}  # fmt: skip


def theirs(family: str) -> torch.nn.Module:
    name, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    return randomise(getattr(transformers, f"{name}ForCausalLM")(config))


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same(family: str, tmp_path: Path) -> None:
    model = theirs(family)
    lm = elman.from_pretrained(save(model, tmp_path / "theirs"))
    begin = model.config.bos_token_id
    x = tokens()
    x[:, 0] = begin
    with torch.no_grad():
        want = model(x, use_cache=False).logits
    assert worst_error(lm, x, want, begin) < 1e-5 and float(want.abs().max()) > 0.5
    assert elman.Stream(lm.model, 1).native and lm.config.cell == family.removeprefix("falcon_")
    assert lm.config.tied == model.config.tie_word_embeddings


@pytest.mark.parametrize("family", FAMILIES)
def test_the_laws_hold(family: str, tmp_path: Path) -> None:
    check_laws(elman.from_pretrained(save(theirs(family), tmp_path / "theirs")))


@pytest.mark.parametrize(
    ("family", "setting", "value"),
    [
        ("mamba2", "use_bias", True), ("mamba2", "hidden_act", "relu"), ("mamba2", "time_step_limit", [0.0, 1.0]),
        ("mamba2", "layer_norm_epsilon", 1e-3), ("mamba2", "use_conv_bias", False),
        ("falcon_mamba", "mixer_rms_eps", 1e-3),
    ],
)  # fmt: skip
def test_another_network_is_refused(family: str, setting: str, value: object, tmp_path: Path) -> None:
    folder = save(theirs(family), tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, setting: value}))
    with pytest.raises(elman.ElmanError, match=setting):
        elman.from_pretrained(folder)
