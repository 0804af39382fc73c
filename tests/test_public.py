"""What a user of the package sees: types, completion, help."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import elman
from elman.cells import CELLS

ROOT = Path(__file__).parent.parent

USER = """
import elman

core = elman.LSTM(8, 16, peephole=True)
reveal_type(core)  # elman.cells.lstm.LSTM
elman.GRU(8, 16, peepholes=True)  # Unexpected keyword argument "peepholes"
elman.LSTM(8, "16")  # incompatible type "str"; expected "int"
config = elman.TagConfig(model=elman.TagModelConfig(size=8), training=elman.TrainingConfig(steps=1))
tagger, history = elman.train(config, data=[(["he"], ["N"])])
reveal_type(tagger)  # elman.tasks.tag.model.Tagger
reveal_type(history)  # list[dict[str, float]]
reveal_type(tagger.tag(["he"]))  # list[str]
reveal_type(elman.train(elman.MarkovConfig(), "a text")[0])  # elman.tasks.text.markov.MarkovModel
reveal_type(elman.SequenceTagger().fit([["he"]], [["N"]]).model_)  # elman.tasks.tag.model.Tagger
reveal_type(elman.inspect("runs/tag"))  # elman.lens.report.Report
elman.load(3)  # incompatible type "int"; expected "str | Path"
elman.TagModelConfig(sizes=8)  # Unexpected keyword argument "sizes"
elman.Lstm  # Module has no attribute "Lstm"
"""


@pytest.mark.slow
def test_a_type_checker_of_a_user_sees_types(tmp_path: Path) -> None:
    """The package is installed beside the user's file, as a dependency is: without py.typed all would be Any."""
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout.splitlines()
    said = {int(line.split(":")[1]): line for line in reversed(lines) if line.startswith("user.py:")}
    wanted = {i: line.split("  # ")[1] for i, line in enumerate(USER.splitlines(), 1) if "  # " in line}
    assert said.keys() == wanted.keys(), lines
    for i, what in wanted.items():
        assert what in said[i], lines


def test_a_wheel_has_what_no_python_file_is(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    script = f"from scikit_build_core.build import build_wheel; build_wheel({str(tmp_path)!r})"
    environment = {**os.environ, "ELMAN_NATIVE": "0"}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"elman/py.typed", "elman/__init__.pyi", "elman/cli/settings.json", "elman/lens/page/page.html"} <= {*names}


def test_every_cell_is_there_by_the_name_of_its_class() -> None:
    assert all(getattr(elman, cell.__name__) is cell for cell in CELLS.values())
    assert elman.HMM is CELLS["hmm"] and elman.hmm.__name__ == "elman.hmm"


@pytest.mark.parametrize("name", CELLS)
def test_options_of_cells_have_types_and_are_explained(name: str) -> None:
    cell = CELLS[name]
    parameters = inspect.signature(cell, eval_str=True).parameters.values()
    for option in parameters:
        assert option.annotation is not inspect.Parameter.empty, f"{name}: {option.name} has no type"
        assert option.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL), name
        if option.kind is inspect.Parameter.KEYWORD_ONLY:
            assert re.search(rf"\b{option.name}\b", cell.__doc__ or ""), f"{name} does not say what {option.name} is"
