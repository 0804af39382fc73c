"""Write the tables in concepts/laws.md and reference/conformance.md: elman laws --json | python docs/tables.py"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict, TypeVar

DOCS = Path(__file__).parent
BEGIN, END = "<!-- table: written by `make docs` -->\n", "<!-- end of table -->"
LAWS = range(1, 9)

T = TypeVar("T")


class Row(TypedDict):
    cell: str
    options: dict[str, object]
    kernels: str
    law: int
    ok: bool


def summary(rows: list[Row]) -> list[str]:
    """A line per cell: how many option sets, and which laws hold for all of them on all kernels."""
    lines = []
    for cell in _unique(row["cell"] for row in rows):
        mine = [row for row in rows if row["cell"] == cell]
        sets = len(_unique(options(row) for row in mine))
        lines.append(_line(f"[{cell}](../reference/cells/{cell}.md)", str(sets), *(_holds(mine, law) for law in LAWS)))
    return [_line("cell", "option sets", *(f"law {law}" for law in LAWS)), _line(*["---"] * (2 + len(LAWS))), *lines]


def full(rows: list[Row]) -> list[str]:
    """A line per cell, option set and kind of kernel."""
    keys = _unique((row["cell"], options(row), row["kernels"]) for row in rows)
    lines = []
    for key in keys:
        mine = [row for row in rows if (row["cell"], options(row), row["kernels"]) == key]
        lines.append(_line(*key, *(_holds(mine, law) for law in LAWS)))
    header = _line("cell", "options", "kernels", *map(str, LAWS))
    return [header, _line(*["---"] * (3 + len(LAWS))), *lines]


def options(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row["options"].items())


def block(text: str) -> str:
    """The text between the two marks in a document."""
    return text.partition(BEGIN)[2].partition(END)[0]


def replace(path: Path, lines: list[str]) -> None:
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


def _holds(rows: list[Row], law: int) -> str:
    verdicts = [row["ok"] for row in rows if row["law"] == law]
    return "" if not verdicts else "holds" if all(verdicts) else "**fails**"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


if __name__ == "__main__":
    rows = [row for row in json.load(sys.stdin) if row["law"] in LAWS]  # those of learning have a page of their own
    replace(DOCS / "concepts" / "laws.md", summary(rows))
    replace(DOCS / "reference" / "conformance.md", full(rows))
