"""What the recipes give: `python -m recipes.results [NAME] [--data FOLDER]` (`make results NAME=chunks DATA=folder`).

recipes/results.json has a row for each result: what is trained on which data by which commands, which score counts,
what it was, on which commit and machine, and what others have published. With a name, that row is run whole and stored;
with or without, the tables of docs/results/index.md are written from the file. A page asks for them as bench.tables has
it:

    <!-- results lm markov -->
    <!-- end of results -->

names tasks; in place of tasks, `aims` is what we want to reach, `measured` how each row was measured, `data` where the
data come from.

A row runs in build/results/NAME, where links lead to its data and to recipes/, so that its commands are those on the
page. The values are stored in any case. Time and memory are those of one run, time only of a machine that did nothing
else: if other processes, or other virtual machines, had more than a tenth of one core meanwhile, it is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.all import ROOT, commit
from bench.kernels import processor
from bench.tables import fill, markdown, marked
from elman.files import config

STORE = ROOT / "recipes" / "results.json"
PAGE = ROOT / "docs" / "results" / "index.md"
WORK = ROOT / "build" / "results"
MEASURED = (
    "src",
    "csrc",
    "recipes",
    ":!recipes/results.json",
    ":!recipes/results.py",
    "CMakeLists.txt",
    "constraints.txt",
)
BLOCK = marked("results", r"([\w ]+)")
OTHERS = 0.1  # cores that others may use meanwhile
TICKS = os.sysconf("SC_CLK_TCK")
Row = dict[str, Any]


class Refused(Exception):
    """What was asked for cannot be run: one line that says why, and what to do."""


# Running


class Usage(NamedTuple):
    """What a command took: seconds by the clock and of the processor, and megabytes at most."""

    wall: float
    processor: float
    memory: float


def measure(name: str, folder: Path, store: Path = STORE, work: Path = WORK) -> Row:
    """Run a row whole and store what it gave."""
    results = read(store)
    row = row_of(results, name)
    place = prepare(row, results["data"], folder, work)
    at, watch = commit(MEASURED), Watch()
    values, extras, usages = {}, {}, []
    for run in row["runs"]:
        output, usage = run_commands(row["commands"], run, place)
        usages.append(usage)
        values[str(run)] = round(score(row["score"], run, place, output), row["score"].get("digits", 2))
        extras = {
            what: round(score(rule, run, place, output), rule.get("digits", 4))
            for what, rule in row.get("others", {}).items()
        }
        print(f"{name}: {row['metric']} {values[str(run)]:g}", file=sys.stderr, flush=True)
    others = watch.others(sum(usage.processor for usage in usages))
    if not (quiet := others <= OTHERS):
        print(f"{name}: others had {others:.2g} cores meanwhile; the time is not stored", file=sys.stderr)
    results = read(store)  # another row may have been stored meanwhile
    row = row_of(results, name)
    row |= {
        "values": values, "extras": extras if len(values) == 1 else {}, "commit": at,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": f"{processor()}, {os.cpu_count()} cores",
        "threads": threads(place), "memory": round(max(usage.memory for usage in usages)),
        "minutes": round(statistics.mean(usage.wall for usage in usages) / 60, 2) if quiet else None,
    }  # fmt: skip
    write(store, results)
    return row


class Watch:
    """How many cores others use while this process does nothing but wait for its children."""

    def __init__(self) -> None:
        self.begin, self.busy, self.own = time.perf_counter(), busy_seconds(), time.process_time()

    def others(self, children: float) -> float:
        """Since it was made, given the processor time of the children; not a number where it cannot be known."""
        spent = children + time.process_time() - self.own
        return (busy_seconds() - self.busy - spent) / (time.perf_counter() - self.begin)


def read(store: Path) -> dict[str, Any]:
    return json.loads(store.read_text())


def write(store: Path, results: dict[str, Any]) -> None:
    temporary = store.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(store)


def row_of(results: dict[str, Any], name: str) -> Row:
    rows = {row["name"]: row for row in results["rows"]}
    if name not in rows:
        raise Refused(f"there is no row {name!r}; there are {', '.join(rows)}")
    return rows[name]


def prepare(row: Row, data: dict[str, Any], folder: Path, work: Path) -> Path:
    """A new folder with links to the data of a row and to the recipes."""
    known = data.get(row["data"], {"files": []})
    found = [_find(file, folder, row["data"]) for file in known["files"]]
    missing = [file for file, path in zip(known["files"], found, strict=True) if path is None]
    if missing:
        raise Refused(
            f"neither {folder} nor {folder / row['data']} has {', '.join(missing)}: {known['title']}, from "
            f"{known['source']}. Name the folder that has them: make results NAME={row['name']} DATA=folder"
        )
    place = work / row["name"]
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    for path in (*found, ROOT / "recipes"):
        assert path is not None
        (place / path.name).symlink_to(path.resolve())
    return place


def _find(file: str, folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / file, folder / name / file) if path.exists()), None)


def run_commands(commands: Sequence[str], run: int, place: Path) -> tuple[str, Usage]:
    """The standard output of the last of some commands, and what they took together."""
    taken, output = Usage(0.0, 0.0, 0.0), ""
    for command in commands:
        output, usage = run_one([sys.executable, "-m", *shlex.split(numbered(command, run))], place)
        taken = Usage(taken.wall + usage.wall, taken.processor + usage.processor, max(taken.memory, usage.memory))
    return output, taken


def numbered(text: str, run: int | str) -> str:
    """With the number of a run where {run} is; other brackets are part of a command."""
    return text.replace("{run}", str(run))


def run_one(command: list[str], place: Path) -> tuple[str, Usage]:
    """A child's memory and processor time are known when it has been waited for, those of its own children with it."""
    begin = time.perf_counter()
    with (place / "output").open("w+") as output:
        child = subprocess.Popen(command, cwd=place, stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begin
        output.seek(0)
        text = output.read()
    if child.returncode:
        raise Refused(f"{shlex.join(command[2:])} failed in {place}; nothing is stored")
    return text, Usage(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def busy_seconds() -> float:
    """Seconds that the cores have worked since the machine started, stolen ones with them."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return math.inf  # not Linux: nobody knows what else ran
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, first[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS


def score(rule: dict[str, Any], run: int, place: Path, output: str) -> float:
    """The number that a rule names: of what the last command printed, or of the metrics of a run directory."""
    if "run" in rule:
        lines = (place / numbered(rule["run"], run) / "metrics.jsonl").read_text().splitlines()
        found = [line for line in map(json.loads, lines) if rule["part"] in line]
        if not found:
            raise Refused(f"the metrics of {rule['run']} have no line of {rule['part']!r}")
        chosen = min if rule.get("best") == "least" else max
        line = chosen(found, key=lambda line: line[rule["part"]]) if "best" in rule else found[-1]
    else:
        line = json.loads(output)
    value = float(line[rule["name"]])
    return math.exp(value) if rule.get("exp") else value * rule.get("scale", 1)


def threads(place: Path) -> int | None:
    """How many computed, as the run directories say."""
    found = {config.read(path)["threads"] for path in (place / "runs").glob("*/config.yaml")}
    return max((number for number in found if isinstance(number, int)), default=None)


# Writing


def write_page(store: Path = STORE, page: Path = PAGE) -> None:
    page.write_text(written(page.read_text(), read(store)))


def written(text: str, results: dict[str, Any]) -> str:
    """A page with its tables as the results have them."""
    return fill(text, BLOCK, lambda request: lines_of(results, request.split()))


def lines_of(results: dict[str, Any], request: list[str]) -> str:
    tables = {"aims": aims_table, "measured": measured_table, "data": data_table}
    if len(request) == 1 and request[0] in tables:
        return tables[request[0]](results)
    unknown = set(request) - {row["task"] for row in results["rows"]}
    if unknown:
        raise SystemExit(f"a page asks for the task {', '.join(sorted(unknown))}, of which there is no row")
    rows = [row for row in results["rows"] if row["task"] in request]
    return markdown(("row", "what", "score", "Elman", "published"), [_result(row) for row in rows])


def _result(row: Row) -> list[str]:
    published = "; ".join(
        f"{other['what']} {other['value']} ({other['source']}{'' if other['checked'] else ', from memory'})"
        for other in row["published"]
    )
    return [f"`{row['name']}`", row["title"], _metric(row), ours(row), published]


def _metric(row: Row) -> str:
    return f"{row['metric']}, {'higher' if row['larger'] else 'lower'} is better"


def ours(row: Row) -> str:
    """The value; of several runs their mean, and each."""
    values = row["values"]
    if not values:
        return "not run yet"
    digits = row["score"].get("digits", 2)
    each = [f"{value:.{digits}f}" for value in values.values()]
    all_of_them = f"**{mean(row):.{digits}f}**"
    if len(each) > 1:
        return f"{all_of_them} ({row['runs_are']}s {', '.join(values)}: {', '.join(each)})"
    return all_of_them + "".join(f", {what} {value:g}" for what, value in row["extras"].items())


def mean(row: Row) -> float:
    """Of the runs, or the value of the only one."""
    return statistics.mean(row["values"].values())


def aims_table(results: dict[str, Any]) -> str:
    rows = [row for row in results["rows"] if row["aim"] is not None]
    return markdown(("row", "score", "aim", "Elman", "", "what was tried"), [_aim(row) for row in rows])


def _aim(row: Row) -> list[str]:
    reached = bool(row["values"]) and (mean(row) >= row["aim"] if row["larger"] else mean(row) <= row["aim"])
    tried = row.get("tried", "")
    return [f"`{row['name']}`", _metric(row), f"{row['aim']:g}", ours(row), "" if reached else "**missed**", tried]


def measured_table(results: dict[str, Any]) -> str:
    columns = ("row", "commands", "runs", "threads", "minutes", "MB", "commit", "date", "machine")
    return markdown(columns, [_measured(row) for row in results["rows"] if row["values"]])


def _measured(row: Row) -> list[str]:
    def number(value: float | None, missing: str) -> str:
        return missing if value is None else f"{value:g}"

    busy = "not noted" if row["memory"] is None else "busy"  # memory is noted of every row that was run by this module
    commands = "<br>".join(f"`{numbered(command, 'N')}`" for command in row["commands"])
    runs = f"{row['runs_are']} {', '.join(row['values'])}"
    return [
        f"`{row['name']}`", commands, runs, number(row["threads"], ""), number(row["minutes"], busy),
        number(row["memory"], "not noted"), row["commit"], row["date"], row["machine"],
    ]  # fmt: skip


def data_table(results: dict[str, Any]) -> str:
    used = {row["data"] for row in results["rows"]}
    rows = [
        [f"`{name}`", data["title"], ", ".join(f"`{file}`" for file in data["files"]), data["source"], data["licence"]]
        for name, data in results["data"].items()
        if name in used
    ]
    return markdown(("data", "what", "files", "from", "licence"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="a row of recipes/results.json; the page alone if none is named")
    parser.add_argument("--data", type=Path, default=Path("."), help="the folder with the data of the row")
    options = parser.parse_args(arguments)
    try:
        if options.name:
            measure(options.name, options.data)
    except Refused as error:
        print(f"results: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"results: stopped; nothing of {options.name} is stored", file=sys.stderr)
        return 130
    write_page()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
