"""An engine without an event loop, for tests and for offline use."""

from __future__ import annotations

import time
from collections.abc import Callable

from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Job, Listener, Result
from elman.serve.errors import HttpError
from elman.serve.store.sessions import Sessions


class Direct:
    """`run` runs ticks until the job is answered."""

    def __init__(self, sessions: Sessions) -> None:
        self.engine = Engine(sessions)

    def run(self, make: Callable[[Listener], Job]) -> Result:
        """The result of a job; a `HttpError` is raised."""
        results: list[Result] = []
        self.engine.submit(make(results.append))
        deadline = time.monotonic() + 60
        while not results and time.monotonic() < deadline:
            self.engine.tick()
        if isinstance(results[0], HttpError):
            raise results[0]
        return results[0]
