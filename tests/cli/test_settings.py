"""What a command line makes of a config: files, a run's own, that of a model to begin with, and what is typed."""

import pytest

from elman import config
from elman.cli import main
from elman.cli.settings import read_config
from elman.errors import InputError
from elman.tasks import TASKS

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


def test_several_words_after_a_setting_that_takes_a_list_are_a_list():
    settings = read_config(
        ["--data.train", "a.txt", "b c.txt", "--model.size", "8", "--data.split", "0.8", "0.1", "0.1"]
    )
    assert (settings.data.train, settings.model.size) == (["a.txt", "b c.txt"], 8)
    assert settings.data.split == (0.8, 0.1, 0.1)
    assert read_config(["--model.cutoffs", "10", "20", "--data.valid", "v.txt"]).model.cutoffs == [10, 20]
    assert read_config(["--task", "hmm", "--data.columns", "1", "y"]).data.columns == ["1", "y"]
    with pytest.raises(InputError, match="unrecognized arguments: 9"):
        read_config(["--model.size", "8", "9"])


@pytest.mark.parametrize("name", TASKS)
def test_help_is_in_order_of_use_and_names_every_setting(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--task", name, "--help"])
    text = capsys.readouterr().out
    for noise in ("(type:", "Path to a configuration", "list[", "CONFIG", "default_factory"):
        assert noise not in text
    settings = config.settings_of(TASKS[name].Config())
    first = next(setting for setting in settings if setting.startswith("data."))
    places = [text.index(f"--{setting} ") for setting in ("config", "task", "out", first)]
    assert places == sorted(places) and places[0] < 600
    assert all(f"  --{setting} " in text for setting in settings)


def test_what_is_wrong_is_said_without_types_of_python():
    with pytest.raises(InputError, match=r"^argument --model\.size: expected one argument$"):
        read_config(["--model.size"])
    with pytest.raises(InputError, match=r"^model\.size is 'large'; it must be a whole number$"):
        read_config(["--model.size", "large"])


def test_which_run_goes_on_may_stand_in_the_config(here, capfd):
    """And the run in the default folder, which is another one, has no part in it."""
    assert main(["train", "--out", "a", *SMALL]) == 0
    assert main(["train", "--out", "runs/lm", *SMALL, "--model.layers", "2"]) == 0
    (here / "run.yaml").write_text("out: a\nresume: auto\ntraining: {steps: 9}\n")
    settings = read_config(["--config", "run.yaml"])
    assert (settings.out, settings.model.layers, settings.training.steps) == ("a", 1, 9)
    (here / "other.yaml").write_text("out: new\n")
    settings = read_config(["--config", "other.yaml", "--resume", "auto"])
    assert (settings.out, settings.model.layers, settings.model.size) == ("new", 2, 256)  # all by default
    capfd.readouterr()
    assert main(["train", "--task", "markov", "--out", "a", "--resume", "auto"]) == 2
    assert "a is a run of the task lm, not of markov" in capfd.readouterr().err
