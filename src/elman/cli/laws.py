"""elman laws: check the laws for every cell, with its option sets, on native and reference kernels; print the table."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from elman.cli.output import brief, print_json, print_table
from elman.errors import UnknownNameError
from elman.progress import track
from elman.tables import Table

if TYPE_CHECKING:
    from elman.laws import Row
    from elman.laws.online import OnlineRow

KERNELS: dict[str, tuple[str, ...]] = {
    "native": ("native",),
    "reference": ("reference",),
    "both": ("reference", "native"),
}


def run(arguments: Sequence[str]) -> int:
    """Print the conformance table; 1 if a law does not hold."""
    parsed = parser().parse_args(arguments)
    rows = check(parsed.cells, KERNELS.get(parsed.kernels, ()))
    online = [] if parsed.kernels else check_online(parsed.cells)  # a learner has kernels of its own
    all_rows: list[Row | OnlineRow] = [*rows, *online]
    if parsed.json:
        print_json([_plain(row) for row in all_rows])
    else:
        _print(rows)
        _print_online(online)
        _print_sum(all_rows)
    return 0 if all(row.ok for row in all_rows) else 1


def check(cells: Sequence[str], kernels: Sequence[str]) -> list[Row]:
    """The rows of the table for the cells and kernels named; for all there are where none is named."""
    from elman import laws
    from elman.cells import CELLS
    from elman.kernels import available

    for cell in cells:
        if cell not in CELLS:
            raise UnknownNameError("cell", cell, CELLS)
    jobs = [(cell, kernel) for cell in cells or CELLS for kernel in kernels or available()]
    return [row for cell, kernel in track(jobs, "checking laws", "cells") for row in laws.rows([cell], [kernel])]


def check_online(cells: Sequence[str]) -> list[OnlineRow]:
    """The rows of the laws of learning from a stream, for the cells named; for all there are where none is named."""
    from elman.cells import CELLS
    from elman.laws import online

    return [row for cell in track(list(cells or CELLS), "learning", "cells") for row in online.rows([cell])]


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(
        prog="elman laws",
        description="Check the laws for every cell, with each of its option sets, and print the conformance table: "
        "the worst error of each law, and FAIL where it is more than rounding; for cells that learn from a stream "
        "those of learning too, O1 to O5.",
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help="check these cells only")
    parser.add_argument("--kernels", choices=KERNELS, help="check on these kernels, and no learning; by default on all")
    parser.add_argument(
        "--json",
        action="store_true",
        help="a list of rows with cell, options, kernels, law, ok and worst_error (null where it is infinite)",
    )
    return parser


def _plain(row: Row | OnlineRow) -> dict[str, object]:
    error = row.worst_error if math.isfinite(row.worst_error) else None  # JSON has no infinity
    return {**asdict(row), "worst_error": error}


def _print(rows: Sequence[Row]) -> None:
    """One line per cell, options and kernels; one column per law."""
    from elman.laws import REMEDY, TITLES

    lines: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        line = lines.setdefault((row.cell, _options(row.options), row.kernels), {})
        line[row.law] = f"{'' if row.ok else 'FAIL '}{brief(row.worst_error)}"
    header = ("cell", "options", "kernels", *map(str, TITLES))
    cells = [(*key, *(line.get(law, "-") for law in TITLES)) for key, line in lines.items()]
    print_table(Table("The worst error of each law", header, cells))
    for law, title in TITLES.items():
        print(f"{law}. {title}")
    if any(row.law == 8 and not row.ok for row in rows):
        print(REMEDY)


def _print_online(rows: Sequence[OnlineRow]) -> None:
    """The same of the laws of learning."""
    from elman.laws.online import TITLES

    if not rows:
        return
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((row.cell, _options(row.options)), {})
        line[row.law] = f"{'' if row.ok else 'FAIL '}{brief(row.worst_error)}"
    cells = [(*key, *(line.get(law, "-") for law in TITLES)) for key, line in lines.items()]
    print_table(Table("The worst error of each law of learning", ("cell", "options", *TITLES), cells))
    for law, title in TITLES.items():
        print(f"{law}. {title}")


def _print_sum(rows: Sequence[Row | OnlineRow]) -> None:
    failed = sum(not row.ok for row in rows)
    print(f"{len(rows)} checks, " + (f"{failed} FAILED" if failed else "all hold"))


def _options(options: dict[str, object]) -> str:
    return ", ".join(name if value is True else f"{name}={value}" for name, value in options.items())
