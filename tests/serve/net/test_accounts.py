"""What a tenant and the whole have open at once is counted, up to its limits."""

import json
import time
from contextlib import ExitStack

import httpx
import pytest
from running import MODELS, running
from websockets.sync.client import connect
from wire import HEALTH, keys_file, opened

from elman.serve.limits import Limits
from elman.serve.net.keys import Keys

MODELS_OF_IT = HEALTH.replace(b"healthz", b"v1/models")


def test_connections_up_to_the_limit_are_served_and_the_next_is_told_in_words():
    with running(MODELS, limits=Limits(connections=4)) as server:
        server.client.close()
        found = []
        for number in range(1, 6):
            found.append(opened(server.port, 2.0))
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


# Connections
@pytest.mark.slow
@pytest.mark.parametrize(
    "asks", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"]
)
def test_idle_connections_without_a_key_shut_nobody_out(tmp_path, asks):
    limits = Limits(connections=40)
    with running(MODELS, limits=limits, keys=Keys(keys_file(tmp_path / "k", "ann"))) as server, ExitStack() as stack:
        for _ in range(45):
            connection = stack.enter_context(opened(server.port))
            connection.sendall(asks)
            if asks:
                connection.recv(1_000)
        began = time.monotonic()
        for _ in range(20):
            answer = httpx.get(f"{server.url}/v1/models", headers={"authorization": "Bearer ann"})
            assert answer.status_code == 200
        assert time.monotonic() - began < 5


def test_a_connection_that_has_shown_no_key_is_not_kept_long(tmp_path):
    limits = Limits(receive_seconds=0.4)
    request = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n"
    with (
        running(MODELS, limits=limits, keys=Keys(keys_file(tmp_path / "k", "ann"))) as server,
        opened(server.port) as guest,
        opened(server.port) as ann,
    ):
        for one, key in ((guest, b"bob"), (ann, b"ann")):
            one.sendall(request % key)
            one.recv(10_000)
        assert guest.recv(1) == b""
        ann.sendall(request % b"ann")
        assert ann.recv(10_000).startswith(b"HTTP/1.1 200")
