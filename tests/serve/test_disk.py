"""The disk: what is synced before a reply leaves, and what happens when there is no room."""

import os
import re
import shutil
import subprocess
import time

import numpy as np
import pytest
from forked import Forked, offline
from running import error


def traced(server, path):
    """strace on a server that runs: syncs, and what is sent."""
    calls = "trace=fsync,fdatasync,write,writev,send,sendto,sendmsg"
    found = subprocess.Popen(
        ["strace", "-f", "-s", "40", "-e", calls, "-o", path, "-p", str(server.pid)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = found.stderr.readline()
    if "attached" not in line:
        found.wait(5)
        server.kill()
        pytest.skip(f"strace cannot attach: {line}")
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_power_is_synced_before_the_reply_and_process_is_not(tmp_path):
    server = Forked(tmp_path / "s.db")
    ids = {tier: server.client.post("/v1/sessions", json={"model": "gru", "durability": tier}).json()["id"]
           for tier in ("power", "process")}  # fmt: skip
    strace = traced(server, tmp_path / "calls")
    for tier in ("process", "power", "process", "power"):
        server.client.get("/healthz", headers={"x-tier": tier})
        answer = server.client.post(f"/v1/sessions/{ids[tier]}/step", json={"version": "any", "input": [1.0]})
        assert answer.status_code == 200
    strace.terminate()
    strace.wait(10)
    server.kill()
    calls = (tmp_path / "calls").read_text()
    between = re.split(r".*HTTP/1\.1 200.*\n", calls)  # replies: to healthz, to a step, to healthz ...
    synced = ["sync(" in part for part in between[1:8:2]]
    assert synced == [False, True, False, True], calls


@pytest.fixture
def small(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_is_507_and_then_it_goes_on(small):
    (small / "ballast").write_bytes(bytes(1 << 20))
    server = Forked(small / "s.db")
    client, steps = server.client, {}

    def step(id, value):
        answer = client.post(f"/v1/sessions/{id}/step", json={"version": len(steps[id]), "input": [value]})
        if answer.status_code == 200:
            steps[id].append((value, answer.json()["output"]))
        return answer

    deadline, full = time.monotonic() + 30, 0
    while full < 20 and time.monotonic() < deadline:
        answer = client.post("/v1/sessions", json={"model": "gru"})
        if answer.status_code == 201:
            steps[answer.json()["id"]] = []
            answer = step(answer.json()["id"], 0.5)
        if answer.status_code == 507:
            assert error(answer)["code"] == "store_full"
            full += 1
        else:
            assert answer.status_code in (200, 201), answer.text
    assert full == 20, "the disk was never full"
    os.remove(small / "ballast")
    for id in steps:
        assert step(id, -1.0).status_code == 200
    server.kill()
    server = Forked(small / "s.db")
    client = server.client
    for id, done in steps.items():
        assert client.get(f"/v1/sessions/{id}").json()["version"] == len(done)
        assert step(id, 2.0).status_code == 200
        x, y = zip(*done, strict=True)
        assert np.array_equal(np.array(y, np.float32), offline(list(x)))
    server.kill()
