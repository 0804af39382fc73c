"""One suite for every store; then what the file alone promises."""

import os
import sqlite3
import subprocess
import sys

import pytest

from elman.errors import FileError
from elman.serve.store.sqlite import SqliteStore, backup
from elman.serve.store.store import MemoryStore, StoreFailed, StoreFull


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    found = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.db")
    yield found
    found.close()


def test_reads_see_writes_before_and_after_the_commit(store):
    assert store.get("sessions", "a") is None
    store.put("sessions", "a", b"1", parent="t")
    assert store.get("sessions", "a") == b"1"
    store.commit(sync=False)
    store.put("sessions", "a", b"2", parent="t")
    assert store.get("sessions", "a") == b"2" and store.get("responses", "a") is None
    store.delete("sessions", "a")
    assert store.get("sessions", "a") is None
    store.commit(sync=True)
    assert store.get("sessions", "a") is None and store.counts("sessions") == {}


def test_undo_brings_everything_back(store):
    store.put("checkpoints", "a/1", b"1", parent="a", expires=5.0)
    store.commit(sync=False)
    store.put("checkpoints", "a/1", b"x", parent="b", expires=9.0)
    store.put("checkpoints", "a/2", b"2", parent="a")
    store.delete("checkpoints", "a/1")
    store.undo()
    assert store.children("checkpoints", "a") == [("a/1", b"1")] and store.children("checkpoints", "b") == []
    assert store.expired(6.0, 10) == [("checkpoints", "a/1")]


def test_back_undoes_what_came_after_the_mark_and_nothing_else(store):
    store.put("sessions", "a", b"1", parent="t", expires=5.0)
    store.commit(sync=False)
    store.put("sessions", "a", b"2", parent="t", expires=5.0)
    store.put("sessions", "b", b"b", parent="t")
    mark = store.mark()
    store.delete("sessions", "a")
    store.put("sessions", "a", b"3", parent="other", expires=9.0)
    store.put("sessions", "b", b"x", parent="t")
    store.put("sessions", "c", b"c", parent="t")
    assert set(store.back(mark)) == {("sessions", "a"), ("sessions", "b"), ("sessions", "c")}
    assert [store.get("sessions", id) for id in "abc"] == [b"2", b"b", None] and store.owner("sessions", "a") == "t"
    store.commit(sync=False)
    assert [store.get("sessions", id) for id in "abc"] == [b"2", b"b", None]
    assert store.counts("sessions") == {"t": 2} and store.expired(6.0, 10) == [("sessions", "a")]


def test_children_are_in_order_and_include_what_is_new(store):
    for number in (3, 1):
        store.put("inputs", f"a/{number}", bytes([number]), parent="a")
    store.commit(sync=False)
    store.put("inputs", "a/2", b"\2", parent="a")
    store.put("inputs", "b/1", b"b", parent="b")
    store.delete("inputs", "a/3")
    assert store.children("inputs", "a") == [("a/1", b"\1"), ("a/2", b"\2")]
    store.commit(sync=False)
    assert store.children("inputs", "a") == [("a/1", b"\1"), ("a/2", b"\2")]
    assert store.counts("inputs") == {"a": 2, "b": 1}


def test_ids_between_two_others(store):
    for number in range(6):
        store.put("inputs", f"a/{number}", bytes([number]), parent="a")
    store.commit(sync=False)
    store.delete("inputs", "a/2")
    store.put("inputs", "a/6", b"6", parent="a")
    assert store.ids("inputs", "a", "a/1", "a/4", 9) == ["a/3", "a/4"]
    assert store.ids("inputs", "a", "a/0", "a/9", 3) == ["a/1", "a/3", "a/4"]
    assert store.ids("inputs", "a", "a/4", "a/9", 9) == ["a/5", "a/6"] and store.ids("inputs", "b", "", "z", 9) == []
    store.undo()
    assert store.ids("inputs", "a", "a/1", "a/9", 9) == ["a/2", "a/3", "a/4", "a/5"]


def test_what_expires(store):
    store.put("sessions", "never", b"")
    for number in range(5):
        store.put("sessions", str(number), b"", expires=10.0 + number)
    store.commit(sync=False)
    assert store.expired(9.0, 10) == []
    assert sorted(store.expired(12.0, 10)) == [("sessions", "0"), ("sessions", "1"), ("sessions", "2")]
    assert len(store.expired(99.0, 2)) == 2
    store.put("tombstones", "stone", b"", expires=10.0)
    store.put("keys", "key", b"", expires=10.0)
    store.commit(sync=False)
    assert [len(store.expired(99.0, most)) for most in (1, 4, 6, 7, 9)] == [1, 4, 6, 7, 7]  # of all tables together
    for table, id in (("tombstones", "stone"), ("keys", "key")):
        store.delete(table, id)
    store.put("sessions", "0", b"", expires=50.0)
    store.delete("sessions", "1")
    store.commit(sync=False)
    assert store.expired(12.0, 10) == [("sessions", "2")]


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
        assert (tmp_path / name).read_bytes() == before or name == "other.db"


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


def test_rows_that_come_and_go_leave_nothing_in_memory():
    store = MemoryStore()
    for number in range(20_000):
        store.put("sessions", str(number), b"", parent="t", expires=1e9)
        store.commit(sync=False)
        store.delete("sessions", str(number))
        store.commit(sync=False)
    assert len(store._due) < 3_000 and not store._rows["sessions"] and not store._parents["sessions"]


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
        ("s.db", "there", "there already"),
        ("none.db", "x", "no store"),
        ("other.db", "x", "no store"),
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
    with pytest.raises(StoreFailed, match="while the server had it open"):
        store.check()
    if how != "overwritten":  # that only the health probe looks for
        store.put("sessions", "a", b"2")
        with pytest.raises(StoreFailed, match="nothing was changed"):
            store.commit(sync=False)


def test_a_closed_store_says_so(tmp_path):
    store = SqliteStore(tmp_path / "s.db")
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        store.get("sessions", "a")
