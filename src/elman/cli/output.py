"""How verbs show things: tables and progress, rich on a terminal, plain lines elsewhere; and JSON, alone."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 2.0  # seconds before progress is worth showing
INTERVAL = 5.0  # seconds between its lines where there is no terminal


def print_json(value: object) -> None:
    """`value` as JSON, and nothing else, on standard output."""
    print(json.dumps(value, indent=2))


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table: rich on a terminal, aligned plain lines elsewhere. A cell that begins with FAIL stands out."""
    if sys.stdout.isatty():
        _rich_table(title, header, rows)
    else:
        print("\n".join(plain_table(title, header, rows)))


def plain_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of an aligned table.

    >>> print("\\n".join(plain_table("a title", ["cell", "law 1"], [["lstm", "ok"]])))
    a title
      cell  law 1
      lstm  ok
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [title, *("  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)]


def _rich_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, style="bold red" if cell.startswith("FAIL") else "") for cell in row))
    console = Console()
    # Lines that are longer than the window can still be read, which cells that were cut cannot.
    console.width = max(console.width, Measurement.get(console, console.options.update(width=1000), table).maximum)
    console.print(table)


def brief(error: float | None) -> str:
    """An error in few characters; None is infinite, as in JSON.

    >>> brief(3.4e-8), brief(0.0), brief(None)
    ('3e-8', '0', 'inf')
    """
    if error is None or error in (0, math.inf):
        return "0" if error == 0 else "inf"
    digits, _, power = f"{error:.0e}".partition("e")
    return f"{digits}e{int(power)}"


def track(items: Sequence[T], doing: str) -> Iterator[T]:
    """Go through `items` and, after two seconds, say on standard error how far it has come and how long is left."""
    if sys.stderr.isatty():
        yield from _bar(items, doing)
    else:
        yield from _lines(items, doing)


def _bar(items: Sequence[T], doing: str) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(doing, total=len(items))
    start = time.monotonic()
    try:
        for done, item in enumerate(items, 1):
            yield item
            progress.advance(task)
            if time.monotonic() - start > PATIENCE and done < len(items):
                progress.start()
    finally:
        progress.stop()


def _lines(items: Sequence[T], doing: str) -> Iterator[T]:
    start = time.monotonic()
    due = start + PATIENCE
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now > due and done < len(items):
            left = (now - start) / done * (len(items) - done)
            print(f"{doing}: {done} of {len(items)}, {left:.0f} s left", file=sys.stderr, flush=True)
            due = now + INTERVAL
