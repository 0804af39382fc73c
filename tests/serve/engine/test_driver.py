"""What takes long runs in a thread, and the event loop goes on. That the same comes out, test_cross_talk.py says."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
from direct import direct
from running import core, running, served_models
from websockets.sync.client import connect

from elman.serve.engine.crowd import Crowd
from elman.serve.engine.driver import Driver
from elman.serve.engine.engine import Engine
from elman.serve.engine.jobs import Create, Options, WriteRequest
from elman.serve.engine.steps import Step
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import StoreFull


@pytest.fixture
def slow(monkeypatch):
    """A server whose models compute in the thread, each time for as long as the event says, and those who computed."""
    monkeypatch.setattr("elman.serve.engine.driver.LONG", -1.0)
    models, go, threads = served_models(), threading.Event(), []
    together = models["gru"].together

    def waits(x, states):
        threads.append(threading.current_thread().name)
        assert go.wait(10)
        return together(x, states)

    models["gru"].together = waits
    with running(models) as server:
        yield server, go, threads


def test_the_loop_goes_on_while_a_model_takes_long(slow):
    server, go, threads = slow
    first, second = server.session(), server.session()

    def ask(id):
        body = {"version": "any", "input": [1.0]}
        return httpx.post(f"{server.url}/v1/sessions/{id}/step", json=body, timeout=20).json()

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, first)]
        while not threads:
            time.sleep(0.005)
        asked.append(pool.submit(ask, second))  # comes while the other is computed
        assert server.client.get("/healthz", timeout=2).status_code == 200
        assert not asked[0].done()
        go.set()
        with torch.no_grad():
            wanted = core().scan(torch.ones(1, 1, 1))[0][0, 0].numpy()
        assert all(np.array_equal(np.float32(one.result()["output"]), wanted) for one in asked)
    assert all(name.startswith("engine") for name in threads)


def test_a_step_that_is_under_way_on_a_socket_is_answered_before_the_server_stops(slow):
    server, go, threads = slow
    id = server.session()
    with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
        ws.recv()
        ws.send(json.dumps({"id": 1, "step": {"session": id, "version": 0, "input": [1.0]}}))
        while not threads:
            time.sleep(0.005)
        server.server.handle_exit(15, None)
        time.sleep(0.3)  # longer than uvicorn takes to see it
        go.set()
        assert json.loads(ws.recv(timeout=5))["body"]["version"] == 1
        assert json.loads(ws.recv(timeout=5))["sessions"] == {id: {"version": 1, "position": 1}}
        with pytest.raises(Exception, match="1012"):
            ws.recv(timeout=5)


@pytest.mark.parametrize("full", [False, True])
def test_what_comes_during_a_commit_waits_for_it_and_the_loop_goes_on(tmp_path, full):
    store, go, threads = SqliteStore(tmp_path / "s.db"), threading.Event(), []
    with running(served_models(), store=store) as server:
        id, commit = server.session(), store.commit

        def waits(sync):
            threads.append(threading.current_thread().name)
            assert go.wait(10)
            if full and len(threads) == 1:
                raise StoreFull("no room")
            commit(sync)

        store.commit, store.waits = waits, lambda sync: True

        def ask():
            return httpx.get(f"{server.url}/v1/sessions/{id}", timeout=20).json()["version"]

        with ThreadPoolExecutor(2) as pool:
            stepping = pool.submit(server.step, id, [[1.0]])
            while not threads:
                time.sleep(0.005)
            asking = pool.submit(ask)
            assert httpx.get(f"{server.url}/healthz", timeout=2).status_code == 200
            assert not stepping.done() and not asking.done()
            go.set()
            assert stepping.result().status_code == (507 if full else 200)
            assert asking.result() == (0 if full else 1)  # what was not committed was not seen
        del store.commit, store.waits
    assert all(name.startswith("engine") for name in threads)


def test_ticks_are_as_long_as_they_may_be():
    crowd = Crowd(100)
    assert crowd.room == 1_024
    crowd.admit("a")
    crowd.admit("b")
    crowd.update()
    assert crowd.several and crowd.room == 64
    for _ in range(30):
        crowd.took(1.0, 64)
    assert crowd.room == crowd.rows == 16  # one alone costs a model as much
    for _ in range(60):
        crowd.took(1e-5, crowd.room)
    assert crowd.room == 1_024 and crowd.rows == 64


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
            engine.submit(Step(future.set_result, WriteRequest(tenant, "s"), id, "any", [[1.0]], True))
            return await future

        ids = []
        for tenant in ["heavy"] * 400 + ["light"]:
            future = loop.create_future()
            engine.submit(Create(future.set_result, WriteRequest(tenant, "c"), "gru", Options(1e6), 0, None))
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
