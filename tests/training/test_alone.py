"""A training leaves the caller's random numbers alone, and is alone with its own."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import elman
from elman import cells
from elman.errors import InputError
from elman.run import train
from elman.run.estimators import SequenceClassifier
from elman.tasks.text.lm import LMConfig
from elman.training.alone import Undisturbed, alone, seed

RUNS = Path(__file__).parents[1] / "versions" / "867694c" / "runs"
TEXT = "the cat sat on the mat; the dog sat on the log. " * 40


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    return LMConfig(
        data={"batch_size": 4, "window": 8}, model={"size": 8, "layers": 2, "dropout": 0.3},
        training={"steps": 30, "evaluate_every": 15}, preview={"tokens": 0}, out=str(tmp_path / "run"), threads=1,
    )  # fmt: skip


def weights(config):
    return [Path(config.out, name, "model.safetensors").read_bytes() for name in ("best", "last")]


def test_a_random_search_never_draws_the_same_trial_twice(config, tmp_path):
    """What is drawn between two trainings goes on where it was, as if nothing had been trained."""
    torch.manual_seed(5)
    expected = torch.rand(4).tolist()
    torch.manual_seed(5)
    drawn = []
    for trial in range(2):
        drawn.append(float(torch.rand(())))
        train(replace(config, out=str(tmp_path / str(trial))), data=TEXT, progress=False)
        drawn.append(float(torch.rand(())))
    assert drawn == expected


def test_loading_a_model_leaves_the_random_numbers_too(config):
    train(config, data=TEXT, progress=False)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    elman.load(config.out)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_two_threads_train_one_after_the_other_to_the_bytes_of_each_alone(config, tmp_path):
    train(config, data=TEXT, progress=False)
    texts = ["good day", "bad day", "good", "bad"] * 4
    alone_ = SequenceClassifier(size=8, random_state=0, epochs=3).fit(texts, [1, 0, 1, 0] * 4).predict_proba(texts)
    both = [replace(config, out=str(tmp_path / name)) for name in "ab"]
    found = []
    work = [threading.Thread(target=train, args=(one, TEXT), kwargs={"progress": False}) for one in both]
    fitted = SequenceClassifier(size=8, random_state=0, epochs=3)
    work.append(threading.Thread(target=lambda: found.append(fitted.fit(texts, [1, 0, 1, 0] * 4).predict_proba(texts))))
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert weights(both[0]) == weights(both[1]) == weights(config)
    assert (found[0] == alone_).all()


def test_a_second_training_waits_and_says_so(capfd):
    inside, entered = threading.Event(), []

    def second():
        with alone():
            entered.append(True)

    with alone():
        thread = threading.Thread(target=second)
        thread.start()
        while "waiting for a training in another thread" not in capfd.readouterr().err:
            inside.wait(0.01)
        assert not entered
    thread.join()
    assert entered


@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir()))
def test_a_model_is_loaded_without_drawing_from_the_numbers_of_others(name):
    before = torch.get_rng_state()
    elman.load(RUNS / name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", sorted(cells.CELLS))
def test_no_cell_is_built_from_the_numbers_of_others(name):
    before = torch.get_rng_state()
    with Undisturbed():
        cells.cell(name, 6, 6)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_is_loaded_beside_a_training_leaves_its_numbers_alone():
    entered, drawn, numbers = threading.Event(), threading.Event(), []

    def load():
        with Undisturbed():
            torch.rand(3)
            nn.Linear(3, 4)
            entered.set()
            assert drawn.wait(10)
            torch.nn.init.orthogonal_(torch.empty(3, 3))

    with alone():
        seed(0)
        expected = torch.rand(4).tolist()
        seed(0)
        thread = threading.Thread(target=load)
        thread.start()
        assert entered.wait(10)
        numbers += torch.rand(2).tolist()
        drawn.set()
        thread.join()
        numbers += torch.rand(2).tolist()
    assert numbers == expected


@pytest.mark.slow
def test_what_a_callback_trains_changes_nothing_around_it(config, tmp_path):
    train(config, data=TEXT, progress=False)
    inner = replace(config, out=str(tmp_path / "inner"), seed=9)

    def callback(step, scores):
        if step == 15:
            train(inner, data=TEXT, progress=False)

    outer = replace(config, out=str(tmp_path / "outer"))
    train(outer, data=TEXT, callback=callback, progress=False)
    assert weights(outer) == weights(config) != weights(inner)


def test_without_progress_nothing_is_said(config, tmp_path, capfd):
    train(config, data=TEXT, progress=False)
    assert capfd.readouterr() == ("", "")
    train(replace(config, out=str(tmp_path / "said")), data=TEXT)
    assert "step 30" in capfd.readouterr().err
    with pytest.raises(InputError, match="progress is 'no'; it must be True or False"):
        train(config, data=TEXT, progress="no")
