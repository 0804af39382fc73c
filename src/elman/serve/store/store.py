"""Where states are kept: the interface, what it promises, and the store in memory.

A store is some tables of rows: an id, bytes, a parent by which rows are found together, and when they expire, or 0.

1. One thread at a time uses it.
2. Reads see what was written before, committed or not.
3. `commit` makes everything since the last one durable, or nothing: it raises a `StoreFull` or a `StoreFailed`, and
   then all of it is undone. With `sync` it returns when the disk has it. A `StoreUnknown` says that nobody knows
   which of the two it is: then nothing may be read or written any more, and the process has to stop.
4. `undo` forgets everything since the last commit; `back` what was written since a `mark`. Neither reads.
5. Reads raise a `StoreFailed` where the disk fails, and nothing else.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Protocol

from elman.serve.errors import HttpError

TABLES = ("sessions", "checkpoints", "inputs", "responses", "keys", "tombstones", "meta")
ORDERED = ("checkpoints", "inputs")  # tables whose rows are read in pieces

Row = tuple[str, bytes, str, float]  # id, value, parent, expires


class StoreFailed(HttpError):
    """A read or a commit that did not happen. The request that needed it fails; nothing was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(503, f"the store cannot be read or written ({why}); nothing was changed", code="store_failed")


class StoreFull(StoreFailed):
    """The same, because there is no room."""

    def __init__(self, why: str) -> None:
        HttpError.__init__(self, 507, f"the store is full ({why}); nothing was changed", code="store_full")


class StoreUnknown(StoreFailed):
    """Whether a commit happened is not known: the disk may not have what it reported to have."""

    def __init__(self, why: str) -> None:
        message = f"the store failed ({why}), and the server stops; whether this was stored, its next start will show"
        HttpError.__init__(self, 503, message, code="store_unknown")


class Store(Protocol):
    """What a store does."""

    durable: bool  # whether what was committed is there when the process is gone

    def get(self, table: str, id: str) -> bytes | None: ...
    def put(self, table: str, id: str, value: bytes, *, parent: str = "", expires: float = 0.0) -> None: ...
    def put_all(
        self, table: str, rows: Iterable[tuple[str, bytes, str, float]]
    ) -> None: ...  # id, value, parent, expires
    def delete(self, table: str, id: str) -> None: ...
    def owner(self, table: str, id: str) -> str | None: ...  # the parent of a row
    def children(self, table: str, parent: str) -> list[tuple[str, bytes]]: ...  # in the order of their ids
    def ids(self, table: str, parent: str, after: str, last: str, most: int) -> list[str]: ...  # of ORDERED tables:
    # those behind one id, up to another, the first of them
    def counts(self, table: str) -> dict[str, int]: ...  # rows by parent
    def expired(self, now: float, most: int) -> list[tuple[str, str]]: ...  # tables and ids
    def waits(self, sync: bool) -> bool: ...  # whether this commit would take as long as a disk does
    def changed(self) -> bool: ...  # whether there is something to commit
    def commit(self, sync: bool) -> None: ...
    def undo(self) -> None: ...
    def mark(self) -> int: ...
    def back(self, mark: int) -> list[tuple[str, str]]: ...  # tables and ids of what it undid
    def check(self) -> None: ...  # a StoreFailed where it is no longer what was opened
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
        self._ordered: dict[str, dict[str, list[str]]] = {table: {} for table in ORDERED}  # ids by parent, sorted
        self._due: list[tuple[float, str, str]] = []  # a heap; what it says may be out of date
        self._expiring = 0  # rows that will be due
        self._journal: list[tuple[str, str, Row | None]] = []  # since the last commit, what stood there before

    def get(self, table: str, id: str) -> bytes | None:
        row = self._rows[table].get(id)
        return None if row is None else row[1]

    def owner(self, table: str, id: str) -> str | None:
        row = self._rows[table].get(id)
        return None if row is None else row[2]

    def put(self, table: str, id: str, value: bytes, *, parent: str = "", expires: float = 0.0) -> None:
        self.put_all(table, [(id, value, parent, expires)])

    def put_all(self, table: str, rows: Iterable[Row]) -> None:
        there, journal = self._rows[table], self._journal
        for row in rows:
            id = row[0]
            old = there.get(id)
            journal.append((table, id, old))
            if old is not None and old[2] == row[2] and old[3] == row[3]:  # most are: only the value is another
                there[id] = row
            else:
                self._set(table, id, row)

    def delete(self, table: str, id: str) -> None:
        self._journal.append((table, id, self._rows[table].get(id)))
        self._set(table, id, None)

    def children(self, table: str, parent: str) -> list[tuple[str, bytes]]:
        return [(id, self._rows[table][id][1]) for id in sorted(self._parents[table].get(parent, ()))]

    def ids(self, table: str, parent: str, after: str, last: str, most: int) -> list[str]:
        ordered = self._ordered[table].get(parent, [])
        return ordered[bisect_right(ordered, after) : bisect_right(ordered, last)][:most]

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

    def changed(self) -> bool:
        return bool(self._journal)

    def commit(self, sync: bool) -> None:
        self._journal.clear()

    def undo(self) -> None:
        self.back(0)

    def mark(self) -> int:
        return len(self._journal)

    def back(self, mark: int) -> list[tuple[str, str]]:
        undone = []
        while len(self._journal) > mark:
            table, id, row = self._journal.pop()
            self._set(table, id, row)
            undone.append((table, id))
        return undone

    def check(self) -> None:
        pass

    def close(self) -> None:
        self.undo()

    def _set(self, table: str, id: str, row: Row | None) -> None:
        rows, parents = self._rows[table], self._parents[table]
        old = rows.get(id)
        self._expiring += bool(row and row[3]) - bool(old and old[3])
        if old is not None and (row is None or row[2] != old[2]):
            del parents[old[2]][id]
            if table in ORDERED:
                ordered = self._ordered[table][old[2]]
                del ordered[bisect_left(ordered, id)]
            if not parents[old[2]]:
                del parents[old[2]]
                if table in ORDERED:
                    del self._ordered[table][old[2]]
        if row is None:
            rows.pop(id, None)
            if len(self._due) > 2 * self._expiring + 1_024:  # most of it is out of date
                self._due = [(at, t, i) for t, some in self._rows.items() for i, _, _, at in some.values() if at]
                heapq.heapify(self._due)
            return
        rows[id] = row
        if old is None or row[2] != old[2]:
            parents.setdefault(row[2], {})[id] = None
            if table in ORDERED:
                insort(self._ordered[table].setdefault(row[2], []), id)
        if row[3] and (old is None or row[3] != old[3]):
            heapq.heappush(self._due, (row[3], table, id))
