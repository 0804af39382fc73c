"""Tenants beside each other: whose turn it is, whose queue is full, what each may keep; and none learns of another."""

import asyncio
import json
import time

import httpx
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from running import running, served_models
from test_sessions import Clock, direct, fails, get, made, refused, step

from elman.serve.api.bodies import Item
from elman.serve.api.responses import KEPT
from elman.serve.engine.crowd import Crowd
from elman.serve.engine.driver import Driver
from elman.serve.engine.engine import Engine
from elman.serve.engine.jobs import Asked, Create, Delete, Generate, Get, HealthProbe, Options
from elman.serve.engine.steps import Step, submit_steps
from elman.serve.engine.text_jobs import DeleteResponse, Respond
from elman.serve.engine.turns import Turns
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.serve.store.records import Answered, Records, Response, Session
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore
from elman.tasks.serving import Writing

# Turns


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=60))
@settings(max_examples=200, deadline=None)
def test_whoever_has_had_least_comes_next_and_in_a_line_the_first(things):
    """Against sums: while two tenants both have something, neither is ahead of the other by more than one thing."""
    turns, left, had, largest = Turns(), {}, {}, max(cost for _, cost in things)
    for number, (tenant, cost) in enumerate(things):
        turns.add(tenant, (tenant, cost, number))
        left.setdefault(tenant, []).append(number)
        had[tenant] = 0
    together = set(left)
    while turns:
        tenant, cost, number = turns.next()
        turns.charge(tenant, float(cost))
        assert left[tenant].pop(0) == number
        had[tenant] += cost
        together -= {name for name in together if not left[name]}
        waiting = [had[name] for name in together]
        assert not waiting or max(waiting) - min(waiting) <= largest
    assert not any(left.values())


def test_who_comes_after_a_pause_has_saved_nothing_up():
    turns = Turns()
    for number in range(100):
        turns.add("long", number)
        turns.next()
        turns.charge("long", 1.0)
    for _ in range(6):
        turns.add("new", "new")
        turns.add("long", "long")
    found = []
    while turns:
        found.append(turns.next())
        turns.charge(found[-1], 1.0)
    assert abs(found[:6].count("new") - 3) <= 1


def test_a_light_tenant_is_answered_in_the_next_tick_whatever_a_heavy_one_has_sent():
    engine = direct()
    heavy, light = [made(engine, tenant="heavy") for _ in range(600)], made(engine, tenant="light")
    found, sent = [], []
    engine.engine.submit(Get(lambda value: None, "light", light))
    engine.engine.tick()
    items = [item(id) for id in heavy]
    for _ in range(4):  # 2,400 rows, one behind the other in the sessions' lines
        submit_steps(engine.engine, "heavy", items, lambda places, answers: found.extend(answers))
    engine.engine.tick()
    engine.engine.submit(Step(sent.append, Asked("light", "s"), light, 0, [[1.0]], True))
    engine.engine.tick()
    assert [one.status for one in sent] == [200] and len(found) < 600
    while engine.engine.waiting:
        engine.engine.tick()
    assert len(found) == 2_400 and all(one.startswith(b'{"status":200') for one in found)
    assert get(engine, heavy[0], tenant="heavy")["version"] == 4


def item(id, **more):
    return Item(id, "any", **{"input": [1.0], **more})


def test_a_request_for_many_is_cut_while_others_are_there_and_only_then():
    engine = direct()
    ids, jobs = [made(engine) for _ in range(200)], []
    submit = engine.engine.submit

    def submitted(job):
        jobs.append(len(job.items))
        submit(job)

    engine.engine.submit = submitted
    submit_steps(engine.engine, "t", [item(id) for id in ids], lambda places, answers: None)
    engine.engine.tick()
    assert jobs == [200]
    engine.engine.crowd.admit("other")
    engine.engine.tick()
    submit_steps(engine.engine, "t", [item(id) for id in ids], lambda places, answers: None)
    assert jobs[1:] == [64, 64, 64, 8]


def test_ticks_are_as_long_as_they_may_be():
    crowd = Crowd(100)
    assert crowd.room == 1_024
    crowd.admit("a")
    crowd.admit("b")
    crowd.look()
    assert crowd.several and crowd.room == 64
    for _ in range(30):
        crowd.took(1.0, 64)
    assert crowd.room == crowd.rows == 16  # one alone costs a model as much
    for _ in range(60):
        crowd.took(1e-5, crowd.room)
    assert crowd.room == 1_024 and crowd.rows == 64


# Queues


def test_one_tenant_fills_its_own_queue_and_others_go_on():
    engine = direct(limits=Limits(queue=8)).engine
    answered = []

    def ask(tenant):
        engine.submit(Get(lambda value: answered.append(tenant), tenant, "none"))

    ask("light")
    for _ in range(4):
        ask("heavy")
    with pytest.raises(HttpError) as found:
        ask("heavy")
    assert found.value.status == 429 and "retry-after-ms" in found.value.headers
    for _ in range(3):
        ask("light")
    ask("third")
    engine.submit(HealthProbe(lambda value: answered.append(value.status)))
    assert set(engine.crowd.waiting) == {"light", "heavy", "third"}  # the probe is nobody's
    for _ in range(4):
        engine.tick()
    assert sorted(map(str, answered)) == ["200", *["heavy"] * 4, *["light"] * 4, "third"]
    for _ in range(8):  # alone it may have all of it
        ask("heavy")


def test_readyz_says_yes_while_a_tenant_has_filled_its_queue():
    with running(served_models(), limits=Limits(queue=1)) as server:
        id = server.session("book")
        body = {"version": 0, "max_new_tokens": 16_000, "stream": True}
        with server.client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
            lines = answer.iter_lines()  # which must live, or the client goes away
            next(lines)
            deadline = time.monotonic() + 5
            while server.service.engine.waiting < 1:
                assert time.monotonic() < deadline
            assert httpx.get(f"{server.url}/v1/sessions/{id}").status_code == 429
            assert httpx.get(f"{server.url}/readyz", timeout=5).status_code == 200


# Another's session


def test_another_tenant_cannot_stand_in_a_sessions_line_nor_learn_that_there_is_one():
    engine = direct(limits=Limits(session_queue=2))
    id, found = made(engine, "book"), []
    writing = Writing(max_new_tokens=20)
    engine.engine.submit(Generate(found.append, Asked("t", "g"), id, 0, "Hi", writing, None))
    engine.engine.tick()
    strange = []
    for _ in range(5):
        engine.engine.submit(Step(strange.append, Asked("other", "s"), id, "any", "x", True))
        engine.engine.submit(Delete(strange.append, "other", id))
        submit_steps(engine.engine, "other", [item(id)], lambda places, answers: strange.extend(answers))
        engine.engine.tick()
    statuses = [json.loads(one)["status"] if isinstance(one, bytes) else one.status for one in strange]
    assert statuses == [404] * 15
    assert len(engine.engine.queues[id]) == 1
    none = refused(404, lambda: step(engine, "sess_none", [1.0], tenant="other"))
    same = next(one for one in strange if isinstance(one, HttpError))
    assert same.message.replace(id, "sess_none") == none.message and same.code == none.code
    while engine.engine.waiting:
        engine.engine.tick()
    assert found[0].status == 200


# What is kept, in bytes


def respond(engine, key="", store=True, metadata="", tenant="t"):
    asked = Asked(tenant, "responses", key, b"d")
    body = lambda id, found: json.dumps({"id": id, "metadata": metadata}).encode()  # noqa: E731
    reply = engine.ask(
        lambda r: Respond(
            r, asked, "book", "Hi", Writing(max_new_tokens=1), 0, "", KEPT if store else 0.0, False, body, None
        )
    )
    return json.loads(reply.body)["id"]


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
    asked = Asked("t", "create", "c", b"d")
    engine.ask(lambda r: Create(r, asked, "gru", Options(1e6), 0, None))
    id = made(engine, options=Options(1e6))
    step(engine, id, [1.0] * 50, key="a")
    check(2_000)
    step(engine, id, [1.0], key="b")  # its reply is shorter than the one before
    check(1_600)
    commit, store.commit = store.commit, fails
    for call in (
        lambda: respond(engine, metadata="m" * 9_999),
        lambda: step(engine, id, [2.0] * 50, key="c"),
        lambda: engine.ask(lambda r: DeleteResponse(r, "t", first)),
    ):
        refused(507, call)
    store.commit = commit
    check(1_600)
    if kind == "sqlite":
        store.close()
        store = SqliteStore(tmp_path / "s.db")
        engine = direct(store, clock=clock)
    check(1_600)
    engine.ask(lambda r: DeleteResponse(r, "t", first))
    check(700)
    engine.ask(lambda r: Delete(r, "t", id))
    check(600)
    respond(engine)
    clock.now += KEPT + 1
    for _ in range(3):
        engine.engine.tick()
        clock.now += 6
    assert counted(engine) == kept(store) == 0 and engine.engine.sessions.counts == {"t": 0}
    store.close()


def test_past_its_bytes_a_tenant_is_refused_and_nothing_is_changed():
    engine = direct(limits=Limits(kept_bytes=3_000))
    first = respond(engine, metadata="m" * 2_000)
    assert refused(429, lambda: respond(engine, metadata="m" * 2_000)).code == "too_many_bytes"
    assert refused(429, lambda: respond(engine, key="k", store=False, metadata="m" * 2_000)).code == "too_many_bytes"
    assert engine.engine.sessions.counts == {"t": 1}
    id = made(engine)
    assert refused(429, lambda: step(engine, id, [1.0] * 60, key="k")).code == "too_many_bytes"
    assert get(engine, id)["version"] == 0 and step(engine, id, [1.0] * 60)["version"] == 1
    respond(engine, metadata="m" * 2_000, tenant="other")
    engine.ask(lambda r: DeleteResponse(r, "t", first))
    respond(engine, metadata="m" * 2_000)


def test_a_response_that_has_expired_is_counted_no_more():
    clock = Clock()
    engine = direct(clock=clock)
    respond(engine)
    assert engine.engine.sessions.counts == {"t": 1}
    clock.now += KEPT + 1
    engine.engine.tick()
    assert engine.engine.sessions.counts == {"t": 0} and not engine.engine.sessions.store.counts("responses")


def test_between_two_ticks_replies_leave_and_requests_come_in():
    """A light tenant's request takes some rounds of the loop until it is submitted; they are not ticks of another's."""

    async def run():
        sessions = direct().engine.sessions
        engine = Engine(sessions)
        driver = Driver(engine)
        engine.crowd.look = lambda: setattr(engine.crowd, "several", True)
        engine.crowd.took = lambda seconds, works: None
        driver.start()
        loop, light = asyncio.get_running_loop(), []

        async def ask(tenant, id):
            future = loop.create_future()
            engine.submit(Step(future.set_result, Asked(tenant, "s"), id, "any", [[1.0]], True))
            return await future

        ids = []
        for tenant in ["heavy"] * 400 + ["light"]:
            future = loop.create_future()
            engine.submit(Create(future.set_result, Asked(tenant, "c"), "gru", Options(1e6), 0, None))
            ids.append(json.loads((await future).body)["id"])
        heavy = [asyncio.create_task(ask("heavy", id)) for id in ids[:400] for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(5):
            before = engine.ticks
            await asyncio.sleep(0)  # it is read
            await asyncio.sleep(0)  # and parsed
            assert (await ask("light", ids[400])).status == 200
            light.append(engine.ticks - before)
        await asyncio.gather(*heavy)
        assert await driver.stop(5)
        return light, engine.ticks

    light, ticks = asyncio.run(run())
    assert ticks > 400 + 1_200 / 64 and max(light) <= 2, light
