"""How verbs print: tables, rich on a terminal and plain lines elsewhere; and JSON, alone."""

from __future__ import annotations

import json
import math
import sys

from elman.tables import Table


def print_json(value: object) -> None:
    """`value` as JSON, and nothing else, on standard output."""
    print(json.dumps(value, indent=2))


def print_table(table: Table) -> None:
    """A table: rich on a terminal, aligned plain lines elsewhere. A cell that starts with FAIL is red."""
    if sys.stdout.isatty():
        _rich_table(table)
    else:
        print("\n".join(table.lines()))


def _rich_table(content: Table) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=content.title, title_justify="left", title_style="bold")
    for name in content.header:
        table.add_column(name, no_wrap=True)
    for row in content.rows:
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
