"""A converted model is one like any other; what cannot be one is refused in a line that says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from theirs import check_odd_files, write_folder
from torch import Tensor

import elman
from elman.cli import main
from elman.tasks.text.lm import build
from elman.tasks.text.pretrained.convert import convert
from elman.tasks.text.pretrained.families import HYBRIDS

D, V, TEXT = 8, 300, "the thin thread, thicker than that; " * 30


def mamba() -> tuple[dict, dict[str, Tensor]]:
    """One layer of Mamba, under the names of transformers."""
    shapes = {
        "embeddings.weight": (V, D), "norm_f.weight": (D,), "layers.0.norm.weight": (D,),
        "layers.0.mixer.in_proj.weight": (4 * D, D), "layers.0.mixer.conv1d.weight": (2 * D, 1, 4),
        "layers.0.mixer.conv1d.bias": (2 * D,), "layers.0.mixer.x_proj.weight": (5, 2 * D),
        "layers.0.mixer.dt_proj.weight": (2 * D, 1), "layers.0.mixer.dt_proj.bias": (2 * D,),
        "layers.0.mixer.A_log": (2 * D, 2), "layers.0.mixer.D": (2 * D,), "layers.0.mixer.out_proj.weight": (D, 2 * D),
    }  # fmt: skip
    random = torch.Generator().manual_seed(0)
    tensors = {f"backbone.{name}": 0.5 * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    tensors["lm_head.weight"] = torch.randn(V, D, generator=random)
    config = {
        "model_type": "mamba", "vocab_size": V, "hidden_size": D, "num_hidden_layers": 1, "state_size": 2,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return config, tensors


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "theirs", *mamba())


def test_what_is_saved_is_the_same_model(theirs: Path, tmp_path: Path) -> None:
    lm = convert(theirs, tmp_path / "ours")
    again = elman.load(tmp_path / "ours")
    assert again.fingerprint == lm.fingerprint and again.config == lm.config
    assert again.score(TEXT)[0] == lm.score(TEXT)[0]
    assert again.generate("the ", max_new_tokens=20, seed=3) == lm.generate("the ", max_new_tokens=20, seed=3)
    with pytest.raises(elman.ElmanError, match="exists"):
        convert(theirs, tmp_path / "ours")


def test_a_text_begins_with_their_first_token_and_ends_with_their_last(theirs: Path) -> None:
    """Symbol 0 reads the row of bos, and is predicted by that of eos; both keep their texts."""
    lm, (_, tensors) = elman.from_pretrained(theirs), mamba()
    rows = tensors["backbone.embeddings.weight"]
    embed, readout = lm.model.embed, lm.model.readout
    assert torch.equal(embed(torch.tensor([0, 1, 2, 9])), rows[[1, 1, 0, 9]])
    assert torch.equal(readout.linear.weight[[0, 1, 2, 9]], tensors["lm_head.weight"][[2, 1, 0, 9]])
    assert lm.vocabulary.encode("<c>t<a>").tolist() == [0, 3 + sorted_letters().index("t"), 2]
    assert elman.Stream(lm.model, 1).native


@pytest.mark.parametrize(
    ("ends", "row"),
    [
        ({"bos_token_id": 2, "eos_token_id": 2}, 2), ({"bos_token_id": 0, "eos_token_id": 2}, 0),
        ({"bos_token_id": 0, "eos_token_id": 0}, 0), ({"bos_token_id": 2, "eos_token_id": None}, 2),
        ({"bos_token_id": None, "eos_token_id": [2, 1]}, 2), ({"bos_token_id": 2, "eos_token_id": 0}, 2),
    ],
)  # fmt: skip
def test_the_boundary_reads_the_row_of_whatever_begins_a_text(ends: dict, row: int, tmp_path: Path) -> None:
    config, tensors = mamba()
    lm = elman.from_pretrained(write_folder(tmp_path / "theirs", {**config, **ends}, tensors))
    rows = tensors["backbone.embeddings.weight"]
    assert torch.equal(lm.model.embed(torch.tensor([0])), rows[[row]])
    stream, state = elman.Stream(lm.model, 1), lm.model.init_state(1)
    wanted = lm.model.readout.linear(lm.model.core.step(rows[[row]], state)[0])
    torch.testing.assert_close(torch.from_numpy(stream.logits([0])), wanted.detach())
    assert not lm.model.readout.linear.bias.any()


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id"])
def test_a_token_that_there_is_not_is_refused(name: str, tmp_path: Path) -> None:
    config, tensors = mamba()
    with pytest.raises(elman.ElmanError, match=f"{name} is {V} in .*; the model has {V} symbols"):
        elman.from_pretrained(write_folder(tmp_path / "theirs", {**config, name: V}, tensors))


def test_the_vocabulary_of_rwkv_is_for_what_it_ends(theirs: Path) -> None:
    (theirs / "world.txt").write_text("1 'a' 1\n")
    with pytest.raises(elman.ElmanError, match=r"ends texts with the token 0, the config of .* with 2"):
        elman.from_pretrained(theirs, tokenizer=theirs / "world.txt")


def test_reading_a_model_draws_no_random_numbers(theirs: Path) -> None:
    before = torch.random.get_rng_state()
    elman.from_pretrained(theirs)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_it_computes_in_no_fewer_bits(theirs: Path) -> None:
    config = elman.LMModelConfig(pretrained=elman.from_pretrained(theirs).config.pretrained, dtype="bfloat16")
    with pytest.raises(elman.ElmanError, match="computes in float32 or float64"):
        build(config, V)


def sorted_letters() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def test_a_run_begins_with_it(theirs: Path, tmp_path: Path) -> None:
    convert(theirs, tmp_path / "ours")
    (tmp_path / "text.txt").write_text(TEXT * 3)
    words = ["train", "--init_from", str(tmp_path / "ours"), "--data.train", str(tmp_path / "text.txt")]
    small = ["--training.steps", "4", "--data.batch_size", "2", "--data.window", "8", "--training.evaluate_every", "2"]
    assert main([*words, *small, "--out", str(tmp_path / "run")]) == 0
    tuned = elman.load(tmp_path / "run")
    assert tuned.config.pretrained["family"] == "mamba" and tuned.vocabulary.kind == "tokenizer"
    assert tuned.fingerprint != elman.load(tmp_path / "ours").fingerprint


def test_its_start_alone_is_tuned(theirs: Path, tmp_path: Path) -> None:
    """State tuning of a converted model: what it learns is where it begins, and a reset returns there."""
    convert(theirs, tmp_path / "ours")
    (tmp_path / "text.txt").write_text(TEXT * 3)
    words = ["train", "--init_from", str(tmp_path / "ours"), "--data.train", str(tmp_path / "text.txt")]
    tune = ["--model.learn_initial_state", "true", "--training.only", "initial_state", "--optim.lr", "0.1"]
    small = ["--training.steps", "8", "--data.batch_size", "2", "--data.window", "8", "--training.evaluate_every", "4"]
    assert main([*words, *tune, *small, "--out", str(tmp_path / "run")]) == 0
    tuned, before = elman.load(tmp_path / "run"), elman.load(tmp_path / "ours")
    assert tuned.config.learn_initial_state
    changed = tuned.model.state_dict()
    start = changed.pop("core.initial_state")
    assert start.numel() == 2 * D * (3 + 2) and start.any()
    kept = before.model.state_dict()
    assert [*changed] == [name.replace("core.", "core.core.", 1) for name in kept]
    assert all(map(torch.equal, changed.values(), kept.values()))
    x, reset = torch.tensor([[5, 6, 5, 6]]), torch.tensor([[False, False, True, False]])
    y = tuned.model.scan(x, reset=reset)[0].logits
    assert torch.equal(y[:, :2], y[:, 2:]) and not torch.equal(y, before.model.scan(x, reset=reset)[0].logits)
    assert elman.Stream(tuned.model, 1).native


def test_a_setting_that_its_network_does_not_have_is_refused(theirs: Path, tmp_path: Path) -> None:
    convert(theirs, tmp_path / "ours")
    (tmp_path / "text.txt").write_text(TEXT * 3)
    config = elman.LMConfig(
        init_from=str(tmp_path / "ours"), data={"train": str(tmp_path / "text.txt"), "vocabulary": "tokenizer"},
        model={"pretrained": elman.load(tmp_path / "ours").config.pretrained, "dropout": 0.5},
    )  # fmt: skip
    with pytest.raises(elman.ElmanError, match=r"model\.dropout is 0\.5"):
        elman.train(config, progress=False)


def test_it_is_inspected_and_evaluated(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = str(tmp_path / "ours")
    assert main(["convert", str(theirs), "--out", ours, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == "mamba"
    (tmp_path / "text.txt").write_text(TEXT)
    assert main(["evaluate", ours, str(tmp_path / "text.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["characters"] == len(TEXT)
    assert len(elman.inspect(elman.load(ours), TEXT, rows=2, steps=8).verdict) > 0


def test_missing_unknown_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    config, tensors = mamba()
    tensors["extra.weight"] = tensors.pop("backbone.norm_f.weight")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:5]
    with pytest.raises(elman.ElmanError) as raised:
        elman.from_pretrained(write_folder(tmp_path / "theirs", config, tensors))
    said = str(raised.value)
    assert "missing: backbone.norm_f.weight" in said and "unknown: extra.weight" in said
    assert f"lm_head.weight [5, {D}] instead of [{V}, {D}]" in said


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_state_that_grows_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    config, tensors = mamba()
    with pytest.raises(elman.ElmanError, match=f"is a {kind}: some of its layers attend to all"):
        elman.from_pretrained(write_folder(tmp_path / "theirs", {**config, "model_type": kind}, tensors))


def test_another_family_is_refused_by_name(tmp_path: Path) -> None:
    config, tensors = mamba()
    with pytest.raises(elman.ElmanError, match="'llama'; there are delta_net"):
        elman.from_pretrained(write_folder(tmp_path / "theirs", {**config, "model_type": "llama"}, tensors))


def test_what_is_not_there_is_said(theirs: Path, tmp_path: Path) -> None:
    (theirs / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(elman.ElmanError, match="--tokenizer"):
        elman.from_pretrained(theirs)
    assert elman.from_pretrained(theirs, tokenizer=tmp_path / "tokenizer.json").vocabulary.size == V
    with pytest.raises(elman.ElmanError, match="there is no"):
        elman.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(elman.ElmanError, match="neither a folder"):
        elman.from_pretrained(theirs / "config.json")


@pytest.mark.parametrize(
    ("value", "said"), [(torch.nan, "with NaN or infinity"), (torch.inf, "with NaN or infinity"), (None, "in int32")]
)
def test_what_are_no_weights_is_refused(value: float | None, said: str, tmp_path: Path) -> None:
    config, tensors = mamba()
    name = "backbone.layers.0.mixer.D"
    if value is None:
        tensors[name] = tensors[name].to(torch.int32)
    else:
        tensors[name][-1] = value
    with pytest.raises(elman.ElmanError, match=f"no weights: {name} {said}"):
        elman.from_pretrained(write_folder(tmp_path / "odd", config, tensors))


def test_a_head_of_its_own_must_be_there_and_nothing_quantised(tmp_path: Path) -> None:
    config, tensors = mamba()
    del tensors["lm_head.weight"]
    with pytest.raises(elman.ElmanError, match=r"no tensor lm_head\.weight"):
        elman.from_pretrained(write_folder(tmp_path / "untied", {**config, "tie_word_embeddings": False}, tensors))
    with pytest.raises(elman.ElmanError, match="not quantised"):
        elman.from_pretrained(write_folder(tmp_path / "few", {**config, "quantization_config": {"bits": 4}}, tensors))


@pytest.mark.slow
def test_odd_files_are_read_or_refused(tmp_path: Path) -> None:
    check_odd_files(tmp_path / "odd", *mamba())


def test_more_layers_than_tensors_are_refused_before_they_are_built(tmp_path: Path) -> None:
    config, tensors = mamba()
    with pytest.raises(elman.ElmanError, match=r"has 1,000,000,000 layers, and .* 13 tensors in all"):
        elman.from_pretrained(write_folder(tmp_path / "deep", {**config, "num_hidden_layers": 10**9}, tensors))
