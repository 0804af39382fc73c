"""Tenants beside each other in the engine's queue: none fills it for the others."""

import json
import time

import httpx
import pytest
from direct import direct, item, made, refused, step
from running import running, served_models

from elman.serve.engine.jobs import Delete, Generate, Get, HealthProbe, WriteRequest
from elman.serve.engine.steps import Step, submit_steps
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.tasks.serving import Writing


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
    engine.engine.submit(Generate(found.append, WriteRequest("t", "g"), id, 0, "Hi", writing, None))
    engine.engine.tick()
    strange = []
    for _ in range(5):
        engine.engine.submit(Step(strange.append, WriteRequest("other", "s"), id, "any", "x", True))
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
