"""Corners of what the server promises, each of which was wrong once."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from running import Running, language_model, running, served_models, service
from test_sessions import Clock, direct, made
from websockets.sync.client import connect

from elman.cli import main
from elman.serve.api.app import Service
from elman.serve.engine.jobs import Options
from elman.serve.limits import Limits
from elman.serve.store.sessions import Sessions
from elman.serve.store.signing import Signer
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore
from elman.tasks import open_model

MODELS = served_models()
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
MODELS_OF_IT = HEALTH.replace(b"healthz", b"v1/models")


def opened(server, wait=2.0):
    return socket.create_connection(("127.0.0.1", server.port), timeout=wait)


def test_one_key_at_the_same_time_makes_one_response():
    """ "Create, fork and responses take keys too": a retry that overtakes the first makes a second response."""
    with running(MODELS) as server:
        ready = threading.Barrier(3)

        def ask(_):
            body = {"model": "book", "input": "Hi", "max_output_tokens": 800}
            ready.wait(5)
            headers = {"idempotency-key": "k"}
            return httpx.post(f"{server.url}/v1/responses", json=body, headers=headers, timeout=20).json()["id"]

        with ThreadPoolExecutor(3) as pool:
            assert len(set(pool.map(ask, range(3)))) == 1


def test_a_generation_that_nobody_waits_for_commits_nothing():
    """ "A disconnect commits nothing": of a generation that is not streamed it is not noticed."""
    with running(MODELS) as server:
        id = server.session("book")
        with pytest.raises(httpx.TimeoutException):
            body = {"version": 0, "max_new_tokens": 16_000}
            httpx.post(f"{server.url}/v1/sessions/{id}/generate", json=body, timeout=0.2)
        deadline = time.monotonic() + 2
        while server.service.engine.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.service.engine.waiting == 0
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 0


def test_a_reply_that_is_told_again_has_the_version_that_it_had():
    """In the ETag too: whoever goes on with it must not step over a write that it has not seen."""
    with running(MODELS) as server:
        id, key = server.session(), {"idempotency-key": "k"}
        first = server.step(id, [[1.0]], version=0, headers=key)
        server.step(id, [[2.0]], version=1)
        again = server.step(id, [[1.0]], version=0, headers=key)
        assert again.content == first.content and again.headers["etag"] == first.headers["etag"]


def test_a_version_of_very_many_digits_is_refused():
    with running(MODELS) as server:
        answer = server.client.post(
            f"/v1/sessions/{server.session()}/step", json={"input": [1.0]}, headers={"if-match": "9" * 5_000}
        )
        assert answer.status_code in (400, 412)


@pytest.mark.parametrize(
    "rest",
    [b"GET /healthz HTTP/1.1\r\nhost:",
     b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"],
)  # fmt: skip
def test_the_time_to_receive_counts_for_a_request_behind_another(rest):
    """ "A deadline for receiving a request": what begins in the packet of the one before it has none."""
    with running(MODELS, limits=Limits(receive_seconds=0.3)) as server, opened(server) as connection:
        connection.sendall(HEALTH + rest)
        while connection.recv(1_000):  # until it is closed
            pass


def test_a_head_that_is_too_long_is_refused_however_it_comes():
    with running(MODELS, limits=Limits(headers=2_048)) as server:
        for size, status in ((2_048, b"200"), (2_049, b"431"), (60_000, b"431")):
            start = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
            with opened(server) as connection:
                connection.sendall(start + b"y" * (size - len(start) - 4) + b"\r\n\r\n")
                assert connection.recv(1_000).split()[1] == status, size


def test_connections_up_to_the_limit_are_served_and_the_next_is_told_in_words():
    with running(MODELS, limits=Limits(connections=4)) as server:
        server.client.close()
        found = []
        for number in range(1, 6):
            found.append(opened(server))
            found[-1].sendall(MODELS_OF_IT)
            answer = found[-1].recv(10_000)
            assert answer.split()[1] == (b"200" if number <= 4 else b"503"), number
        assert b"retry-after-ms" in answer.lower() and b'"error"' in answer
        for one in found:
            one.close()


def test_sockets_are_connections():
    with running(MODELS, limits=Limits(connections=3)) as server:
        server.client.close()
        url = server.url.replace("http", "ws") + "/v1/stream"
        with connect(url), connect(url), connect(url), pytest.raises(Exception, match="503"):
            connect(url).__enter__()


def test_every_429_says_when_to_come_back():
    with running(MODELS, limits=Limits(sessions=1, forks=0)) as server:
        id = server.session()
        for answer in (server.post("/v1/sessions", {"model": "gru"}), server.post(f"/v1/sessions/{id}/fork")):
            assert answer.status_code == 429 and "retry-after-ms" in answer.headers


def test_what_is_closed_or_answered_counts_no_more():
    """One socket after another, though only one may be open; on one of them more inputs in all than at a time."""
    with running(MODELS, limits=Limits(connections=2, bulk_inputs=6)) as server:
        server.client.close()
        url = server.url.replace("http", "ws") + "/v1/stream"
        id = httpx.post(f"{server.url}/v1/sessions", json={"model": "gru"}).json()["id"]
        for _ in range(4):
            with connect(url) as ws:
                ws.recv()
                for number in range(3):
                    step = {"session": id, "version": "any", "inputs": [[1.0]] * 4}
                    ws.send(json.dumps({"id": number, "step": step}))
                    assert json.loads(ws.recv())["status"] == 200
            deadline = time.monotonic() + 5
            while server.service.accounts.of("").sockets and time.monotonic() < deadline:
                time.sleep(0.01)
        server.client = httpx.Client(base_url=server.url)
        assert server.client.get(f"/v1/sessions/{id}").json()["position"] == 48


def test_a_socket_that_does_not_read_is_not_read_from():
    """Else answers that are not taken are kept without end."""
    with running(MODELS) as server, opened(server, 0.5) as connection:
        connection.sendall(
            b"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert connection.recv(1_000).startswith(b"HTTP/1.1 101")
        message = json.dumps({"id": "x" * 4_000, "step": {}}).encode()
        frame = b"\x81\xfe" + len(message).to_bytes(2, "big") + bytes(4) + message
        with pytest.raises(TimeoutError):
            for _ in range(400):  # 64 MB
                connection.sendall(frame * 40)


def test_a_server_that_only_predicts_is_ready_and_stops():
    """It has no model to send a probe through."""
    store = MemoryStore()
    sessions = Sessions(store, {}, Limits())
    server = Running(Service(sessions, Signer.of_store(store), predictors={"hmm": lambda *given: []}))
    try:
        assert server.client.get("/readyz").status_code == 200
    finally:
        server.stop()


def test_a_state_from_elsewhere_cannot_make_the_server_fail():
    with running(MODELS) as server:
        id, model = server.session("book"), server.service.models["book"]
        core, token, seed, _, seen = model.opened(model.start(1))
        data = model.dump(model.closed(core, token, seed, 2**63 - 1, seen))  # so many random numbers were drawn
        put = server.client.put(f"/v1/sessions/{id}/state", content=data, headers={"if-match": "*"})
        wrote = server.post(f"/v1/sessions/{id}/generate", {"version": "any", "max_new_tokens": 2})
        assert put.status_code == 422 and wrote.status_code == 200


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


def test_responses_of_a_server_of_tier_power_are_synced(tmp_path):
    """ "Tier power: every acknowledged write is there": a stored response is a write, and its commit is not FULL."""
    store = SqliteStore(tmp_path / "s.db")
    commit, synced = store.commit, []
    store.commit = lambda sync: (synced.append(sync), commit(sync))[1]
    with running(MODELS, store=store, durability="power") as server:
        del synced[:]
        server.session()
        assert any(synced)
        del synced[:]
        body = {"model": "book", "input": "Hi", "max_output_tokens": 2}
        id = server.post("/v1/responses", body).json()["id"]
        assert any(synced)
        del synced[:]
        server.client.delete(f"/v1/responses/{id}")
        assert any(synced)


def test_an_hmm_is_not_lost_for_ever_by_one_large_input(tmp_path):
    """Past 1e154 no state has a likelihood, and nothing would be left to go on from."""
    (tmp_path / "x.csv").write_text("value\n" + "\n".join(map(str, [0.1, 0.2, -0.1, 5.0, 5.2, 4.9] * 4)) + "\n")
    assert main(["train", "--task", "hmm", "--data.train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "hmm"),
                 "--model.n_components", "2"]) == 0  # fmt: skip
    task, face = open_model(tmp_path / "hmm")
    with running({"hmm": task.serve(face)}) as server:
        id = server.session("hmm")
        assert server.step(id, [[0.1]]).status_code == 200
        assert server.step(id, [[1e200]]).status_code in (400, 422)
        assert sum(server.step(id, [[5.0]]).json()["outputs"][0]["next_state"]) == pytest.approx(1)


@pytest.mark.parametrize("ttl", ["nan", "-1", "0", "1e9"])
def test_a_ttl_that_no_session_can_have_is_refused_at_the_start(tmp_path, monkeypatch, ttl):
    language_model().save(tmp_path / "book")
    monkeypatch.setattr("elman.serve.net.server.serve", lambda service, host, port: 0)
    assert main(["serve", str(tmp_path / "book"), "--ttl", ttl]) == 2


def test_what_is_not_done_in_time_is_refused_before_the_server_stops(monkeypatch):
    """Generations that wait in one line, each of which would take long."""
    monkeypatch.setattr("elman.serve.net.server.DRAIN", 0.3)
    server = Running(service(MODELS))
    id = server.session("book")
    body = {"version": "any", "max_new_tokens": 16_000}

    def ask(_):
        return httpx.post(f"{server.url}/v1/sessions/{id}/generate", json=body, timeout=20)

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, number) for number in range(3)]
        while server.service.engine.waiting < 3:
            time.sleep(0.01)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5
        found = [one.result() for one in asked]
    assert [one.status_code for one in found] == [503] * 3 and "retry-after-ms" in found[0].headers


def test_a_beam_search_takes_null_for_what_is_not_set():
    with running(MODELS) as server:
        body = {"model": "book", "prompt": "Hi", "num_beams": 2, "max_tokens": 3, "temperature": None, "top_p": None}
        assert server.post("/v1/completions", body).status_code == 200
