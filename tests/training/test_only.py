"""Training some parameters alone: state tuning, which changes nothing but where a model begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interrupting import same_files
from torch import nn

from elman.cli import main
from elman.errors import InputError
from elman.run import train
from elman.tasks import load
from elman.tasks.text.data import TextDataConfig
from elman.tasks.text.lm import LMConfig, LMModelConfig
from elman.tasks.text.task import PreviewConfig
from elman.training.loop import TrainingConfig
from elman.training.only import freeze_others
from elman.training.optim import OptimConfig, kinds


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.readout = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.readout.weight = self.embed.weight


def free(model: nn.Module, *patterns: str) -> list[str]:
    freeze_others(model, patterns)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_patterns_are_parts_of_names():
    layers = nn.ModuleDict({"a": nn.Linear(2, 2), "ab": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    assert free(layers) == [name for name, _ in layers.named_parameters()]
    assert free(layers, "a*", "ab.0") == [name for name, _ in layers.named_parameters()]
    assert free(layers, "ab.1.w*", "a") == ["a.weight", "a.bias", "ab.1.weight"]
    assert kinds(layers) == {"a.weight": "decayed", "a.bias": "kept", "ab.1.weight": "decayed"}
    assert free(layers, "bias") == ["a.bias"]  # what was frozen before stays so


def test_what_is_shared_is_found_by_each_of_its_names():
    assert free(Tied(), "readout.weight") == ["embed.weight"]


@pytest.mark.parametrize("pattern", ["eadout", "readout.", "", "readout.weight.W"])
def test_what_matches_nothing_is_an_error_that_lists_what_there_is(pattern):
    model = Tied()
    with pytest.raises(InputError, match=r"The parameters are embed\.weight, readout\.bias"):
        freeze_others(model, ["readout", pattern])
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    """A model of lines of one kind, and lines of another kind of the same letters to tune it to."""
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ab.txt").write_text("ababababab\nabababababab\n" * 60 + "ccaaccaa\n" * 10)
    (tmp_path / "ca.txt").write_text("ccaaccaaccaa\nccaacc\n" * 60)
    config = LMConfig(
        data=TextDataConfig(train=str(tmp_path / "ab.txt"), unit="lines", batch_size=4, window=12),
        model=LMModelConfig(size=16, layers=2, cell="gru"),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(steps=60, evaluate_every=60),
        preview=PreviewConfig(tokens=0),
        out=str(tmp_path / "base"),
    )
    train(config)
    return tmp_path


COMMAND = ["train", "--data.batch_size", "4", "--data.window", "12", "--preview.tokens", "0", "--optim.lr", "0.1"]
TUNE = ["--training.only", "initial_state", "--model.learn_initial_state", "true", "--training.evaluate_every", "10"]


def test_state_tuning_changes_the_start_alone_and_lowers_the_loss(base, capsys):
    tune = [*COMMAND, "--init_from", str(base / "base"), "--data.train", str(base / "ca.txt"), *TUNE]
    whole, parts = (["--out", str(base / name)] for name in ("whole", "parts"))
    assert main([*tune, "--training.steps", "30", *whole]) == 0
    before, after = load(base / "base"), load(base / "whole")
    old = dict(before.model.named_parameters())
    new = {name.replace("core.core.", "core."): tensor for name, tensor in after.model.named_parameters()}
    start = new.pop("core.initial_state")
    assert start.abs().max() > 0.1 and new.keys() == old.keys()
    assert all(torch.equal(new[name], old[name]) for name in old)
    lines = ["ccaaccaaccaa", "ccaacc"] * 5

    def loss(lm):
        return sum(lm.score(line)[0].nats for line in lines)

    assert loss(after) < 0.6 * loss(before)
    # The checkpoint has moments of the start alone, and a run in two parts comes to the same bytes.
    assert main([*tune, "--training.steps", "20", "--optim.schedule", "constant", *parts]) == 0
    shorter = ["train", "--out", str(base / "parts"), "--resume", "auto", "--training.steps", "30"]
    assert main(shorter) == 0
    assert main([*tune, "--training.steps", "30", "--optim.schedule", "constant", "--out", str(base / "once")]) == 0
    assert same_files(base / "parts", base / "once")
    capsys.readouterr()
    assert main([*shorter, "--training.only", "readout"]) == 2
    assert "was started with training.only = initial_state, not readout" in capsys.readouterr().err


def test_a_model_without_one_is_told_how_to_get_one(base, capsys):
    command = [*COMMAND, "--init_from", str(base / "base"), "--data.train", str(base / "ca.txt")]
    assert main([*command, "--training.only", "initial_state", "--out", str(base / "no")]) == 2
    assert "model.learn_initial_state true gives the model one" in capsys.readouterr().err
    assert not (base / "no").exists()


def test_a_learned_start_is_learned_with_everything_else_too(base):
    config = LMConfig(
        data=TextDataConfig(train=str(base / "ca.txt"), unit="lines", batch_size=4, window=12),
        model=LMModelConfig(size=8, layers=1, cell="lru", learn_initial_state=True),
        training=TrainingConfig(steps=4, evaluate_every=4, average=2),
        preview=PreviewConfig(tokens=3),
        out=str(base / "new"),
    )
    lm, _ = train(config)
    assert kinds(lm.model)["core.initial_state"] == "kept" and lm.model.core.initial_state.abs().max() > 0
    again = load(base / "new")
    assert again.score("ccaa")[0] == lm.score("ccaa")[0]
    # A run that starts from it has it too, and tunes it without being told.
    tuned, _ = train(replace(config, init_from=config.out, out=str(base / "more"), training=replace(
        config.training, only="initial_state")))  # fmt: skip
    changed = [name for (name, a), b in zip(lm.model.named_parameters(), tuned.model.parameters(), strict=True)
               if not torch.equal(a, b)]  # fmt: skip
    assert changed == ["core.initial_state"]
