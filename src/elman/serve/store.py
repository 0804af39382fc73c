"""Where states are kept: the interface, what it promises, and the store in memory.

A store is some tables of rows: an id, bytes, a parent by which rows are found together, and when they expire, or 0.

1. One thread at a time uses it.
2. Reads see what was written before, committed or not.
3. `commit` makes everything since the last one durable, or nothing: it raises a `StoreFull` or a `StoreFailed`, and
   then all of it is undone. With `sync` it returns when the disk has it.
4. `undo` forgets everything since the last commit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol

TABLES = ("sessions", "checkpoints", "inputs", "responses", "keys", "tombstones", "meta")


Row = tuple[str, bytes, str, float]  # id, value, parent, expires


class StoreFailed(Exception):
    """A commit that did not happen."""


class StoreFull(StoreFailed):
    """The same, because there is no room."""


class Store(Protocol):
    """What a store does."""

    durable: bool  # whether what was committed is there when the process is gone

    def get(self, table: str, id: str) -> bytes | None: ...
    def put(self, table: str, id: str, value: bytes, *, parent: str = "", expires: float = 0.0) -> None: ...
    def put_all(
        self, table: str, rows: Iterable[tuple[str, bytes, str, float]]
    ) -> None: ...  # id, value, parent, expires
    def delete(self, table: str, id: str) -> None: ...
    def children(self, table: str, parent: str) -> list[tuple[str, bytes]]: ...  # in the order of their ids
    def counts(self, table: str) -> dict[str, int]: ...  # rows by parent
    def expired(self, now: float, most: int) -> list[tuple[str, str]]: ...  # tables and ids
    def waits(self, sync: bool) -> bool: ...  # whether this commit would take as long as a disk does
    def commit(self, sync: bool) -> None: ...
    def undo(self) -> None: ...
    def close(self) -> None: ...


class MemoryStore:
    """Durability none: as long as the process lives.

    >>> store = MemoryStore()
    >>> store.put("sessions", "a", b"state")
    >>> store.commit(sync=False)
    >>> store.delete("sessions", "a")
    >>> store.undo()
    >>> store.get("sessions", "a")
    b'state'
    """

    durable = False

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Row]] = {table: {} for table in TABLES}
        self._parents: dict[str, dict[str, dict[str, None]]] = {table: {} for table in TABLES}
        self._due: list[tuple[float, str, str]] = []  # a heap; what it says may be out of date
        self._expiring = 0  # rows that will be due
        self._before: dict[str, dict[str, Row | None]] = {table: {} for table in TABLES}

    def get(self, table: str, id: str) -> bytes | None:
        row = self._rows[table].get(id)
        return None if row is None else row[1]

    def put(self, table: str, id: str, value: bytes, *, parent: str = "", expires: float = 0.0) -> None:
        self.put_all(table, [(id, value, parent, expires)])

    def put_all(self, table: str, rows: Iterable[Row]) -> None:
        there, before = self._rows[table], self._before[table]
        for row in rows:
            id = row[0]
            old = there.get(id)
            before.setdefault(id, old)
            if old is not None and old[2] == row[2] and old[3] == row[3]:  # most are: only the value is another
                there[id] = row
            else:
                self._set(table, id, row)

    def delete(self, table: str, id: str) -> None:
        self._before[table].setdefault(id, self._rows[table].get(id))
        self._set(table, id, None)

    def children(self, table: str, parent: str) -> list[tuple[str, bytes]]:
        return [(id, self._rows[table][id][1]) for id in sorted(self._parents[table].get(parent, ()))]

    def counts(self, table: str) -> dict[str, int]:
        return {parent: len(ids) for parent, ids in self._parents[table].items()}

    def expired(self, now: float, most: int) -> list[tuple[str, str]]:
        found: dict[tuple[str, str], float] = {}
        while self._due and self._due[0][0] <= now and len(found) < most:
            at, table, id = heapq.heappop(self._due)
            row = self._rows[table].get(id)
            if row is not None and 0 < row[3] <= now:
                found[table, id] = at
        for (table, id), at in found.items():  # until they are deleted they are due
            heapq.heappush(self._due, (at, table, id))
        return list(found)

    def waits(self, sync: bool) -> bool:
        return False

    def commit(self, sync: bool) -> None:
        for before in self._before.values():
            before.clear()

    def undo(self) -> None:
        for table, before in self._before.items():
            for id, row in before.items():
                self._set(table, id, row)
            before.clear()

    def close(self) -> None:
        self.undo()

    def _set(self, table: str, id: str, row: Row | None) -> None:
        rows, parents = self._rows[table], self._parents[table]
        old = rows.get(id)
        self._expiring += bool(row and row[3]) - bool(old and old[3])
        if old is not None and (row is None or row[2] != old[2]):
            del parents[old[2]][id]
            if not parents[old[2]]:
                del parents[old[2]]
        if row is None:
            rows.pop(id, None)
            if len(self._due) > 2 * self._expiring + 1_024:  # most of it is out of date
                self._due = [(at, t, i) for t, some in self._rows.items() for i, _, _, at in some.values() if at]
                heapq.heapify(self._due)
            return
        rows[id] = row
        if old is None or row[2] != old[2]:
            parents.setdefault(row[2], {})[id] = None
        if row[3] and (old is None or row[3] != old[3]):
            heapq.heappush(self._due, (row[3], table, id))
