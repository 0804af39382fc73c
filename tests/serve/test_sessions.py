"""Sessions over both stores without HTTP: expiry, restarts, limits, failures; and against a model that is a dict."""

import json
from itertools import count

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from running import core, language_model

from elman.serve.api.bodies import Item
from elman.serve.engine.direct import Direct
from elman.serve.engine.jobs import (
    Asked,
    Create,
    Delete,
    Fork,
    Generate,
    Get,
    GetState,
    Options,
    PutState,
    Rollback,
)  # fmt: skip
from elman.serve.engine.steps import Step, submit_steps
from elman.serve.engine.text_jobs import Complete, Respond
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.serve.store import past
from elman.serve.store.past import SLICE
from elman.serve.store.sessions import Sessions
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore, StoreFailed, StoreFull
from elman.tasks.number_serving import Numbers
from elman.tasks.serving import Writing
from elman.tasks.text.serving import ServedText


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


def direct(store=None, limits=None, clock=None, models=None):
    models = models or {"gru": Numbers.of_core(core()), "book": ServedText(language_model())}
    return Direct(Sessions(store or MemoryStore(), models, limits or Limits(), clock or Clock()))


def made(engine, model="gru", options=None, tenant="t", seed=0):
    asked = Asked(tenant, "create")
    reply = engine.ask(lambda r: Create(r, asked, model, options or Options(3600.0), seed, None))
    return json.loads(reply.body)["id"]


def step(engine, id, x, version="any", tenant="t", key=""):
    asked = Asked(tenant, "step", key, repr(x).encode())
    return json.loads(engine.ask(lambda r: Step(r, asked, id, version, [[v] for v in x], False)).body)


def get(engine, id, tenant="t"):
    return json.loads(engine.ask(lambda r: Get(r, tenant, id)).body)


def refused(status, call):
    with pytest.raises(HttpError) as found:
        call()
    assert found.value.status == status, found.value.message
    return found.value


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
        lambda: engine.ask(lambda r: GetState(r, "other", id)),
        lambda: engine.ask(lambda r: Delete(r, "other", id)),
        lambda: engine.ask(lambda r: Fork(r, Asked("other", "fork"), id, None)),
    ):
        refused(404, call)
    assert get(engine, id)["version"] == 0


def test_sessions_and_forks_have_a_limit_and_deleting_makes_room():
    engine = direct(limits=Limits(sessions=3, forks=2))
    first, _ = made(engine), made(engine)
    fork = lambda: engine.ask(lambda r: Fork(r, Asked("t", "fork"), first, None))  # noqa: E731
    fork()
    refused(429, lambda: made(engine))
    refused(429, fork)
    made(engine, tenant="other")
    engine.ask(lambda r: Delete(r, "t", first))
    made(engine)
    engine = direct(limits=Limits(forks=2))
    first = made(engine)
    fork()
    fork()
    assert refused(429, fork).code == "too_many_forks"


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
    back = engine.ask(lambda r: Rollback(r, Asked("t", "rollback"), id, 3, 3))
    assert json.loads(back.body)["inexact"] is False


def test_a_model_that_is_not_loaded_or_has_other_weights(tmp_path):
    engine = direct(SqliteStore(tmp_path / "s.db"))
    id = made(engine)
    engine.engine.sessions.store.close()
    engine = direct(SqliteStore(tmp_path / "s.db"), models={"gru": Numbers.of_core(core(seed=1))})
    assert engine.engine.sessions.orphans() == ["gru"]
    assert refused(422, lambda: step(engine, id, [1.0])).code == "model_mismatch"
    assert get(engine, id)["version"] == 0
    engine.engine.sessions.store.close()
    engine = direct(SqliteStore(tmp_path / "s.db"), models={"other": Numbers.of_core(core())})
    assert refused(422, lambda: step(engine, id, [1.0])).code == "model_mismatch"
    engine.engine.sessions.store.close()


def test_replays_by_other_kernels_say_so():
    engine = direct()
    id = made(engine, options=Options(3600.0, every=4, keep=3, log=True))
    step(engine, id, [1.0, 2.0])
    engine.engine.sessions.past.computed = "another"
    back = engine.ask(lambda r: Rollback(r, Asked("t", "rollback"), id, 1, 1))
    assert json.loads(back.body)["inexact"] is True


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


def fails(sync):
    raise StoreFull("full")


def test_writes_of_a_session_wait_in_line_and_the_line_has_an_end():
    engine = direct(limits=Limits(session_queue=2))
    id, found = made(engine, "book"), []
    generate = Generate(found.append, Asked("t", "generate"), id, "any", "Hi", Writing(max_new_tokens=4), None)
    engine.engine.submit(generate)
    for _ in range(4):
        engine.engine.submit(Generate(found.append, Asked("t", "g"), id, "any", "", Writing(max_new_tokens=1), None))
    for _ in range(30):
        engine.engine.tick()
    statuses = [one.status for one in found]
    assert sorted(statuses) == [200, 200, 200, 409, 409]
    assert get(engine, id)["version"] == 3 and not engine.engine.queues and engine.engine.waiting == 0


def test_a_generation_that_is_cancelled_commits_nothing():
    engine = direct()
    id, found = made(engine, "book"), []
    job = Generate(found.append, Asked("t", "generate"), id, 0, "Hi", Writing(max_new_tokens=50), None)
    engine.engine.submit(job)
    for _ in range(5):
        engine.engine.tick()
    job.cancelled = True
    engine.engine.tick()
    assert get(engine, id)["version"] == 0 and found[0].status == 409 and not engine.engine.queues
    text = json.loads(
        engine.ask(lambda r: Generate(r, Asked("t", "generate"), id, 0, "Hi", Writing(max_new_tokens=50), None)).body
    )["text"]
    assert text == language_model().generate("Hi", seed=0, max_new_tokens=50)


def test_the_queue_has_an_end():
    engine = direct(limits=Limits(queue=2)).engine
    for _ in range(2):
        engine.submit(Get(lambda value: None, "t", "none"))
    with pytest.raises(HttpError) as found:
        engine.submit(Get(lambda value: None, "t", "none"))
    assert found.value.status == 429 and "retry-after-ms" in found.value.headers
    engine.tick()
    engine.submit(Get(lambda value: None, "t", "none"))


def test_tenants_take_turns(monkeypatch):
    monkeypatch.setattr("elman.serve.engine.crowd.BATCH", 2)
    engine = direct().engine
    order = []

    def ask(tenant):
        job = Complete(lambda v: order.append(tenant), tenant, "gru", [], Writing(), 1, 0, None, None)
        job.start = lambda e: go(e, job)
        engine.submit(job)

    def go(e, job):
        work = e.sessions.models["gru"].reading([[1.0]])
        work.begin(e.sessions.models["gru"].start(0))
        e.go(job, e.sessions.models["gru"], work, lambda w: e.finish(job, None))

    for _ in range(6):
        ask("many")
    ask("one")
    engine.tick()
    assert sorted(order) == ["many", "one"]


def test_steps_of_two_models_in_one_request_are_each_read_by_their_own():
    engine = direct(models=MODELS)
    ids = [made(engine, model) for model in ("gru", "other", "gru", "other")]
    first = bulk(engine, ids, 1.0)
    assert [one[:2] for one in first] == [(1, 1)] * 4
    for id, model, (_, _, output) in zip(ids, ("gru", "other", "gru", "other"), first, strict=True):
        assert np.array_equal(output, scanned([1.0], model)[0])
        outputs = step(engine, id, [2.0])["outputs"]
        assert np.array_equal(np.float32(outputs[0]), scanned([1.0, 2.0], model)[1])


def test_a_second_rollback_knows_nothing_of_what_the_first_has_abandoned():
    engine = direct(models=MODELS)
    id = made(engine, options=Options(3600.0, every=99, keep=9, log=True))

    def back(position):
        reply = engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, "any", position))
        assert json.loads(reply.body)["position"] == position

    for x in (1.0, 2.0, 3.0):
        step(engine, id, [x])
    back(2)  # away with 3
    step(engine, id, [-1.0])
    step(engine, id, [-2.0])
    back(3)
    assert np.array_equal(np.float32(step(engine, id, [5.0])["outputs"][0]), scanned([1.0, 2.0, -1.0, 5.0])[3])
    back(1)
    back(0)
    assert np.array_equal(np.float32(step(engine, id, [7.0])["outputs"][0]), scanned([7.0])[0])


def test_a_tenant_with_more_than_a_lowered_limit_may_delete():
    store, clock = MemoryStore(), Clock()
    engine = direct(store, clock=clock, models=MODELS)
    first, *others = (made(engine, options=Options(ttl)) for ttl in (1e6, 1e6, 50.0, 1e6))
    engine = direct(store, clock=clock, models=MODELS, limits=Limits(sessions=1))
    engine.ask(lambda r: Delete(r, "t", first))
    clock.now += 100
    engine.engine.tick()
    assert engine.engine.sessions.counts == {"t": 2} and len(others) == 3
    refused(429, lambda: made(engine))


def test_a_write_that_is_refused_at_its_end_has_changed_nothing():
    """There is no room for the reply to its key: that is known when all else is done."""
    engine = direct(models=MODELS, limits=Limits(kept_bytes=10))
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
    engine = direct(store, models=MODELS)
    id, other = made(engine), made(engine)
    step(engine, other, [9.0])
    state = engine.ask(lambda r: GetState(r, "t", other)).body
    replies = []
    inner, commit, store.commit = engine.engine, store.commit, fails
    inner.submit(PutState(replies.append, Asked("t", "state"), id, "any", state))
    inner.take()
    inner.submit(Step(replies.append, Asked("t", "step"), id, "any", [[1.0]], False))
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
    engine = direct(store, models=MODELS)
    id = made(engine, options=Options(1e6, every=10_000, keep=2, log=True))
    for number in range(3 * SLICE):
        step(engine, id, [float(number % 3)])
    engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, "any", 2))
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


def test_what_is_dead_goes_as_fast_as_more_of_it_comes():
    """Each mark leaves more dead than a sweep deletes, and nobody sweeps."""
    store = MemoryStore()
    engine = direct(store, models=MODELS)
    id = made(engine, options=Options(1e6, every=3 * SLICE, keep=1, log=True))
    for number in range(12 * SLICE):
        step(engine, id, [float(number % 3)])
    assert len(store.children("inputs", id)) <= 4 * SLICE


def test_a_key_of_a_fork_stands_for_the_session_that_is_forked():
    engine = direct(models=MODELS)
    a, b = made(engine), made(engine)

    def fork(id):
        return json.loads(engine.ask(lambda r: Fork(r, Asked("t", "fork", "k", b"same"), id, None)).body)

    first, second = fork(a), fork(b)
    assert (first["parent"], second["parent"]) == (a, b) and fork(a) == first and fork(b) == second


def test_a_fork_is_as_durable_as_its_parent():
    engine = direct(models=MODELS)
    for power in (True, False):
        id = made(engine, options=Options(3600.0, power=power))
        fork = json.loads(engine.ask(lambda r, id=id: Fork(r, Asked("t", "fork"), id, None)).body)
        assert fork["durability"] == get(engine, id)["durability"] == ("power" if power else "none")


def test_a_response_goes_on_with_the_weights_that_made_it_and_no_others(tmp_path):
    def respond(engine, previous=""):
        asked, settings = Asked("t", "responses"), Writing(max_new_tokens=3)
        body = lambda id, completed: json.dumps({"id": id}).encode()  # noqa: E731
        job = lambda r: Respond(r, asked, "book", "Hi", settings, 0, previous, 3600.0, False, body, None)  # noqa: E731
        return json.loads(engine.ask(job).body)["id"]

    store = MemoryStore()
    first = respond(direct(store, models={"book": ServedText(language_model())}))
    assert respond(direct(store, models={"book": ServedText(language_model())}), first) != first
    other = direct(store, models={"book": ServedText(language_model(seed=1))})
    assert refused(422, lambda: respond(other, first)).code == "model_mismatch"


def test_a_state_that_is_put_has_no_past():
    engine = direct(models=MODELS)
    id = made(engine, options=Options(3600.0, every=2, keep=9, log=True))
    for x in range(5):
        step(engine, id, [float(x)])
    state = engine.ask(lambda r: GetState(r, "t", id)).body
    engine.ask(lambda r: PutState(r, Asked("t", "state"), id, "any", state))
    assert get(engine, id)["checkpoints"] == [5]
    for position in (0, 3, 4):
        rollback = lambda r, position=position: Rollback(r, Asked("t", "rb"), id, "any", position)  # noqa: E731
        assert refused(422, lambda rollback=rollback: engine.ask(rollback)).code == "no_checkpoint"
    step(engine, id, [7.0])
    engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, "any", 5))
    assert np.array_equal(np.float32(step(engine, id, [8.0])["outputs"][0]), scanned([0.0, 1, 2, 3, 4, 8])[5])


@pytest.mark.parametrize("position", [8, 9, 10, 11, 12, 13, 14, 15])
def test_a_log_that_was_cut_in_front_still_leads_to_every_position(position):
    """Writes of several inputs, so that positions and versions differ; of seven checkpoints three are kept."""
    engine = direct(models=MODELS)
    id = made(engine, options=Options(3600.0, every=2, keep=3, log=True))
    x = [float(number % 5) for number in range(17)]
    for at in (0, 3, 6, 8, 11, 13, 15):
        step(engine, id, x[at : at + (2 if at in (6, 11, 13, 15) else 3)])
    assert get(engine, id)["checkpoints"] == [13, 15, 17]
    ask = lambda: engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, "any", position))  # noqa: E731
    if position < 13:
        assert refused(422, ask).code == "no_checkpoint"
        return
    ask()
    assert np.array_equal(np.float32(step(engine, id, [9.0])["outputs"][0]), scanned([*x[:position], 9.0])[-1])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_long_log_is_read_and_deleted_some_rows_at_a_time(kind, tmp_path):
    opened = lambda: MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")  # noqa: E731
    clock, store = Clock(), opened()
    engine = direct(store, clock=clock, models=MODELS)
    id = made(engine, options=Options(1e6, every=10_000, keep=9, log=True))
    x = [float(number % 7 - 3) for number in range(6 * SLICE)]
    for one in x:
        step(engine, id, [one])

    def back(position):
        found = []
        engine.engine.submit(Rollback(found.append, Asked("t", "rb"), id, "any", position))
        ticks = 0
        while not found:
            engine.engine.tick()
            ticks += 1
        assert json.loads(found[0].body)["position"] == position
        return ticks

    def rows():
        return len(store.children("inputs", id))

    whole = back(2 * SLICE + 5)
    assert whole >= 3  # a neighbour's step is never behind more than a slice
    del x[2 * SLICE + 5 :]
    assert np.array_equal(np.float32(step(engine, id, [5.0])["outputs"][0]), scanned([*x, 5.0])[-1])
    back(5)  # of what is abandoned most is still in the store
    del x[5:]
    assert rows() > SLICE
    for one in (4.0, -4.0):
        x.append(one)
        assert np.array_equal(np.float32(step(engine, id, [one])["outputs"][0]), scanned(x)[-1])
    if kind == "sqlite":
        store.close()
        store = opened()
        engine = direct(store, clock=clock, models=MODELS)
    back(6)  # the checkpoint at 5 is behind what is dead, that at 0 before it
    assert np.array_equal(np.float32(step(engine, id, [1.0])["outputs"][0]), scanned([*x[:6], 1.0])[-1])
    back(4)
    assert np.array_equal(np.float32(step(engine, id, [2.0])["outputs"][0]), scanned([*x[:4], 2.0])[-1])
    clock.now += 10
    before, slices = rows(), 0
    while rows() > 5:
        engine.engine.tick()
        assert before - rows() <= SLICE
        before, slices = rows(), slices + 1
    assert slices >= 2 and rows() == 5
    engine.engine.tick()
    assert store.children("meta", "dead") == []
    back(3)
    assert np.array_equal(np.float32(step(engine, id, [2.0])["outputs"][0]), scanned([*x[:3], 2.0])[-1])


def test_of_a_session_that_is_deleted_the_log_goes_too():
    clock, store = Clock(), MemoryStore()
    engine = direct(store, clock=clock, models=MODELS)
    id = made(engine, options=Options(1e6, every=10_000, keep=2, log=True))
    for _ in range(2 * SLICE + 3):
        step(engine, id, [1.0])
    engine.ask(lambda r: Delete(r, "t", id))
    clock.now += 10
    while not engine.engine.idle or store.children("inputs", id):
        engine.engine.tick()
    assert store.counts("inputs") == {} == store.counts("checkpoints") and store.children("meta", "dead") == []


def test_a_rollback_whose_commit_fails_leaves_the_log_as_it_was():
    store = MemoryStore()
    engine = direct(store, models=MODELS)
    id = made(engine, options=Options(1e6, every=10_000, keep=2, log=True))
    x = [float(number % 5) for number in range(SLICE + 9)]
    for one in x:
        step(engine, id, [one])
    commit, store.commit = store.commit, fails
    refused(507, lambda: engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, "any", 2)))
    store.commit = commit
    engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, "any", SLICE + 4))
    found = step(engine, id, [3.0])["outputs"][0]
    assert np.array_equal(np.float32(found), scanned([*x[: SLICE + 4], 3.0])[-1])


def bulk(engine, ids, x):
    """A step of each of some sessions in one request: versions, positions and outputs."""
    answers = {}
    submit_steps(
        engine.engine, "t", [Item(id, "any", input=[x]) for id in ids],
        lambda places, found: answers.update(zip(places, found, strict=True)),
    )  # fmt: skip
    while engine.engine.waiting:
        engine.engine.tick()
        assert engine.engine.crowd.waiting.get("t", 0) == engine.engine.waiting  # each is counted once
    found = [json.loads(answers[place]) for place in range(len(ids))]
    assert [one["status"] for one in found] == [200] * len(ids), found
    return [(one["body"]["version"], one["body"]["position"], np.float32(one["body"]["output"])) for one in found]


class Machine(RuleBasedStateMachine):
    """Against a dict: version, position and inputs of each session; its state is what an offline scan of them gives."""

    def __init__(self):
        super().__init__()
        past.SLICE = 2  # or no log would be long
        self.clock, self.keys = Clock(), count()
        self.engine = direct(clock=self.clock, models=MODELS)
        self.known = {}
        for model in MODELS:
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
        reply = self.engine.ask(lambda r: Fork(r, Asked("t", "fork"), id, None))
        marks = [len(session["x"])]
        self.known[json.loads(reply.body)["id"]] = {**session, "version": 0, "marks": marks}

    @precondition(lambda self: self.known)
    @rule(data=st.data(), back=st.integers(0, 4))
    def rollback(self, data, back):
        id, session = self._one(data)
        position = max(0, len(session["x"]) - back)
        ask = lambda: self.engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, session["version"], position))  # noqa: E731
        reachable = position in session["marks"] or (session["log"] and position >= session["marks"][0])
        if not session["every"] or not reachable:
            refused(422, ask)
            return
        self._back(id, session, position)

    def _back(self, id, session, position):
        reply = self.engine.ask(lambda r: Rollback(r, Asked("t", "rb"), id, session["version"], position))
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
        state = self.engine.ask(lambda r: GetState(r, "t", other)).body
        reply = self.engine.ask(lambda r: PutState(r, Asked("t", "state"), id, session["version"], state))
        assert json.loads(reply.body)["position"] == len(session["x"])
        # Its position is its own; its outputs are those of the other: follow it no further.
        del self.known[id], source
        self.engine.ask(lambda r: Delete(r, "t", id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def delete(self, data):
        id, _ = self._one(data)
        self.engine.ask(lambda r: Delete(r, "t", id))
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


CORES = {"gru": core(), "other": core(seed=1)}
MODELS = {name: Numbers.of_core(one) for name, one in CORES.items()}


def scanned(x, model="gru"):
    with torch.no_grad():
        return CORES[model].scan(torch.tensor(x, dtype=torch.float32)[None, :, None])[0][0].numpy()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
