"""elman stream: predict a stream row by row as it comes and, with --learn, learn from each row once it was predicted.

RUN is the folder of the learner, made when there is none. It is written under another name and renamed: killed at any
time, the stream continues from the last one that was written, to the same bytes. On SIGTERM, on Ctrl-C and at the end
of the input it is written too.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from elman.errors import InputError
from elman.options import whole

TASKS = {
    "regress": "a number of the features",
    "classify": "a label of the features",
    "forecast": "the next values of a series",
    "lm": "the next byte of a text",
}
Row = dict[str, Any]


def run(arguments: Sequence[str]) -> int:
    """Write a JSON line for each row of standard input."""
    flags = parser().parse_args(arguments)
    whole("--save_every", flags.save_every)
    from elman.online.session import Session

    given = {name: value for name in SETTINGS if (value := getattr(flags, name)) is not None}
    session = Session.open(flags.run, given, learns=flags.learn)
    skip = session.rows if flags.replay else 0
    if session.rows:
        print(f"elman: {flags.run} continues after {session.rows} rows", file=sys.stderr)
    try:
        with _stopping() as stop:
            for count, row in enumerate(_rows(sys.stdin, flags.format, session.task)):
                if count < skip:
                    continue
                with stop.later():
                    print(json.dumps(session.row(row)), flush=True)
                    if flags.learn and session.rows % flags.save_every == 0:
                        session.save()
    finally:  # a row that is refused has changed nothing: what came before it counts
        if flags.learn and session.rows:
            session.save()
            print(f"elman: {session.rows} rows; {flags.run} has what was learned of them", file=sys.stderr)
    return 0


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    made = argparse.ArgumentParser(
        prog="elman stream",
        description="Predict a stream row by row and, with --learn, learn from each row. Standard input has JSON "
        "lines or CSV; a JSON line is written for each row before the next is read.",
        allow_abbrev=False,
    )
    made.add_argument("run", metavar="RUN", help="the folder of the learner; with --learn it is made if there is none")
    made.add_argument("--learn", action="store_true", help="learn from each row that has a target")
    made.add_argument("--format", choices=("json", "csv"), default="json", help="what standard input has (json)")
    made.add_argument("--save_every", type=int, default=1000, help="write the state every so many rows (1000)")
    made.add_argument(
        "--replay", action="store_true", help="the input begins at its first row again: skip those that were learned"
    )
    new = made.add_argument_group("of a new learner")
    new.add_argument("--task", choices=TASKS, help="; ".join(f"{name}: {what}" for name, what in TASKS.items()))
    new.add_argument("--target", help="the column of the target (y)")
    new.add_argument("--horizon", type=int, help="how many values to forecast after each row (1)")
    new.add_argument("--season", type=int, help="steps of a season of the series; 1 for none (1)")
    new.add_argument("--cell", help="the recurrence (mingru)")
    new.add_argument("--size", type=int, help="its units (32)")
    new.add_argument("--rule", help="rtrl, spatial, snap1, rflo, uoro or tbptt (rtrl; of lm spatial)")
    new.add_argument("--lr", type=float, help="the learning rate of adam (0.01)")
    new.add_argument("--forget", type=float, help="what a row counts one row later in running means (1: as much)")
    new.add_argument("--classes", type=int, help="the most labels there can be (10)")
    new.add_argument("--seed", type=int, help="of the first weights (0)")
    return made


SETTINGS = ("task", "target", "horizon", "season", "cell", "size", "rule", "lr", "forget", "classes", "seed")


def _rows(file: TextIO, format: str, task: str) -> Iterator[Row]:
    if task == "lm":
        yield from ({"text": line} for line in _lines(file))
    elif format == "csv":
        reader = csv.DictReader(_lines(file))
        yield from (_numbers(row, reader) for row in reader)
    else:
        for count, line in enumerate(_lines(file), 1):
            if line.strip():
                yield _object(line, count)


def _lines(file: TextIO) -> Iterator[str]:
    if isinstance(file, io.TextIOWrapper):  # which would refuse the lines before a byte that it cannot decode, too
        file.reconfigure(encoding="utf-8", errors="surrogateescape")
    for count, line in enumerate(file, 1):
        try:
            line.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"line {count} of standard input is not UTF-8: convert it, by iconv -f latin1 -t utf-8, say"
            ) from None
        yield line


def _object(line: str, count: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"line {count} of standard input is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(
            f'line {count} of standard input is {line.strip()[:40]}; it must be an object, {{"x": 1, "y": 2}}'
        )
    return row


def _numbers(row: dict[str, Any], reader: csv.DictReader[str]) -> Row:
    names = reader.fieldnames or ()
    if None in row:
        raise InputError(
            f"line {reader.line_num} of standard input has {len(names) + len(row[None])} cells, the first line "  # type: ignore[index]
            f"{len(names)} names: a row has a cell for each name"
        )
    return {name: _number(text) for name, text in row.items()}


def _number(text: str | None) -> Any:
    if text is None or not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return text


class _Stop(BaseException):
    """SIGTERM or Ctrl-C came while the next row was awaited."""


class _Stopping:
    """SIGTERM and Ctrl-C end the loop: at once while it waits for a row, after the row that it is at otherwise."""

    def __init__(self) -> None:
        self.busy = self.came = False

    def note(self, signal_number: int, frame: object) -> None:
        self.came = True
        if not self.busy:
            raise _Stop

    @contextmanager
    def later(self) -> Iterator[None]:
        self.busy = True
        yield
        self.busy = False
        if self.came:
            raise _Stop


@contextmanager
def _stopping() -> Iterator[_Stopping]:
    stop = _Stopping()
    before = {one: signal.signal(one, stop.note) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    except _Stop:
        pass
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
