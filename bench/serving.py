"""The server against FastAPI with torch.nn and with ONNX Runtime, in one run: `python -m bench.serving`.

Each server is a process of its own and the load comes from this one. The servers take turns, some seconds each. All
traffic is on the loopback.
"""

import asyncio
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.turns import Report, Result, figure, parser, result

CONNECTIONS, ROWS = 64, 256


@contextmanager
def server(kind: str, path: str = "") -> Iterator[int]:
    """A server of a kind, and its port."""
    command = [sys.executable, "-m", "bench.serving_server", kind, *([path] if path else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


class Connection(asyncio.Protocol):
    """HTTP with as little around it as will do, so that the load costs little beside the server."""

    waiting: asyncio.Future[bytes] | None = None
    tenant = ""  # its key is its name

    async def open(self, port: int) -> "Connection":
        self.came, self.wanted = bytearray(), 0
        self.transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        return self

    def data_received(self, data: bytes) -> None:
        self.came += data
        if not self.wanted:
            head = self.came.find(b"\r\n\r\n") + 4
            if head == 3:
                return
            at = self.came.find(b"content-length: ", 0, head) + 16
            self.head, self.wanted = head, head + int(self.came[at : self.came.index(b"\r", at)])
        if len(self.came) == self.wanted:
            assert self.came[9:12] in (b"200", b"201"), bytes(self.came)
            answer, self.came, self.wanted = self.came[self.head :], bytearray(), 0
            self.answered(answer)

    def answered(self, answer: bytearray) -> None:
        assert self.waiting is not None
        self.waiting.set_result(bytes(answer))

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(error or ConnectionError("the server closed the connection"))

    async def post(self, path: str, body: bytes) -> bytes:
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request(path, body, self.tenant))
        return await self.waiting

    async def session(self) -> str:
        return json.loads(await self.post("/v1/sessions", b'{"model":"gru"}'))["id"]


def request(path: str, body: bytes, tenant: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {tenant}\r\n" if tenant else ""
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Driver(Connection):
    """Sends one request over and over, each when the one before is answered; how long each took."""

    def drive(self, path: str, body: bytes, seconds: float) -> asyncio.Future[None]:
        self.times: list[float] = []
        self.request, self.answered = request(path, body, self.tenant), self._again  # type: ignore[method-assign]
        self.waiting = self.over = asyncio.get_running_loop().create_future()
        self.began = time.perf_counter()
        self.end = self.began + seconds
        self.transport.write(self.request)
        return self.over

    def _again(self, answer: bytearray) -> None:
        now = time.perf_counter()
        self.times.append(now - self.began)
        self.began = now
        if now < self.end:
            self.transport.write(self.request)
        else:
            self.over.set_result(None)
            self.transport.close()


STEP = b'{"version":"any","input":[0.5]}'


async def one_each(port: int, seconds: float, connections: int = CONNECTIONS) -> list[float]:
    """Steps one by one on some connections: how long each took."""
    drivers = [await Driver().open(port) for _ in range(connections)]
    paths = [f"/v1/sessions/{await driver.session()}/step" for driver in drivers]
    await asyncio.gather(*(driver.drive(path, STEP, seconds) for driver, path in zip(drivers, paths, strict=True)))
    return [each for driver in drivers for each in driver.times]


async def bulk(
    port: int, seconds: float, connections: int = 2, tenant: str = "", begun: asyncio.Event | None = None
) -> float:
    """Steps a second, 256 sessions in a request, so many requests under way."""
    drivers = [await Driver().open(port) for _ in range(connections)]
    bodies = []
    for driver in drivers:
        driver.tenant = tenant
        ids = [await driver.session() for _ in range(ROWS)]
        items = [{"session": id, "version": "any", "input": [0.5]} for id in ids]
        bodies.append(json.dumps({"items": items}).encode())
    each = zip(drivers, bodies, strict=True)
    if begun is not None:
        begun.set()
    await asyncio.gather(*(driver.drive("/v1/steps", body, seconds) for driver, body in each))
    return ROWS * sum(len(driver.times) for driver in drivers) / seconds


async def light(port: int, seconds: float, heavy: int) -> float:
    """The p50 in ms of a tenant's steps on one connection, beside another's that has so many requests of 256 rows under
    way all the time."""
    driver = await Driver().open(port)
    driver.tenant = "light"
    path = f"/v1/sessions/{await driver.session()}/step"
    begun = asyncio.Event()
    beside = asyncio.create_task(bulk(port, seconds + 1, heavy, "heavy", begun))
    await begun.wait()
    await asyncio.sleep(0.5)
    await driver.drive(path, STEP, seconds)
    await beside
    return statistics.median(driver.times) * 1e3


async def socket(port: int, seconds: float) -> float:
    """Steps a second, 64 sessions on one socket, each with one step under way.

    Frames are put together and taken apart here: what is on the wire is what any client sends.
    """
    connection = await Connection().open(port)
    ids = [await connection.session() for _ in range(CONNECTIONS)]
    steps = [{"id": i, "step": {"session": id, "version": "any", "input": [0.5]}} for i, id in enumerate(ids)]
    client = Frames([frame(json.dumps(step).encode()) for step in steps])
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
    return await client.drive(seconds)


def frame(text: bytes) -> bytes:
    """A message of a client, masked with zeros."""
    length = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + text


class Frames(asyncio.Protocol):
    """The client's side of a socket: every answer is followed by the next step of its session."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages, self.came, self.open, self.done, self.end = messages, b"", False, 0, math.inf
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        head = "GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        head += "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        transport.write(head.encode())

    async def drive(self, seconds: float) -> float:
        began = time.perf_counter()
        self.end = began + seconds
        await self.over
        self.transport.abort()
        return self.done / (time.perf_counter() - began)

    def data_received(self, data: bytes) -> None:
        self.came += data
        if not self.open:
            head = self.came.find(b"\r\n\r\n")
            if head < 0:
                return
            assert self.came.startswith(b"HTTP/1.1 101"), self.came
            self.came, self.open = self.came[head + 4 :], True
        at, found = 0, self.came
        asked = []
        while len(found) >= at + 4:
            short = found[at + 1]
            assert found[at] in (0x81, 0x82) and short < 127
            head, length = (4, int.from_bytes(found[at + 2 : at + 4], "big")) if short == 126 else (2, short)
            if len(found) < at + head + length:
                break
            text = found[at + head : at + head + 24]
            if text.startswith(b'{"id":'):
                assert found.startswith(b'"status":200', found.index(b",", at + head) + 1), found[at : at + 300]
                self.done += 1
                asked.append(self.messages[int(text[6 : text.index(b",")])])
            else:  # the credits
                asked += self.messages
            at += head + length
        self.came = found[at:]
        if time.perf_counter() < self.end:
            self.transport.write(b"".join(asked))
        elif not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(error or ConnectionError("the server closed the socket"))


async def equal(ports: dict[str, int]) -> None:
    """All of them compute the same, one by one and many at once, and answer in about as many digits."""
    found: dict[str, tuple[list[list[float]], int]] = {}
    for name, port in ports.items():
        connection = await Connection().open(port)
        ids = [await connection.session() for _ in range(3)]
        for x in (0.5, -1.0, 2.0):
            alone = await connection.post(f"/v1/sessions/{ids[0]}/step", f'{{"version":"any","input":[{x}]}}'.encode())
        for x in (0.5, -1.0):
            items = [{"session": id, "version": "any", "input": [x + i]} for i, id in enumerate(ids)]
            many = json.loads(await connection.post("/v1/steps", json.dumps({"items": items}).encode()))["data"]
        output = json.loads(alone)["output"]
        digits = len(json.dumps(output))
        found[name] = [output, *(each.get("body", each)["output"] for each in many)], digits
    first, length = next(iter(found.values()))
    for name, (rows, digits) in found.items():
        worst = max(abs(a - b) for x, y in zip(first, rows, strict=True) for a, b in zip(x, y, strict=True))
        assert worst < 1e-5, f"{name} differs by {worst}"
        assert abs(digits - length) < 0.15 * length, f"{name} answers in {digits} characters, elman in {length}"


def resume(folder: str) -> float:
    """The p99 of the first step of each of 1,000 sessions after a restart, in ms."""
    path = str(Path(folder) / "resume.db")

    async def create(port: int) -> list[str]:
        connection = await Connection().open(port)
        return [await connection.session() for _ in range(1_000)]

    async def steps(port: int, ids: list[str]) -> list[float]:
        connection, times = await Connection().open(port), []
        await connection.session()
        for id in ids:
            began = time.perf_counter()
            await connection.post(f"/v1/sessions/{id}/step", b'{"version":"any","input":[0.5]}')
            times.append(time.perf_counter() - began)
        return times

    with server("elman", path) as port:
        ids = uvloop.run(create(port))
    with server("elman", path) as port:
        return statistics.quantiles(uvloop.run(steps(port, ids)), n=100)[98] * 1e3


ONE, BULK, SOCKET = "one per request, 64 connections", "256 rows per request", "one socket, 64 sessions"
LATENCY = "one connection, p50 in ms"
LIGHT, BESIDE, HEAVY = "a light tenant alone, p50 in ms", "a light tenant beside a heavy one", 8


class Table:
    """What was measured, by row and server; and how busy the generator of the load was, of one core."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = {}
        self.busy: dict[tuple[str, str], list[float]] = {}

    def note(self, row: str, name: str, measured: Coroutine[Any, Any, float]) -> None:
        cpu, began = time.process_time(), time.perf_counter()
        self.values.setdefault((row, name), []).append(uvloop.run(measured))
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
        self.busy.setdefault((row, name), []).append(share)
        print(f"  {row}, {name}: {self.values[row, name][-1]:.4g}", file=sys.stderr, flush=True)

    def over(self, row: str, name: str, other: str, must: float | None = None, label: str = "") -> Result:
        """Rates of one server over another's."""
        ours, theirs = self.values[row, name], self.values[row, other]
        label = label or {"torch": "FastAPI, torch", "onnx": "FastAPI, onnxruntime"}[other]
        return result(f"serve {row}", label, ours, theirs, must, inverted=True, unit="steps/s")

    def rows(self, peers: list[str]) -> list[Result]:
        found = [self.over(ONE, "elman", peer, {"torch": 2, "onnx": 1.5}[peer]) for peer in peers]
        bulk = sorted(peers, key=lambda peer: -statistics.median(self.values[BULK, peer]))
        found += [self.over(BULK, "elman", peer, 2.5 if peer == bulk[0] else None) for peer in bulk]
        for row in (ONE, BULK):
            found.append(self.over(row, "stored", "elman", label="elman without a store"))
        socket, one = self.values[SOCKET, "elman"], self.values[ONE, "elman"]
        found.append(result(f"serve {SOCKET}", "elman, one per request", socket, one, 3, inverted=True, unit="steps/s"))
        for name in ("shared", "shared, stored"):
            light, beside = self.values[LIGHT, name], self.values[BESIDE, name]
            label = f"its own alone{', both with a store' * name.endswith('stored')}"
            found.append(
                result(f"serve {BESIDE}", label, beside, light, 5, 3, upper=True, inverted=True, unit="p50 ms")
            )
        added = [b - a for a, b in zip(self.values[LATENCY, "elman"], self.values[LATENCY, "stored"], strict=True)]
        found.append(figure("serve: added by durability `process`, p50", statistics.median(added), "ms", 1))
        busy = max(statistics.median(each) for each in self.busy.values())
        return [*found, figure("serve: most that the load generator took of a core", busy, "of 1")]


async def rate(port: int, seconds: float) -> float:
    return len(await one_each(port, seconds)) / seconds


async def latency(port: int, seconds: float) -> float:
    return statistics.median(await one_each(port, seconds, 1)) * 1e3


def main() -> None:
    flags = parser("serving", __doc__, 3)
    flags.add_argument("--seconds", type=float, default=3.0)
    flags.add_argument("--peers", nargs="*", default=["torch", "onnx"])
    options = flags.parse_args()
    table = Table()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ports = {kind: stack.enter_context(server(kind)) for kind in ("elman", *options.peers)}
        ports["stored"] = stack.enter_context(server("elman", str(Path(folder) / "store.db")))
        uvloop.run(equal(ports))
        shared = {"shared": stack.enter_context(server("shared"))}
        shared["shared, stored"] = stack.enter_context(server("shared", str(Path(folder) / "shared.db")))
        for _ in range(options.rounds):
            for name, port in shared.items():
                table.note(LIGHT, name, light(port, options.seconds, 0))
                table.note(BESIDE, name, light(port, options.seconds, HEAVY))
            for name, port in ports.items():
                table.note(ONE, name, rate(port, options.seconds))
                table.note(BULK, name, bulk(port, options.seconds))
                table.note(LATENCY, name, latency(port, options.seconds))
            table.note(SOCKET, "elman", socket(ports["elman"], options.seconds))
        report = Report(options.json)
        report.add(*table.rows(options.peers))
        report.add(figure("serve: first step of a session after a restart, p99", resume(folder), "ms", 10))
        report.end()


if __name__ == "__main__":
    main()
