"""What a command line makes of a config: files, a run's own, that of a model to begin with, and what is typed."""

import pytest

from elman.cli import main
from elman.cli.settings import read_config
from elman.errors import InputError
from elman.files import config
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


@pytest.mark.slow
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
    assert "a Markov model of text is fitted to its data alone" in capfd.readouterr().err
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


@pytest.mark.slow
def test_which_run_goes_on_may_stand_in_the_config(here, capfd):
    """And the run in the default folder, which is another one, has no part in it."""
    assert main(["train", "--out", "a", *SMALL]) == 0
    assert main(["train", "--out", "runs/lm", *SMALL, "--model.layers", "2"]) == 0
    (here / "run.yaml").write_text("out: a\nresume: auto\ntraining: {steps: 9}\n")
    settings = read_config(["--config", "run.yaml"])
    assert (settings.out, settings.model.layers, settings.training.steps) == ("a", 1, 9)
    (here / "other.yaml").write_text("out: new\ntask: lm\ndata: {train: text.txt}\n")
    settings = read_config(["--config", "other.yaml", "--resume", "auto"])
    assert (settings.out, settings.model.layers, settings.model.size) == ("new", 2, 256)  # all by default
    capfd.readouterr()
    assert main(["train", "--task", "markov", "--out", "a", "--resume", "auto"]) == 2
    assert "a is a run of the task lm, not of markov" in capfd.readouterr().err


BEGINS = ("--task", "lm", "--data.train", "text.txt")


def test_to_resume_what_is_not_there_trains_nothing(here, capfd):
    """A mistyped folder, or one whose run was stopped before it began: nobody said which task, or on what data."""
    (here / "empty").mkdir()
    (here / "run.yaml").write_text("out: there\nresume: auto\nmodel: {size: 8}\n")
    resume = ("--resume", "auto")
    for arguments, lacks in (
        (("--out", "there", *resume), "no task"),
        (("--out", "empty", *resume), "no task"),
        (("--out=there", "--resume=auto", *BEGINS[2:]), "no task"),
        (("--out", "there", *BEGINS[:2], "--data.batch_size", "2", *resume), "no data"),
        (("--task", "tag", "--out", "there", *resume), "no data"),
        (("--config", "run.yaml"), "no task"),
        (("--config", "run.yaml", "--task", "lm"), "no data"),
        (resume, "no task"),
    ):
        assert main(["train", *arguments]) == 2, arguments
        said = capfd.readouterr().err
        assert "there is no run in" in said and f"it names {lacks}" in said and "--task TASK --data.train FILE" in said
    assert sorted(path.name for path in here.iterdir()) == ["empty", "run.yaml", "text.txt"]
    assert read_config([*BEGINS, "--out", "there", *resume]).out == "there"
    assert read_config(["--task", "translate", "--data.source=a.en", "--out", "there", *resume]).data.source == "a.en"
    assert read_config(["--config", "run.yaml", *BEGINS]).model.size == 8


@pytest.mark.parametrize("when", ["before", "half a config", "after"])
def test_ctrl_c_before_the_first_step_and_then_the_same_command(here, capfd, monkeypatch, when):
    def interrupt(*_):
        raise KeyboardInterrupt

    arguments = ["train", "--out", "a", "--task", "lm", *SMALL]
    with monkeypatch.context() as patch:
        if when == "before":
            patch.setattr("elman.run.begin", interrupt)
        elif when == "half a config":
            patch.setattr("pathlib.Path.replace", interrupt)
        else:
            patch.setattr("elman.run.Recorder", interrupt)
        assert main(arguments) == 130
    said = capfd.readouterr().err
    if when == "after":
        assert "--out a --resume auto" in said and main([*arguments, "--resume", "auto"]) == 0
    else:
        assert "stopped before the run started" in said and not (here / "a").exists()
        assert main(["train", "--out", "a", "--resume", "auto"]) == 2  # not another model in its folder
        assert main(arguments) == 0
    assert (here / "a" / "config.yaml").exists() and (here / "a" / "best").is_dir()


def test_a_process_that_died_over_its_config_left_nothing_in_the_way(here):
    (here / "a").mkdir()
    (here / "a" / ".config.yaml").write_text("task: l")
    assert main(["train", "--out", "a", "--task", "lm", *SMALL]) == 0


def test_the_home_folder_may_stand_behind_an_equals_sign(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    assert main(["train", "--out=~/a", *SMALL]) == 0
    assert (here / "home" / "a" / "best").is_dir() and not (here / "~").exists()
    assert main(["train", "--out=~/a", "--resume=auto", "--training.steps", "5"]) == 0
    assert main(["inspect", "~/a", "text.txt", "--rows", "1", "--steps", "8", "--out=~/page.html"]) == 0
    assert (here / "home" / "page.html").is_file()
