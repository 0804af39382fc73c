"""elman stream: what it writes, how it continues, what it refuses; killed at any instant it ends in the same bytes."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elman.cli import main


def rows(n: int) -> list[str]:
    return [json.dumps({"t": t % 5, "y": 3.0 * (t % 5) + 1}) + "\n" for t in range(n)]


def feed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: list[str], *words: str
) -> list[dict]:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(lines)))
    assert main(["stream", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


REGRESS = ("--learn", "--task", "regress", "--size", "4")


def test_it_writes_a_line_for_each_row_and_continues_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = feed(monkeypatch, capsys, rows(40), str(tmp_path / "a"), *REGRESS)
    first = feed(monkeypatch, capsys, rows(40)[:17], str(tmp_path / "b"), *REGRESS)
    again = feed(monkeypatch, capsys, rows(40), str(tmp_path / "b"), "--learn", "--replay")
    assert first + again == whole and [line["row"] for line in whole] == list(range(1, 41))
    a, b = (tmp_path / name / "learner" / "state.safetensors" for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    look = feed(monkeypatch, capsys, rows(41)[40:], str(tmp_path / "a"))
    assert abs(look[0]["prediction"] - 1.0) < 6 and a.read_bytes() == b.read_bytes()


def test_every_task_reads_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [json.dumps({"x": t % 2, "label": "odd" if t % 2 else "even"}) + "\n" for t in range(30)]
    words = (str(tmp_path / "c"), "--learn", "--task", "classify", "--target", "label", "--size", "4")
    assert feed(monkeypatch, capsys, labels, *words)[-1]["prediction"] == "odd"
    series = ["y\n", *(f"{t}\n" for t in range(20))]
    words = (str(tmp_path / "f"), "--learn", "--task", "forecast", "--horizon", "2", "--size", "4", "--format", "csv")
    forecast = feed(monkeypatch, capsys, series, *words)[-1]["forecast"]
    assert [round(value) for value in forecast] == [20, 21]
    text = ["abababab\n"] * 12
    nats = feed(
        monkeypatch, capsys, text, str(tmp_path / "t"), "--learn", "--task", "lm", "--size", "8", "--lr", "0.05"
    )
    assert nats[-1]["nats"] < 0.7 * nats[0]["nats"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "begin one with --learn and --task"),
        (("nowhere", "--learn"), "so it needs --task"),
        (("nowhere", "--learn", "--task", "regress", "--rule", "rtlr"), "unknown rule 'rtlr'"),
        (("nowhere", "--learn", "--task", "regress", "--classes", "3"), "its settings are"),
    ],
)
def test_bad_words_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(rows(3))))
    assert main(["stream", *words]) == 2
    assert said in capsys.readouterr().err


def test_bad_rows_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, said in (("{", "is not JSON"), ("[1]", "must be an object"), ('{"t": "a", "y": 1}', "takes numbers")):
        monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
        assert main(["stream", str(tmp_path / "r"), *REGRESS]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_killed_at_random_instants_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL while it learns or saves, three times, and SIGTERM; each time the input begins at its first row again."""
    (tmp_path / "rows").write_text("".join(rows(1500)))
    command = [sys.executable, "-m", "elman", "stream", "--learn", "--replay", "--save_every", "50", "--threads", "1"]
    made = ["--task", "regress", "--size", "4"]

    def start(name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "rows").open() as lines:
            return subprocess.Popen([*command, name, *made], cwd=tmp_path, stdin=lines, stdout=subprocess.DEVNULL)

    assert start("whole").wait(timeout=300) == 0
    chance = random.Random(0)
    for stop in (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        process = start("cut")
        state, before = tmp_path / "cut" / "learner" / "state.safetensors", time.monotonic()
        while not state.exists() and process.poll() is None and time.monotonic() < before + 120:
            time.sleep(0.02)
        time.sleep(0.5 * chance.random())
        if process.poll() is None:
            os.kill(process.pid, stop)
        process.wait(timeout=60)
    assert start("cut").wait(timeout=300) == 0
    whole, cut = (tmp_path / name / "learner" / "state.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()
