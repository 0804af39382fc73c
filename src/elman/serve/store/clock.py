"""What time it is: a clock that never goes back, and that nobody can set while the server runs."""

from __future__ import annotations

import time

from elman.serve.store.store import Store

LAST = "clock"  # the row that says when something was committed last
EVERY = 1.0  # seconds between two notes of that


class Steady:
    """The wall clock as it was when the server started, or when it committed last if that is later; from then on what
    has passed. So a wall clock that is set forward under a server that runs expires nothing."""

    def __init__(self, store: Store) -> None:
        self._behind = max(time.time(), last(store)) - time.monotonic()

    def __call__(self) -> float:
        return self._behind + time.monotonic()


def last(store: Store) -> float:
    """When something was committed last; 0 if that is not known."""
    noted = store.get("meta", LAST)
    try:
        return 0.0 if noted is None else float(noted)
    except ValueError:
        return 0.0
