import json
import random
import shutil
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupting import same_files

from elman import run as runs
from elman.cli import main
from elman.data.cache import encode_string
from elman.errors import FileError, InputError, TrainingError, UnknownNameError
from elman.run import train
from elman.tasks import load
from elman.tasks.hmm import task
from elman.tasks.task import Evaluation
from elman.tasks.text import markov
from elman.tasks.text.data import TextDataConfig, open_splits
from elman.tasks.text.lm import LanguageModel, LanguageModelTask, LMConfig, LMModelConfig
from elman.tasks.text.task import PreviewConfig
from elman.training import loop
from elman.training.alone import alone
from elman.training.distributed import Ranks
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig, Schedule

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def config(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return LMConfig(
        data=TextDataConfig(train=str(tmp_path / "text.txt"), batch_size=4, window=8),
        model=LMModelConfig(size=8, layers=2, dropout=0.2, readout_dropout=0.1),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(
            steps=12,
            log_every=2,
            evaluate_every=5,
        ),
        preview=PreviewConfig(tokens=5),
        out=str(tmp_path / "run"),
    )


def counting(config, order):
    """The same run with a Markov model."""
    same = {name: getattr(config, name) for name in ("data", "preview", "out", "resume", "seed")}
    return markov.MarkovConfig(model=markov.MarkovModelConfig(order), **same)


def changed(config, **parts):
    new = {
        name: replace(getattr(config, name), **values) if isinstance(values, dict) else values
        for name, values in parts.items()
    }
    return replace(config, **new)


def test_a_run_learns_and_leaves_everything_that_was_promised(config):
    config = changed(config, training={"steps": 60, "evaluate_every": 20}, model={"dropout": 0.0})
    lm, history = train(config)
    valid = [line["valid"] for line in history if "valid" in line]
    assert len(valid) == 3 and valid[-1] < valid[0] < 3.5
    test = open_splits(config.data).test
    assert history[-1]["test"] == pytest.approx(lm.evaluate(test).nats_per_token, abs=1e-6)
    names = {path.name for path in Path(config.out).iterdir()}
    assert names == {"config.yaml", "metrics.jsonl", "timings.jsonl", "samples.txt", "best", "last"}
    assert "seconds" not in (Path(config.out) / "metrics.jsonl").read_text()
    assert lm.score("the cat")[0].tokens == 7
    lm.save(Path(config.out) / "copy")
    assert load(Path(config.out) / "copy").score("the cat")[0] == lm.score("the cat")[0]


def test_each_process_begins_with_the_same_weights_and_has_random_numbers_of_its_own(config, tmp_path, monkeypatch):
    weights, drawn = set(), set()
    monkeypatch.setattr(Ranks, "wrap", lambda self, module: module)  # the others are not there
    for rank in range(3):
        settings, task = replace(config, out=str(tmp_path / f"of {rank}")), LanguageModelTask()
        with alone():
            run = runs._open(task, settings, Ranks(rank, 4), task.open, None)
            weights.add(run.predictor.fingerprint)
            drawn.add(torch.rand(1).item())
            run.recorder.close()
    assert len(weights) == 1 and len(drawn) == 3


def test_the_lens_is_pointed_at_a_few_rows_at_each_evaluation(config, monkeypatch):
    asked, inspect_inputs = [], LanguageModelTask.inspect_inputs

    def noted(self, predictor, part, rows, steps):
        asked.append((rows, steps))
        return inspect_inputs(self, predictor, part, rows, steps)

    monkeypatch.setattr(LanguageModelTask, "inspect_inputs", noted)
    train(changed(config, training={"lens": True}))
    assert asked == [(8, 128)] * 3


def test_the_best_model_is_tested_and_not_the_last(config, monkeypatch):
    """Of three evaluations the first is the best one."""
    evaluated, evaluate = [], LanguageModelTask.evaluate

    def worse_and_worse(self, predictor, part):
        evaluated.append(predictor.fingerprint)
        scores = evaluate(self, predictor, part).scores
        return Evaluation(replace(scores, numbers={**scores.numbers, "nats_per_token": float(len(evaluated))}))

    monkeypatch.setattr(LanguageModelTask, "evaluate", worse_and_worse)
    train(config)
    best, last = (LanguageModel.load(Path(config.out) / name).fingerprint for name in ("best", "last"))
    assert evaluated[0] == best != last == evaluated[2] and evaluated[3:] == [best]


def test_resuming_a_finished_run_changes_nothing(config):
    train(config)
    before = (Path(config.out) / "metrics.jsonl").read_bytes()
    train(replace(config, resume="auto"))
    assert (Path(config.out) / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_a_run_goes_on_longer_than_it_was_to(config, tmp_path, capsys, schedule):
    """With a constant rate, and evaluations at the same steps, it is the run that was long from the start."""
    config = changed(config, optim={"schedule": schedule}, training={"steps": 10})
    train(config)
    longer = replace(changed(config, training={"steps": 20}), resume="auto")
    _, history = train(longer)
    said = capsys.readouterr().err
    assert "training.steps was 10, is now 20." in said and "Continuing" in said
    rate = [line["lr"] for line in history if "lr" in line]
    assert [line["step"] for line in history if "test" in line] == [20]  # that of step 10 is gone
    assert "steps: 20" in (Path(config.out) / "config.yaml").read_text()
    whole = changed(config, training={"steps": 20})
    train(replace(whole, out=str(tmp_path / "whole")))
    if schedule == "constant":
        assert "does not depend on the length" in said
        assert same_files(config.out, tmp_path / "whole")
    else:
        expected = [line["lr"] for line in runs.read_metrics(tmp_path / "whole") if "lr" in line]
        assert rate[5:] == expected[5:] and rate[:5] != expected[:5]
        assert f"continues with {Schedule(longer.optim, 20).lr(10):.3g}" in said
    before = (Path(config.out) / "metrics.jsonl").read_bytes()
    train(longer)
    assert (Path(config.out) / "metrics.jsonl").read_bytes() == before
    with pytest.raises(InputError, match=r"training\.steps is 15; .* has done 20 already"):
        train(replace(changed(config, training={"steps": 15}), resume="auto"))


@pytest.mark.slow
def test_a_run_that_ended_early_says_how_it_goes_on(config, capsys):
    config = changed(config, training={"patience": 1, "evaluate_every": 1, "steps": 30}, optim={"lr": 1e-12})
    _, before = train(config)
    longer = replace(changed(config, training={"steps": 40}), resume="auto")
    assert train(longer)[1] == before
    assert "ended early" in (said := capsys.readouterr().err) and "--training.patience 0" in said
    _, after = train(changed(longer, training={"patience": 0}))
    assert after[-1]["step"] == 40


def test_a_run_begins_with_another_model(config, tmp_path, capsys):
    old, _ = train(changed(config, training={"steps": 60, "evaluate_every": 20}))
    (tmp_path / "new.txt").write_text("the dog sat on the cat? " * 60)
    tuned = changed(
        replace(config, init_from=config.out, out=str(tmp_path / "tuned")),
        data={"train": str(tmp_path / "new.txt")}, training={"evaluate_every": 6}, optim={"lr": 1e-12},
    )  # fmt: skip
    new, history = train(tuned)
    said = capsys.readouterr().err
    assert f"Copied from {config.out}: weights (" in said
    assert f"vocabulary (char, {old.vocabulary.size} symbols)" in said
    assert new.vocabulary.to_json() == old.vocabulary.to_json() and "?" not in new.vocabulary.characters
    assert history[-1]["test"] == pytest.approx(
        old.evaluate(open_splits(tuned.data, old.vocabulary).test).nats_per_token
    )
    assert "init_from: " + json.dumps(config.out) in (tmp_path / "tuned" / "config.yaml").read_text()
    shutil.rmtree(config.out)  # what was taken is in the run: it needs the other no more
    before = (tmp_path / "tuned" / "metrics.jsonl").read_bytes()
    train(replace(tuned, resume="auto"))
    assert (tmp_path / "tuned" / "metrics.jsonl").read_bytes() == before


def test_what_a_run_cannot_begin_with(config, tmp_path):
    train(config)
    other = replace(config, init_from=config.out, out=str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"does not fit this config: the shape of .* is \["):
        train(changed(other, model={"size": 16}))
    with pytest.raises(InputError, match=r"data\.vocabulary is word; that of the model to continue from is char"):
        train(changed(other, data={"vocabulary": "word"}))
    train(replace(counting(config, 2), out=str(tmp_path / "counted")))
    with pytest.raises(InputError, match="which is a Markov model of text; a run of a language model needs"):
        train(replace(other, init_from=str(tmp_path / "counted")))
    with pytest.raises(FileError, match="there is no folder"):
        train(replace(other, init_from=str(tmp_path / "nothing")))
    assert not Path(other.out).exists()


def test_a_run_is_never_overwritten_or_changed_unasked(config):
    train(config)
    with pytest.raises(InputError, match="exists; a run is never overwritten"):
        train(config)
    with pytest.raises(InputError, match=r"optim\.lr = 0\.02, not 0\.5"):
        train(replace(changed(config, optim={"lr": 0.5}), resume="auto"))
    Path(config.data.train).write_text(TEXT + "more")
    with pytest.raises(InputError, match=r"was started with other data: the content of data\.t"):
        train(replace(config, resume="auto"))


def test_a_folder_that_is_no_run_is_left_alone(config):
    Path(config.out).mkdir()
    (Path(config.out) / "precious").write_text("x")
    for resume in ("never", "auto"):
        with pytest.raises(InputError, match="exists"):
            train(replace(config, resume=resume))
    assert [p.name for p in Path(config.out).iterdir()] == ["precious"]


def test_accumulated_windows_are_one_longer_window(config, tmp_path):
    """Lines as long as a window carry no state: two windows of 8 and one of 16 have the same gradient."""
    letters = random.Random(0).choices("abcd", k=7 * 200)
    Path(config.data.train).write_text("".join("".join(letters[i : i + 7]) + "\n" for i in range(0, len(letters), 7)))
    base = changed(
        config, model={"dropout": 0.0, "readout_dropout": 0.0, "dtype": "float64"}, training={"steps": 6},
        data={"unit": "lines", "window": 16},
    )  # fmt: skip
    train(base)
    two = changed(base, training={"accumulate": 2}, data={"window": 8})
    train(replace(two, out=str(tmp_path / "two")))
    a, b = (load(Path(path) / "last").model.state_dict() for path in (base.out, tmp_path / "two"))
    torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(config):
    config = changed(config, training={"checkpoint_every": 2})
    original = runs.LossModule.forward

    def spoiled(self, batch, state):
        spoiled.calls += 1
        loss, count, state = original(self, batch, state)
        return loss * (float("nan") if spoiled.calls == 7 else 1.0), count, state

    spoiled.calls = 0
    runs.LossModule.forward = spoiled
    try:
        with pytest.raises(TrainingError, match=r"the loss of step 7 is nan.*gradient norms.*--optim\.lr"):
            train(config)
    finally:
        runs.LossModule.forward = original
    assert json.loads((Path(config.out) / "last" / "training.json").read_text())["advance"]["step"] == 6
    assert all(torch.isfinite(p).all() for p in load(config.out).model.parameters())


def test_a_full_disk_keeps_the_checkpoint(config, monkeypatch):
    from elman.files import artifact

    config = changed(config, training={"checkpoint_every": 2})
    written = artifact.write_tensors

    def full(*file):
        full.calls += 1
        if full.calls > 4:
            raise OSError(28, "No space left on device")
        written(*file)

    full.calls = 0
    monkeypatch.setattr(artifact, "write_tensors", full)
    with pytest.raises(FileError, match="No space left"):
        train(config)
    monkeypatch.setattr(artifact, "write_tensors", written)
    lm, _ = train(replace(config, resume="auto"))
    assert lm.score("the")[0].tokens == 3


def test_paths_are_as_good_as_their_names(config, tmp_path):
    train(config)
    paths = replace(config, out=tmp_path / "paths", data=replace(config.data, train=Path(config.data.train)))
    train(paths)
    train(replace(paths, resume="auto", data=replace(config.data, train=[Path(config.data.train)])))
    assert same_files(config.out, paths.out)


def test_data_in_memory_and_a_callback(config, tmp_path, capfd):
    """As from a file: the same bytes, also when it goes on."""
    train(config)
    held = replace(config, out=str(tmp_path / "held"))
    seen = []

    def stop(step, scores):
        seen.append((step, scores.value))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(held, data=TEXT, callback=stop)
    _, history = train(replace(held, resume="auto"), data=TEXT, callback=stop)
    assert same_files(config.out, held.out)
    assert [step for step, _ in seen] == [5, 10, 12]  # its checkpoint is written before the callback hears of it
    assert {line["step"]: line["valid"] for line in history if "valid" in line} == dict(seen)
    assert 'train: ":memory:"' in (Path(held.out) / "config.yaml").read_text()
    with pytest.raises(InputError, match="other data"):
        train(replace(held, resume="auto"), data=TEXT + "x")
    assert main(["train", "--out", held.out, "--resume", "auto"]) == 2
    assert "started from Python with data in memory" in capfd.readouterr().err


def test_documents_and_arrays_in_memory(config, tmp_path, capsys):
    lines = changed(counting(config, 2), data={"unit": "documents"})
    parts = {"train": TEXT.split(". "), "valid": ["the cat sat"], "test": ["the dog", "the mat"]}
    lm, history = train(lines, data=parts)
    assert [list(line)[1] for line in history] == ["tokens", "valid", "test"] and lm.unit == "documents"
    noise = np.random.default_rng(0).normal(size=(2, 50, 1)) + np.array([[[0.0]], [[9.0]]])
    seen = []
    wanted = task.HMMConfig(out=str(tmp_path / "hmm"), model={"n_init": 2})
    model, _ = train(
        wanted, data={"train": list(noise), "valid": noise[0]}, callback=lambda step, scores: seen.append(scores)
    )
    assert sorted(model.means_.round().ravel().tolist()) == [0.0, 9.0] and len(seen) == 1
    said = capsys.readouterr().err
    assert "data: 100 observations in 2 sequences, of 1 columns\nmodel: GaussianHMM(" in said
    assert "start 1 of 2\n" in said and "start 2 of 2\n" in said and "valid  nats per observation" in said
    for data, message in (
        ({"valid": "x"}, "it needs train"), ({"train": "x", "tset": "y"}, "Did you mean 'test'"),
        (3, "a text is a int"),
        ([b"x"], "a text is a bytes"),
    ):  # fmt: skip
        with pytest.raises((InputError, UnknownNameError), match=message):
            train(replace(lines, out=str(tmp_path / "bad")), data=data)


class Full:
    """A standard error on a full disk."""

    def write(self, text):
        raise OSError(28, "No space left on device")

    isatty = staticmethod(lambda: False)
    flush = staticmethod(lambda: None)


def test_a_fit_goes_on_when_nobody_can_read_how_far_it_is(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).normal(size=(50, 1))
    monkeypatch.setattr(sys, "stderr", Full())
    model, _ = train(task.HMMConfig(out=str(tmp_path / "hmm"), model={"n_init": 2}), data=noise)
    assert model.means_.shape == (2, 1)


def test_sections_of_a_config_may_be_mappings():
    assert LMConfig(training={"steps": 5}).training == TrainingConfig(steps=5)
    assert markov.MarkovConfig(model={"order": 2}).model.order == 2
    with pytest.raises(UnknownNameError, match=r"unknown setting of training 'step'.*Did you mean 'steps'"):
        LMConfig(training={"step": 5})
    with pytest.raises(InputError, match="model is 3; it must be a LMModelConfig, or a mapping"):
        LMConfig(model=3)


def test_evaluations_while_training_are_capped_and_the_last_is_whole(config, tmp_path, capsys):
    capped = changed(config, training={"evaluate_tokens": 20})
    lm, history = train(capped)
    said = capsys.readouterr().err
    parts = open_splits(config.data)
    assert parts.valid.tokens > 90
    part = lm.evaluate(encode_string(parts.vocabulary.decode(parts.valid.ids[1:21]), parts.vocabulary))
    valid = [line["valid"] for line in history if "valid" in line]
    assert part.tokens == 20 and min(valid) == pytest.approx(part.nats_per_token, rel=1e-6)
    assert history[-2]["valid_whole"] == pytest.approx(lm.evaluate(parts.valid).nats_per_token, rel=1e-9)
    assert history[-1]["test"] == pytest.approx(lm.evaluate(parts.test).nats_per_token, rel=1e-9)
    assert "(first 20 tokens)  (best so far)" in said and "valid whole  nats per token" in said
    before = (Path(capped.out) / "metrics.jsonl").read_bytes()
    train(replace(capped, resume="auto"))
    assert (Path(capped.out) / "metrics.jsonl").read_bytes() == before
    train(replace(config, out=str(tmp_path / "whole")))
    train(replace(changed(config, training={"evaluate_tokens": 10**6}), out=str(tmp_path / "more")))
    assert same_files(
        tmp_path / "whole", tmp_path / "more", but=("training.json", "checksums.json")
    )  # which have the setting


def test_a_run_says_what_it_read_what_it_is_and_how_good_it_became(config, capsys):
    train(config)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"data: {config.data.train}: 1,728 tokens to train on, 96 to validate, 96 to test"
    assert lines[1].startswith("vocabulary: char, 17 symbols")
    assert lines[2].startswith("model: LanguageModel(cell='gru', size=8, layers=2") and " parameters)" in lines[2]
    assert lines[3].startswith("computing: ") and " thread" in lines[3] and " kernels" in lines[3]
    assert lines[-1].startswith("test  nats per token ") and "bits per character" in lines[-1]


def test_dropout_that_does_nothing_is_said_once(config):
    with pytest.warns(UserWarning, match=r"model\.dropout is 0\.2, but it acts between layers"):
        train(changed(config, model={"layers": 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(config.out)


def test_early_stopping(config):
    config = changed(config, training={"patience": 2, "evaluate_every": 1, "steps": 50}, optim={"lr": 1e-12})
    _, history = train(config)
    assert len([line for line in history if "valid" in line]) < 50


def test_lines_and_words_train_too(config):
    Path(config.data.train).write_text(TEXT.replace(". ", ".\n"))
    config = changed(config, data={"vocabulary": "word", "min_count": 2, "unit": "lines", "window": 4, "batch_size": 2})
    lm, _ = train(config)
    assert lm.unit == "lines"
    assert set(lm.generate(max_new_tokens=5).split()) <= {*TEXT.split(), "<unk>"}


def test_the_markov_model_is_fitted_by_the_same_verb(config):
    lm, history = train(counting(config, 4))
    assert history[1]["valid"] < 0.3  # the text repeats itself
    assert (
        "the mat" in lm.generate("the m", max_new_tokens=60, seed=1) or lm.generate("the c", max_new_tokens=2) == "at"
    )


@pytest.mark.parametrize(
    ("text", "parts", "message"),
    [
        ("", {}, "empty"),
        ("a", {}, "single symbol"),
        ("a" * 500, {}, "single symbol"),
        ("ab" * 15, {}, "27 tokens; 4 streams with windows of 8 need at least 32"),
        (TEXT, {"data": {"split": (0.5, 0.2, 0.2)}}, "add up to 1"),
        (TEXT, {"data": {"split": (1.0, 0.0, 0.0)}}, "validation text is empty"),
        (TEXT, {"data": {"batch_size": 0}}, "batch_size is 0"),
        (TEXT, {"training": {"steps": 0}}, "steps is 0"),
        (TEXT, {"model": {"size": 0}}, "size"),
        (TEXT, {"model": {"embedding_size": -1}}, r"model\.embedding_size is -1"),
        (TEXT, {"model": {"readout_dropout": 1.5}}, "dropout is 1.5"),
        (
            TEXT,
            {"model": {"embedding_dropout": -0.1}},
            "dropout is -0.1; it must be a number of at least 0 and below 1",
        ),
        (TEXT, {"model": {"readout_dropout": 2.0, "cutoffs": [4]}}, "dropout is 2.0"),
        (TEXT, {"preview": {"prompt": "Zebra"}}, r"preview\.prompt cannot be used.*'Z'"),
        (TEXT, {"model": {"cell": "markov"}}, "a task of its own: elman train --task markov"),
        (TEXT, {"device": "cuda"}, "trained on the CPU"),
        (TEXT, {"preview": {"tokens": -1}}, r"preview\.tokens is -1"),
        (TEXT, {"training": {"patience": -1}}, r"training\.patience is -1"),
        (TEXT, {"training": {"checkpoint_every": -1}}, r"training\.checkpoint_every is -1"),
        (TEXT, {"optim": {"betas": (2.0, 3.0)}}, r"optim\.betas"),
        (TEXT, {"data": {"min_count": 0}}, r"data\.min_count is 0"),
        (TEXT, {"data": {"min_count": 10_000}}, "nothing in the training text occurs 10000 times"),
        (TEXT, {"data": {"vocabulary": "bpe", "vocabulary_size": -3}}, r"data\.vocabulary_size is -3"),
        (TEXT, {"data": {"train": ""}}, "the name of a text is empty"),
        ("x" * 9999, {"data": {"vocabulary": "word"}}, r"'x{20}'\.\.\.; there is nothing"),
    ],
)
def test_bad_input(config, text, parts, message):
    Path(config.data.train).write_text(text)
    with pytest.raises(InputError, match=message):
        train(changed(config, **parts))
    assert not Path(config.out).exists()  # a run that cannot begin leaves nothing behind


def test_unknown_names(config):
    for parts in ({"task": "lmm"}, {"resume": "maybe"}):
        with pytest.raises(KeyError, match="unknown"):
            train(replace(config, **parts))
    with pytest.raises(InputError, match=r"below 2\*\*62"):
        train(replace(config, seed=2**64))
    for parts in (
        {"data": {"errors": "surrogateescape"}},
        {"data": {"unit": "line"}},
        {"data": {"vocabulary": "chr"}},
        {"model": {"cell": "gruu"}},
    ):
        with pytest.raises(KeyError, match="unknown"):
            train(changed(config, **parts))
    assert not Path(config.out).exists()  # a run that cannot begin leaves nothing behind


def test_load_says_what_is_missing(tmp_path):
    with pytest.raises(FileError, match="there is no folder"):
        load(tmp_path / "none")
    with pytest.raises(FileError, match="holds no elman-model"):
        load(tmp_path)


def test_a_broken_checkpoint_is_refused(config):
    train(config)
    path = Path(config.out) / "last" / "optimiser.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match=r"optimiser\.safetensors is damaged"):
        train(replace(config, resume="auto"))


@pytest.mark.parametrize(
    "change",
    [
        {"advance": None}, {"advance": {}}, {"schedule": "x"}, {"schedule": None}, {"lengths": [1]}, {"lengths": None},
        {"lengths": {"metrics.jsonl": "x"}}, {"identity": None}, {"identity": "x"}, {"version": "x"}, {"format": "tar"},
        {"version": 99}, {"schedule": {"scale": "x", "bad": 0}}, {"lengths": {"metrics.jsonl": -1}},
    ],
    ids=str,
)  # fmt: skip
def test_a_foreign_checkpoint_is_refused(config, change):
    config = changed(config, training={"steps": 2, "evaluate_every": 2})
    train(config)
    path = Path(config.out) / "last" / "training.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileError):
        train(replace(config, resume="auto"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "x"}, "step is 'x'"), ({"step": -3}, "step is -3"), ({"position": [0, 99999]}, "window 99999"),
        ({"position": [1.5, 0]}, "position is 1.5"), ({"position": [0, -1]}, "position is -1"), ({"best": "q"}, "best"),
        ({"bad": None}, "bad is None"), ({"settled": 0}, "settled is 0"), ({"count": []}, "count"),
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_with_numbers_that_cannot_be_is_refused(config, change, message):
    config = changed(config, training={"steps": 2, "evaluate_every": 2})
    train(config)
    path = Path(config.out) / "last" / "training.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "advance": {**content["advance"], **change}}))
    (path.parent / "checksums.json").unlink()
    with pytest.raises(FileError, match=message):
        train(replace(changed(config, training={"steps": 3}), resume="auto"))


def test_a_markov_model_is_not_counted_again_unasked(config, tmp_path):
    config = replace(counting(config, 2), resume="auto")
    train(config)
    before = (Path(config.out) / "best" / "model.safetensors").read_bytes()
    train(config)
    with pytest.raises(InputError, match=r"model\.order = 2, not 3"):
        train(changed(config, model={"order": 3}))
    (tmp_path / "text.txt").write_text(TEXT * 2)
    with pytest.raises(InputError, match=r"data\.t"):
        train(config)
    assert (Path(config.out) / "best" / "model.safetensors").read_bytes() == before


def test_a_saved_model_takes_no_folder_that_holds_something_else(config, tmp_path, monkeypatch):
    lm, _ = train(counting(config, 1))
    lm.save(tmp_path / "model")
    lm.save(tmp_path / "model")
    with pytest.raises(FileError, match="would be lost"):
        lm.save(config.out)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="would be lost"):
        lm.save(".")
    assert load(config.out).score("the")[0] == load("model").score("the")[0] == lm.score("the")[0]


def test_training_in_a_thread_needs_no_signals(config):
    results = []
    thread = threading.Thread(target=lambda: results.append(train(config)))
    thread.start()
    thread.join(120)
    assert isinstance(results[0][0], LanguageModel)


def test_the_loop_fits_one_screen():
    source = Path(loop.train.__code__.co_filename).read_text()
    start = source.index("def train(")
    assert source[start : source.index("\ndef ", start + 1)].count("\n") < 50
