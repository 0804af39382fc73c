"""`elman export` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.cli import main

pytest.importorskip("onnxruntime")
LM = str(Path(__file__).parent.parent / "versions" / "867694c" / "runs" / "lm")


def test_a_run_becomes_a_file_that_a_session_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from elman.onnx import Session

    out = tmp_path / "book.onnx"
    assert main(["export", LM, "--to", "onnx", "--out", str(out), "--pack_state", "--with_reset", "--opset", "21"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    about = Session(out).about
    assert about["packed"] and about["reset"] and about["task"] == "lm"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--to", "onnx", "--out", "a.onnx"], "there is no folder nowhere"),
        ([LM, "--to", "onnx", "--out", "there.onnx"], "there.onnx exists; choose another name, or delete it"),
        ([LM, "--to", "onnx", "--out", "a.onnx", "--opset", "99"], "opset is 99; it must be a whole number"),
        ([LM, "--to", "onnx", "--out", "a.onnx", "--opset", "0"], "opset is 0; it must be a whole number"),
        ([LM, "--to", "onnx", "--out", "a.bin"], "it must be a file that ends with .onnx"),
    ],
)
def test_what_is_refused_is_refused_in_a_line_and_nothing_is_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.onnx").touch()
    assert main(["export", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]
