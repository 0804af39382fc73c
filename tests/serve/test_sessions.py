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

from elman.serve.bodies import Item
from elman.serve.direct import Direct
from elman.serve.errors import Refused
from elman.serve.jobs import (
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
from elman.serve.limits import Limits
from elman.serve.sessions import Sessions
from elman.serve.sqlite import SqliteStore
from elman.serve.steps import Step, submit_steps
from elman.serve.store import MemoryStore, StoreFull
from elman.serve.text_jobs import Complete
from elman.tasks.number_serving import Numbers
from elman.tasks.serving import Writing
from elman.tasks.text_serving import ServedText


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
    with pytest.raises(Refused) as found:
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
    assert engine.engine.sessions.strangers() == ["gru"]
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
    engine.engine.sessions.computed = "another"
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
    engine = direct(limits=Limits(line=2))
    id, found = made(engine, "book"), []
    generate = Generate(found.append, Asked("t", "generate"), id, "any", "Hi", Writing(max_new_tokens=4), None)
    engine.engine.submit(generate)
    for _ in range(4):
        engine.engine.submit(Generate(found.append, Asked("t", "g"), id, "any", "", Writing(max_new_tokens=1), None))
    for _ in range(30):
        engine.engine.tick()
    statuses = [one.status for one in found]
    assert sorted(statuses) == [200, 200, 200, 409, 409]
    assert get(engine, id)["version"] == 3 and not engine.engine.lines and engine.engine.waiting == 0


def test_a_generation_that_is_cancelled_commits_nothing():
    engine = direct()
    id, found = made(engine, "book"), []
    job = Generate(found.append, Asked("t", "generate"), id, 0, "Hi", Writing(max_new_tokens=50), None)
    engine.engine.submit(job)
    for _ in range(5):
        engine.engine.tick()
    job.cancelled = True
    engine.engine.tick()
    assert get(engine, id)["version"] == 0 and found[0].status == 409 and not engine.engine.lines
    text = json.loads(
        engine.ask(lambda r: Generate(r, Asked("t", "generate"), id, 0, "Hi", Writing(max_new_tokens=50), None)).body
    )["text"]
    assert text == language_model().generate("Hi", seed=0, max_new_tokens=50)


def test_the_queue_has_an_end():
    engine = direct(limits=Limits(queue=2)).engine
    for _ in range(2):
        engine.submit(Get(lambda value: None, "t", "none"))
    with pytest.raises(Refused) as found:
        engine.submit(Get(lambda value: None, "t", "none"))
    assert found.value.status == 429 and "retry-after-ms" in found.value.headers
    engine.tick()
    engine.submit(Get(lambda value: None, "t", "none"))


def test_tenants_take_turns(monkeypatch):
    monkeypatch.setattr("elman.serve.crowd.BATCH", 2)
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


def bulk(engine, ids, x):
    """A step of each of some sessions in one request: versions, positions and outputs."""
    answers = {}
    submit_steps(
        engine.engine, "t", [Item(id, "any", input=[x]) for id in ids],
        lambda places, found: answers.update(zip(places, found, strict=True)),
    )  # fmt: skip
    while engine.engine.waiting:
        engine.engine.tick()
    found = [json.loads(answers[place]) for place in range(len(ids))]
    assert [one["status"] for one in found] == [200] * len(ids), found
    return [(one["body"]["version"], one["body"]["position"], np.float32(one["body"]["output"])) for one in found]


class Machine(RuleBasedStateMachine):
    """Against a dict: version, position and inputs of each session; its state is what an offline scan of them gives."""

    def __init__(self):
        super().__init__()
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

    def teardown(self):
        assert self.engine.engine.sessions.counts.get("t", 0) == len(self.known)
        assert not self.engine.engine.lines and self.engine.engine.waiting == 0


CORES = {"gru": core(), "other": core(seed=1)}
MODELS = {name: Numbers.of_core(one) for name, one in CORES.items()}


def scanned(x, model="gru"):
    with torch.no_grad():
        return CORES[model].scan(torch.tensor(x, dtype=torch.float32)[None, :, None])[0][0].numpy()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
