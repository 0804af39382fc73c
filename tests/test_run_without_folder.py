"""elman.train without a run directory: the model and its history in memory, and nothing left behind."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

import elman
from elman.cli import main
from elman.cli.settings import read_config
from elman.errors import InputError, UnknownNameError
from elman.run import _in_folder
from elman.tasks import TASKS
from elman.training.distributed import Ranks
from elman.training.interrupt import Interrupted

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40
SENTENCES = [(["He", "sees", "a", "cat"], ["N", "V", "D", "N"]), (["Dogs", "run"], ["N", "V"])] * 6
REVIEWS = [("a fine film", "good"), ("dull", "bad"), ("fine", "good"), ("a dull film", "bad")] * 4


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """A folder to work in and one for what is temporary, in which nothing of ours may be left."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir(), temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(work)
    yield
    assert not [*work.iterdir(), *temporary.glob("elman*")]  # Torch leaves a folder of its own


def language_model(**settings):
    return elman.LMConfig(
        data={"batch_size": 4, "window": 8},
        model={"size": 8, "layers": 2, "dropout": 0.2},
        training={"steps": 6, "evaluate_every": 2, "log_every": 1},
        preview={"tokens": 5},
        **settings,
    )


def test_it_is_what_a_run_with_a_folder_gives(tmp_path):
    model, history = elman.train(language_model(), TEXT, progress=False)
    same, lines = elman.train(language_model(), TEXT, out=tmp_path / "run", progress=False)
    assert history == lines and len(history) > 6
    assert model.fingerprint == same.fingerprint == elman.load(tmp_path / "run").fingerprint
    other, _ = elman.train(language_model(seed=1), TEXT, progress=False)
    assert other.fingerprint != model.fingerprint


def test_a_fit_in_one_go_needs_no_folder_either():
    model, _ = elman.train(elman.MarkovConfig(model={"order": 4}), TEXT, progress=False)
    assert model.generate("the cat sat", max_new_tokens=7, temperature=0.01) == " on the"
    hmm, _ = elman.train(elman.HMMConfig(model={"n_components": 2}), np.arange(40.0)[:, None] % 2, progress=False)
    assert hmm.n_components == 2


def test_out_as_an_argument_goes_before_the_config(tmp_path):
    elman.train(language_model(out=str(tmp_path / "no")), TEXT, out=tmp_path / "yes", progress=False)
    assert (tmp_path / "yes" / "best").is_dir() and not (tmp_path / "no").exists()
    with pytest.raises(InputError, match="resume auto"):
        elman.train(language_model(), TEXT, out=tmp_path / "yes", progress=False)


def test_what_needs_a_folder_says_so():
    with pytest.raises(InputError, match="resume is auto, and there is no run directory to resume: name it by out"):
        elman.train(language_model(resume="auto"), TEXT, progress=False)
    with pytest.raises(InputError, match="2 processes need one run directory"):
        _in_folder(language_model(), Ranks(0, 2)).__enter__()


def test_a_run_that_is_stopped_or_fails_leaves_nothing():
    def stop(step, scores):
        raise Interrupted(2, "stopped")

    with pytest.raises(Interrupted, match="so nothing of it is kept"):
        elman.train(language_model(), TEXT, stop, progress=False)
    with pytest.raises(InputError, match="only one tag"):
        elman.train(elman.TagConfig(), [(["a"], ["N"])] * 9, progress=False)


def test_tagged_sentences_in_memory_are_those_of_a_file(tmp_path):
    settings = {"model": {"size": 6, "char_size": 3}, "training": {"steps": 4, "evaluate_every": 2}}
    blocks = ("\n".join(f"{word} {tag}" for word, tag in zip(*pair, strict=True)) for pair in SENTENCES)
    (tmp_path / "train.txt").write_text("\n\n".join(blocks) + "\n")
    model, history = elman.train(elman.TagConfig(**settings), SENTENCES, progress=False)
    config = elman.TagConfig(**settings, data={"train": str(tmp_path / "train.txt")})
    same, lines = elman.train(config, progress=False)
    assert history == lines and model.marginals(["He", "sees"] for _ in "a") == same.marginals([["He", "sees"]])
    parts = {"train": SENTENCES[:8], "valid": SENTENCES[8:10], "test": SENTENCES[10:]}
    model, history = elman.train(elman.TagConfig(**settings), parts, progress=False)
    guesses = model.tag_all([words for words, _ in parts["test"]])
    right = [
        guess == tag
        for pair, row in zip(parts["test"], guesses, strict=True)
        for guess, tag in zip(row, pair[1], strict=True)
    ]
    assert history[-1]["test"] == pytest.approx(sum(right) / len(right)) and len(right) == 6


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_labelled_rows_in_memory_are_those_of_a_file(tmp_path, kind):
    settings = {"model": {"size": 6}, "training": {"steps": 4, "evaluate_every": 2}}
    rows = REVIEWS
    if kind == "texts":
        (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{x}\t{y}\n" for x, y in rows))
        name = str(tmp_path / "train.tsv")
    else:
        x, y = np.random.default_rng(0).normal(size=(16, 5, 2)), np.arange(16) % 2
        np.savez(tmp_path / "train.npz", x=x, y=y)
        name, rows = str(tmp_path / "train.npz"), [*zip(x, y, strict=True)]
    model, history = elman.train(elman.ClassifyConfig(**settings), rows, progress=False)
    same, lines = elman.train(elman.ClassifyConfig(**settings, data={"train": name}), progress=False)
    assert history == lines and model.labels.names == same.labels.names


@pytest.mark.parametrize(
    ("config", "data", "message"),
    [
        (elman.TagConfig(), [["He", "ran", "off"]], "sentence 0 is .* a pair, its words and their tags"),
        (elman.TagConfig(), [(["He", "ran"], ["N"])], "sentence 0 has 2 words and 1 tags"),
        (elman.TagConfig(), [("He ran", "NV")], "must be a list of words"),
        (elman.TagConfig(), {"train": SENTENCES, "dev": SENTENCES}, "unknown part of the data 'dev'"),
        (elman.ClassifyConfig(), ["a text"], "row 0 is 'a text'; it must be a pair"),
        (elman.ClassifyConfig(), [(["a", "b"], 1)], "row 0 is not a text, nor numbers"),
        (elman.TranslateConfig(), [("a", "b")], "reads files only"),
    ],
)
def test_what_is_wrong_with_data_in_memory(config, data, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        elman.train(config, data, progress=False)


@pytest.mark.parametrize("name", TASKS)
def test_the_command_line_keeps_its_runs(name):
    assert TASKS[name].Config().out == ""
    assert (
        read_config(["--task", name]).out == f"runs/{name}" and read_config(["--task", name, "--out", "x"]).out == "x"
    )
    assert not Path("runs").exists()


def test_the_command_needs_a_folder(tmp_path, capsys):
    """`--out "$UNSET"` would train, and keep nothing."""
    (tmp_path / "text.txt").write_text("to be or not to be, " * 99)
    assert main(["train", "--task", "markov", "--data.train", str(tmp_path / "text.txt"), "--out", ""]) == 2
    assert "out is empty; name the run directory" in capsys.readouterr().err


def test_slips_are_said_before_anything_is_trained():
    pairs = [(["he", "runs"], ["N", "V"])] * 20
    with pytest.raises(InputError, match=r"there are no sentences in data\['valid'\]"):
        elman.train(elman.TagConfig(), {"train": pairs, "valid": []}, progress=False)
    with pytest.raises(InputError, match="callback is 'runs/x'"):
        elman.train(elman.MarkovConfig(), "to be", "runs/x")
    with pytest.raises(InputError, match="it was given a str"):
        elman.train("to be", elman.MarkovConfig())
    with pytest.raises(InputError, match="reads files only"):
        elman.train(elman.TranslateConfig(), [("a b", "x y")] * 20)
    with pytest.raises(InputError, match="has the label None"):
        elman.train(elman.ClassifyConfig(), [("a b", None), ("c d", "x")] * 20, progress=False)
