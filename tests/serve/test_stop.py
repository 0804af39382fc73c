"""How the server stops, whatever is under way, and what SIGHUP does: with keys, without them, with sockets open."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from running import Running, running, served_models, service
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from elman.cli import main
from elman.serve.net import server as server_module
from elman.serve.net.keys import Keys
from elman.serve.net.server import serve
from elman.serve.store.signing import Signer

MODELS = served_models()
SEARCH = {"model": "book", "prompt": "x", "max_tokens": 4_096, "num_beams": 64}


def keys_file(path, *names):
    path.write_text("".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in names))
    return path


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


# Threads


def test_a_search_that_nobody_waits_for_is_left():
    with running(MODELS) as server:
        for _ in range(3):
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{server.url}/v1/completions", json=SEARCH, timeout=0.3)
        assert until(lambda: not server.service.workers.running and not server.service.workers.counts["local"])


def test_a_search_that_is_not_done_in_time_is_refused_before_the_server_stops(monkeypatch):
    monkeypatch.setattr("elman.serve.net.server.DRAIN", 0.3)
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
    command = [sys.executable, __file__, *map(str, given)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = int(process.stderr.readline().split("127.0.0.1:")[1].split()[0])
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


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
        assert until(lambda: "the keys stay as they were" in capsys.readouterr().err) and ask() == 200
        states_.write_text("n" * 32)
        read_keys(server)
        assert until(lambda: ask() == 401)
    finally:
        server.stop()


if __name__ == "__main__":
    server_module.DRAIN, server_module.CUT = 0.5, 2
    predictors = {"slow": lambda *_: time.sleep(120)} if sys.argv[1] == "slow" else {}
    sys.exit(serve(service(MODELS, predictors=predictors), "127.0.0.1", 0))
