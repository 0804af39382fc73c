"""Whose turn it is. Each tenant has a line of its own; whoever has had the least of the engine's time comes next.

What a tenant has had is a number that only grows (start-time fair queueing). Who comes after a pause begins where the
others are, so that nobody saves up.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
MANY = 1_000  # tenants without a line that are remembered


class Turns(Generic[T]):
    """Things of tenants, in turn.

    >>> turns = Turns()
    >>> for one in ("a1", "a2", "a3", "b1"):
    ...     turns.add(one[0], one)
    >>> found = []
    >>> while turns:
    ...     found.append(turns.next())
    ...     turns.charge(found[-1][0], 1.0)
    >>> found
    ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}
        self._order: list[tuple[float, str]] = []  # a heap of those who have a line; it may say too little
        self._had: dict[str, float] = {}
        self._now = 0.0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, tenant: str, one: T) -> None:
        """Put something at the end of a tenant's line."""
        line = self._lines.get(tenant)
        (self._begun(tenant) if line is None else line).append(one)

    def add_first(self, tenant: str, one: T) -> None:
        """Put something at the front of it."""
        line = self._lines.get(tenant)
        (self._begun(tenant) if line is None else line).appendleft(one)

    def _begun(self, tenant: str) -> deque[T]:
        line = self._lines[tenant] = deque()
        had = self._had[tenant] = max(self._now, self._had.get(tenant, 0.0))
        heapq.heappush(self._order, (had, tenant))
        return line

    def next(self) -> T:
        """What comes next; there must be something."""
        order = self._order
        said, tenant = order[0]
        while said < (had := self._had[tenant]):
            heapq.heapreplace(order, (had, tenant))
            said, tenant = order[0]
        self._now = said
        line = self._lines[tenant]
        one = line.popleft()
        if not line:
            heapq.heappop(order)
            del self._lines[tenant]
            if len(self._had) > MANY + len(self._lines):
                self._had = {name: had for name, had in self._had.items() if had > said or name in self._lines}
        return one

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant has had so much."""
        self._had[tenant] = self._had.get(tenant, self._now) + seconds

    def all(self) -> list[T]:
        """Everything that is in a line."""
        return [one for line in self._lines.values() for one in line]
