"""Bytes on a connection, written by hand; files of keys; and waiting: what the tests of the server share."""

import hashlib
import socket
import time

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n%b"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


PING = b"\x89\x80" + bytes(4)


def keys_file(path, *tenants):
    """A file with a key of each tenant, which is its name, or of each pair of a name and a key."""
    pairs = [(one, one) if isinstance(one, str) else one for one in tenants]
    lines = [f"{name} {hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in pairs]
    path.write_text("# keys\n" + "".join(lines))
    return path


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
    """Wait for what must come about soon; what the condition said last."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


CHUNKED = (
    b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n%b"
    b"transfer-encoding: chunked\r\n\r\n"
)


def upgraded(port, key=b""):
    connection = opened(port)
    connection.sendall(UPGRADE % key)
    came = b""
    while b"credits" not in came:
        came += connection.recv(1_000)
    return connection


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


# Sockets
def url(server):
    return server.url.replace("http", "ws") + "/v1/stream"


def line(name, key, *more):
    return " ".join([name, hashlib.sha256(key.encode()).hexdigest(), *more]) + "\n"
