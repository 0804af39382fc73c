"""What `elman.train` takes for data: what is in memory, files, and parts of both."""

from pathlib import Path

import numpy as np
import pytest

import elman
from elman.cli.settings import read_config
from elman.data.text import Document
from elman.errors import InputError
from elman.tasks import respond

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40
SERIES = {"ds": [*range(60)], "y": [t % 3 for t in range(60)]}
NAIVE = {"data": {"horizon": 3, "seasonality": 3}, "model": {"kind": "seasonal_naive"}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    Path("the book").write_text(TEXT)
    rows = zip(SERIES["ds"], SERIES["y"], strict=True)
    Path("series.csv").write_text("ds,y\n" + "".join(f"{ds},{y}\n" for ds, y in rows))
    return tmp_path


@pytest.mark.parametrize(
    "data",
    [
        "book.txt",
        "the book",
        "no such book.txt",
        "books/one",
        ["book.txt"],
        "C:\\book",
        "*.txt",
        "embedded",
        "embedded:stdlib",
    ],
)
@pytest.mark.parametrize("config", [elman.MarkovConfig(), elman.ForecastConfig(**NAIVE), elman.HMMConfig()])
def test_the_name_of_a_file_is_not_its_content(config, data):
    for given in (data, {"train": data}):
        with pytest.raises(InputError, match=r"the train data are the text .*looks like the name of a file.*pathlib"):
            elman.train(config, given, progress=False)


@pytest.mark.parametrize("text", ["a.b c.d to be, or not to be. " * 20, "and/or, either/or. " * 3, "ab" * 90])
def test_short_texts_are_texts(text):
    model, _ = elman.train(elman.MarkovConfig(model={"order": 1}), text, progress=False)
    assert model.vocabulary.size


def test_a_path_is_a_file_as_the_config_names_it(folder):
    named = elman.MarkovConfig(data={"train": "book.txt"})
    wanted, _ = elman.train(named, progress=False)
    for data in (Path("book.txt"), [Path("book.txt")], {"train": Path("book.txt")}):
        found, _ = elman.train(elman.MarkovConfig(), data, progress=False)
        assert found.fingerprint == wanted.fingerprint
    elman.train(elman.MarkovConfig(), Path("book.txt"), out="run", progress=False)
    assert read_config(["--config", "run/config.yaml"]).data.train == ["book.txt"]
    valid = {"train": TEXT, "valid": Path("book.txt")}
    assert elman.train(elman.MarkovConfig(), valid, progress=False)[0].fingerprint != wanted.fingerprint
    with pytest.raises(elman.ElmanError, match=r"nowhere\.txt"):
        elman.train(elman.MarkovConfig(), Path("nowhere.txt"), progress=False)


def test_files_and_texts_are_not_mixed(folder):
    for data in ([Path("book.txt"), "book.txt"], {"train": ("to be " * 9, Path("book.txt"))}):
        with pytest.raises(
            InputError, match="the train data are a list of Path and str; give files alone, each a pathlib"
        ):
            elman.train(elman.MarkovConfig(), data, progress=False)
    with pytest.raises(InputError, match="a text is a bytes"):
        elman.train(elman.MarkovConfig(), b"to be " * 9, progress=False)


def test_an_answer_is_not_about_the_name_of_a_file(folder):
    model, _ = elman.train(elman.MarkovConfig(), TEXT, progress=False)
    with pytest.raises(InputError, match=r"data is the text 'book.txt', which is the name of a file.*pathlib"):
        respond(model, "evaluate", data="book.txt")
    assert respond(model, "evaluate", data=Path("book.txt")) == respond(model, "evaluate", data=TEXT)


@pytest.mark.parametrize("run", [None, elman.stack("gru", 3, 4), elman.SequenceClassifier()])
def test_only_runs_and_models_are_inspected(run):
    with pytest.raises(InputError, match=r"inspect was given a (NoneType|Stack|SequenceClassifier); it takes a run"):
        elman.inspect(run, "to be")


def test_other_tasks_take_paths_too(folder):
    model, _ = elman.train(elman.ForecastConfig(**NAIVE), Path("series.csv"), progress=False)
    assert model.state.names == ["series"]
    np.savez("images.npz", images=np.eye(8, dtype=np.uint8)[None].repeat(24, 0) * 255)
    config = elman.ImageConfig(model={"size": 4}, training={"steps": 1, "evaluate_every": 1})
    elman.train(config, Path("images.npz"), progress=False)


def test_a_mapping_of_columns_is_one_part():
    wanted, _ = elman.train(elman.ForecastConfig(**NAIVE), {"train": SERIES}, progress=False)
    found, _ = elman.train(elman.ForecastConfig(**NAIVE), SERIES, progress=False)
    assert found.fingerprint == wanted.fingerprint
    np.testing.assert_array_equal(found.forecast(found.state).mean, wanted.forecast(wanted.state).mean)


def test_what_may_be_parts_or_columns_is_refused():
    with pytest.raises(InputError, match=r"test would be a part of the data, and ds a column.*\{'train': columns\}"):
        elman.train(elman.ForecastConfig(**NAIVE), {**SERIES, "test": SERIES["y"]}, progress=False)
    with pytest.raises(InputError, match="train would be a part of the data, and vaild a column"):
        elman.train(elman.ForecastConfig(**NAIVE), {"train": SERIES, "vaild": SERIES}, progress=False)
    with pytest.raises(InputError, match="data has test; it needs train"):
        elman.train(elman.ForecastConfig(**NAIVE), {"test": SERIES}, progress=False)
    with pytest.raises(InputError, match="it needs train"):
        elman.train(elman.ForecastConfig(**NAIVE), {}, progress=False)


def test_a_baseline_checks_the_settings_of_training_too():
    for settings, name in (({"device": "cuda"}, "device is cuda"), ({"training": {"steps": -1}}, "training.steps")):
        with pytest.raises(InputError, match=name):
            elman.train(elman.ForecastConfig(**NAIVE, **settings), SERIES, progress=False)


def test_a_document_may_be_called_like_a_file():
    found, _ = elman.train(elman.MarkovConfig(), Document(TEXT, "book.txt"), progress=False)
    assert found.fingerprint == elman.train(elman.MarkovConfig(), TEXT, progress=False)[0].fingerprint
