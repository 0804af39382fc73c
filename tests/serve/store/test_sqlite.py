"""What the store in a file promises beside what every store does."""

import os
import sqlite3
import subprocess
import sys

import pytest

from elman.errors import FileError
from elman.serve.store.sqlite import SqliteStore, backup
from elman.serve.store.store import StoreFailed, StoreFull


def test_the_file_has_a_log_and_one_owner(tmp_path):
    store = SqliteStore(tmp_path / "s.db")
    assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    with pytest.raises(FileError, match="in use by another server"):
        SqliteStore(tmp_path / "s.db")
    store.close()
    SqliteStore(tmp_path / "s.db").close()


def test_a_file_is_there_again(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    store.put("sessions", "a", bytes(range(256)), parent="t", expires=3.0)
    store.commit(sync=True)
    store.put("sessions", "b", b"lost")
    store.close()
    again = SqliteStore(tmp_path / "store.db")
    assert again.get("sessions", "a") == bytes(range(256)) and again.get("sessions", "b") is None
    again.close()


def test_a_second_server_is_refused(tmp_path):
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    script = (
        "import sys; from elman.serve.store.sqlite import SqliteStore\n"
        "try: SqliteStore(sys.argv[1])\nexcept Exception as e: print(type(e).__name__, e)\n"
    )
    found = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60).stdout
    assert found.startswith("FileError") and "in use by another server" in found
    store.close()
    SqliteStore(path).close()


def test_other_files_are_refused_and_left_alone(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to be looked at by SQLite" * 50)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    for name in ("text", "other.db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(FileError, match="store"):
            SqliteStore(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_full_store_undoes_the_whole_commit_and_recovers(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    store.put("sessions", "a", b"1")
    store.commit(sync=False)
    store._db.execute("PRAGMA max_page_count=60")
    store.put("sessions", "a", b"2")
    for number in range(100):
        store.put("sessions", f"large{number}", os.urandom(4096))
    with pytest.raises(StoreFull):
        store.commit(sync=False)
    assert store.get("sessions", "a") == b"1" and store.get("sessions", "large0") is None
    store._db.execute("PRAGMA max_page_count=100000")
    store.put("sessions", "a", b"3")
    store.commit(sync=False)
    assert store.get("sessions", "a") == b"3"
    store.close()


def test_a_commit_with_sync_waits_for_the_disk_and_the_next_does_not(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    for sync, level in ((True, 2), (False, 1), (True, 2)):
        store.put("sessions", "a", b"")
        store.commit(sync)
        assert store._db.execute("PRAGMA synchronous").fetchone()[0] == level
    store.close()


def test_the_log_is_moved_to_its_place_before_it_grows_long(tmp_path, monkeypatch):
    monkeypatch.setattr("elman.serve.store.sqlite.LOG", 50)
    store, waited = SqliteStore(tmp_path / "s.db"), 0
    for tick in range(60):
        for number in range(5):
            store.put("sessions", f"{number}", bytes([tick]) * 3_000)
        waited += store.waits(False)
        store.commit(False)
    assert not store.waits(True) and 3 <= waited <= 6  # nothing is written; and now and then
    store.put("sessions", "5", b"last")
    assert store.waits(True)
    assert (tmp_path / "s.db-wal").stat().st_size < 2_000_000  # 60 ticks of five rows, a page each and more, are longer
    store.close()
    again = SqliteStore(tmp_path / "s.db")
    assert again.get("sessions", "4") == bytes([59]) * 3_000 and again.get("sessions", "5") is None
    again.close()


def test_file_and_log_can_be_read_by_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        store = SqliteStore(tmp_path / "s.db")
        store.put("sessions", "a", b"1")
        store.commit(sync=False)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        assert modes == dict.fromkeys(("s.db", "s.db-wal", "s.db-shm"), 0o600)
        backup(tmp_path / "s.db", tmp_path / "copy.db")
        assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
        store.close()
    finally:
        os.umask(old)


@pytest.mark.slow
def test_a_copy_is_made_while_a_server_writes_and_is_a_store(tmp_path):
    """By another process, as `elman serve backup` is; of each tick all rows are in it, or none."""
    path, copies = tmp_path / "s.db", [tmp_path / f"copy{number}.db" for number in range(3)]
    store, last = SqliteStore(path), {}
    script = "import sys; from elman.cli import main; sys.exit(main(['serve', 'backup', *sys.argv[1:]]))"
    for copy in copies:
        process = subprocess.Popen([sys.executable, "-c", script, path, copy], stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            number = len(last)
            for row in range(20):
                store.put("sessions", f"row{row}", str(number).encode(), parent="t")
            store.commit(sync=False)
            last[number] = True
        assert process.returncode == 0, process.stderr.read()
    values = []
    for copy in copies:
        again = SqliteStore(copy)
        found = {again.get("sessions", f"row{row}") for row in range(20)}
        assert len(found) == 1 and again._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        values.append(int(found.pop()))
        again.close()
    assert values == sorted(values) and 0 < values[-1] < len(last)
    store.close()
    assert not list(tmp_path.glob("*.part*"))


def test_a_copy_overwrites_nothing_and_what_is_no_store_is_not_copied(tmp_path):
    SqliteStore(tmp_path / "s.db").close()
    (tmp_path / "there").write_text("mine")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.close()
    for source, to, why in (
        ("s.db", "there", "exists, and is not overwritten"),
        ("none.db", "x", "no store"),
        ("other.db", "x", "not a store"),
    ):
        with pytest.raises(FileError, match=why):
            backup(tmp_path / source, tmp_path / to)
    assert (tmp_path / "there").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.db", "s.db", "there"]
    backup(tmp_path / "s.db", tmp_path / "copy.db")  # with no server on it


def swap(path):
    os.rename(path, f"{path}.away")
    SqliteStore(path).close()


def overwrite(path):
    path.write_bytes(b"SQLite format 3" + bytes(path.stat().st_size))


DAMAGES = {
    "deleted": os.remove,
    "replaced": swap,
    "cut": lambda path: os.truncate(path, 4096),
    "log deleted": lambda path: os.remove(f"{path}-wal"),
    "log cut": lambda path: os.truncate(f"{path}-wal", 0),
    "overwritten": overwrite,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_file_that_is_no_longer_there_is_noticed_and_nothing_is_acknowledged(tmp_path, how, monkeypatch):
    monkeypatch.setattr("elman.serve.store.sqlite.LOOK", 0.0)
    store = SqliteStore(tmp_path / "s.db")
    for number in range(20):
        store.put("sessions", str(number), bytes(4096))
    store.commit(sync=False)
    store._move_log()
    store.put("sessions", "a", b"1")
    store.commit(sync=False)
    store.check()
    DAMAGES[how](tmp_path / "s.db")
    with pytest.raises(StoreFailed, match=r"s.db.* while the server had it open") as found:
        store.check()
    assert str(tmp_path) not in found.value.message  # it is the answer to requests of tenants
    if how != "overwritten":  # that only the health probe looks for
        store.put("sessions", "a", b"2")
        with pytest.raises(StoreFailed, match="nothing was changed"):
            store.commit(sync=False)


def test_a_closed_store_says_so(tmp_path):
    store = SqliteStore(tmp_path / "s.db")
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        store.get("sessions", "a")
