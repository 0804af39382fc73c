"""An engine without an event loop, for tests and for offline use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from elman.serve.engine import Engine, Job
from elman.serve.errors import Refused
from elman.serve.sessions import Sessions


class Direct:
    """`ask` runs ticks until the job is answered."""

    def __init__(self, sessions: Sessions) -> None:
        self.engine = Engine(sessions)

    def ask(self, make: Callable[[Callable[[Any], None]], Job]) -> Any:
        """The result of a job; a `Refused` is raised."""
        found: list[Any] = []
        self.engine.submit(make(found.append))
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:
            self.engine.tick()
        if isinstance(found[0], Refused):
            raise found[0]
        return found[0]
