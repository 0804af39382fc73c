"""What earlier versions wrote still opens, continues, and says what it said then.

A folder is named by the commit that wrote it: make_files.py, run by that version in an empty folder. `said.json` is
what that version answered. Numbers are compared to rounding: the instruction set may be another.
"""

import json
import re
import shutil
from pathlib import Path

import make_files
import numpy as np
import pytest

import elman
from elman import kernels
from elman.tasks import open_model

HERE = Path(__file__).parent
MADE_WITH = "avx2"  # the instructions that made the files: with others, a rollback says that it is inexact
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "said.json").exists())
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


@pytest.fixture(params=VERSIONS)
def said(request, tmp_path, monkeypatch):
    """In a copy of what a version wrote: what it said then."""
    shutil.copytree(HERE / request.param, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return json.loads(Path("said.json").read_text())


def same(found, wanted, place=""):
    """The same JSON; numbers to rounding, alone and within texts."""
    if isinstance(wanted, dict):
        assert wanted.keys() <= found.keys(), f"{place}: {wanted.keys() - found.keys()} is missing"
        for key in wanted:
            same(found[key], wanted[key], f"{place}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), place
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, f"{place}[{i}]")
    elif wanted is None and place.endswith(".fingerprint"):
        assert len(found) == 64, place  # not every model said what it was
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6), place
    elif isinstance(wanted, str) and NUMBER.search(wanted):
        assert NUMBER.sub("#", found) == NUMBER.sub("#", wanted), place
        same(list(map(float, NUMBER.findall(found))), list(map(float, NUMBER.findall(wanted))), place)
    elif place.endswith(".inexact"):
        assert found == (kernels.isa() != MADE_WITH), place
    elif place.endswith(".state"):
        assert found > 0, place  # the bytes of a state file, whose leaves may be wider now
    else:
        assert found == wanted, place


@pytest.mark.slow
@pytest.mark.parametrize("name", make_files.TASKS)
def test_a_run_loads_predicts_and_resumes(said, name):
    same(make_files.said(name), said["runs"][name], name)


def test_a_store_opens_and_everything_in_it_continues(said):
    same(make_files.continued("store.db", said["store"]), said["continued"])
    assert said["continued"]["keyed"] == said["store"]["keyed"]


def test_state_files_open(said):
    served = open_model("runs/lm")[0].serve(elman.load("runs/lm"))
    data = Path("lm-state.safetensors").read_bytes()
    assert served.dump(served.parse(data)) == data
    forecaster = elman.load("runs/forecast")
    stored = forecaster.load_state("forecast-state.safetensors")
    assert np.array_equal(forecaster.forecast(stored, 3).mean, forecaster.forecast(forecaster.state, 3).mean)
