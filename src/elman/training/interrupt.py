"""Ctrl-C, SIGTERM, SIGHUP (a terminal that closes) and SIGUSR1 (what schedulers send before they kill) let the step
finish. A second one does not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop, and did, with its checkpoint written. Its exit code is 128 plus the signal.

    Not an Exception: a loop over several trainings that continues after a failure must not continue after Ctrl-C.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


class Request:
    """The signal that came; 0 while there is none."""

    number = 0


@contextmanager
def catch_signals() -> Iterator[Request]:
    """Note the first signal inside the block. Only the main thread may; elsewhere nothing is noted."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.number = number
        signal.signal(number, before[number])

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
