"""elman compare: compare runs: what differs in their configs, their scores, how long they took."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from elman.cli.output import print_json, print_table
from elman.errors import ElmanError, InputError
from elman.files.config import Json
from elman.options import parse_json
from elman.progress import clock
from elman.tables import Table

PLACES = ("out", "resume", "imports")  # settings that say where a run is, not what it is


@dataclass
class Row:
    """A run. `best` is the best validation score, `test` the score at the end; None if there is none yet."""

    run: str
    status: str  # finished, unfinished and how far it has come, or what is wrong with it
    task: str = ""
    score: str = ""  # the name of the primary score
    larger_is_better: bool = False
    best: float | None = None
    test: float | None = None
    seconds: float = 0.0
    settings: dict[str, Json] = field(default_factory=dict)  # those that differ among the runs of its task


def run(arguments: Sequence[str]) -> int:
    """Print the table, the best run of each task first."""
    parsed = parser().parse_args(arguments)
    paths = [Path(name) for name in parsed.runs] or [path for path in Path("runs").glob("*") if path.is_dir()]
    if not paths:
        raise InputError("there are no runs in runs/; name some: elman compare DIRECTORY ...")
    missing = [str(path) for path in paths if not path.is_dir()]
    if missing:
        raise InputError(f"there is no folder {', '.join(missing)}; a run is the folder that --out named in training")
    rows = compare(paths)
    if parsed.json:
        print_json([asdict(row) for row in rows])
    else:
        print_table(Table(f"{len(rows)} runs, the best of each task first", HEADER, [_cells(row) for row in rows]))
    return 0


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="elman compare", description=f"{(__doc__ or '').partition(': ')[2]}")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run directories; by default all in runs/")
    parser.add_argument("--json", action="store_true", help="a list of runs as JSON")
    return parser


def compare(paths: Sequence[Path]) -> list[Row]:
    """The rows of some runs, grouped by task, the best first, those without a score last."""
    rows = [_row(path) for path in paths]
    for task in {row.task for row in rows}:
        _keep_differences([row for row in rows if row.task == task])
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[bool, str, bool, str, float, str]:
    score = 0.0 if row.best is None else -row.best if row.larger_is_better else row.best
    return (not row.task, row.task, row.best is None, row.score, score, row.run)


def _row(path: Path) -> Row:
    from elman.files import config
    from elman.training import checkpoint
    from elman.training.record import read_metrics

    try:
        settings = config.flat(config.read(path / config.NAME))
        primary, larger = checkpoint.read_primary(path)
        lines = read_metrics(path)
        scores = {part: [line[part] for line in lines if part in line] for part in ("valid", "valid_whole", "test")}
        valid = scores["valid_whole"] or scores["valid"]
        return Row(
            str(path), _status(settings, lines, path), str(settings.get("task", "lm")), primary, larger,
            (max if larger else min)(valid, default=None), scores["test"][-1] if scores["test"] else None,
            _seconds(path), {name: value for name, value in settings.items() if name not in PLACES},
        )  # fmt: skip
    except (ElmanError, TypeError, ValueError) as error:
        return Row(str(path), f"broken: {error}")


def _status(settings: dict[str, Json], lines: list[dict[str, float]], path: Path) -> str:
    from elman.training import checkpoint

    steps = settings.get("training.steps")
    last = int(lines[-1]["step"]) if lines else 0
    ended = any("test" in line or "valid_whole" in line for line in lines[-2:])
    if ended or ((path / "best").is_dir() and last == steps) or checkpoint.is_fitted(path):
        return "finished"
    patience = settings.get("training.patience")
    if checkpoint.ended_early(path, patience if isinstance(patience, int) else 0):
        return f"finished, step {last} of {steps}: it stopped early"
    return f"unfinished, step {last} of {steps}" if steps is not None else "unfinished"


def _seconds(path: Path) -> float:
    """How long it ran: the clock starts from zero each time a run is resumed."""
    total = before = 0.0
    try:
        for line in (path / "timings.jsonl").read_text(encoding="utf-8").splitlines():
            now = float(parse_json(line)["seconds"])
            total += now - before if now >= before else now
            before = now
    except (OSError, ValueError, KeyError):
        return total  # lines may be missing
    return round(total, 3)


def _keep_differences(rows: Sequence[Row]) -> None:
    """Of the settings of some runs, those that are not the same in all."""
    names = {name for row in rows for name in row.settings}
    for name in names:
        if all(row.settings.get(name) == rows[0].settings.get(name) for row in rows):
            for row in rows:
                row.settings.pop(name, None)


HEADER = ("run", "task", "score", "best", "test", "time", "status", "what differs")


def _cells(row: Row) -> list[str]:
    best, test = ("-" if value is None else f"{value:.4f}" for value in (row.best, row.test))
    differs = ", ".join(f"{name}={value}" for name, value in sorted(row.settings.items()))
    score = row.score.replace("_", " ")
    return [row.run, row.task or "-", score or "-", best, test, clock(row.seconds), row.status, differs]
