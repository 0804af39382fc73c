"""HTTP by the byte, and attacks with and without a key: endless trailers, slow and long requests, answers that nobody
takes, refused requests of many megabytes.

The suite runs each at a small size; `python tests/serve/attacks.py NAME` runs one at full size.
"""

import json
import socket
import time

import pytest
from running import MODELS, error, running
from wire import CHUNKED, HEALTH, UPGRADE, flood, keys_file, opened, until

from elman.serve.limits import Limits
from elman.serve.net.keys import Keys
from elman.tasks.text.serving import ServedText

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
    with running(MODELS, keys=Keys(keys_file(tmp_path / "k", "ann"))) as server, opened(server.port) as connection:
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


@pytest.mark.slow
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
    with running(MODELS, keys=Keys(keys_file(tmp_path / "k", "ann"))) as server, opened(server.port) as connection:
        method = "PUT" if path.endswith("state") else "POST"
        connection.sendall(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n".encode())
        answer = connection.recv(1_000)
        assert answer.startswith(b"HTTP/1.1 401") and b"connection: close" in answer
        assert flood(connection, b" " * 100_000, 64 << 20) < 64 << 20


def test_who_still_sends_hears_why_it_is_refused(tmp_path):
    """The rest of a request is read for a moment: a connection that is closed on unread bytes is reset, and the answer
    is lost with it."""
    with running(MODELS, keys=Keys(keys_file(tmp_path / "k", "ann"))) as server:
        for _ in range(20):
            with opened(server.port) as connection:
                head = b"POST /v1/steps HTTP/1.1\r\nhost: x\r\ncontent-length: 700000\r\n\r\n"
                connection.sendall(head + b" " * 350_000)
                time.sleep(0.01)
                connection.sendall(b" " * 350_000)
                assert connection.recv(1_000).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    "rest",
    [b"GET /healthz HTTP/1.1\r\nhost:",
     b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"],
)  # fmt: skip
def test_the_time_to_receive_counts_for_a_request_behind_another(rest):
    """ "A deadline for receiving a request": what begins in the packet of the one before it has none."""
    with running(MODELS, limits=Limits(receive_seconds=0.3)) as server, opened(server.port, 2.0) as connection:
        connection.sendall(HEALTH + rest)
        while connection.recv(1_000):  # until it is closed
            pass


def test_a_head_that_is_too_long_is_refused_however_it_comes():
    with running(MODELS, limits=Limits(headers=2_048)) as server:
        for size, status in ((2_048, b"200"), (2_049, b"431"), (60_000, b"431")):
            start = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
            with opened(server.port, 2.0) as connection:
                connection.sendall(start + b"y" * (size - len(start) - 4) + b"\r\n\r\n")
                assert connection.recv(1_000).split()[1] == status, size


@pytest.fixture(scope="module")
def server():
    with running(MODELS, limits=Limits(body=5_000, headers=4_096, receive_seconds=0.4)) as found:
        yield found


def raw(server, data, wait=3.0):
    """What comes back for some bytes, until the other side closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        connection.sendall(data)
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


def test_a_gigabyte_is_refused_before_it_is_sent(server):
    head = b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    assert raw(server, head % (1 << 30)).startswith(b"HTTP/1.1 413")


@pytest.mark.slow
def test_a_slow_head_a_slow_body_and_a_long_head(server):
    began = time.monotonic()
    assert raw(server, b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n").startswith(b"HTTP/1.1 408")
    body = b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    assert raw(server, body).startswith(b"HTTP/1.1 408")
    assert raw(server, body[:-1]).startswith(b"HTTP/1.1 408")  # nothing of the body at all
    assert time.monotonic() - began < 3
    flood = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 2_000
    assert raw(server, flood).startswith(b"HTTP/1.1 431")
    assert server.client.get("/healthz").status_code == 200


def test_a_client_that_asks_before_it_sends_is_answered(server):
    head = b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
        connection.sendall(head + b"content-length: 12\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b'{"items":[]}')
        assert connection.recv(1000).endswith(b'{"object":"list","data":[]}')
        connection.sendall(b"HEAD /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200") and b"content-length: 15" in answer and answer.endswith(b"\r\n\r\n")
