"""Frames and handshakes of WebSockets, right and wrong."""

import json
import socket
import statistics
import time

import pytest
from running import MODELS, running
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from wire import PING, flood, upgraded, url

UPGRADE = (
    b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%b\r\n"
)


def test_a_text_that_is_not_utf_8_closes_the_socket(server):
    """RFC 6455, 8.1; of bytes nobody says that they are a text."""
    with connect(url(server)) as ws:
        ws.recv()
        ws.send(b"\xff\xfe")
        assert json.loads(ws.recv())["status"] == 400
        ws.send(json.dumps({"id": "é密", "step": {}}, ensure_ascii=False))
        assert json.loads(ws.recv())["id"] == "é密"
        ws.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=5)
        assert closed.value.rcvd.code == 1007


FRAMES = {
    "reserved bits": b"\xf1\x80" + bytes(4),
    "no such kind": b"\x83\x80" + bytes(4),
    "not masked": b"\x81\x02{}",
    "a long ping": b"\x89\xfe\x00\x80" + bytes(4 + 128),
    "a ping in parts": b"\x09\x80" + bytes(4),
    "a part of nothing": b"\x80\x80" + bytes(4),
    "a text within a text": (b"\x01\x80" + bytes(4)) * 2,
    "a close of one byte": b"\x88\x81" + bytes(4) + b"x",
    "a close with a code that is none": b"\x88\x82" + bytes(4) + b"\x00\x01",
    "too long": b"\x81\xff" + (1 << 40).to_bytes(8, "big") + bytes(4),
    "half of a text": b"\x81\xfe\x10\x00" + bytes(4) + b"x",
    "not UTF-8, then more": b"\x81\x81" + bytes(4) + b"\xff" + (b"\x81\x80" + bytes(4)) * 3,
}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", FRAMES)
def test_frames_that_are_wrong_leave_no_traceback(server, name, early, caplog, capsys):
    """Before there is a socket, too."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(UPGRADE % (b"/v1/stream", b""))
        if not early:
            assert connection.recv(1_000).startswith(b"HTTP/1.1 101")
        connection.sendall(FRAMES[name])
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(1_000):
                pass
        except ConnectionResetError:
            pass
    assert server.client.get("/healthz").status_code == 200
    said = caplog.text + "".join(capsys.readouterr())
    assert "Traceback" not in said and "Exception" not in said, said


@pytest.mark.parametrize(("path", "more"), [
    (b"/v1/stream", b"x: " + b"y" * 20_000 + b"\r\n"), (b"/v1/stream", b"a: b\r\n" * 200),
    (b"/v1/stream?" + b"y" * 20_000, b""), (b"/v1/\xc3\xa9", b""), (b"/v1/stream", b"x: \xff\xfe\r\n"),
    (b"/v1/stream", b"sec-websocket-protocol: elman.key.\xff, elman\r\n"), (b"/v1/stream", b"content-length: 5\r\n"),
    (b"/v1/stream", b"sec-websocket-version: 7\r\n"),
])  # fmt: skip
def test_handshakes_that_are_wrong_are_answered_and_closed(server, path, more, caplog, capsys):
    with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
        connection.sendall(UPGRADE % (path, more))
        answer = connection.recv(1_000)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 101")), answer
        if not answer.startswith(b"HTTP/1.1 101"):
            try:
                while connection.recv(1_000):
                    pass
            except ConnectionResetError:
                pass
    said = caplog.text + "".join(capsys.readouterr())
    assert "Traceback" not in said and "Exception" not in said, said


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
