"""What smaller weights cost is measured on the data of the run."""

import re
from pathlib import Path

import pytest
from in_c import needs_gcc

import elman
from elman.cli import main
from elman.export.c.loss import nats_lost
from elman.tasks.text.data import open_splits

pytestmark = needs_gcc


def test_the_command_says_what_smaller_weights_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text("to be or not to be, that is the question. " * 60)
    data = elman.TextDataConfig(train=[str(tmp_path / "book.txt")], vocabulary="char", batch_size=4, window=16)
    model = elman.LMModelConfig(cell="gru", size=16, layers=1)
    training = elman.TrainingConfig(steps=20, evaluate_every=20)
    settings = elman.LMConfig(data=data, model=model, training=training)
    lm, _ = elman.train(settings, out=tmp_path / "run", progress=False)
    assert main(["export", str(tmp_path / "run"), "--to", "c", "--out", str(tmp_path / "c"), "--weights", "int8"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    found = re.fullmatch(r"test: ([\d.]+) nats per token, ([\d.]+) with int8 weights \(([+-][\d.]+)\)", said)
    assert found, said
    part = open_splits(data, lm.vocabulary).test
    whole, narrow = (lm.evaluate(part, weights=weights).nats_per_token for weights in (None, "int8"))
    assert whole != narrow and abs(narrow - whole) < 0.05
    wanted = [f"{whole:.4f}", f"{narrow:.4f}", f"{narrow - whole:+.4f}"]
    assert [*found.groups()] == wanted


def test_what_is_no_run_of_a_language_model_costs_nothing(tmp_path: Path) -> None:
    assert nats_lost(tmp_path, "int8") == ""
