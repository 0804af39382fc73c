"""xLSTM against transformers: the same logits in one go, in chunks and in steps."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from theirs import SYMBOLS, check_laws, randomise, save, tokens, worst_error, write_folder

import elman

transformers = pytest.importorskip("transformers", exc_type=ImportError)


def theirs() -> torch.nn.Module:
    if importlib.util.find_spec("xlstm") is not None:
        pytest.skip("with the package xlstm installed transformers calls that, which has other names")
    torch.manual_seed(0)
    config = transformers.xLSTMConfig(
        vocab_size=SYMBOLS, hidden_size=32, num_hidden_layers=2, num_heads=2, chunk_size=8,
        ffn_round_up_to_multiple_of=8, output_logit_soft_cap=2.0, bos_token_id=0, eos_token_id=2,
        qk_dim_factor=0.75, v_dim_factor=0.5,
    )  # fmt: skip
    return randomise(transformers.xLSTMForCausalLM(config))


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    model = theirs()
    lm = elman.from_pretrained(save(model, tmp_path / "theirs"))
    x = tokens(steps=24)  # theirs takes whole chunks
    x[:, 0] = 0
    with torch.no_grad():
        want = model(x, use_cache=False).logits
    assert worst_error(lm, x, want, 0) < 1e-5 and float(want.abs().max()) > 0.5
    assert elman.Stream(lm.model, 1).native and lm.config.cell == "mlstm"


def test_fused_weights_are_the_same_rows_in_one_matrix(tmp_path: Path) -> None:
    """transformers 5.23 cannot build such a model: it fails where it draws its biases."""
    model, x = theirs(), tokens(steps=20)
    tensors = dict(model.state_dict())
    fused = {
        "mlstm_layer.qkv_opreact": ("q", "k", "v", "ogate_preact"),
        "mlstm_layer.ifgate_preact": ("igate_preact", "fgate_preact"),
        "ffn.proj_up_gate_z": ("proj_up_gate", "proj_up"),
    }  # fmt: skip
    for i in range(2):
        for name, parts in fused.items():
            layer = f"backbone.blocks.{i}.{name.partition('.')[0]}."
            for kind in ("weight", "bias"):
                if f"{layer}{parts[0]}.{kind}" in tensors:
                    whole = torch.cat([tensors.pop(f"{layer}{part}.{kind}") for part in parts])
                    tensors[f"backbone.blocks.{i}.{name}.{kind}"] = whole
    config = {**model.config.to_dict(), "weight_mode": "fused"}
    single = elman.from_pretrained(save(model, tmp_path / "single"))
    both = elman.from_pretrained(write_folder(tmp_path / "fused", config, tensors))
    assert torch.equal(both.model.scan(x)[0].logits, single.model.scan(x)[0].logits)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("use_bias", True), ("add_out_norm", False), ("gate_soft_cap", 30.0), ("eps", 1e-5), ("norm_eps", 1e-5)],
)
def test_another_network_is_refused(setting: str, value: object, tmp_path: Path) -> None:
    folder = save(theirs(), tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, setting: value}))
    with pytest.raises(elman.ElmanError, match=f"{setting} is {value!r}"):
        elman.from_pretrained(folder)


def test_the_laws_hold(tmp_path: Path) -> None:
    check_laws(elman.from_pretrained(save(theirs(), tmp_path / "theirs")))
