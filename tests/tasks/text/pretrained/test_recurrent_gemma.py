"""RecurrentGemma against transformers: the same logits in one go, in chunks and in steps, beyond its window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from theirs import SYMBOLS, check_laws, randomise, save, tokens, worst_error

import elman
from elman.compose.attention.local import LocalAttention

transformers = pytest.importorskip("transformers", exc_type=ImportError)


def theirs(**settings: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=SYMBOLS, hidden_size=48, num_hidden_layers=4,  # its root is rounded to bfloat16
        num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=40, attention_window_size=8, logits_soft_cap=2.0, rms_norm_eps=1e-2, conv1d_width=3,
        lru_width=64, **settings,
    )  # fmt: skip
    return randomise(transformers.RecurrentGemmaForCausalLM(config))


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    model = theirs()
    lm = elman.from_pretrained(save(model, tmp_path / "theirs"))
    x = tokens(steps=27)
    x[:, 0] = 2  # its bos; 1 is its eos, and the boundary stands for both
    with torch.no_grad():
        want = model(x, use_cache=False).logits
    assert worst_error(lm, x, want, 2) < 1e-5 and float(want.abs().max()) > 0.5
    assert lm.config.tied and lm.config.cell == "rglru"


def test_one_without_attention_is_streamed_natively(tmp_path: Path) -> None:
    model = theirs(block_types=["recurrent"])
    lm = elman.from_pretrained(save(model, tmp_path / "theirs"))
    x = tokens(steps=27)
    x[:, 0] = 2
    with torch.no_grad():
        want = model(x, use_cache=False).logits
    assert worst_error(lm, x, want, 2) < 1e-5 and elman.Stream(lm.model, 1).native


def edited(folder: Path, **settings: object) -> Path:
    """With other settings in its config; those of rotations stand in a mapping of their own since version 5."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hidden_activation", "gelu"), ("attention_bias", True), ("block_types", ["recurrent", "convolution"]),
        ("block_types", []), ("rope_parameters", {"rope_type": "linear", "factor": 2.0}),
    ],
)  # fmt: skip
def test_another_network_is_refused(setting: str, value: object, tmp_path: Path) -> None:
    folder = edited(save(theirs(), tmp_path / "theirs"), **{setting: value})
    with pytest.raises(elman.ElmanError, match="rope_type is 'linear'" if setting == "rope_parameters" else setting):
        elman.from_pretrained(folder)


def test_rotations_are_those_of_the_config(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    lm = elman.from_pretrained(edited(save(theirs(), tmp_path / "theirs"), rope_parameters=rope))
    found = {(part.base, part.rotary) for part in lm.model.core.modules() if isinstance(part, LocalAttention)}
    assert found == {(500.0, 6)}


def test_the_laws_hold(tmp_path: Path) -> None:
    check_laws(elman.from_pretrained(save(theirs(), tmp_path / "theirs")))
