"""Whose turn it is. Each tenant has a queue; the tenant that has used the least of the engine's time is next.

The time that a tenant has used only grows (start-time fair queueing). A tenant that returns after a pause starts where
the others are, so that nobody saves up time.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
MANY = 1_000  # tenants without a queue that are remembered


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
        self._queues: dict[str, deque[T]] = {}
        self._order: list[tuple[float, str]] = []  # a heap of those who have a queue; it may say too little
        self._had: dict[str, float] = {}
        self._now = 0.0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, tenant: str, one: T) -> None:
        """Put something at the end of a tenant's queue."""
        queue = self._queues.get(tenant)
        (self._new_queue(tenant) if queue is None else queue).append(one)

    def add_first(self, tenant: str, one: T) -> None:
        """Put something at the front of it."""
        queue = self._queues.get(tenant)
        (self._new_queue(tenant) if queue is None else queue).appendleft(one)

    def _new_queue(self, tenant: str) -> deque[T]:
        queue = self._queues[tenant] = deque()
        had = self._had[tenant] = max(self._now, self._had.get(tenant, 0.0))
        heapq.heappush(self._order, (had, tenant))
        return queue

    def next(self) -> T:
        """What comes next; there must be something."""
        order = self._order
        said, tenant = order[0]
        while said < (had := self._had[tenant]):
            heapq.heapreplace(order, (had, tenant))
            said, tenant = order[0]
        self._now = said
        queue = self._queues[tenant]
        one = queue.popleft()
        if not queue:
            heapq.heappop(order)
            del self._queues[tenant]
            if len(self._had) > MANY + len(self._queues):
                self._had = {name: had for name, had in self._had.items() if had > said or name in self._queues}
        return one

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant has had so much."""
        self._had[tenant] = self._had.get(tenant, self._now) + seconds

    def all(self) -> list[T]:
        """Everything that is in a queue."""
        return [one for queue in self._queues.values() for one in queue]
