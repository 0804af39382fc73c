import json
import struct
import sys
import zlib

import pytest

from elman.tasks.plots import Results, preview
from elman.training.record import Preview
from elman.training.scores import Scores

SCORES = Scores({"accuracy": 0.75}, "accuracy", larger_is_better=True)


@pytest.fixture
def run(tmp_path):
    lines = [{"step": 2, "loss": 0.5}, {"step": 2, "valid": 0.5}, {"step": 4, "loss": 0.4}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def size(png):
    """Width and height of a PNG file, whose every part has the checksum that it should have."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(png):
        (n,) = struct.unpack(">I", png[at : at + 4])
        (wanted,) = struct.unpack(">I", png[at + 8 + n : at + 12 + n])
        assert zlib.crc32(png[at + 4 : at + 8 + n]) == wanted
        at += 12 + n
    return struct.unpack(">II", png[16:24])


def test_a_curve_and_a_matrix(run):
    curve, both = preview(run, 4, Results(SCORES)), preview(run, 4, Results(SCORES, ["a", "b"], [[3, 1], [0, 4]]))
    assert size(both.picture) == (2 * size(curve.picture)[0], size(curve.picture)[1])
    assert preview(run, 4, Results(SCORES)) == curve  # the same again


def test_many_classes_fit(run):
    names = [f"class {i}" for i in range(60)]
    assert size(preview(run, 4, Results(SCORES, names, [[i == j for j in range(60)] for i in range(60)])).picture)


def test_a_run_without_matplotlib_has_no_picture(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert preview(run, 4, Results(SCORES)) == Preview()
