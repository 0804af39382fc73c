"""The server against FastAPI with torch.nn and with ONNX Runtime, in one run: `python -m bench.serving`.

Each server is a process of its own and the load comes from this one. The servers take turns, some seconds each; what is
printed is the median over the rounds, and ratios of medians. All traffic is on the loopback.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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


class Connection:
    """HTTP with as little around it as will do, so that the load costs little beside the server."""

    async def open(self, port: int) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        return self

    async def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        data = await self.reader.readexactly(length)
        assert answer[9:12] in (b"200", b"201"), (answer, data[:200])
        return data

    async def session(self) -> str:
        return json.loads(await self.post("/v1/sessions", b'{"model":"gru"}'))["id"]


async def one_each(port: int, seconds: float, connections: int = CONNECTIONS) -> list[float]:
    """Steps one by one on some connections: how long each took."""
    times: list[float] = []

    async def drive() -> None:
        connection = await Connection().open(port)
        path = f"/v1/sessions/{await connection.session()}/step"
        await connection.post(path, b'{"version":"any","input":[0.5]}')
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            await connection.post(path, b'{"version":"any","input":[0.5]}')
            times.append(time.perf_counter() - began)
        connection.writer.close()

    await asyncio.gather(*(drive() for _ in range(connections)))
    return times


async def bulk(port: int, seconds: float) -> float:
    """Steps a second, 256 sessions in a request, two requests under way."""
    done = 0

    async def drive() -> None:
        nonlocal done
        connection = await Connection().open(port)
        ids = [await connection.session() for _ in range(ROWS)]
        body = json.dumps({"items": [{"session": id, "version": "any", "input": [0.5]} for id in ids]}).encode()
        await connection.post("/v1/steps", body)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await connection.post("/v1/steps", body)
            done += ROWS

    await asyncio.gather(drive(), drive())
    return done / seconds


async def socket(port: int, seconds: float) -> float:
    """Steps a second, 64 sessions on one socket, each with one step under way."""
    from websockets.asyncio.client import connect

    connection = await Connection().open(port)
    ids = [await connection.session() for _ in range(CONNECTIONS)]
    messages = [
        json.dumps({"id": i, "step": {"session": id, "version": "any", "input": [0.5]}}) for i, id in enumerate(ids)
    ]
    async with connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None) as ws:
        await ws.recv()
        for message in messages:
            await ws.send(message)
        end, done = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            answer = await ws.recv()
            number = int(answer[6 : answer.index(b",")])  # {"id":7,
            done += 1
            await ws.send(messages[number])
    return done / seconds


async def equal(ports: dict[str, int]) -> None:
    """All of them compute the same."""
    found = {}
    for name, port in ports.items():
        connection = await Connection().open(port)
        path = f"/v1/sessions/{await connection.session()}/step"
        for x in (0.5, -1.0, 2.0):
            found[name] = json.loads(await connection.post(path, f'{{"version":"any","input":[{x}]}}'.encode()))[
                "output"
            ]
    first = next(iter(found.values()))
    assert all(max(abs(a - b) for a, b in zip(first, y, strict=True)) < 1e-5 for y in found.values())


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
        ids = asyncio.run(create(port))
    with server("elman", path) as port:
        return statistics.quantiles(asyncio.run(steps(port, ids)), n=100)[98] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=["torch", "onnx"])
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ports = {kind: stack.enter_context(server(kind)) for kind in ("elman", *given.peers)}
        ports["stored"] = stack.enter_context(server("elman", str(Path(folder) / "store.db")))
        asyncio.run(equal(ports))
        rates: dict[tuple[str, str], list[float]] = {}

        def note(row: str, name: str, value: float) -> None:
            rates.setdefault((row, name), []).append(value)

        for _ in range(given.rounds):
            for name, port in ports.items():
                note(
                    "one per request, 64 connections, steps/s",
                    name,
                    len(asyncio.run(one_each(port, given.seconds))) / given.seconds,
                )
                note("256 rows per request, steps/s", name, asyncio.run(bulk(port, given.seconds)))
            note("one socket, 64 sessions, steps/s", "elman", asyncio.run(socket(ports["elman"], given.seconds)))
            for name in ("elman", "stored"):
                times = asyncio.run(one_each(ports[name], given.seconds, 1))
                note("one connection, p50 in ms", name, statistics.median(times) * 1e3)
        for (row, name), values in rates.items():
            spread = f"{min(values):.4g} to {max(values):.4g}"
            print(f"{row:<42} {name:<8} {statistics.median(values):10.4g}  ({spread})")
    print(f"{'first step after a restart, p99 in ms':<42} {'stored':<8} {resume(tempfile.mkdtemp()):10.4g}")


if __name__ == "__main__":
    main()
