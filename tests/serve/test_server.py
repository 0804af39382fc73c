"""How the server starts, how it stops, whatever is under way, and what SIGHUP does."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from running import MODELS, Running, running, service
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from wire import keys_file, until

from elman.cli import main
from elman.errors import FileError
from elman.serve.api.app import Service
from elman.serve.limits import Limits
from elman.serve.net.keys import Keys
from elman.serve.server import Server
from elman.serve.store.sessions import Sessions
from elman.serve.store.signing import Signer
from elman.serve.store.store import MemoryStore

SEARCH = {"model": "book", "prompt": "x", "max_tokens": 4_096, "num_beams": 64}


# Threads


@pytest.mark.slow
def test_a_search_that_nobody_waits_for_is_left():
    with running(MODELS) as server:
        for _ in range(3):
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{server.url}/v1/completions", json=SEARCH, timeout=0.3)
        assert until(lambda: not server.service.workers.running and not server.service.workers.counts["local"])


def test_a_search_that_is_not_done_in_time_is_refused_before_the_server_stops(monkeypatch):
    monkeypatch.setattr("elman.serve.server.DRAIN", 0.3)
    server = Running(service(MODELS))
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(httpx.post, f"{server.url}/v1/completions", json=SEARCH, timeout=20) for _ in range(3)]
        assert until(lambda: server.service.workers.counts["local"] == 3)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 8
        assert [one.result().status_code for one in asked] == [503] * 3


@contextmanager
def child(*given):
    """A server that is a process of its own, and its port."""
    command = [sys.executable, str(Path(__file__).parent / "child.py"), *given]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = int(process.stderr.readline().split("127.0.0.1:")[1].split()[0])
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_the_process_ends_with_the_drain_whatever_a_thread_computes():
    """A prediction that takes two minutes; Python itself waits for the thread before it ends."""
    with child("slow") as (process, url):
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{url}/v1/predict", json={"model": "slow", "data": "x"}, timeout=0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert time.monotonic() - began < 20


# The delay


@pytest.mark.slow
def test_during_the_delay_probes_say_no_and_requests_are_served():
    server = Running(service(MODELS, drain_delay=2.5))
    began = time.monotonic()
    server.server.handle_exit(signal.SIGTERM, None)
    assert server.client.get("/readyz").status_code == 503
    with httpx.Client(base_url=server.url) as other:  # a connection that is made now
        assert other.get("/healthz").status_code == 200
        id = other.post("/v1/sessions", json={"model": "gru"}).json()["id"]
        assert other.post(f"/v1/sessions/{id}/step", json={"version": 0, "input": [1.0]}).status_code == 200
    server.thread.join(20)
    assert not server.thread.is_alive() and time.monotonic() - began >= 2.4
    server.client.close()


def test_a_second_signal_does_not_wait_for_the_delay():
    server = Running(service(MODELS, drain_delay=60.0))
    server.server.handle_exit(signal.SIGTERM, None)
    time.sleep(0.3)
    assert server.thread.is_alive()
    server.stop()


@pytest.mark.parametrize("delay", ["-1", "nan", "1e9"])
def test_a_delay_that_is_none_is_refused_at_the_start(tmp_path, delay, capsys):
    assert main(["serve", str(tmp_path), "--drain_delay", delay]) == 2
    assert "--drain_delay" in capsys.readouterr().err


# SIGHUP


@pytest.mark.slow
def test_hup_without_keys_changes_nothing():
    with child("plain") as (process, url):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None and httpx.get(f"{url}/healthz").status_code == 200


def read_keys(server):
    server.service.driver.loop.call_soon_threadsafe(server.server.read_keys)


def test_a_key_that_is_revoked_closes_its_sockets(tmp_path):
    path = keys_file(tmp_path / "keys.txt", "ann", "bob")
    with running(MODELS, keys=Keys(path)) as server:
        url = server.url.replace("http", "ws") + "/v1/stream"
        ann, bob = ({"authorization": f"Bearer {name}"} for name in ("ann", "bob"))
        with connect(url, additional_headers=ann) as mine, connect(url, additional_headers=bob) as other:
            assert mine.recv() and other.recv()
            path.write_text("this is wrong")
            read_keys(server)
            mine.send("{")
            assert json.loads(mine.recv())["status"] == 400  # the keys stay as they were
            keys_file(path, "bob")
            read_keys(server)
            with pytest.raises(ConnectionClosed) as closed:
                mine.recv(timeout=5)
            assert closed.value.rcvd.code == 1008
            other.send("{")
            assert json.loads(other.recv())["status"] == 400


def test_keys_for_states_are_read_again(tmp_path):
    path = tmp_path / "states.txt"
    path.write_text("o" * 32)
    made = service(MODELS)
    made.signer = Signer.of_file(path)
    server = Running(made)
    try:
        body = {"model": "book", "prompt": "x", "max_tokens": 1, "return_state": True}
        ask = lambda **more: server.post("/v1/completions", {**body, **more})  # noqa: E731
        first = ask().json()["choices"][0]["state"]
        path.write_text("short")
        read_keys(server)
        assert ask(state=first).status_code == 200  # it stays as it was
        path.write_text("n" * 32)
        read_keys(server)
        assert until(lambda: ask(state=first).status_code == 422)
        path.write_text("n" * 32 + "\n" + "o" * 32)
        read_keys(server)
        assert until(lambda: ask(state=first).status_code == 200)
    finally:
        server.stop()


def test_of_two_files_one_of_which_is_wrong_none_is_taken(tmp_path, capsys):
    keys, states_ = keys_file(tmp_path / "keys.txt", "ann", "bob"), tmp_path / "states.txt"
    states_.write_text("o" * 32)
    made = service(MODELS, keys=Keys(keys))
    made.signer = Signer.of_file(states_)
    server = Running(made)
    try:
        ask = lambda: server.client.get("/v1/models", headers={"authorization": "Bearer bob"}).status_code  # noqa: E731
        assert ask() == 200
        keys_file(keys, "ann")
        states_.write_text("short")
        read_keys(server)
        assert until(lambda: "the keys were not changed" in capsys.readouterr().err) and ask() == 200
        states_.write_text("n" * 32)
        read_keys(server)
        assert until(lambda: ask() == 401)
    finally:
        server.stop()


def test_a_server_that_only_predicts_is_ready_and_stops():
    """It has no model to send a probe through."""
    store = MemoryStore()
    sessions = Sessions(store, {}, Limits())
    server = Running(Service(sessions, Signer.of_store(store), predictors={"hmm": lambda *given: []}))
    try:
        assert server.client.get("/readyz").status_code == 200
    finally:
        server.stop()


def test_what_is_not_done_in_time_is_refused_before_the_server_stops(monkeypatch):
    """Generations that wait in one line, each of which would take long."""
    monkeypatch.setattr("elman.serve.server.DRAIN", 0.3)
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


def test_clients_let_go_of_a_connection_before_the_server_does(server):
    """Else it is closed under a request: httpx, and so OpenAI's client, keeps one as long as uvicorn does by itself."""
    assert server.server.config.timeout_keep_alive > 2 * httpx.Limits().keepalive_expiry


def test_insecure_listens_to_others():
    with running(MODELS, insecure=True) as server:
        headers = {"host": "elsewhere.example", "origin": "http://elsewhere.example"}
        assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_hup_reads_the_keys_again_and_term_drains(tmp_path, capsys):
    """With the signals themselves, which only a main thread gets."""
    path = keys_file(tmp_path / "keys.txt", ("ann", "old"))
    server, seen = Server(service(MODELS, keys=Keys(path)), "127.0.0.1", 0), {}

    def status(key):
        return client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    def changed(text, key, wanted):
        path.write_text(text)
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + 5
        while status(key) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        return [status("old"), status("new")]

    def ask():
        nonlocal client
        try:
            while not server.started:
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)
            seen["first"] = [status("old"), status("new")]
            seen["changed"] = changed(keys_file(path, ("ann", "new")).read_text(), "new", 200)
            seen["wrong"] = changed("this is no keys file", "old", 401)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    client = httpx.Client()
    asking = threading.Thread(target=ask)
    asking.start()
    began = time.monotonic()
    server.run()
    asking.join()
    client.close()
    assert seen == {"first": [200, 401], "changed": [401, 200], "wrong": [401, 200]}
    assert time.monotonic() - began < 30 and not server.service.driver.doing
    assert "were not changed" in capsys.readouterr().err
    with pytest.raises(FileError):
        server.service.keys.read()
