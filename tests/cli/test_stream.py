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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elman.cli import main
from elman.online.session import Session


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
    assert look[0]["row"] is None and a.read_bytes() == b.read_bytes()
    learned = feed(monkeypatch, capsys, rows(41), str(tmp_path / "b"), "--learn", "--replay")
    assert [line["prediction"] for line in look] == [line["prediction"] for line in learned] != [0.0]


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


def test_a_row_that_is_refused_loses_nothing_of_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are saved, and what continues after it is as if it had not come."""
    good = rows(8)
    whole = feed(monkeypatch, capsys, good, str(tmp_path / "a"), *REGRESS)
    refused = ['{"t": 1, "y": 1e300}\n', '{"t": {}, "y": 1}\n', "{\n"]
    for name, bad in zip("bcd", refused, strict=True):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join([*good[:5], bad, *good[5:]])))
        assert main(["stream", str(tmp_path / name), *REGRESS]) == 2
        said = capsys.readouterr()
        assert "5 rows" in said.err and saved(tmp_path / name) == 5
        again = feed(monkeypatch, capsys, good[5:], str(tmp_path / name), "--learn")
        assert [json.loads(line) for line in said.out.splitlines()] + again == whole
        ends = (tmp_path / folder / "learner" / "state.safetensors" for folder in ("a", name))
        assert len({end.read_bytes() for end in ends}) == 1


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (b'{"t": 1, "y": 2}\n{"t": "\xff", "y": 2}\n', (), "line 2 of standard input is not UTF-8"),
        (b"t,y\n1,2\n1,2,3\n", ("--format", "csv"), "line 3 of standard input has 3 cells, the first line 2 names"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: bytes,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    assert main(["stream", str(tmp_path / "a"), *REGRESS, *words]) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_number_and_what_is_not_there_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"a": 1, "b": 2, "y": 3}\n', '{"a": NaN, "b": 1, "y": 3}\n', "\n", '{"b": 1, "y": NaN}\n', "{}\n"]
    found = feed(monkeypatch, capsys, lines, str(tmp_path / "a"), *REGRESS)
    assert [line["row"] for line in found] == [1, 2, 3, 4] and all(abs(line["prediction"]) < 10 for line in found)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["stream", str(tmp_path / "empty"), *REGRESS]) == 0
    assert not (tmp_path / "empty").exists() and capsys.readouterr().out == ""


class Lines:
    """Standard input, which does something before it gives one of its lines."""

    def __init__(self, lines: list[str], at: int, then: Callable[[], object]) -> None:
        self.lines, self.at, self.then = lines, at, then

    def __iter__(self) -> Iterator[str]:
        for count, line in enumerate(self.lines):
            if count == self.at:
                self.then()
            yield line


def saved(folder: Path) -> int:
    """The rows that the learner in a folder has seen."""
    return Session.open(folder, {}, learns=False).rows


def test_the_state_is_written_every_so_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[int] = []
    monkeypatch.setattr("sys.stdin", Lines(rows(12), 11, lambda: found.append(saved(tmp_path / "a"))))
    assert main(["stream", str(tmp_path / "a"), *REGRESS, "--save_every", "4"]) == 0
    assert found == [8] and saved(tmp_path / "a") == 12 and capsys.readouterr().out.count("\n") == 12


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_ends_it_after_the_row_that_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: int, busy: bool
) -> None:
    """While a row is awaited, or while the third is learned: three rows are written, learned and saved."""
    learn, before = Session.row, signal.getsignal(kind)

    def interrupted(session: Session, row: dict) -> dict:
        if session.rows == 2:
            signal.raise_signal(kind)
        return learn(session, row)

    if busy:
        monkeypatch.setattr(Session, "row", interrupted)
    monkeypatch.setattr("sys.stdin", Lines(rows(9), 9 if busy else 3, lambda: signal.raise_signal(kind)))
    assert main(["stream", str(tmp_path / "a"), *REGRESS]) == 0
    assert capsys.readouterr().out.count("\n") == 3 and saved(tmp_path / "a") == 3
    assert signal.getsignal(kind) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--size", "8"), "--size is 8, and of the learner in this folder 4"),
        (("--target", "z"), "--target is 'z', and of the learner in this folder 'y'"),
        (("--task", "classify"), "--task is 'classify'"),
    ],
)
def test_a_learner_that_is_there_is_not_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    feed(monkeypatch, capsys, rows(2), str(tmp_path / "a"), *REGRESS)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(rows(3))))
    assert main(["stream", str(tmp_path / "a"), "--learn", *words]) == 2
    assert said in capsys.readouterr().err and saved(tmp_path / "a") == 2


def test_rows_without_a_target_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else --replay would learn some rows twice."""
    lines = [*rows(4), '{"t": 1}\n', '{"t": 2, "y": null}\n', *rows(4)]
    whole = feed(monkeypatch, capsys, lines, str(tmp_path / "a"), *REGRESS)
    first = feed(monkeypatch, capsys, lines[:7], str(tmp_path / "b"), *REGRESS)
    again = feed(monkeypatch, capsys, lines, str(tmp_path / "b"), "--learn", "--replay")
    assert first + again == whole and [line["row"] for line in whole] == list(range(1, 11))


def test_an_empty_cell_of_csv_is_a_number_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a,b,y\n", "1,2,3\n", "1,,4\n", "1,2, \n", "1\n", "2,2,5\n"]
    said = feed(monkeypatch, capsys, lines, str(tmp_path / "a"), *REGRESS, "--format", "csv")
    assert [line["row"] for line in said] == [1, 2, 3, 4, 5]
    given = [{"a": 1, "b": 2, "y": 3}, {"a": 1, "y": 4}, {"a": 1, "b": 2}, {"a": 1}, {"a": 2, "b": 2, "y": 5}]
    same = [f"{json.dumps(row)}\n" for row in given]
    assert feed(monkeypatch, capsys, same, str(tmp_path / "b"), *REGRESS) == said


def test_a_row_is_predicted_before_its_target_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert feed(monkeypatch, capsys, rows(1), str(tmp_path / "r"), *REGRESS)[0]["prediction"] == 0.0
    labels = [json.dumps({"x": t, "y": label}) + "\n" for t, label in enumerate("aab")]
    said = feed(monkeypatch, capsys, labels, str(tmp_path / "c"), "--learn", "--task", "classify", "--size", "4")
    assert [[*line["probabilities"]] for line in said] == [[], ["a"], ["a"]]
    assert [line["prediction"] for line in said] == [None, "a", "a"]


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
