"""Progress of long operations: after two seconds, what is being done and how far it is, on standard error; and how
one that nobody waits for any more is left.

One line that changes on a terminal, one display that changes in a cell of a notebook, plain lines elsewhere. If the
messages cannot be written (a closed pipe, a full disk), the work continues without them.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from html import escape
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 2.0  # seconds before progress is worth showing
INTERVAL = 5.0  # seconds between its lines if there is no terminal
_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)
_check: ContextVar[Callable[[], None]] = ContextVar("_check", default=lambda: None)


def show(text: str) -> None:
    """On a terminal a line, cut to its width, that the next one replaces; elsewhere a line of its own."""
    if _in_notebook():
        _cell.write(text, stays=False)
    elif sys.stderr.isatty():
        _write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
    else:
        _write(f"{text}\n")


def say(text: str) -> None:
    """A line that stays."""
    if _in_notebook():
        _cell.write(text, stays=True)
        return
    _write(f"\r\x1b[K{text}\n" if sys.stderr.isatty() else f"{text}\n")


def clear() -> None:
    """Remove the line that `show` left on a terminal or in a notebook."""
    if _in_notebook():
        _cell.write("", stays=False)
    elif sys.stderr.isatty():
        _write("\r\x1b[K")


def _in_notebook() -> bool:
    """Whether messages go to a cell of Jupyter, VS Code or Colab; not so if somebody has redirected them."""
    return type(sys.stderr).__module__.startswith("ipykernel.")


class _Cell:
    """The one display that a cell of a notebook gets: the last of the lines that stay, then the one that changes."""

    LINES = 20

    def __init__(self) -> None:
        self.number = -1
        self.display: Any = None  # what IPython gives to change a display by
        self.kept: deque[str] = deque(maxlen=self.LINES)

    def write(self, text: str, *, stays: bool) -> None:
        if _quiet.get():
            return
        with suppress(Exception):  # whatever is wrong with the front end, the work continues
            self._write(text, stays)

    def _write(self, text: str, stays: bool) -> None:
        from IPython import get_ipython
        from IPython.display import display

        number = get_ipython().execution_count
        if number != self.number:
            self.number, self.display = number, None
            self.kept.clear()
        if stays:
            self.kept.append(text)
        lines = "\n".join([*self.kept, *([text] if text and not stays else [])])
        content = {"text/plain": lines, "text/html": f"<pre>{escape(lines)}</pre>"}
        if self.display is None:
            self.display = display(content, raw=True, display_id=True)
        else:
            self.display.update(content, raw=True)


_cell = _Cell()


@contextmanager
def quiet() -> Iterator[None]:
    """Print nothing inside the block, in this thread."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


@contextmanager
def cancellable(check: Callable[[], None]) -> Iterator[None]:
    """Inside the block, in this thread, `check` is called wherever a long computation can be left; it may raise.

    >>> with cancellable(lambda: print("checked")):
    ...     check_cancelled()
    checked
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_cancelled() -> None:
    """Called between the batches, rows and steps of a long computation: it raises where somebody has cancelled it."""
    _check.get()()


def _write(text: str) -> None:
    if _quiet.get():
        return
    with suppress(OSError, ValueError):  # ValueError: the file is closed
        print(text, end="", file=sys.stderr, flush=True)


def interval() -> float:
    """Seconds until there is something new to show."""
    return 0.2 if sys.stderr.isatty() else 0.5 if _in_notebook() else INTERVAL


class Waiting:
    """How many of `total` units are done.

    >>> with Waiting("encoding", 3, "bytes") as waiting:  # faster than two seconds: nothing is printed
    ...     waiting.add(1)
    """

    def __init__(self, doing: str, total: int | None, unit: str) -> None:
        self.doing, self.total, self.unit, self.done = doing, total, unit, 0
        self.start = time.monotonic()
        self.due = self.start + PATIENCE
        self.shown = False

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            clear()

    def add(self, amount: int) -> None:
        """Another `amount` is done."""
        self.done += amount
        now = time.monotonic()
        if now < self.due:
            return
        self.shown, self.due = True, now + interval()
        show(f"{self.doing}: {self._progress(now - self.start)}")

    def _progress(self, seconds: float) -> str:
        per_second = self.done / seconds
        speed = f"{per_second:,.0f} {self.unit}/s" if per_second >= 1 else f"{1 / per_second:.0f} s each"
        if not self.total or self.done > self.total:
            return f"{self.done:,} {self.unit}, {speed}"
        left = (self.total - self.done) / per_second
        return f"{self.done / self.total:.0%}, {speed}, {left:.0f} s left"


def track(items: Sequence[T], doing: str, unit: str) -> Iterator[T]:
    """Iterate over `items`, and show the progress."""
    with Waiting(doing, len(items), unit) as waiting:
        for item in items:
            yield item
            waiting.add(1)


class Steps:
    """The progress line of a training run: its loss as `describe` formats it, units a second, time left.

    `done` of the `steps` were done before; nothing is printed unless `verbose`.
    """

    def __init__(self, steps: int, done: int, *, unit: str, describe: Callable[[float], str], verbose: bool) -> None:
        self.steps, self.first, self.verbose = steps, done, verbose
        self.unit, self.describe = unit, describe
        self.start = self.last = time.monotonic()
        self.count = 0

    def step(self, step: int, loss: float, count: int) -> None:
        """Step number `step` is done, with `count` more units."""
        self.count += count
        now = time.monotonic()
        if not self.verbose or (now - self.last < interval() and step < self.steps):
            return
        self.last = now
        seconds = max(1e-9, now - self.start)
        left = seconds / max(1, step - self.first) * (self.steps - step)
        speed = f"{self.count / seconds:,.0f} {self.unit}/s"
        show(f"step {step}/{self.steps}  {self.describe(loss)}  {speed}  {clock(left)} left")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside the block, such as an evaluation, counts neither for the speed nor for the time left."""
        start = time.monotonic()
        yield
        self.start += time.monotonic() - start

    def say(self, text: str) -> None:
        """A line that stays, if there is anything to say."""
        if self.verbose and text:
            say(text)


def clock(seconds: float) -> str:
    """A duration in minutes and seconds, or hours too.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
