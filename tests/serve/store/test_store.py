"""One suite for every store."""

import pytest

from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore


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


def test_rows_that_come_and_go_leave_nothing_in_memory():
    store = MemoryStore()
    for number in range(20_000):
        store.put("sessions", str(number), b"", parent="t", expires=1e9)
        store.commit(sync=False)
        store.delete("sessions", str(number))
        store.commit(sync=False)
    assert len(store._due) < 3_000 and not store._rows["sessions"] and not store._parents["sessions"]
