"""Every recipe is a config that `elman train` takes, its cells and options included."""

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from elman import stack
from elman.cli.settings import read_config
from elman.tasks.tree.data import read_brackets
from elman.training.lock import lock
from elman.trees import tree
from recipes import listops

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_is_a_config(path):
    config = read_config(["--config", str(path)])
    assert config.out == f"runs/{path.stem}"
    if config.task == "tree":
        tree(config.model.cell, 3, 4, **config.model.options)
    elif hasattr(config.model, "cell"):
        stack(config.model.cell, 3, 4, layers=config.model.layers, **config.model.options)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ") and f"recipes/{path.name}" in lines[0]


def value(text):
    """What the list says, read from its words from left to right, by a stack of lists."""
    meaning = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    waiting = [[]]
    for word in text:
        if word in meaning:
            waiting.append([word])
        elif word == "]":
            name, *values = waiting.pop()
            waiting[-1].append(meaning[name](values))
        else:
            waiting[-1].append(int(word))
    return waiting[0]


def test_lists_have_the_value_of_their_words():
    trees = read_brackets("\n".join(listops.trees(seed=3, count=500)))
    texts = [[word for word in tree.words if word] for tree in trees]
    assert [value(text) for text in texts] == [[int(tree.labels[tree.root])] for tree in trees]
    assert len(set(map(tuple, texts))) == 500 and {word for text in texts for word in text} >= {*"0123456789]", "[MED"}
    assert all(len(tree.words) == 2 * len(text) - 1 for tree, text in zip(trees, texts, strict=True))


def test_lists_are_written_as_the_parts_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(listops, "PARTS", {"train": 5, "valid": 2, "test": 3})
    monkeypatch.setattr(sys, "argv", ["listops.py", str(tmp_path)])
    listops.main()
    lines = {path.name: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert {name: len(found) for name, found in lines.items()} == {"train.txt": 5, "valid.txt": 2, "test.txt": 3}
    assert [*lines["train.txt"], *lines["valid.txt"], *lines["test.txt"]] == listops.trees(0, 10)


def start_demo(folder):
    demo = Path(__file__).parent.parent / "recipes" / "demo.py"
    env = {**os.environ, "ELMAN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(demo)], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )  # fmt: skip


def test_the_demo_stops_at_ctrl_c_and_says_that_it_resumes(tmp_path):
    demo = start_demo(tmp_path)
    assert demo.stdout.readline().startswith("Training: markov")
    assert demo.stdout.readline().startswith("Training: window")
    demo.send_signal(signal.SIGINT)
    _, said = demo.communicate(timeout=120)
    assert demo.returncode == 130 and "`make demo` resumes" in said and "Traceback" not in said


def test_a_second_demo_beside_the_first_is_refused_in_a_line(tmp_path):
    with lock(tmp_path / "runs" / "demo" / "0"):
        demo = start_demo(tmp_path)
        _, said = demo.communicate(timeout=120)
    assert demo.returncode == 2 and said.splitlines()[-1].startswith("demo: error: runs/demo/0 is being written by")
    assert "Traceback" not in said
