"""Every recipe is a config that `elman train` takes, its cells and options included."""

from pathlib import Path

import pytest

from elman import stack
from elman.cli.settings import read_config
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
