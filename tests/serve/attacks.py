"""The attacks of tests/serve/net at full size, against a server that is a process of its own:

    python tests/serve/attacks.py trailers | idle | unread | pings | bodies | stop

What is printed: what was sent, the memory of the server before and after, how long somebody else waited meanwhile.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from running import served_models, service
from wire import CHUNKED, PING, flood, keys_file, opened, upgraded

from elman.serve.net.keys import Keys

ASK = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ann\r\n\r\n"


@contextmanager
def process():
    """A server of its own: its port, a function that says how much memory it has, in MB, and the process."""
    command = [sys.executable, __file__, "serve"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = child.stderr.readline()
        port = int(line.split("127.0.0.1:")[1].split()[0])

        def memory():
            with open(f"/proc/{child.pid}/status") as status:
                return next(int(one.split()[1]) // 1024 for one in status if one.startswith("VmRSS"))

        yield port, memory, child
    finally:
        child.kill()
        child.wait()


class Others(threading.Thread):
    """Somebody with a key, all the while: how long it waits."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.waits, self.over, self.failed = port, [], False, 0

    def run(self):
        while not self.over:
            began = time.monotonic()
            try:
                with opened(self.port, 30) as connection:
                    connection.sendall(ASK)
                    self.failed += not connection.recv(10_000).startswith(b"HTTP/1.1 200")
            except OSError:
                self.failed += 1
            self.waits.append(time.monotonic() - began)
            time.sleep(0.02)

    def said(self):
        self.over = True
        self.join(40)
        waits = sorted(self.waits)
        p50 = waits[len(waits) // 2]
        return f"others: {len(waits)} requests, {self.failed} failed, p50 {p50:.3f} s, longest {waits[-1]:.3f} s"


def full_trailers(port, memory):
    with opened(port, 30) as connection:
        connection.sendall(CHUNKED % b"" + b"0\r\n")
        return flood(connection, b"x: y\r\n" * 10_000, 100 << 20)


def full_idle(port, memory):
    held = []
    for _ in range(4_200):
        connection = opened(port)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        held.append(connection)
    time.sleep(15)
    return len(held)


def full_unread(port, memory):
    """20 answers of the longest kind, none of which is taken."""
    held = []
    body = json.dumps(
        {"model": "book", "prompt": "x", "max_tokens": 1_024, "n": int(os.environ.get("N", "16")), "logprobs": 20}
    ).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer bob\r\ncontent-type: application/json\r\n"
    )
    for _ in range(20):
        held.append(opened(port, 5, 4_096))
        held[-1].sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    for _ in range(12):
        time.sleep(5)
        print(f"{memory()} MB", end=" ", flush=True)
    return len(held)


def full_pings(port, memory):
    with upgraded(port, b"authorization: Bearer bob\r\n") as connection:
        connection.settimeout(10)
        end, sent = time.monotonic() + 20, 0
        try:
            while time.monotonic() < end:
                connection.sendall(PING * 17_000)
                sent += 6 * 17_000
                time.sleep(0.1)
        except OSError:
            pass
        return sent


def full_bodies(port, memory):
    sent, end = 0, time.monotonic() + 15
    text = json.dumps({"model": "book", "prompt": "x" * 7_900_000}).encode()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        head = {"authorization": "Bearer bob", "content-type": "application/json"}
        while time.monotonic() < end:
            client.post("/v1/completions", content=text, headers=head)
            sent += len(text)
    return sent


def full_stop(port, memory):
    """Four beam searches of the longest kind that nobody waits for; then SIGTERM, which main sends."""
    head = {"authorization": "Bearer bob"}
    body = {"model": "book", "prompt": "x", "max_tokens": 4_096, "num_beams": 64}
    for _ in range(4):
        with suppress(httpx.HTTPError):
            httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, headers=head, timeout=1)
    return 4


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        from elman.serve.server import serve

        with tempfile.TemporaryDirectory() as folder:
            made = service(served_models(), keys=Keys(keys_file(Path(folder) / "keys.txt", "ann", "bob")))
            sys.exit(serve(made, "127.0.0.1", 0))
    attack = globals()[f"full_{sys.argv[1]}"]
    with process() as (port, memory, child):
        others = Others(port)
        others.start()
        time.sleep(2)
        before, began = memory(), time.monotonic()
        sent = attack(port, memory)
        took = f"{sent} sent in {time.monotonic() - began:.1f} s"
        print(f"{sys.argv[1]}: {took}; {before} MB before, {memory()} MB after; {others.said()}")
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        child.wait(120)
        print(f"SIGTERM: over after {time.monotonic() - began:.1f} s, code {child.returncode}")
