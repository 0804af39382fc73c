"""kill -9 at named points and at random instants: nothing acknowledged is lost, nothing is applied twice.

The harness forks a server from this process, which is warm, and kills it. `python tests/serve/test_crash.py 1000` does
it a thousand times; a second number says with which to begin.
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from running import core, service

from elman.serve.store.sqlite import SqliteStore
from elman.tasks.number_serving import Numbers

PLACES = ("taken", "before commit", "before reply")
CORE = core(size=8)


def child(path, pipe, place, after):
    """Serve; and die at the `after`-th time that the engine passes a place, if one is named."""
    from elman.serve.net.server import Server

    passed = [0]

    def fault(at):
        if at == place:
            passed[0] += 1
            if passed[0] == after:
                os.kill(os.getpid(), signal.SIGKILL)

    made = service({"gru": Numbers.of_core(CORE)}, SqliteStore(path), faults=fault)
    server = Server(made, "127.0.0.1", 0)
    startup = server.startup

    async def started(sockets=None):
        await startup(sockets)
        os.write(pipe, str(server.servers[0].sockets[0].getsockname()[1]).encode())
        os.close(pipe)

    server.startup = started
    server.run()


class Forked:
    """A server in a process of its own."""

    def __init__(self, path, place="", after=0):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(reader)
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                child(path, writer, place, after)
            finally:
                os._exit(0)
        os.close(writer)
        port = os.read(reader, 16).decode()
        os.close(reader)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) if port else None

    def kill(self):
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        if self.client:
            self.client.close()


def drive(client, id, sent, acknowledged, until):
    """Steps one after the other, each with a key, until the server is gone or there are enough."""
    while len(acknowledged) < until:
        number = len(acknowledged)
        if len(sent) == number:
            sent.append(float(number % 7) - 3)
        body = {"version": number, "input": [sent[number]]}
        headers = {"idempotency-key": f"key-{number}"}
        try:
            answer = client.post(f"/v1/sessions/{id}/step", json=body, headers=headers)
        except httpx.HTTPError:
            return
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] == number + 1
        acknowledged.append(answer.json()["output"])


def offline(x):
    with torch.no_grad():
        return CORE.scan(torch.tensor(x)[None, :, None])[0][0].numpy()


def crash(path, place, after, seconds=None):
    """One life and death, and what the next life finds."""
    server = Forked(path)
    id = server.client.post("/v1/sessions", json={"model": "gru"}).json()["id"]
    server.kill()
    sent, acknowledged = [], []
    server = Forked(path, place, after)
    if seconds is not None:
        pid = server.pid
        os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", f"sleep {seconds}; kill -9 {pid}")
    if server.client:
        drive(server.client, id, sent, acknowledged, 60)
    server.kill()
    server = Forked(path)
    version = server.client.get(f"/v1/sessions/{id}").json()["version"]
    assert len(acknowledged) <= version <= len(sent), "lost, or applied twice"
    before = len(acknowledged)
    drive(server.client, id, sent, acknowledged, before + 3)  # the same keys again, and some more
    found = server.client.get(f"/v1/sessions/{id}").json()
    assert found["version"] == found["position"] == before + 3
    assert np.array_equal(np.array(acknowledged, np.float32), offline(sent)), "not the bits of a replay"
    server.kill()
    return before


@pytest.mark.parametrize("place", PLACES)
def test_killed_at_a_named_point(tmp_path, place):
    assert crash(tmp_path / "s.db", place, 9) < 60


def test_killed_at_random_instants(tmp_path):
    for number in range(2):
        crash(tmp_path / f"{number}.db", "", 0, seconds=random.Random(number).uniform(0.05, 0.3))


def main(times, first=0):
    import tempfile

    began, counted = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + times):
            chance = random.Random(number)
            place = chance.choice([*PLACES, ""])
            path = Path(folder) / f"{number}.db"
            counted += crash(path, place, chance.randint(1, 40), None if place else chance.uniform(0.02, 0.4))
            for file in Path(folder).glob(f"{number}.db*"):
                file.unlink()
    seconds = time.monotonic() - began
    print(f"{times} kills, {counted} acknowledged steps: none lost, none twice; {seconds:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
