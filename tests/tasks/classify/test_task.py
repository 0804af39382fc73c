import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from elman.cli import main
from elman.data.text import MEMORY
from elman.errors import InputError
from elman.run import load, train
from elman.tasks import plots
from elman.tasks.classify.model import ClassifyModelConfig
from elman.tasks.classify.task import ClassifyConfig, ClassifyDataConfig, ClassifyTask, LossConfig
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig
from elman.training.record import Preview

GOOD, BAD = ("fine", "lovely", "great", "warm"), ("poor", "dull", "awful", "cold")


def sentences(n, seed=0):
    """The word that decides stands anywhere among words that do not."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        words = [f"w{k}" for k in random.integers(0, 9, int(random.integers(1, 7)))]
        words.insert(int(random.integers(0, len(words) + 1)), str(random.choice(GOOD if i % 2 else BAD)))
        rows.append((" ".join(words), "pos" if i % 2 else "neg"))
    return rows


def write(path, rows):
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return str(path)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They have tests of their own, and take longer than such short runs."""
    monkeypatch.setattr(plots, "preview", lambda *found: Preview())


@pytest.fixture
def config(tmp_path):
    return ClassifyConfig(
        data=ClassifyDataConfig(train=write(tmp_path / "train.tsv", sentences(120)), batch_size=16),
        model=ClassifyModelConfig(size=8),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(steps=12, log_every=2, evaluate_every=5),
        out=str(tmp_path / "run"),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learnt, its files and its command line."""
    folder = tmp_path_factory.mktemp("classify")
    train_file, test_file = write(folder / "train.tsv", sentences(200)), write(folder / "test.tsv", sentences(60, 5))
    config = ClassifyConfig(
        data=ClassifyDataConfig(train=train_file, test=test_file, batch_size=16),
        model=ClassifyModelConfig(size=16, bidirectional=False),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(steps=80, evaluate_every=40),
        out=str(folder / "run"),
    )
    return folder, *train(config)


@pytest.mark.slow
def test_it_learns_and_says_so(trained, capsys):
    folder, model, history = trained
    assert history[-1]["test"] > 0.95
    assert main(["evaluate", str(folder / "run"), str(folder / "test.tsv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == history[-1]["test"] and found["classes"] == ["neg", "pos"]
    assert sum(map(sum, found["confusion"])) == found["rows"] == 60
    assert set(found) == {"accuracy", "macro_f1", "log_loss", "rows", "classes", "confusion"}
    assert model.predict(["a fine day", "a dull day"]) == ["pos", "neg"]
    assert (folder / "run" / "previews" / "80.png").read_bytes().startswith(b"\x89PNG")


def test_predictions_with_probabilities_and_after_each_input(trained, capsys):
    folder, model, _ = trained
    (folder / "new.txt").write_text("a fine day\n\nw1 dull\n")
    assert main(["predict", str(folder / "run"), str(folder / "new.txt")]) == 0
    assert capsys.readouterr().out == "pos\nneg\n"
    assert main(["predict", str(folder / "run"), str(folder / "new.txt"), "--probabilities"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["label", "neg", "pos"] and lines[1][0] == "pos"
    assert sum(map(float, lines[1][1:])) == pytest.approx(1, abs=1e-5)
    assert main(["predict", str(folder / "run"), str(folder / "new.txt"), "--each", "--probabilities"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines[1:]] == [["0", "0"], ["0", "1"], ["0", "2"], ["1", "0"], ["1", "1"]]
    so_far = model.predict_proba(["a", "a fine", "a fine day"])
    np.testing.assert_allclose([[float(p) for p in line[3:]] for line in lines[1:4]], so_far, atol=1e-5)


def test_a_model_that_reads_from_both_ends_answers_at_the_end(config, capsys, tmp_path):
    train(config)
    (tmp_path / "new.txt").write_text("fine\n")
    assert main(["predict", config.out, str(tmp_path / "new.txt"), "--each"]) == 2
    assert "--model.bidirectional false" in capsys.readouterr().err


@pytest.mark.parametrize("pool", ["last", "mean", "max", "attention", "both"])
def test_every_pool_trains_and_is_saved(config, pool, tmp_path):
    model, history = train(replace(config, model=replace(config.model, pool=pool)))
    model.save(tmp_path / "copy")
    rows = ["fine", "", "w1 w2 dull w3"]
    assert torch.equal(load(tmp_path / "copy").predict_proba(rows), model.predict_proba(rows))
    alone = torch.cat([model.predict_proba([row]) for row in rows])
    assert torch.equal(alone, model.predict_proba(rows))  # to the bit


def test_numbers_are_predicted_with_their_width(config, tmp_path, capsys):
    data = replace(config.data, train="synthetic:adding,T=4,n=200")
    config = replace(config, data=data, model=replace(config.model, size=16, pool="last", bidirectional=False))
    train(replace(config, training=TrainingConfig(steps=150, evaluate_every=150), loss=LossConfig()))
    assert main(["evaluate", config.out, "synthetic:adding,T=4,n=300,seed=9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"mse", "mae", "r2", "width", "rows"} and found["rows"] == 300
    assert found["mse"] < 0.1 and found["r2"] > 0.4  # always to answer 1 has 1/6 and 0
    assert 0.3 < found["width"] / found["mse"] ** 0.5 < 3


def test_several_classes_a_row(config, tmp_path, capsys):
    path = tmp_path / "many.jsonl"
    rows = [(text, [label, "long"] if len(text) > 15 else [label]) for text, label in sentences(120)]
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    data = replace(config.data, train=str(path), label_kind="classes")
    model, _ = train(replace(config, data=data, training=TrainingConfig(steps=60, evaluate_every=30)))
    assert main(["evaluate", config.out, str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == ["long", "neg", "pos"] and len(found["confusion"]) == 3 and found["micro_f1"] > 0.8
    assert isinstance(model.predict(["fine"])[0], tuple)


def test_weights_and_smoothing_change_the_target_and_nothing_else(config, tmp_path):
    path = write(tmp_path / "rare.tsv", [("a", "x")] * 6 + [("b", "y")] * 2)
    data = replace(config.data, train=path, valid=path, split=(1.0, 0.0, 0.0), batch_size=8)
    from elman.data import Position
    from elman.tasks.classify.task import ClassifyTask

    opened = ClassifyTask().open(replace(config, data=data, loss=LossConfig("balanced", 0.1)), None)
    batch = opened.batches(0, 1).batch(Position())
    assert batch.y.sum(0).tolist() == pytest.approx(
        [4 * 0.95 + 4 * 0.05, 4 * 0.95 + 4 * 0.05]
    )  # each as much as the other
    assert batch.y.sum().item() == pytest.approx(8)


def test_of_several_classes_each_flag_is_smoothed_towards_a_half(config):
    data = replace(config.data, train=MEMORY, valid=MEMORY, label_kind="classes", split=(1.0, 0.0, 0.0))
    rows = [("a", ("x", "y")), ("b", ("y",)), ("c", ()), ("d", ("x",))]
    parts = {"train": rows, "valid": rows}
    opened = ClassifyTask().open_in_memory(replace(config, data=data, loss=LossConfig(smoothing=0.2)), None, parts)
    batch = opened.weigh(opened.train.batch(range(4)))
    assert batch.y.tolist() == [pytest.approx(row) for row in ([0.9, 0.9], [0.1, 0.9], [0.1, 0.1], [0.9, 0.1])]


def test_a_part_of_the_validation_data_is_so_many_rows(config):
    from elman.tasks.classify.task import ClassifyTask

    data = ClassifyTask().open(config, None)
    assert data.first(data.valid, 99) is data.valid and len(data.first(data.valid, 3)) == 3
    model, _ = train(replace(config, training={"steps": 4, "evaluate_every": 2, "evaluate_tokens": 5}))
    assert "108 rows to train on, 12 to validate" in data.summary()[0] and "bidirectional gru 8" in repr(model)


def test_a_norm_leaves_something_of_a_series_of_single_numbers(config):
    """Over one feature a norm is constant: two series must not look alike to a model with norms."""
    from elman.tasks.classify.inputs import Labels, SeriesInputs
    from elman.tasks.classify.model import build

    torch.manual_seed(0)
    model = build(replace(config.model, norm="layer"), SeriesInputs((0.0,), (1.0,)), Labels("class", ("a", "b")))
    a, b = model.eval().scan(torch.tensor([[[0.5], [2.0]], [[1.0], [-3.0]]]))[0].logits
    assert not torch.allclose(a, b, atol=1e-3)


def test_folds_hold_out_lines_by_their_number_in_each_file(tmp_path, config):
    for name, word in (("r.pos", "good"), ("r.neg", "bad")):
        (tmp_path / name).write_text("".join(f"{word} {i}\n" for i in range(1, 31)))
    from elman.tasks.classify.task import ClassifyTask

    files = [str(tmp_path / "r.pos"), str(tmp_path / "r.neg")]
    opened = ClassifyTask().open(replace(config, data=ClassifyDataConfig(train=files, folds=10, fold=3)), None)
    words = opened.inputs.vocabulary
    held = [words.decode(x.tolist()).split()[1] for x in opened.test.x]
    assert len(opened.test) == 6 and len(opened.train) + len(opened.valid) == 54
    assert set(held) <= {"3", "13", "23", "<unk>"} and opened.test.y.tolist() == [1] * 3 + [0] * 3


def test_labels_that_training_never_saw_are_named(config, tmp_path, capsys):
    train(config)
    bad = write(tmp_path / "test.tsv", [("fine", "pos"), ("dull", "odd")])
    assert main(["evaluate", config.out, bad]) == 2
    assert "line 3 of" in (error := capsys.readouterr().err) and "'odd'" in error
    with pytest.raises(InputError, match="which the model was not trained on"):
        train(replace(config, data=replace(config.data, valid=bad), out=str(tmp_path / "other")))


def test_a_run_begins_with_another_model(trained, tmp_path, capsys):
    folder, model, _ = trained
    write(tmp_path / "more.tsv", [("never seen fine", "pos"), ("never seen dull", "neg")] * 20)
    command = ["train", "--task", "classify", "--init_from", str(folder / "run"), "--data.train"]
    short = ["--training.steps", "1", "--optim.lr", "1e-9", "--out"]
    assert main([*command, str(tmp_path / "more.tsv"), *short, str(tmp_path / "run")]) == 0
    assert "how it reads, 2 classes" in capsys.readouterr().err
    tuned, texts = load(tmp_path / "run"), ["fine w1", "dull w2", "w3"]
    assert tuned.inputs.to_json() == model.inputs.to_json() and not tuned.config.bidirectional
    torch.testing.assert_close(tuned.predict_proba(texts), model.predict_proba(texts), atol=1e-6, rtol=0)
    write(tmp_path / "odd.tsv", [("fine", "odd"), ("dull", "neg")] * 20)
    assert main([*command, str(tmp_path / "odd.tsv"), *short, str(tmp_path / "odd")]) == 2
    assert "the label 'odd', which the model was not trained on" in capsys.readouterr().err


def test_both_last_states_need_a_plain_block(config):
    with pytest.raises(InputError, match=r"pool is both.*--model.block plain"):
        train(replace(config, model=replace(config.model, cell="lru", pool="both")))
    train(replace(config, model=replace(config.model, cell="lru", pool="both", block="plain")))


def test_whole_numbers_of_npz_come_back_as_whole_numbers(config, tmp_path, capsys):
    x = np.repeat(np.array([[-1.0, -2.0], [1.0, 2.0]] * 20)[..., None], 1, -1)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([3, 12] * 20))
    config = replace(config, data=replace(config.data, train=str(tmp_path / "a.npz")))
    predictor, history = train(config)
    for model in (predictor, load(config.out)):
        assert set(model.predict(list(x))) <= {3, 12} and all(type(answer) is int for answer in model.predict(list(x)))
    assert main(["predict", config.out, str(tmp_path / "a.npz"), "--probabilities"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "label\t3\t12"
    (tmp_path / "b.jsonl").write_text('{"text": "fine day", "label": 1}\n{"text": "dull day", "label": 0}\n' * 10)
    texts, _ = train(replace(config, data=ClassifyDataConfig(train=str(tmp_path / "b.jsonl")), out=str(tmp_path / "b")))
    assert type(texts.predict(["fine day"])[0]) is int


def test_how_rows_are_read_is_found_in_the_training_rows_alone(config):
    """A word that only the others have is unknown; their numbers do not say what is large."""
    task = ClassifyTask()
    parts = {
        "train": [("to be", "a"), ("or not", "b")] * 4, "valid": [("unheard", "a"), ("to", "b")],
        "test": [("untold", "a")],
    }  # fmt: skip
    memory = replace(config, data=replace(config.data, train=MEMORY, valid=MEMORY, test=MEMORY))
    known = task.open_in_memory(memory, None, parts).inputs.vocabulary
    assert known.size == 6 and known.encode("to unheard untold be").tolist().count(known.unknown) == 2
    numbers = {
        "train": [([0.0, 2.0], "a"), ([4.0, 6.0], "b")] * 4, "valid": [([1e6, 1e6], "a")], "test": [([9e6], "b")],
    }  # fmt: skip
    found = task.open_in_memory(memory, None, numbers).inputs
    assert found.mean == (3.0,) and found.scale == pytest.approx((5**0.5,))
