"""Adding a cell touches its file, CELLS and its page in the docs: the page is there, and what it says runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from elman.cells import CELLS

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "cells"


@pytest.mark.parametrize("name", CELLS)
def test_each_cell_has_a_page_whose_example_runs(name):
    page = (DOCS / f"{name}.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert examples, "no example"
    for example in examples:
        exec(compile(example, f"{name}.md", "exec"), {})
    table = re.search(r"^\| option \|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    first_column = re.findall(r"^\|([^|]*)\|", table[1], re.MULTILINE) if table else []
    options = set(inspect.signature(CELLS[name]).parameters) - {"input_size", "size"}
    assert set(re.findall(r"`(\w+)`", " ".join(first_column))) == options
