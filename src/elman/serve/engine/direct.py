"""An engine without an event loop, for tests and for offline use."""

from __future__ import annotations

import time
from collections.abc import Callable

from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Job, Listener, Result
from elman.serve.errors import HttpError
from elman.serve.store.sessions import Sessions


class Direct:
    """`ask` runs ticks until the job is answered."""

    def __init__(self, sessions: Sessions) -> None:
        self.engine = Engine(sessions)

    def ask(self, make: Callable[[Listener], Job]) -> Result:
        """The result of a job; a `HttpError` is raised."""
        found: list[Result] = []
        self.engine.submit(make(found.append))
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:
            self.engine.tick()
        if isinstance(found[0], HttpError):
            raise found[0]
        return found[0]
