"""Write the tables of the pages from bench/results: `python -m bench.tables` (`make bench-tables`).

A page says what belongs where by two comments, between which everything is written anew:

    <!-- bench avx512: training inference -->
    <!-- end of bench -->

names an instruction set and parts of bench.all; `setting` in place of parts is a paragraph on commit, machine and
peers, `missed` the rows that miss their must. What has no results yet is left as it stands: figures of an earlier
session, which say so.
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.all import PARTS, ROOT, stored
from bench.limits import share
from bench.turns import cells


def marked(what: str, request: str) -> re.Pattern[str]:
    """What stands between two such comments; `request` has groups for what the first of them asks for."""
    return re.compile(rf"(<!-- {what} {request} -->\n).*?(<!-- end of {what} -->)", re.DOTALL)


BLOCK = marked("bench", r"(\w+): ([\w ]+)")
NAMES = {"avx512": "AVX-512", "avx2": "AVX2"}
COLUMNS = ("row", "peer", "ratio", "quartiles", "must", "aim", "", "ours", "peer's", "unit", "faults")


def pages() -> list[Path]:
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(page.read_text())]


def written(text: str) -> str:
    """A page with its tables as the results have them."""
    return fill(text, BLOCK, lambda isa, parts: lines_of(isa, parts.split()))


def fill(text: str, blocks: re.Pattern[str], lines: Callable[..., str]) -> str:
    """A page with the `lines` of what each of its blocks asks for; a block for which there are none stays as it is."""

    def block(match: re.Match[str]) -> str:
        first, *requests, last = match.groups()
        content = lines(*requests)
        return first + content + last if content else match[0]

    return blocks.sub(block, text)


def lines_of(isa: str, names: list[str]) -> str:
    """Empty if nothing of it is measured."""
    results = stored(isa)
    if names == ["setting"]:
        return setting(results)
    if names == ["missed"]:
        return missed(results)
    unknown = set(names) - set(PARTS)
    if unknown:
        raise SystemExit(f"a page asks for {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    rows = [row for name in names for row in results["parts"].get(name, {"rows": []})["rows"]]
    return table(rows) if rows else ""


def table(rows: list[dict[str, Any]]) -> str:
    return markdown(COLUMNS, [_texts(row) for row in rows])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table. Columns that are empty in every row are left out."""
    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    head = [_line([columns[i] for i in used]), _line(["---"] * len(used))]
    return "\n".join([*head, *(_line([row[i] for i in used]) for row in rows)]) + "\n"


def _texts(row: dict[str, Any]) -> list[str]:
    """As COLUMNS has it. A peer that may use more than we may is named as such."""
    texts = list(cells(row)[:-1])
    if unstable(row):
        texts[0] += f" (unstable: {_of_medians(row):.2f} by the medians of both sides)"
    if row["free"]:
        texts[1] += ", free to use AVX-512"
        texts[6] = texts[6].replace("MISSED", "behind it")
    if not row["quiet"]:
        texts[0] += " (the machine was busy)"
    return texts


def unstable(row: dict[str, Any]) -> bool:
    """Whether the median of the rounds' ratios is not the ratio of the medians."""
    return row["ratio"] is not None and abs(math.log(row["ratio"] / _of_medians(row))) > 0.1


def _of_medians(row: dict[str, Any]) -> float:
    more_is_better = row.get("inverted") or "/" in row["unit"]
    return float(row["ours"] / row["theirs"] if more_is_better else row["theirs"] / row["ours"])


def _line(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def setting(results: dict[str, Any]) -> str:
    """What the tables were measured with."""
    parts = results["parts"]
    if not parts:
        return ""
    by_commit: dict[str, list[str]] = {}
    for name, part in parts.items():
        by_commit.setdefault(part["commit"], []).append(name)
    [(first, _), *others] = sorted(by_commit.items(), key=lambda item: -len(item[1]))
    at = first + "".join(f", but {', '.join(names)} at {commit}" for commit, names in others)
    dates = sorted(part["date"] for part in parts.values())
    machine = dict(results["machine"])
    where = f"{machine.pop('processor')}, {machine.pop('cores')} cores, {machine.pop('system')}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.items())
    held = ", ".join(f"`{name}={value}`" for name, value in results["held"].items())
    busy = sum(not row["quiet"] for part in parts.values() for row in part["rows"])
    text = (
        f"Measured at commit {at}, parts begun from {dates[0]} to {dates[-1]} (UTC), nothing else being started on the "
        f"machine ({busy or 'no'} row{'s' * (busy != 1)} of those that watch for it met something else): {where}.\n"
    )
    text += f"Our kernels on {NAMES[results['isa']]}; {versions}.\n"
    text += (
        f"Peers are held to AVX2 by {held}; those that have no such switch are named in the table.\n" if held else ""
    )
    missing = [name for name in PARTS if name not in parts]
    return text + (f"Not measured: {', '.join(missing)}.\n" if missing else "")


def missed(results: dict[str, Any]) -> str:
    """The rows that miss their must, each with what it reaches of the machine's own speed, where that is known."""
    rows = [row for part in results["parts"].values() for row in part["rows"]]
    behind = [row for row in rows if row["reached"] is False]
    if not behind:
        return "None.\n" if results["parts"] else ""
    return markdown((*COLUMNS, "of the machine"), [[*_texts(row), share(row, rows)] for row in behind])


def main() -> None:
    for page in pages():
        page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
