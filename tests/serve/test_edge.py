"""Attacks on the edge of the server, with and without a key: endless trailers, idle connections, floods, answers that
nobody takes, refused requests of many megabytes.

The suite runs each at a small size; `python tests/serve/attacks.py NAME` runs one at full size.
"""

import hashlib
import json
import socket
import statistics
import time
from contextlib import ExitStack

import httpx
import pytest
from running import error, running, served_models
from websockets.sync.client import connect

from elman.serve.limits import Limits
from elman.serve.net.keys import Keys
from elman.tasks.text.serving import ServedText

MODELS = served_models()
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n%b"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PING = b"\x89\x80" + bytes(4)


def keys_file(path, *names):
    path.write_text("".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in names))
    return Keys(path)


def opened(port, wait=5.0, receive=0):
    found = socket.socket()
    found.settimeout(wait)
    if receive:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    found.connect(("127.0.0.1", port))
    return found


def flood(connection, data, most):
    """Send data over and over, until the other side closes or `most` bytes went out; how many did."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(data)
            sent += len(data)
    except OSError:
        pass
    return sent


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


# Memory


CHUNKED = (
    b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n%b"
    b"transfer-encoding: chunked\r\n\r\n"
)
ENDLESS = {
    "trailers": (b"0\r\n", b"x: y\r\n" * 1_000),
    "extensions": (b"", b"1" + b";a=b" * 1_000 + b"\r\n{\r\n"),
    "one extension": (b"1;", b"a" * 4_000),
    "one trailer": (b"0\r\nx: ", b"y" * 4_000),
}


@pytest.mark.parametrize("key", [b"", b"authorization: Bearer ann\r\n"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_what_stands_around_a_body_has_an_end(tmp_path, kind, key):
    """Else it is kept without end: trailers were, as headers of the request, 2.6 GB of them in ten seconds."""
    first, more = ENDLESS[kind]
    with running(MODELS, keys=keys_file(tmp_path / "k", "ann")) as server, opened(server.port) as connection:
        connection.sendall(CHUNKED % key + first)
        assert flood(connection, more, 12 << 20) < 12 << 20  # the buffers of the loopback take some
        assert server.client.get("/healthz").status_code == 200


def test_a_body_in_many_small_chunks_is_taken():
    """What is honest stands around its chunks too."""
    data = json.dumps({"items": [{"session": "none", "version": 0, "input": [1.0]}] * 1_000}).encode()
    with running(MODELS) as server, opened(server.port) as connection:
        connection.sendall(CHUNKED % b"")
        for at in range(0, len(data), 4_000):  # a byte a chunk
            connection.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in data[at : at + 4_000]))
        connection.sendall(b"0\r\nx-checksum: 1\r\n\r\n")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 200")


def test_a_head_of_very_many_lines_is_refused():
    with running(MODELS) as server, opened(server.port) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"a:\r\n" * 5_000 + b"\r\n")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 431")


def test_requests_that_wait_on_one_connection_have_an_end():
    with running(MODELS) as server, opened(server.port) as connection:
        request = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        connection.sendall(request * 12)
        found = b""
        while found.count(b"200 OK") < 12:
            found += connection.recv(10_000)
        connection.sendall(request * 2_000)
        while part := _receive(connection):
            found += part
        assert found.count(b"200 OK") < 500


def test_an_error_is_not_the_answer_to_the_request_before_it():
    """Which is still under way: whether it was done, its own answer says, or none."""
    with running(MODELS) as server, opened(server.port) as connection:
        body = json.dumps({"version": 0, "max_new_tokens": 3_000}).encode()
        head = f"POST /v1/sessions/{server.session('book')}/generate HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body + b"NONSENSE\r\n\r\n")
        assert _receive(connection)[:12] in (b"", b"HTTP/1.1 200")


def _receive(connection):
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("path", ["/v1/steps", "socket"])
def test_an_answer_that_nobody_takes_is_not_kept(path):
    """Megabytes for each, without end."""
    with running(MODELS, limits=Limits(send_seconds=0.5)) as server, opened(server.port, 10, 4_096) as connection:
        items = [{"session": server.session(), "version": "any", "inputs": [[1.0]] * 8_192} for _ in range(4)]
        if path == "socket":
            connection.sendall(UPGRADE % b"")
            connection.recv(1_000)
            messages = [json.dumps({"id": i, "step": item}).encode() for i, item in enumerate(items)]
            connection.sendall(b"".join(b"\x81\xff" + len(m).to_bytes(8, "big") + bytes(4) + m for m in messages))
        else:
            body = json.dumps({"items": items}).encode()
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        mine, connections = connection.getsockname(), server.server.server_state.connections
        there = lambda: mine in [one.client for one in list(connections)]  # noqa: E731
        assert there()
        assert until(lambda: not there(), 10)
        assert until(lambda: server.service.accounts.of("local").bytes == 0)


def test_log_probabilities_of_an_answer_have_an_end():
    """64 prompts of 65,536 tokens with 20 each would be an answer of gigabytes."""
    with running(MODELS) as server:
        body = {"model": "book", "prompt": ["x" * 65_000] * 60, "max_tokens": 0, "echo": True, "logprobs": 20}
        answer = server.post("/v1/completions", body)
        assert answer.status_code == 400 and "logprobs" in error(answer)["message"]


# Connections


@pytest.mark.parametrize(
    "asks", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"]
)
def test_idle_connections_without_a_key_shut_nobody_out(tmp_path, asks):
    limits = Limits(connections=40)
    with running(MODELS, limits=limits, keys=keys_file(tmp_path / "k", "ann")) as server, ExitStack() as stack:
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
        running(MODELS, limits=limits, keys=keys_file(tmp_path / "k", "ann")) as server,
        opened(server.port) as guest,
        opened(server.port) as ann,
    ):
        for one, key in ((guest, b"bob"), (ann, b"ann")):
            one.sendall(request % key)
            one.recv(10_000)
        assert guest.recv(1) == b""
        ann.sendall(request % b"ann")
        assert ann.recv(10_000).startswith(b"HTTP/1.1 200")


# The event loop


def upgraded(port, key=b""):
    connection = opened(port)
    connection.sendall(UPGRADE % key)
    came = b""
    while b"credits" not in came:
        came += connection.recv(1_000)
    return connection


@pytest.mark.parametrize("frame", [PING, b"\x8a\x80" + bytes(4), b"\x81\x80" + bytes(4), b"\x01\x80" + bytes(4)])
def test_a_flood_of_frames_that_need_no_step_is_slowed_down(frame):
    """A megabyte of pings a second held the others up for 17 seconds: 170,000 turns of Python."""
    with running(MODELS) as server, upgraded(server.port) as connection:
        connection.settimeout(0.3)
        flood(connection, frame * 1_000, 1 << 20)
        waits = []
        for _ in range(10):
            began = time.monotonic()
            assert server.client.get("/healthz").status_code == 200
            waits.append(time.monotonic() - began)
        (socket_,) = [one for one in server.server.server_state.connections if hasattr(one, "listener")] or [None]
        if frame[0] != 1:  # a fragment before the last one is an error, and ends the socket
            assert not socket_.transport.is_reading()
        assert statistics.median(waits) < 0.5


def test_messages_on_a_socket_are_all_answered_though_they_come_in_one_packet():
    """More than is heard in a turn, and cut in the middle of a message."""
    with running(MODELS, limits=Limits(socket_flight=2_000)) as server:
        id = server.session()
        with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
            ws.recv()
            step = {"session": id, "version": "any", "input": [0.5]}
            for number in range(10):
                ws.send(json.dumps({"id": number, "step": step}).ljust(4_000))
            assert sorted(json.loads(ws.recv())["id"] for _ in range(10)) == list(range(10))
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 10


# HttpError requests of many megabytes


def test_what_is_too_long_is_refused_before_it_is_split(monkeypatch):
    split = []
    ids = ServedText._ids
    monkeypatch.setattr(ServedText, "_ids", lambda self, text: split.append(len(text)) or ids(self, text))
    with running(MODELS) as server:
        text, id = "x" * (2 << 20), server.session("book")
        for path, body in (
            ("/v1/completions", {"model": "book", "prompt": text}),
            ("/v1/completions", {"model": "book", "prompt": ["x", text]}),
            ("/v1/completions", {"model": "book", "prompt": [7] * 100_000}),
            ("/v1/responses", {"model": "book", "input": text}),
            (f"/v1/sessions/{id}/generate", {"version": 0, "prompt": text}),
            (f"/v1/sessions/{id}/step", {"version": 0, "inputs": text}),
            (f"/v1/sessions/{id}/step", {"version": 0, "inputs": [7] * 9_000}),
        ):
            answer = server.post(path, body)
            assert answer.status_code == 400 and "at most" in error(answer)["message"], path
        items = [{"session": id, "version": 0, "inputs": text}]
        assert server.post("/v1/steps", {"items": items}).json()["data"][0]["status"] == 400
        assert max(split, default=0) <= 1  # the health probe


def test_many_items_that_are_wrong_are_not_looked_at_one_by_one(monkeypatch):
    from elman.serve.api import session_routes

    looked = []
    monkeypatch.setattr(session_routes, "item_of", lambda raw: looked.append(raw))
    with running(MODELS) as server:
        assert server.post("/v1/steps", {"items": [{}] * 2_000}).status_code == 400
    assert looked == []


@pytest.mark.parametrize("path", ["/v1/steps", "/v1/nowhere", "/v1/sessions/x/state"])
def test_who_has_no_key_is_refused_before_the_body_comes(tmp_path, path):
    with running(MODELS, keys=keys_file(tmp_path / "k", "ann")) as server, opened(server.port) as connection:
        method = "PUT" if path.endswith("state") else "POST"
        connection.sendall(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n".encode())
        answer = connection.recv(1_000)
        assert answer.startswith(b"HTTP/1.1 401") and b"connection: close" in answer
        assert flood(connection, b" " * 100_000, 64 << 20) < 64 << 20


def test_who_still_sends_hears_why_it_is_refused(tmp_path):
    """The rest of a request is read for a moment: a connection that is closed on unread bytes is reset, and the answer
    is lost with it."""
    with running(MODELS, keys=keys_file(tmp_path / "k", "ann")) as server:
        for _ in range(20):
            with opened(server.port) as connection:
                head = b"POST /v1/steps HTTP/1.1\r\nhost: x\r\ncontent-length: 700000\r\n\r\n"
                connection.sendall(head + b" " * 350_000)
                time.sleep(0.01)
                connection.sendall(b" " * 350_000)
                assert connection.recv(1_000).startswith(b"HTTP/1.1 401")
