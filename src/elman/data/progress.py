"""For who waits: after two seconds, what is being done and how far it has come, on standard error."""

from __future__ import annotations

import sys
import time

PATIENCE = 2.0  # seconds before progress is worth showing
INTERVAL = 5.0  # seconds between its lines where there is no terminal


def show(text: str) -> None:
    """One line that changes, on a terminal; else a line of its own."""
    terminal = sys.stderr.isatty()
    print(f"\r{text}\x1b[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)


def interval() -> float:
    """Seconds until there is something new to show."""
    return 0.2 if sys.stderr.isatty() else INTERVAL


class Waiting:
    """How many of `total` units are done: one line that changes on a terminal, else plain lines.

    >>> with Waiting("encoding", 3, "bytes") as waiting:  # quicker than two seconds: nothing is said
    ...     waiting.add(1)
    """

    def __init__(self, doing: str, total: int | None, unit: str) -> None:
        self.doing, self.total, self.unit, self.done = doing, total, unit, 0
        self.start = time.monotonic()
        self.due = self.start + PATIENCE
        self.line = False

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        if self.line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def add(self, amount: int) -> None:
        """So much more is done."""
        self.done += amount
        now = time.monotonic()
        if now < self.due:
            return
        self.line, self.due = sys.stderr.isatty(), now + interval()
        show(f"{self.doing}: {self._far(now - self.start)}")

    def _far(self, seconds: float) -> str:
        per_second = self.done / seconds
        speed = f"{per_second:,.0f} {self.unit}/s"
        if not self.total or self.done > self.total:
            return f"{self.done:,} {self.unit}, {speed}"
        return f"{self.done / self.total:.0%}, {speed}, {(self.total - self.done) / per_second:.0f} s left"
