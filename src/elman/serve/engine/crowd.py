"""Who is there, and how much of a tick, and of the queue, each may have."""

from __future__ import annotations

import time

from elman.serve.errors import busy

BATCH = 1_024  # works in a tick, at most
LEAST = 16  # works in a tick, at least: side by side they cost little more than one
TURN = 0.00025  # seconds that a tick may take while several tenants are there
THERE = 1.0  # seconds after its last request for which a tenant is
SLICE = 64  # rows of a request for many that are done at once while several tenants are there


class Crowd:
    """The tenants that ask. While there are several, ticks are short, so that nobody waits long for another's."""

    def __init__(self, queue: int) -> None:
        self.queue = queue  # requests that may wait
        self.waiting: dict[str, int] = {}  # that are not answered yet, by tenant
        self._seen: dict[str, float] = {}  # when each sent a request last
        self._updated = 0.0
        self._most = float(SLICE)  # works in a tick while there are several
        self.several = False

    def admit(self, tenant: str) -> None:
        """A request has come; refused where this tenant has its share of the queue, whatever others have."""
        mine = self.waiting.get(tenant, 0)
        if mine >= max(1, self.queue // (len(self.waiting) + (not mine))):
            raise busy(f"{mine} of your requests are waiting, which is the limit")
        self.waiting[tenant] = mine + 1
        self._seen[tenant] = time.monotonic()

    def add(self, tenant: str, more: int) -> None:
        """Requests have become more, or have been answered."""
        left = self.waiting.get(tenant, 0) + more
        if left > 0:
            self.waiting[tenant] = left
        else:
            self.waiting.pop(tenant, None)

    def update(self) -> None:
        """Once a tick: see who is there."""
        now = time.monotonic()
        if now - self._updated > THERE / 4:
            self._updated = now
            self._seen = {tenant: at for tenant, at in self._seen.items() if now - at < THERE}
        self.several = len(self._seen) > 1

    @property
    def room(self) -> int:
        """Works that a tick has room for."""
        return int(self._most) if self.several else BATCH

    @property
    def rows(self) -> int:
        """Rows of a request for many that are done at once."""
        return min(SLICE, self.room) if self.several else BATCH

    def took(self, seconds: float, works: int) -> None:
        """A tick took so long for so many: the next ones do as much as they have time for."""
        if not self.several:
            return
        if seconds > TURN:
            self._most = max(LEAST, 0.75 * self._most)
        elif works > 0.75 * self._most:
            self._most = min(BATCH, 1.25 * self._most)
