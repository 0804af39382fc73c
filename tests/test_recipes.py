"""Every recipe is a config that `elman train` takes, its cells and options included."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elman import stack
from elman.cli.settings import read_config
from elman.training.lock import lock
from elman.trees import tree

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


def start_demo(folder):
    demo = Path(__file__).parent.parent / "recipes" / "demo.py"
    env = {**os.environ, "ELMAN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(demo)], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


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
