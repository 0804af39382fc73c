"""Sessions over both stores without HTTP: expiry, restarts, failures; and against a model that is a dict."""

import json
from itertools import count

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from direct import NUMBERS, Clock, bulk, direct, fails, get, made, refused, scanned, step
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from running import core

from elman.serve.engine.jobs import (
    Delete,
    Fork,
    GetState,
    Options,
    PutState,
    Rollback,
    WriteRequest,
)  # fmt: skip
from elman.serve.engine.steps import Step
from elman.serve.limits import Limits
from elman.serve.store import past
from elman.serve.store.past import SLICE
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore, StoreFailed
from elman.tasks.serving_numbers import ServedNumbers


def test_a_session_expires_and_is_remembered_for_a_day():
    clock = Clock()
    engine = direct(clock=clock)
    id, kept = made(engine, options=Options(100.0)), made(engine, options=Options(1000.0))
    clock.now += 60
    step(engine, id, [1.0])
    clock.now += 60
    assert step(engine, id, [1.0])["version"] == 2  # a write lets it live on
    clock.now += 101
    assert refused(410, lambda: get(engine, id)).code == "session_expired"
    engine.engine.tick()
    assert engine.engine.sessions.store.get("sessions", id) is None
    refused(410, lambda: step(engine, id, [1.0]))
    refused(404, lambda: get(engine, id, tenant="other"))
    assert get(engine, kept)["version"] == 0 and engine.engine.sessions.counts == {"t": 1}
    clock.now += 86_400
    engine.engine.tick()
    refused(404, lambda: get(engine, id))


def test_another_tenant_sees_nothing():
    engine = direct()
    id = made(engine)
    for call in (
        lambda: get(engine, id, tenant="other"),
        lambda: step(engine, id, [1.0], tenant="other"),
        lambda: engine.run(lambda r: GetState(r, "other", id)),
        lambda: engine.run(lambda r: Delete(r, "other", id)),
        lambda: engine.run(lambda r: Fork(r, WriteRequest("other", "fork"), id, None)),
    ):
        refused(404, call)
    assert get(engine, id)["version"] == 0


def test_a_restart_goes_on_to_the_same_bits(tmp_path):
    engine = direct(SqliteStore(tmp_path / "s.db"))
    id = made(engine, options=Options(3600.0, every=2, keep=3, log=True))
    step(engine, id, [1.0, 2.0], key="k")
    step(engine, id, [3.0], key="last")
    engine.engine.sessions.store.close()
    engine = direct(SqliteStore(tmp_path / "s.db"))
    assert step(engine, id, [3.0], version=0, key="last")["version"] == 2  # the key is still known
    found = step(engine, id, [4.0], version=2)["outputs"]
    with torch.no_grad():
        y, _ = core().scan(torch.tensor([[1.0, 2, 3, 4]])[:, :, None])
    assert np.array_equal(np.float32(found[0]), y[0, 3].numpy())
    assert engine.engine.sessions.counts == {"t": 1}
    back = engine.run(lambda r: Rollback(r, WriteRequest("t", "rollback"), id, 3, 3))
    assert json.loads(back.body)["inexact"] is False


def test_a_model_that_is_not_loaded_or_has_other_weights(tmp_path):
    engine = direct(SqliteStore(tmp_path / "s.db"))
    id = made(engine)
    engine.engine.sessions.store.close()
    engine = direct(SqliteStore(tmp_path / "s.db"), models={"gru": ServedNumbers.of_core(core(seed=1))})
    assert engine.engine.sessions.orphans() == ["gru"]
    assert refused(422, lambda: step(engine, id, [1.0])).code == "model_mismatch"
    assert get(engine, id)["version"] == 0
    engine.engine.sessions.store.close()
    engine = direct(SqliteStore(tmp_path / "s.db"), models={"other": ServedNumbers.of_core(core())})
    assert refused(422, lambda: step(engine, id, [1.0])).code == "model_mismatch"
    engine.engine.sessions.store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_commit_that_fails_takes_all_replies_with_it_and_changes_nothing(kind, tmp_path):
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    engine = direct(store)
    id, other = made(engine), made(engine)
    step(engine, id, [1.0], key="k")
    commit, store.commit = store.commit, fails
    assert refused(507, lambda: step(engine, id, [2.0])).code == "store_full"
    refused(507, lambda: made(engine))
    refused(507, lambda: get(engine, other))
    store.commit = commit
    assert get(engine, id)["version"] == 1 and engine.engine.sessions.counts == {"t": 2}
    found = step(engine, id, [2.0], version=1)["outputs"]
    with torch.no_grad():
        y, _ = core().scan(torch.tensor([[1.0, 2.0]])[:, :, None])
    assert np.array_equal(np.float32(found[0]), y[0, 1].numpy())
    store.close()


def test_a_tenant_with_more_than_a_lowered_limit_may_delete():
    store, clock = MemoryStore(), Clock()
    engine = direct(store, clock=clock, models=NUMBERS)
    first, *others = (made(engine, options=Options(ttl)) for ttl in (1e6, 1e6, 50.0, 1e6))
    engine = direct(store, clock=clock, models=NUMBERS, limits=Limits(sessions=1))
    engine.run(lambda r: Delete(r, "t", first))
    clock.now += 100
    engine.engine.tick()
    assert engine.engine.sessions.counts == {"t": 2} and len(others) == 3
    refused(429, lambda: made(engine))


def test_a_write_that_is_refused_at_its_end_has_changed_nothing():
    """There is no room for the reply to its key: that is known when all else is done."""
    engine = direct(models=NUMBERS, limits=Limits(kept_bytes=10))
    id = made(engine)
    step(engine, id, [1.0])
    for _ in range(2):
        assert refused(429, lambda: step(engine, id, [2.0], key="k")).code == "too_many_bytes"
        assert get(engine, id)["version"] == 1
    found = step(engine, id, [3.0], version=1)
    assert found["position"] == 2 and np.array_equal(np.float32(found["outputs"][0]), scanned([1.0, 3.0])[1])


def test_nobody_starts_from_what_is_not_committed():
    """A put and a step of one session, taken before one commit, which fails: the step is as if the put had not been."""
    store = MemoryStore()
    engine = direct(store, models=NUMBERS)
    id, other = made(engine), made(engine)
    step(engine, other, [9.0])
    state = engine.run(lambda r: GetState(r, "t", other)).body
    replies = []
    inner, commit, store.commit = engine.engine, store.commit, fails
    inner.submit(PutState(replies.append, WriteRequest("t", "state"), id, "any", state))
    inner.take()
    inner.submit(Step(replies.append, WriteRequest("t", "step"), id, "any", [[1.0]], False))
    inner.take()  # as the driver does when something comes before the tick is run
    inner.tick()
    store.commit = commit
    while len(replies) < 2:
        inner.tick()
    put, stepped = replies
    assert put.status == 507 and json.loads(stepped.body)["version"] == 1
    assert np.array_equal(np.float32(json.loads(stepped.body)["outputs"][0]), scanned([1.0])[0])


def test_what_is_dead_is_known_though_a_read_has_failed():
    store = MemoryStore()
    engine = direct(store, models=NUMBERS)
    id = made(engine, options=Options(1e6, every=10_000, keep=2, log=True))
    for number in range(3 * SLICE):
        step(engine, id, [float(number % 3)])
    engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, "any", 2))
    ranges, children = engine.engine.sessions.past, store.children
    ranges.forget()

    def broken(table, parent):
        raise StoreFailed("disk I/O error")

    store.children = broken
    with pytest.raises(StoreFailed):
        ranges.sweep()
    store.children = children
    while ranges.sweep():
        pass
    assert len(store.children("inputs", id)) == 2 and store.children("meta", "dead") == []


@pytest.mark.slow
def test_what_is_dead_goes_as_fast_as_more_of_it_comes():
    """Each mark leaves more dead than a sweep deletes, and nobody sweeps."""
    store = MemoryStore()
    engine = direct(store, models=NUMBERS)
    id = made(engine, options=Options(1e6, every=3 * SLICE, keep=1, log=True))
    for number in range(12 * SLICE):
        step(engine, id, [float(number % 3)])
    assert len(store.children("inputs", id)) <= 4 * SLICE


class Machine(RuleBasedStateMachine):
    """Against a dict: version, position and inputs of each session; its state is what an offline scan of them gives."""

    def __init__(self):
        super().__init__()
        past.SLICE = 2  # or no log would be long
        self.clock, self.keys = Clock(), count()
        self.engine = direct(clock=self.clock, models=NUMBERS)
        self.known = {}
        for model in NUMBERS:
            self.create_one(0, False, model)
        self.create_one(50, True, "gru")

    @rule(every=st.sampled_from([0, 1, 2, 3, 50]), log=st.booleans(), model=st.sampled_from(["gru", "other"]))
    def create(self, every, log, model):
        self.create_one(every, log, model)

    def create_one(self, every, log, model):
        options = Options(1e6, every=every, keep=99 if every else 0, log=log and every > 0)
        about = dict(version=0, x=[], every=every, log=options.log, marks=[0], model=model)
        self.known[made(self.engine, model, options)] = about

    @precondition(lambda self: self.known)
    @rule(data=st.data(), x=st.lists(st.integers(-3, 3), min_size=1, max_size=3), stale=st.booleans())
    def step(self, data, x, stale):
        id, session = self._one(data)
        if stale:
            refused(412, lambda: step(self.engine, id, x, version=session["version"] + 1))
            return
        self._step(id, session, x)

    def _step(self, id, session, x):
        key = f"k{next(self.keys)}"
        answer = step(self.engine, id, x, version=session["version"], key=key)
        again = step(self.engine, id, x, version=session["version"], key=key)
        assert answer == again
        session["version"] += 1
        session["x"] = session["x"] + x
        assert answer["version"] == session["version"] and answer["position"] == len(session["x"])
        assert np.array_equal(np.float32(answer["outputs"]), scanned(session["x"], session["model"])[-len(x) :])
        self._mark(session)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), x=st.integers(-3, 3))
    def step_many(self, data, x):
        """All sessions, of both models, in one request; and one of them twice."""
        ids = list(self.known)
        twice = data.draw(st.sampled_from(ids))
        found = bulk(self.engine, [*ids, twice], float(x))
        for id, (version, position, output) in zip([*ids, twice], found, strict=True):
            session = self.known[id]
            session["version"] += 1
            session["x"] = [*session["x"], x]
            assert (version, position) == (session["version"], len(session["x"]))
            assert np.array_equal(output, scanned(session["x"], session["model"])[-1])
            self._mark(session)

    @precondition(lambda self: any(session["log"] for session in self.known.values()))
    @rule(data=st.data(), back=st.lists(st.integers(1, 3), min_size=2, max_size=3), x=st.integers(-3, 3))
    def wander(self, data, back, x):
        """Back and on, several times in a row; what was abandoned must not come again."""
        id = data.draw(st.sampled_from([id for id, session in self.known.items() if session["log"]]))
        session = self.known[id]
        for number, by in enumerate(back):
            position = len(session["x"]) - by
            if position >= session["marks"][0]:
                self._back(id, session, position)
            for _ in range(2):
                self._step(id, session, [x + number])

    def _mark(self, session):
        if session["every"] and len(session["x"]) - session["marks"][-1] >= session["every"]:
            session["marks"].append(len(session["x"]))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def fork(self, data):
        id, session = self._one(data)
        reply = self.engine.run(lambda r: Fork(r, WriteRequest("t", "fork"), id, None))
        marks = [len(session["x"])]
        self.known[json.loads(reply.body)["id"]] = {**session, "version": 0, "marks": marks}

    @precondition(lambda self: self.known)
    @rule(data=st.data(), back=st.integers(0, 4))
    def rollback(self, data, back):
        id, session = self._one(data)
        position = max(0, len(session["x"]) - back)
        ask = lambda: self.engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, session["version"], position))  # noqa: E731
        reachable = position in session["marks"] or (session["log"] and position >= session["marks"][0])
        if not session["every"] or not reachable:
            refused(422, ask)
            return
        self._back(id, session, position)

    def _back(self, id, session, position):
        reply = self.engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, session["version"], position))
        assert json.loads(reply.body)["position"] == position
        session["version"] += 1
        session["x"] = session["x"][:position]
        session["marks"] = [m for m in session["marks"] if m < position] + [position]

    @precondition(lambda self: len(self.known) > 1)
    @rule(data=st.data())
    def move_state(self, data):
        (id, session), (other, source) = self._one(data), self._one(data)
        if session["model"] != source["model"]:
            return
        state = self.engine.run(lambda r: GetState(r, "t", other)).body
        reply = self.engine.run(lambda r: PutState(r, WriteRequest("t", "state"), id, session["version"], state))
        assert json.loads(reply.body)["position"] == len(session["x"])
        # Its position is its own; its outputs are those of the other: follow it no further.
        del self.known[id], source
        self.engine.run(lambda r: Delete(r, "t", id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def delete(self, data):
        id, _ = self._one(data)
        self.engine.run(lambda r: Delete(r, "t", id))
        del self.known[id]
        refused(404, lambda: get(self.engine, id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def look(self, data):
        id, session = self._one(data)
        found = get(self.engine, id)
        assert (found["version"], found["position"]) == (session["version"], len(session["x"]))
        if session["every"]:
            assert found["checkpoints"] == session["marks"]

    def _one(self, data):
        id = data.draw(st.sampled_from(list(self.known)))
        return id, self.known[id]

    @rule()
    def sweep(self):
        """Some of what is no longer part of a past is deleted."""
        self.clock.now += 10
        self.engine.engine.tick()

    def teardown(self):
        past.SLICE = SLICE
        assert self.engine.engine.sessions.counts.get("t", 0) == len(self.known)
        assert not self.engine.engine.queues and self.engine.engine.waiting == 0


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_sessions_that_were_created_leave_memory_too(monkeypatch):
    """ "Idle sessions are dropped from memory": only when another is read from the store, which never happens while all
    of them are in memory."""
    monkeypatch.setattr("elman.serve.store.sessions.CACHED", 4)
    engine = direct()
    for _ in range(200):
        made(engine)
    assert len(engine.engine.sessions.cache) <= 4 + 64


def test_all_that_has_expired_goes_soon():
    """However much it is: a sweep that was full goes on with the next tick."""
    clock = Clock()
    engine = direct(clock=clock)
    for _ in range(2_500):
        made(engine, options=Options(1.0))
    clock.now += 10
    for _ in range(10):
        engine.engine.tick()
    assert engine.engine.sessions.counts.get("t", 0) == 0
