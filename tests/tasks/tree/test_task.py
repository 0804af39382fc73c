"""The task tree: learning, verbs, interruption, bad input."""

import json
import re
from dataclasses import replace

import pytest
from treebanks import write

from elman.cli import main
from elman.run import load, train
from elman.tasks.tree import plots
from elman.tasks.tree.model import TreeModelConfig
from elman.tasks.tree.task import TreeConfig, TreeDataConfig, TreeTask
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig
from elman.training.record import Preview


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(plots, "preview", lambda *found: Preview())


@pytest.fixture
def config(tmp_path):
    return TreeConfig(
        data=TreeDataConfig(train=write(tmp_path / "train.txt", 60), batch_size=8),
        model=TreeModelConfig(size=8, embedding_size=6, embedding_dropout=0.1, readout_dropout=0.1),
        optim=OptimConfig(name="adagrad", lr=0.1, embedding_lr=0.5, warmup=0, schedule="constant"),
        training=TrainingConfig(steps=12, log_every=2, evaluate_every=5),
        out=str(tmp_path / "run"),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    data = TreeDataConfig(train=write(folder / "train.txt", 300), test=write(folder / "test.txt", 60, 7), batch_size=10)
    model = TreeModelConfig(size=20, embedding_size=10, embedding_dropout=0.0, readout_dropout=0.0)
    config = TreeConfig(
        data=data, model=model, optim=OptimConfig(lr=0.03, warmup=2), out=str(folder / "run"),
        training=TrainingConfig(steps=150, evaluate_every=75),
    )  # fmt: skip
    return folder, *train(config)


def test_it_learns_and_says_so(trained, capsys):
    folder, model, history = trained
    assert history[-1]["test"] > 0.85
    assert main(["evaluate", str(folder / "run"), str(folder / "test.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["root_accuracy"] == history[-1]["test"] and found["roots"] == 60
    assert found["node_accuracy"] > 0.85 and found["root_binary_accuracy"] > 0.85
    assert found["binary_roots"] == sum(
        not line.startswith("(2") for line in (folder / "test.txt").read_text().splitlines()
    )
    assert {"node_binary_accuracy", "nodes", "binary_nodes"} < set(found)


def test_predictions_are_the_trees_with_labels(trained, capsys, tmp_path):
    folder, model, _ = trained
    (tmp_path / "raw.txt").write_text("((not) (good))\n(2 film)\n")
    arguments = ["predict", str(folder / "run"), str(tmp_path / "raw.txt")]
    assert main([*arguments, "--plot", str(tmp_path / "tree.png")]) == 0
    assert re.fullmatch(r"\(0 \(2 not\) \(4 good\)\)\n\(2 film\)\n", capsys.readouterr().out)
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--plot", str(tmp_path / "tree.png")]) == 2
    assert "not overwritten" in capsys.readouterr().err
    for ending, start in {"svg": b"<?xml", "pdf": b"%PDF", "jpg": b"\xff\xd8"}.items():
        assert main([*arguments, "--plot", str(tmp_path / f"tree.{ending}")]) == 0
        assert (tmp_path / f"tree.{ending}").read_bytes().startswith(start)
        assert capsys.readouterr().out.startswith("(0 (2 not)")
    assert main([*arguments, "--plot", str(tmp_path / "tree.xyz")]) == 2
    assert (
        "must be a file that ends with .png or .svg" in capsys.readouterr().err and not (tmp_path / "tree.xyz").exists()
    )
    model.save(tmp_path / "copy")
    trees = model.reader([str(folder / "test.txt")])
    assert load(tmp_path / "copy").labels(trees) == model.labels(trees)


def luminance(colour):
    from matplotlib.colors import to_rgb

    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_labels_can_be_read_on_the_colours_of_their_nodes(trained):
    """Their contrast is that which WCAG 2 wants of small text."""
    from matplotlib.figure import Figure

    folder, model, _ = trained
    seen = set()
    for tree in model.reader([str(folder / "test.txt")])[:6]:
        axis = Figure().subplots()
        plots._one(axis, model, tree)
        labels = [text for text in axis.texts if text.get_va() == "center"]
        for text, colour in zip(labels, axis.collections[0].get_facecolors(), strict=True):
            dark, light = sorted((luminance(text.get_color()), luminance(colour)))
            assert (light + 0.05) / (dark + 0.05) > 4.5, text.get_text()
            seen.add(text.get_color())
    assert seen == {"black", "white"}


@pytest.mark.parametrize("target", ["nodes", "roots", "number"])
def test_scores_are_those_of_the_target(config, target):
    task, config = TreeTask(), replace(config, data=replace(config.data, target=target))
    data = task.open(config, None)
    numbers = task.build(config, data).evaluate(data.valid).numbers
    assert ("mse" in numbers) == (target == "number") and ("nodes" in numbers) == (target == "nodes")


def test_dependencies_by_child_sum(config, tmp_path, capsys):
    words = (("good", "ADJ", 2, "amod"), ("film", "NOUN", 0, "root"), (".", "PUNCT", 2, "punct"))
    rows = "".join(f"{i}\t{w}\t_\t{tag}\t_\t_\t{head}\t{rel}\t_\t_\n" for i, (w, tag, head, rel) in enumerate(words, 1))
    (tmp_path / "d.conllu").write_text("\n".join([rows] * 20))
    data = replace(config.data, train=str(tmp_path / "d.conllu"))
    model = replace(config.model, cell="child_sum_tree_lstm")
    train(replace(config, data=data, model=model, training=TrainingConfig(steps=40, evaluate_every=40)))
    assert main(["predict", config.out, str(tmp_path / "d.conllu")]) == 0
    assert capsys.readouterr().out.startswith("1\tgood\t2\tamod\n2\tfilm\t0\troot\n3\t.\t2\tpunct\n\n")


def test_labels_that_training_never_saw(trained, tmp_path, capsys):
    folder, _, _ = trained
    (tmp_path / "x.txt").write_text("(7 (2 it) (4 good))\n")
    assert main(["evaluate", str(folder / "run"), str(tmp_path / "x.txt")]) == 2
    assert "the label '7', which the model was not trained on; it knows 0, 1, 2, 3, 4" in capsys.readouterr().err


def test_vectors_are_where_the_words_begin(config, tmp_path):
    (tmp_path / "v.txt").write_text("good 1 2 3 4 5 6\nunheard 0 0 0 0 0 0\n")
    config = replace(config, model=replace(config.model, vectors=str(tmp_path / "v.txt")))
    task = TreeTask()
    model = task.build(config, task.open(config, None))
    row = model.model.embed.weight[model.lexicon.words.numbers(["good"])[0]]
    assert row.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_run_begins_with_another_model(trained, tmp_path, capsys):
    folder, model, _ = trained
    command = ["train", "--task", "tree", "--init_from", str(folder / "run"), "--training.steps", "1", "--data.train"]
    more = write(tmp_path / "more.txt", 20, seed=3)
    assert main([*command, more, "--optim.lr", "1e-9", "--out", str(tmp_path / "run")]) == 0
    words = len(model.lexicon.words.names)
    assert f"{words} words and 5 labels" in capsys.readouterr().err
    tuned, trees = load(tmp_path / "run"), model.reader([str(folder / "test.txt")])
    assert tuned.lexicon.to_json() == model.lexicon.to_json() and tuned.config == model.config
    assert tuned.labels(trees) == model.labels(trees)
    assert main([*command, more, "--data.target", "roots", "--out", str(tmp_path / "roots")]) == 2
    assert "trained for nodes" in capsys.readouterr().err
    (tmp_path / "odd.txt").write_text("(9 (2 it) (4 works))\n" * 8)
    assert main([*command, str(tmp_path / "odd.txt"), "--out", str(tmp_path / "odd")]) == 2
    assert "the label '9', which the model was not trained on" in capsys.readouterr().err
