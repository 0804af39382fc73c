"""What a command line makes of a config: files, a run's own, that of a model to begin with, and what is typed."""

import pytest

from elman.cli import main
from elman.cli.settings import read_config

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40
SMALL = (
    "--model.size", "8", "--model.layers", "1", "--training.steps", "4", "--training.evaluate_every", "4",
    "--data.batch_size", "2", "--data.window", "8", "--preview.tokens", "0", "--data.train", "text.txt",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_run_goes_on_with_its_own_settings_and_what_is_typed(here, capfd):
    assert main(["train", "--out", "a", *SMALL]) == 0
    (here / "more.yaml").write_text("training: {steps: 6}\n")
    assert main(["train", "--out", "a", "--resume", "auto", "--config", "more.yaml"]) == 0
    assert "training.steps was 4, is now 6" in capfd.readouterr().err
    settings = read_config(["--out", "a", "--resume", "auto", "--training.steps", "8"])
    assert (settings.model.size, settings.training.steps, settings.data.train) == (8, 8, "text.txt")
    (here / "a" / "config.yaml").unlink()
    assert main(["train", "--out", "a", "--resume", "auto"]) == 2
    assert "a has a checkpoint but no config.yaml" in capfd.readouterr().err
    (here / "a" / "config.yaml").write_text("model: {size: 8")
    assert main(["train", "--out", "a", "--resume", "auto"]) == 2
    assert "cannot read the config a/config.yaml" in capfd.readouterr().err


def test_a_run_that_begins_with_a_model_has_its_settings_unless_told_otherwise(here, capfd):
    assert main(["train", "--out", "a", *SMALL, "--data.vocabulary", "byte", "--model.cell", "mgu"]) == 0
    settings = read_config(["--init_from", "a", "--out", "b", "--model.dropout", "0.3"])
    assert (settings.model.cell, settings.model.size, settings.model.dropout) == ("mgu", 8, 0.3)
    assert (settings.data.vocabulary, settings.training.steps) == ("byte", 1000)
    (here / "run.yaml").write_text("init_from: a\nmodel: {dropout: 0.1}\n")
    settings = read_config(["--config", "run.yaml"])
    assert (settings.model.cell, settings.model.dropout) == ("mgu", 0.1)
    assert main(["train", "--init_from", "a", "--task", "markov", "--out", "b"]) == 2
    assert "a Markov model of text is fitted in one go" in capfd.readouterr().err
    assert not (here / "b").exists()
