"""elman laws: the conformance table as text and as JSON."""

from __future__ import annotations

import json

import pytest
import torch

from elman import kernels, laws
from elman.cells import CELLS
from elman.cells.elman import Elman
from elman.cli import main

ONLINE = ("O1", "O2", "O3", "O5")  # of cells whose gates see the state


class Forgetful(Elman):
    """A mutant that drops the state it is given whenever it scans."""

    variants = ({},)

    def _scan(self, x, state, lengths, reset):
        return super()._scan(x, self.init_state(len(x)), lengths, reset)


def test_json_has_a_row_for_each_option_set_kernel_and_law(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws", "elman", "mgu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [row for row in found if row["law"] in laws.LAWS]
    assert all(list(row) == ["cell", "options", "kernels", "law", "ok", "worst_error"] for row in rows)
    expected = {
        (cell, json.dumps(options), kernel, law)
        for cell in ("elman", "mgu")
        for options in CELLS[cell].variants
        for kernel in kernels.available()
        for law in laws.LAWS
        if law != 8 or kernel == "native"
    }
    assert {(row["cell"], json.dumps(row["options"]), row["kernels"], row["law"]) for row in rows} == expected
    assert len(rows) == len(expected) and all(row["ok"] is True for row in found)
    learning = {(row["cell"], json.dumps(row["options"]), row["law"]) for row in found if row not in rows}
    assert {(cell, law) for cell, _, law in learning} == {(c, o) for c in ("elman", "mgu") for o in ONLINE}


def test_the_table_has_a_line_for_each_option_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws", "elman", "--kernels", "reference"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["cell", "options", "kernels"]
    assert [line.split()[:2] for line in lines[2:4]] == [["elman", "reference"], ["elman", "phi=relu"]]
    assert lines[-1] == "14 checks, all hold"


def test_a_broken_law_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(CELLS, "forgetful", Forgetful)
    assert main(["laws", "forgetful", "--kernels", "reference"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and "FAILED" in out.splitlines()[-1]
    assert main(["laws", "forgetful", "--kernels", "reference", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert {row["law"] for row in rows if not row["ok"]} >= {1, 2, 7}


def test_an_infinite_error_is_still_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Explodes(Elman):
        variants = ({},)

        def _scan(self, x, state, lengths, reset):
            y, last = super()._scan(x, state, lengths, reset)
            return y * torch.nan, last

    monkeypatch.setitem(CELLS, "explodes", Explodes)
    assert main(["laws", "explodes", "--kernels", "reference", "--json"]) == 1
    out = capsys.readouterr().out
    assert "Infinity" not in out and None in [row["worst_error"] for row in json.loads(out)]


def test_kernels_that_are_not_there_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "_native", None)
    assert main(["laws", "elman", "--kernels", "native"]) == 2
    assert "elman: error: native kernels were requested" in capsys.readouterr().err
