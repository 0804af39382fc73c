"""The store in a file: SQLite with a write-ahead log, one writer, one commit a tick.

Tier `process`: a commit is in the operating system's hands when it returns, and survives kill -9. Tier `power`: a
commit with `sync` waits until the disk has it (synchronous=FULL). The file belongs to one server: a second is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from elman.errors import FileError
from elman.serve.store import TABLES, Row, StoreFailed, StoreFull

FORMAT = 1
# Unlike a replacement it leaves the indexes alone where what they hold has not changed.
UPSERT = (
    "INSERT INTO {} VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
    "SET value = excluded.value, parent = excluded.parent, expires = excluded.expires"
)
LOG = 4_000  # rows of the log that are moved to their places at once
FULL = (sqlite3.SQLITE_FULL,)


class SqliteStore:
    """Rows in a file."""

    durable = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=0.2, check_same_thread=False)
            self._open()
        except sqlite3.DatabaseError as error:
            raise FileError(_why(self.path, error)) from error
        self._new: dict[tuple[str, str], Row | None] = {}  # since the last commit
        self._synced = False
        self._logged = 0  # rows in the log, or more

    def _open(self) -> None:
        run = self._db.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=NORMAL")
        run("PRAGMA wal_autocheckpoint=0")  # commit does it, and `waits` says when
        run("BEGIN IMMEDIATE")  # takes the lock, and keeps it
        found = run("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise FileError(f"{self.path} is a store of version {found}; this one reads {FORMAT}. Upgrade Elman.")
        if found == 0 and run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise FileError(f"{self.path} is a database of something else; give --store a new file")
        for table in TABLES:
            # With rowids: without them, what is longer than a quarter of a page is kept on a page of its own.
            run(
                f"CREATE TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY, value BLOB NOT NULL, "
                "parent TEXT NOT NULL, expires REAL NOT NULL)"
            )
            # With the parent in it, rows are counted without reading them.
            run(f"CREATE INDEX IF NOT EXISTS {table}_expires ON {table} (expires, parent)")
        for table in ("checkpoints", "inputs"):
            run(f"CREATE INDEX IF NOT EXISTS {table}_parent ON {table} (parent, id)")
        run(f"PRAGMA user_version={FORMAT}")
        run("COMMIT")

    def get(self, table: str, id: str) -> bytes | None:
        if (table, id) in self._new:
            row = self._new[table, id]
            return None if row is None else row[1]
        found = self._db.execute(f"SELECT value FROM {table} WHERE id = ?", (id,)).fetchone()
        return None if found is None else found[0]

    def put(self, table: str, id: str, value: bytes, *, parent: str = "", expires: float = 0.0) -> None:
        self.put_all(table, [(id, value, parent, expires)])

    def put_all(self, table: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self._new[table, row[0]] = row

    def delete(self, table: str, id: str) -> None:
        self._new[table, id] = None

    def children(self, table: str, parent: str) -> list[tuple[str, bytes]]:
        stored = self._db.execute(f"SELECT id, value FROM {table} WHERE parent = ?", (parent,)).fetchall()
        found = {id: value for id, value in stored if (table, id) not in self._new}
        for (where, id), row in self._new.items():
            if where == table and row is not None and row[2] == parent:
                found[id] = row[1]
        return sorted(found.items())

    def counts(self, table: str) -> dict[str, int]:
        assert not self._new, "rows are counted between two ticks"
        return dict(self._db.execute(f"SELECT parent, count(*) FROM {table} GROUP BY parent").fetchall())

    def expired(self, now: float, most: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for table in TABLES:
            query = f"SELECT id FROM {table} WHERE expires > 0 AND expires <= ? LIMIT ?"
            rows = self._db.execute(query, (now, most - len(found))).fetchall()
            found += [(table, id) for (id,) in rows if (table, id) not in self._new]
        return found

    def waits(self, sync: bool) -> bool:
        return bool(self._new) and (sync or self._logged > LOG)

    def commit(self, sync: bool) -> None:
        if not self._new:
            return
        try:
            if sync != self._synced:  # cannot be changed within a transaction
                self._db.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
                self._synced = sync
            self._db.execute("BEGIN IMMEDIATE")
            for table in {table for table, _ in self._new}:
                self._write(table)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self.undo()
            raise _failed(error) from error
        if self._logged > LOG:
            self._move_log()
        self._logged += len(self._new)
        self._new.clear()

    def _move_log(self) -> None:
        """Move what is in the log to its place in the file. If there is no room for that, it stays in the log."""
        with suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._logged = 0

    def _write(self, table: str) -> None:
        rows = [row for (where, _), row in self._new.items() if where == table and row is not None]
        gone = [(id,) for (where, id), row in self._new.items() if where == table and row is None]
        self._db.executemany(UPSERT.format(table), rows)
        self._db.executemany(f"DELETE FROM {table} WHERE id = ?", gone)

    def undo(self) -> None:
        self._new.clear()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        self.undo()
        self._db.close()


def _failed(error: sqlite3.Error) -> StoreFailed:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in FULL:
        return StoreFull(str(error))
    return StoreFailed(str(error))


def _why(path: Path, error: sqlite3.DatabaseError) -> str:
    if "locked" in str(error):
        return f"{path} is in use by another server; a store belongs to one. Stop that one, or give another --store."
    return f"{path} cannot be used as a store: {error}. Give --store a new file, or one that `elman serve` wrote."
