"""What a row of any benchmark says, and how the sides that share a process take turns.

A ratio is the peer's time over ours in the same round; a row has the median over the rounds and its quartiles.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import free

SETTLE = 0.06  # idle threads spin for some 10 ms after a call: by then those of the side before are asleep
Result = dict[str, Any]
HEADER = ("row", "peer", "ratio", "quartiles", "must", "aim", "", "ours", "peer", "unit", "faults", "rounds")
FORMAT = "{:62} {:18} {:>7}  {:16} {:>8} {:>5} {:6} {:>9} {:>10} {:8} {:>7} {:>6}"


def in_turn(steps: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """The seconds of each step in each round, after two rounds that warm up. A step is repeated until it has taken a
    tenth of a second, so that most of what is timed is warm: after a pause the system may put a thread of Torch's on
    the core that the other one is on, where it waits for milliseconds."""
    return clocked([Repeated(step) for step in steps], rounds, warm=2)  # in which Repeated finds out how often


class Repeated:
    """How long a step takes, taken often enough to last a tenth of a second; the second timing tells how often."""

    def __init__(self, step: Callable[[], object]) -> None:
        self.step, self.timings, self.repeats = step, 0, 1

    def __call__(self) -> float:
        seconds = _seconds(self._run) / self.repeats
        self.timings += 1
        if self.timings == 2:
            self.repeats = math.ceil(0.1 / seconds)
        return seconds

    def _run(self) -> None:
        for _ in range(self.repeats):
            self.step()


def clocked(steps: Sequence[Callable[[], float]], rounds: int, warm: int = 2) -> list[list[float]]:
    """The same of steps that say themselves how long they took."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds + warm):
        for step, each in zip(steps, times, strict=True):
            time.sleep(SETTLE)
            each.append(step())
    return [each[warm:] for each in times]


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def standard_error(ratios: Sequence[float]) -> float:
    """Of their median: by the median distance from it, which a few wild rounds do not move."""
    middle = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(r - middle) for r in ratios)  # of a normal distribution
    return 1.2533 * deviation / math.sqrt(len(ratios))


def result(
    name: str, peer: str, ours: Sequence[float], theirs: Sequence[float], must: float | None = None,
    aim: float | None = None, *, upper: bool = False, inverted: bool = False, per_round: float = 0.0, unit: str = "ms",
    faults: float | None = None, peer_faults: float | None = None, quiet: bool = True,
) -> Result:  # fmt: skip
    """A row of both sides' seconds by round (megabytes, if that is the unit). `upper`: the ratio may not exceed `must`.
    `inverted`: it is ours over theirs, as of rates. `per_round`: how much of its unit a round does, and then what is
    shown is a rate."""
    ratios = [a / b if inverted else b / a for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    scale = 1e3 if unit == "ms" else 1.0

    def shown(values: Sequence[float]) -> float:
        middle = statistics.median(values)
        return per_round / middle if per_round else scale * middle

    return {
        "name": name, "peer": peer, "ratio": round(ratio, 3), "spread": [round(low, 3), round(high, 3)],
        "must": must, "aim": aim, "bound": "upper" if upper else "lower",
        "reached": None if must is None else (ratio <= must if upper else ratio >= must),
        "error": standard_error(ratios), "best": max(ours) / max(theirs) if inverted else min(theirs) / min(ours),
        "ours": float(f"{shown(ours):.4g}"), "theirs": float(f"{shown(theirs):.4g}"),
        "unit": unit, "faults": faults, "peer_faults": peer_faults, "rounds": len(ratios), "quiet": quiet,
        "free": free(peer), "inverted": inverted,
    }  # fmt: skip


def figure(name: str, value: float, unit: str, must: float | None = None, aim: float | None = None) -> Result:
    """A row of ours that has no peer, where less is better: seconds, megabytes."""
    return {
        "name": name, "peer": "", "ratio": None, "spread": None, "must": must, "aim": aim, "bound": "upper",
        "reached": None if must is None else value <= must, "error": None, "best": None, "ours": float(f"{value:.4g}"),
        "theirs": None, "unit": unit, "faults": None, "peer_faults": None, "rounds": None, "quiet": True, "free": False,
        "inverted": False,
    }  # fmt: skip


def cells(row: Result) -> tuple[str, ...]:
    """As in HEADER."""

    def number(value: float | None, form: str = "{:.2f}") -> str:
        return "" if value is None else form.format(value)

    verdict = {None: "", True: "ok", False: "MISSED"}[row["reached"]]
    return (
        row["name"], row["peer"], number(row["ratio"]),
        "" if row["spread"] is None else "{:.2f} to {:.2f}".format(*row["spread"]),
        number(row["must"], "<= {:g}" if row["bound"] == "upper" else ">= {:g}"), number(row["aim"], "{:g}"), verdict,
        number(row["ours"], "{:g}"), number(row["theirs"], "{:g}"), row["unit"], number(row["faults"], "{:g}"),
        number(row["rounds"], "{:d}"),
    )  # fmt: skip


def line(row: Result) -> str:
    """Of a table in a terminal."""
    notes = "  (the machine was busy)" * (not row["quiet"]) + "  (its peer may use AVX-512)" * row["free"]
    return FORMAT.format(*cells(row)) + notes


def parser(module: str, text: str | None, rounds: int) -> argparse.ArgumentParser:
    """What all benchmarks take."""
    made = argparse.ArgumentParser(
        prog=f"python -m bench.{module}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--rounds", type=int, default=rounds, help="timings of each side")
    made.add_argument("--json", action="store_true", help="the rows as JSON alone on standard output")
    return made


class Report:
    """Prints each row as it is measured, and all of them as JSON if that is asked for."""

    def __init__(self, as_json: bool) -> None:
        self.as_json, self.rows = as_json, list[Result]()
        self.messages = sys.stderr if as_json else sys.stdout
        print(FORMAT.format(*HEADER), file=self.messages, flush=True)

    def add(self, *rows: Result) -> None:
        self.rows += rows
        for row in rows:
            print(line(row), file=self.messages, flush=True)

    def end(self) -> None:
        missed = [row["name"] for row in self.rows if row["reached"] is False]
        names = "".join(f"\n  {name}" for name in missed)
        print(f"{len(missed)} of {len(self.rows)} rows missed their must{names}", file=self.messages)
        if self.as_json:
            print(json.dumps(self.rows, indent=1))
