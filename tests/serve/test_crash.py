"""kill -9 at named points and at random instants: nothing acknowledged is lost, nothing is applied twice.

The harness forks a server from this process, which is warm, and kills it. `python tests/serve/test_crash.py 1000` does
it a thousand times; a second number says with which to begin.
"""

import os
import random
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from forked import Forked, offline

PLACES = ("taken", "before commit", "before reply")


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


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_a_named_point(tmp_path, place):
    assert crash(tmp_path / "s.db", place, 9) < 60


@pytest.mark.slow
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
