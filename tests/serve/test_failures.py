"""What fails, and what goes on: a commit, a read, a row, a job, a tick; and what the clock may do."""

import asyncio
import json
from contextlib import suppress

import httpx
import numpy as np
import pytest
from direct import Clock, direct, get, made, refused, scanned, step
from running import Running, core, running, served_models, service

from elman.serve.engine.driver import Driver
from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Job
from elman.serve.engine.jobs import Create, Delete, Options, WriteRequest
from elman.serve.engine.steps import Step
from elman.serve.limits import Limits
from elman.serve.store.records import Session
from elman.serve.store.sessions import Sessions
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore, StoreFailed
from elman.tasks.serving_numbers import ServedNumbers


class Failing(MemoryStore):
    """A store whose disk fails, for as long as it is told to."""

    broken = ""  # "read", "commit" or both

    def _fail(self, what):
        if what in self.broken:
            raise StoreFailed("disk I/O error")

    def get(self, table, id):
        self._fail("read")
        return super().get(table, id)

    def children(self, table, parent):
        self._fail("read")
        return super().children(table, parent)

    def ids(self, *given):
        self._fail("read")
        return super().ids(*given)

    def counts(self, table):
        self._fail("read")
        return super().counts(table)

    def expired(self, now, most):
        self._fail("read")
        return super().expired(now, most)

    def commit(self, sync):
        self._fail("commit")
        super().commit(sync)


def started(store, **options):
    """An engine on a store, and a session."""
    engine = direct(store, **options)
    return engine, made(engine)


@pytest.mark.parametrize("broken", ["commit", "read commit"])
def test_a_tick_that_failed_never_releases_its_success(broken):
    store = Failing()
    engine, id = started(store)
    found = []

    def fault(place):
        if place == "before commit":
            store.broken = broken

    engine.engine.fault = fault
    engine.engine.submit(Step(found.append, WriteRequest("t", "step"), id, 0, [[1.0]], True))
    engine.engine.submit(Create(found.append, WriteRequest("t", "create"), "gru", Options(60.0), 0, None))
    with suppress(StoreFailed):
        engine.engine.tick()
    engine.engine.fault = lambda place: None
    store.broken = ""
    for _ in range(3):
        engine.engine.tick()
    assert [one.status for one in found] == [503, 503]
    assert get(engine, id)["version"] == 0 and engine.engine.sessions.counts == {"t": 1}
    assert engine.engine.waiting == 0 and not engine.engine.failed


def test_while_reads_fail_every_request_is_answered_and_then_it_goes_on():
    store = Failing()
    with running(served_models(), store=store) as server, httpx.Client(base_url=server.url, timeout=5) as client:
        ids = [server.session() for _ in range(3)]
        sessions = server.service.engine.sessions
        sessions.cache.clear()
        server.service.engine.swept = 0.0  # a sweep is due, too
        store.broken = "read"
        assert client.get(f"/v1/sessions/{ids[0]}").status_code == 503
        step = {"version": "any", "input": [1.0]}
        answer = client.post(f"/v1/sessions/{ids[0]}/step", json=step)
        assert answer.status_code == 503 and "nothing was changed" in answer.json()["error"]["message"]
        items = [{"session": id, **step} for id in ids]
        bulk = client.post("/v1/steps", json={"items": items})
        assert [one["status"] for one in bulk.json()["data"]] == [503] * 3
        assert client.get("/healthz").status_code == 200
        store.broken = ""
        bulk = client.post("/v1/steps", json={"items": items})
        assert [(one["status"], one["body"]["version"]) for one in bulk.json()["data"]] == [(200, 1)] * 3


def test_where_what_was_not_stored_cannot_be_forgotten_the_server_stops(capsys):
    store = Failing()
    server = Running(service(served_models(), store))
    id = server.session()

    def undo():
        raise OSError("the memory is gone")

    store.undo, store.broken = undo, "commit"
    answer = server.step(id, [[1.0]])
    assert answer.status_code == 503
    server.thread.join(10)
    assert not server.thread.is_alive() and "the memory is gone" in server.service.engine.failed
    assert "cannot continue, and the server stops" in capsys.readouterr().err
    server.client.close()


def test_a_tick_that_fails_itself_refuses_everyone_and_the_server_stops():
    server = Running(service(served_models()))
    id, engine = server.session(), server.service.engine

    def settle():
        raise ZeroDivisionError("a bug of the engine")

    engine.settle = settle
    answer = httpx.post(f"{server.url}/v1/sessions/{id}/step", json={"version": 0, "input": [1.0]}, timeout=5)
    assert answer.status_code == 503 and "cannot continue" in answer.json()["error"]["message"]
    server.thread.join(10)
    assert not server.thread.is_alive() and "a bug of the engine" in engine.failed
    server.client.close()


def test_a_dead_engine_is_seen_by_healthz():
    with running(served_models()) as server:
        assert server.client.get("/healthz").status_code == 200
        server.service.engine.failed = "a test"
        answer = server.client.get("/healthz")
        assert answer.status_code == 503 and "cannot continue" in answer.text and "a test" not in answer.text
        server.service.engine.failed = ""


def test_there_is_no_tick_once_the_store_is_closed(tmp_path):
    """`abandon` wakes the driver; by then the store may be closed, and a sweep would read it."""
    raised = []

    async def run():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: raised.append(context))
        store = SqliteStore(tmp_path / "s.db")
        engine = Engine(Sessions(store, {"gru": ServedNumbers.of_core(core())}, Limits()))
        driver = Driver(engine)
        driver.start()
        await asyncio.sleep(0.02)
        engine.swept = 0.0
        assert await driver.stop(0.1)
        store.close()
        engine.abandon()
        await asyncio.sleep(0.02)
        return engine

    engine = asyncio.run(run())
    assert not raised and not engine.failed


class Buggy(Job):
    """Writes half of what it was to write."""

    tenant = "t"

    def __init__(self, reply, error):
        super().__init__(reply)
        self.error = error

    def start(self, engine):
        engine.sessions.store.put("meta", "half", b"written")
        sessions = engine.sessions
        state = sessions.models["gru"].start(0)
        sessions.add("sess_half", Session("t", "gru", sessions.fingerprints["gru"], state, 0.0, 9.0, 9e9))
        engine.finish(self, "done")
        raise self.error


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), MemoryError()])
def test_what_a_job_fails_at_is_its_own(kind, error, tmp_path):
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    engine, found = direct(store).engine, []
    engine.submit(Create(found.append, WriteRequest("t", "create"), "gru", Options(60.0), 0, None))
    engine.submit(Buggy(found.append, error))
    engine.submit(Create(found.append, WriteRequest("t", "create"), "gru", Options(60.0), 0, None))
    engine.tick()
    assert sorted(one.status for one in found) == [201, 201, 500]
    assert engine.sessions.counts == {"t": 2} and store.counts("sessions") == {"t": 2}
    assert store.get("meta", "half") is None and engine.waiting == 0
    store.close()


def test_a_model_that_fails_on_one_input_fails_for_that_one():
    engine = direct()
    ids, found, model = [made(engine) for _ in range(3)], {}, engine.engine.sessions.models["gru"]
    together = model.together

    def broken(x, states):
        if 13.0 in x:
            raise MemoryError
        return together(x, states)

    model.together = broken
    for id, value in zip(ids, (1.0, 13.0, 2.0), strict=True):
        engine.engine.submit(
            Step(lambda v, id=id: found.update({id: v}), WriteRequest("t", "s"), id, 0, [[value]], True)
        )
    engine.engine.tick()
    assert [found[id].status for id in ids] == [200, 500, 200]
    assert np.array_equal(np.float32(json.loads(found[ids[2]].body)["output"]), scanned([2.0])[0])
    assert get(engine, ids[1])["version"] == 0


# A row that cannot be decoded


def damage(store, id, tenant="t", expires=1.0):
    store.put("sessions", id, b"\xc1 no session", parent=tenant, expires=expires)
    store.commit(False)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_damaged_row_is_left_and_told_of_and_all_else_goes_on(kind, tmp_path, capsys):
    clock = Clock()
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    engine = direct(store, clock=clock)
    kept, expired = made(engine), made(engine, options=Options(5.0))
    damage(store, "sess_damaged")
    for life in range(2):
        clock.now += 10
        with suppress(Exception):
            engine.engine.tick()
        look_at_the_damage(engine, kept, expired, life)
        assert store.get("sessions", "sess_damaged") == b"\xc1 no session"
        assert capsys.readouterr().err.count("sessions/sess_damaged") == 1
        if kind == "sqlite":
            store.close()
            store = SqliteStore(tmp_path / "s.db")
        engine = direct(store, clock=clock)
    store.close()


def look_at_the_damage(engine, kept, expired, life):
    assert get(engine, kept)["version"] == life
    assert step(engine, kept, [1.0])["version"] == life + 1
    refused(410, lambda: get(engine, expired))
    assert refused(500, lambda: get(engine, "sess_damaged")).code == "record_damaged"
    assert refused(500, lambda: step(engine, "sess_damaged", [1.0])).code == "record_damaged"
    refused(404, lambda: get(engine, "sess_damaged", tenant="other"))


def test_a_damaged_session_can_be_deleted_by_its_tenant_and_nobody_else():
    store = MemoryStore()
    engine = direct(store)
    damage(store, "sess_damaged", expires=0.0)
    for table in ("checkpoints", "inputs"):
        store.put(table, "sess_damaged/1", b"", parent="sess_damaged")
    engine = direct(store)  # which counts it
    refused(404, lambda: engine.run(lambda r: Delete(r, "other", "sess_damaged")))
    assert engine.engine.sessions.counts == {"t": 1}
    engine.run(lambda r: Delete(r, "t", "sess_damaged"))
    refused(404, lambda: get(engine, "sess_damaged"))
    assert engine.engine.sessions.counts == {"t": 0}
    assert not any(store.counts(table) for table in ("sessions", "checkpoints", "inputs"))


def test_a_state_of_another_length_disturbs_nobody():
    engine = direct()
    good, bad = made(engine), made(engine)
    sessions = engine.engine.sessions
    session = sessions.find(bad, "t")
    session.state = session.state[:-4]
    sessions.save((bad, session))
    sessions.store.commit(False)
    sessions.cache.clear()
    found = []
    for id in (good, bad):
        engine.engine.submit(Step(found.append, WriteRequest("t", "s"), id, 0, [[1.0]], True))
    engine.engine.tick()
    assert sorted(one.status for one in found) == [200, 500]


def test_a_sweep_goes_on_until_all_is_gone_and_not_for_what_is_busy_or_cannot_be_stored(monkeypatch):
    monkeypatch.setattr("elman.serve.store.sessions.Sessions.sweep.__defaults__", ((), 4))
    clock, store = Clock(), Failing()
    engine = direct(store, clock=clock).engine
    sessions = engine.sessions
    state = sessions.models["gru"].start(0)
    for number in range(10):
        sessions.add(f"sess_{number}", Session("t", "gru", sessions.fingerprints["gru"], state, 0.0, 9.0, 9.0))
    engine.tick()
    clock.now += 1_000
    store.broken = "commit"
    engine.tick()
    assert engine.idle and sessions.counts == {"t": 10}  # not at once again
    store.broken = ""
    clock.now += 6
    engine.tick()
    assert not engine.idle and sessions.counts == {"t": 6}
    for number in range(10):
        engine.queues[f"sess_{number}"] = [Job(print)]
    engine.tick()
    assert engine.idle and sessions.counts == {"t": 6}
    engine.queues.clear()
    clock.now += 6
    while not engine.idle or sessions.counts["t"]:
        engine.tick()
    assert not store.counts("sessions")
