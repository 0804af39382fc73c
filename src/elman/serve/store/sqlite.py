"""The store in a file: SQLite with a write-ahead log, one writer, one commit a tick.

Tier `process`: a commit is in the operating system's hands when it returns, and survives kill -9. Tier `power`: a
commit with `sync` waits until the disk has it (synchronous=FULL). The file belongs to one server, which has a lock on
it; a second is refused. Others may read beside it, as `backup` does. File and log can be read by their owner alone.

When a sync fails, the operating system may have dropped what it could not write, and the next sync says that all is
well. So nothing is tried again: that is a `StoreUnknown`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from elman.errors import FileError
from elman.serve.store.store import TABLES, Row, StoreFailed, StoreFull, StoreUnknown

FORMAT = 1
# Unlike a replacement it leaves the indexes alone where what they hold has not changed.
UPSERT = (
    "INSERT INTO {} VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
    "SET value = excluded.value, parent = excluded.parent, expires = excluded.expires"
)
LOG = 4_000  # rows of the log that are moved to their places at once
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
NOT_SYNCED = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
LOOK = 0.1  # seconds between two looks, while there are commits, at whether the files are still there
HEADER = 100  # bytes at the beginning of the file, which only moving the log changes
Key = tuple[str, str]  # table and id


class _Absent:
    """Nothing was there: neither a row that is new, nor one that is deleted."""


ABSENT = _Absent()


class SqliteStore:
    """Rows in a file."""

    durable = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.log = self.path.with_name(f"{self.path.name}-wal")
        try:
            self._file = _locked(self.path)
        except OSError as error:
            raise FileError(_why(self.path, error)) from error
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=0.2, check_same_thread=False)
            self._open()
        except BaseException as error:
            os.close(self._file)
            if isinstance(error, sqlite3.DatabaseError):
                raise FileError(_why(self.path, error)) from error
            raise
        self._new: dict[Key, Row | None] = {}  # since the last commit
        self._journal: list[tuple[Key, Row | _Absent | None]] = []  # and what stood there before
        self._synced = False
        self._logged = 0  # rows in the log, or more
        self._sizes = {self.path: 0, self.log: 0}  # that the files have had: they only grow
        self._ids = {path: (found.st_dev, found.st_ino) for path in self._sizes if (found := os.stat(path))}
        self._looked = 0.0
        self._header = os.pread(self._file, HEADER, 0)

    def _open(self) -> None:
        run = self._db.execute
        # Before anything is changed: the journal mode is a part of the file.
        found = run("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise FileError(f"{self.path} is a store of version {found}; this one reads {FORMAT}. Upgrade Elman.")
        if found == 0 and run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise FileError(f"{self.path} is a database of another program; pass a new file to --store")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=NORMAL")
        run("PRAGMA temp_store=MEMORY")  # or a full disk would end even a read
        run("PRAGMA wal_autocheckpoint=0")  # commit does it, and `waits` says when
        run("BEGIN IMMEDIATE")
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

    # Reading

    def _read(self, query: str, *given: object) -> list[Any]:
        try:
            return self._db.execute(query, given).fetchall()
        except sqlite3.Error as error:
            raise _failed(error) from error

    def get(self, table: str, id: str) -> bytes | None:
        if (table, id) in self._new:
            row = self._new[table, id]
            return None if row is None else row[1]
        found = self._read(f"SELECT value FROM {table} WHERE id = ?", id)
        return found[0][0] if found else None

    def owner(self, table: str, id: str) -> str | None:
        if (table, id) in self._new:
            row = self._new[table, id]
            return None if row is None else row[2]
        found = self._read(f"SELECT parent FROM {table} WHERE id = ?", id)
        return found[0][0] if found else None

    def children(self, table: str, parent: str) -> list[tuple[str, bytes]]:
        stored = self._read(f"SELECT id, value FROM {table} WHERE parent = ?", parent)
        found = {id: value for id, value in stored if (table, id) not in self._new}
        for (where, id), row in self._new.items():
            if where == table and row is not None and row[2] == parent:
                found[id] = row[1]
        return sorted(found.items())

    def ids(self, table: str, parent: str, after: str, last: str, most: int) -> list[str]:
        query = f"SELECT id FROM {table} WHERE parent = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?"
        stored = self._read(query, parent, after, last, most + len(self._new))  # some of them may be deleted already
        found = [id for (id,) in stored if (table, id) not in self._new]
        for (where, id), row in self._new.items():
            if where == table and row is not None and row[2] == parent and after < id <= last:
                found.append(id)
        return sorted(found)[:most]

    def counts(self, table: str) -> dict[str, int]:
        assert not self._new, "rows are counted between two ticks"
        return dict(self._read(f"SELECT parent, count(*) FROM {table} GROUP BY parent"))

    def expired(self, now: float, most: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for table in TABLES:
            query = f"SELECT id FROM {table} WHERE expires > 0 AND expires <= ? LIMIT ?"
            rows = self._read(query, now, most - len(found))
            found += [(table, id) for (id,) in rows if (table, id) not in self._new]
        return found

    # Writing

    def put(self, table: str, id: str, value: bytes, *, parent: str = "", expires: float = 0.0) -> None:
        self.put_all(table, [(id, value, parent, expires)])

    def put_all(self, table: str, rows: Iterable[Row]) -> None:
        new, journal = self._new, self._journal
        for row in rows:
            key = table, row[0]
            journal.append((key, new.get(key, ABSENT)))
            new[key] = row

    def delete(self, table: str, id: str) -> None:
        key = table, id
        self._journal.append((key, self._new.get(key, ABSENT)))
        self._new[key] = None

    def mark(self) -> int:
        return len(self._journal)

    def back(self, mark: int) -> list[tuple[str, str]]:
        undone = []
        while len(self._journal) > mark:
            key, before = self._journal.pop()
            if isinstance(before, _Absent):
                del self._new[key]
            else:
                self._new[key] = before
            undone.append(key)
        return undone

    def changed(self) -> bool:
        return bool(self._new)

    def waits(self, sync: bool) -> bool:
        return bool(self._new) and (sync or self._logged > LOG)

    def commit(self, sync: bool) -> None:
        if not self._new:
            return
        try:
            if time.monotonic() - self._looked >= LOOK:
                self._check_files()
            if sync != self._synced:  # cannot be changed within a transaction
                self._db.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
                self._synced = sync
            self._db.execute("BEGIN IMMEDIATE")
            for table in {table for table, _ in self._new}:
                self._write(table)
            self._db.execute("COMMIT")
        except (sqlite3.Error, StoreFailed) as error:
            failed = error if isinstance(error, StoreFailed) else _failed(error)
            try:
                self.undo()
            except sqlite3.Error as worse:
                raise StoreUnknown(f"{error}; and it could not be undone: {worse}") from error
            raise failed from error
        if self._logged > LOG:
            self._move_log()
        self._logged += len(self._new)
        self._new.clear()
        self._journal.clear()

    def _move_log(self) -> None:
        """Move what is in the log to its place in the file. If there is no room for that, it stays in the log."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._logged = 0
        except sqlite3.OperationalError as error:
            if isinstance(failed := _failed(error), StoreUnknown):
                raise failed from error
        with suppress(OSError):
            self._header = os.pread(self._file, HEADER, 0)

    def _write(self, table: str) -> None:
        rows = [row for (where, _), row in self._new.items() if where == table and row is not None]
        gone = [(id,) for (where, id), row in self._new.items() if where == table and row is None]
        if rows:
            self._db.executemany(UPSERT.format(table), rows)
        if gone:
            self._db.executemany(f"DELETE FROM {table} WHERE id = ?", gone)

    def undo(self) -> None:
        self._new.clear()
        self._journal.clear()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    # The file

    def check(self) -> None:
        self._check_files()
        if os.pread(self._file, HEADER, 0) != self._header:
            raise _touched(self.path, "overwritten")

    def _check_files(self) -> None:
        """That what is written here is what the next start will find."""
        for path, size in self._sizes.items():
            try:
                found = os.stat(path)
            except OSError as error:
                raise _touched(path, "deleted, or cannot be reached") from error
            if (found.st_dev, found.st_ino) != self._ids[path]:
                raise _touched(path, "replaced")
            if found.st_size < size:
                raise _touched(path, "cut")
            self._sizes[path] = found.st_size
        self._looked = time.monotonic()

    def close(self) -> None:
        try:
            self.undo()
            self._db.close()
        finally:
            os.close(self._file)  # behind the other: it ends all locks that this process has on the file


def backup(path: str | Path, to: str | Path) -> None:
    """A copy of a store as it is between two commits, whether a server runs on it or not."""
    path, to = Path(path), Path(to)
    if not path.is_file():
        raise FileError(f"there is no store {path}")
    if to.exists():
        raise FileError(f"{to} exists, and is not overwritten; choose another name")
    part = to.with_name(f"{to.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with (
            closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=5)) as source,
            closing(sqlite3.connect(part)) as copy,
        ):
            if source.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
                raise FileError(f"{path} is not a store that this version of Elman reads")
            source.backup(copy)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if to.exists():
            raise FileError(f"{to} was created in the meantime, and is not overwritten; choose another name")
        part.rename(to)
    except (sqlite3.DatabaseError, OSError) as error:
        raise FileError(f"{path} could not be copied to {to}: {error}") from error
    finally:
        for left in (part, *(part.with_name(f"{part.name}{end}") for end in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)


def _locked(path: Path) -> int:
    """The file, which is made if it is not there, for nobody else to read; and no other server may use it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _failed(error: sqlite3.Error) -> StoreFailed:
    code = getattr(error, "sqlite_errorcode", 0)
    if code in NOT_SYNCED:
        return StoreUnknown(f"a sync of the disk failed: {error}")
    if code in FULL or code & 0xFF in FULL:
        return StoreFull(str(error))
    return StoreFailed(str(error))


def _touched(path: Path, how: str) -> StoreFailed:
    return StoreFailed(
        f"{path.name} was {how} while the server had it open; move it back, or stop the server and restore a copy"
    )


def _why(path: Path, error: Exception) -> str:
    if "locked" in str(error) or isinstance(error, BlockingIOError):
        return f"{path} is in use by another server; a store belongs to one. Stop that one, or give another --store."
    return f"{path} cannot be used as a store: {error}. Give --store a new file, or one that `elman serve` wrote."
