"""What a tenant keeps, counted to the byte."""

import pytest
from direct import Clock, direct, fails, made, refused, respond, step

from elman.serve.api.responses import KEPT
from elman.serve.engine.jobs import Create, Delete, Options, WriteRequest
from elman.serve.engine.text_jobs import DeleteResponse
from elman.serve.store.records import Answered, Records, Response, Session
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore


def counted(engine, tenant="t"):
    return engine.engine.sessions.ledger.bytes.get(tenant, 0)


def kept(store, tenant="t"):
    """What a tenant keeps, counted row by row."""
    records, total = Records(store), 0
    for table, kind in (("keys", Answered), ("responses", Response), ("sessions", Session)):
        for id, data in store.children(table, tenant):
            row = records.decoded(table, kind, id, data)
            total += len(row.reply) if kind is Session else len(data)
    return total


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_bytes_are_counted_to_the_byte_through_all_that_happens(kind, tmp_path):
    clock = Clock()
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    engine = direct(store, clock=clock)

    def check(least):
        assert counted(engine) == kept(store) >= least

    first = respond(engine, metadata="m" * 1_000)
    check(1_000)
    respond(engine, key="k", store=False, metadata="m" * 500)  # nothing is stored but the reply to the key
    check(1_500)
    asked = WriteRequest("t", "create", "c", b"d")
    engine.run(lambda r: Create(r, asked, "gru", Options(1e6), 0, None))
    id = made(engine, options=Options(1e6))
    step(engine, id, [1.0] * 50, key="a")
    check(2_000)
    step(engine, id, [1.0], key="b")  # its reply is shorter than the one before
    check(1_600)
    commit, store.commit = store.commit, fails
    for call in (
        lambda: respond(engine, metadata="m" * 9_999),
        lambda: step(engine, id, [2.0] * 50, key="c"),
        lambda: engine.run(lambda r: DeleteResponse(r, "t", first)),
    ):
        refused(507, call)
    store.commit = commit
    check(1_600)
    if kind == "sqlite":
        store.close()
        store = SqliteStore(tmp_path / "s.db")
        engine = direct(store, clock=clock)
    check(1_600)
    engine.run(lambda r: DeleteResponse(r, "t", first))
    check(700)
    engine.run(lambda r: Delete(r, "t", id))
    check(600)
    respond(engine)
    clock.now += KEPT + 1
    for _ in range(3):
        engine.engine.tick()
        clock.now += 6
    assert counted(engine) == kept(store) == 0 and engine.engine.sessions.counts == {"t": 0}
    store.close()


def test_a_response_that_has_expired_is_counted_no_more():
    clock = Clock()
    engine = direct(clock=clock)
    respond(engine)
    assert engine.engine.sessions.counts == {"t": 1}
    clock.now += KEPT + 1
    engine.engine.tick()
    assert engine.engine.sessions.counts == {"t": 0} and not engine.engine.sessions.store.counts("responses")
