"""What each tenant keeps: how many sessions and responses, and how many bytes of what was answered.

It is read once, when the server starts. What a tick changes is noted, so that a tick or a job that comes to nothing is
undone without reading. The bytes stand in the store, a row for each tenant, and are committed with what they count.
"""

from __future__ import annotations

from elman.serve.errors import busy
from elman.serve.limits import Limits
from elman.serve.store.store import Store

BYTES = "bytes"


class Ledger:
    """Counts of all tenants.

    >>> from elman.serve.store.store import MemoryStore
    >>> ledger = Ledger(MemoryStore(), Limits(sessions=2))
    >>> ledger.admit("ann")
    >>> mark = ledger.mark()
    >>> ledger.admit("ann")
    >>> ledger.back(mark)
    >>> ledger.counts
    {'ann': 1}
    """

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store, self.limits = store, limits
        self.counts = dict(store.counts("sessions"))
        for tenant, number in store.counts("responses").items():
            self.counts[tenant] = self.counts.get(tenant, 0) + number
        self.bytes = {id.removeprefix(f"{BYTES}/"): int(value) for id, value in store.children("meta", BYTES)}
        self._journal: list[tuple[dict[str, int], str, int]] = []  # since the last commit

    def admit(self, tenant: str, more: int = 1) -> None:
        """Count one more session or response, or refuse it."""
        have = self.counts.get(tenant, 0)
        if more > 0 and have + more > self.limits.sessions:
            message = f"there are {have} sessions and responses, which is the limit; delete some"
            raise busy(message, 60_000, code="too_many_sessions")
        self._add(self.counts, tenant, more)

    def keep(self, tenant: str, more: int) -> None:
        """Count more bytes, or fewer; refuse what would be too much."""
        have = self.bytes.get(tenant, 0)
        if more > 0 and have + more > self.limits.kept_bytes:
            raise busy(
                f"you have {have} stored bytes of responses and of replies to idempotency keys, and {more} more would "
                f"exceed the limit of {self.limits.kept_bytes}; delete responses, or wait a day for the keys to expire",
                60_000, code="too_many_bytes",
            )  # fmt: skip
        if more:
            self._add(self.bytes, tenant, more)

    def _add(self, where: dict[str, int], tenant: str, more: int) -> None:
        where[tenant] = where.get(tenant, 0) + more
        self._journal.append((where, tenant, more))

    def mark(self) -> int:
        """Where the notes are now."""
        return len(self._journal)

    def back(self, mark: int) -> None:
        """Undo what was noted since a mark."""
        while len(self._journal) > mark:
            where, tenant, more = self._journal.pop()
            where[tenant] -= more

    def write(self) -> None:
        """Put what has changed into the store, behind all that it counts."""
        for tenant in {tenant for where, tenant, _ in self._journal if where is self.bytes}:
            self.store.put("meta", f"{BYTES}/{tenant}", str(self.bytes[tenant]).encode(), parent=BYTES)

    def committed(self) -> None:
        """It is in the store."""
        self._journal.clear()
