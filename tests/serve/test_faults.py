"""The disk fails under a server, really: reads, writes and syncs of its store, by faults.c before libc; beside that
kill -9, SIGSTOP, and a store that is moved away for a while.

Clients step sessions, each with a key, and send again what was refused. Whatever was acknowledged must be there, once,
and be what an offline run of the same inputs gives. `python tests/serve/test_faults.py 40` has 40 lives of a server.
"""

import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FAULTS = {"reads": 1, "writes": 2, "full": 4, "syncs": 8}
ENDS = ("kill -9", "failed sync", "SIGSTOP and kill -9", "SIGTERM")
CLIENTS, OTHERS = 4, 300  # sessions that are stepped, and that are only looked at: more than SQLite keeps in memory


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_nothing_is_lost_doubled_or_mixed_up_whatever_fails(tmp_path):
    found = run(tmp_path, len(ENDS))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "lost 0, doubled 0, mixed up 0" in found.stdout


def run(folder, lives, first=0):
    """The harness in a process of its own, behind faults.c."""
    library, switch = folder / "faults.so", folder / "switch"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    switch.write_bytes(bytes(4096))
    about = {"LD_PRELOAD": str(library), "FAULT_SWITCH": str(switch), "FAULT_STORE": "faulty.db"}
    command = [sys.executable, __file__, "inside", str(folder), str(lives), str(first)]
    return subprocess.run(command, env={**os.environ, **about}, capture_output=True, text=True, timeout=3600)


# What runs inside


class Life:
    """A server in a process of its own, which serves as `elman serve` does."""

    def __init__(self, path):
        import httpx

        reader, writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(reader)
            os._exit(self._serve(path, writer))
        os.close(writer)
        self.url = f"http://127.0.0.1:{os.read(reader, 16).decode()}"
        os.close(reader)
        self.client = httpx.Client(base_url=self.url, timeout=20)

    def _serve(self, path, pipe):
        from running import core, service

        from elman.serve import server
        from elman.serve.store import sessions
        from elman.serve.store.sqlite import SqliteStore
        from elman.tasks.serving_numbers import ServedNumbers

        sys.stderr = open(path.with_name("said"), "a", buffering=1)  # noqa: SIM115
        sessions.CACHED = 1  # so that sessions are read
        store = SqliteStore(path)
        store._db.execute("PRAGMA cache_size=10")
        startup = server.Server.startup

        async def started(self, sockets=None):
            await startup(self, sockets)
            os.write(pipe, str(self.servers[0].sockets[0].getsockname()[1]).encode())
            os.close(pipe)

        server.Server.startup = started
        return server.serve(service({"gru": ServedNumbers.of_core(core(size=8))}, store), "127.0.0.1", 0)

    def wait(self, seconds=30):
        """How it ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the server did not end")


class Client(threading.Thread):
    """Steps of one session, one after the other, until the server is gone."""

    def __init__(self, session, url, others):
        super().__init__(daemon=True)
        self.session, self.url, self.others, self.statuses, self.wrong = session, url, others, {}, ""

    def run(self):
        import httpx

        s = self.session
        with httpx.Client(base_url=self.url, timeout=20) as client:
            while not s["over"]:
                number = len(s["acknowledged"])
                if len(s["sent"]) == number:
                    s["sent"].append(float((number * 7 + s["seed"]) % 11) - 5)
                body, key = {"version": number, "input": [s["sent"][number]]}, {"idempotency-key": f"k{number}"}
                try:
                    answer = client.post(f"/v1/sessions/{s['id']}/step", json=body, headers=key)
                    looked = client.get(f"/v1/sessions/{self.others[(number * 37 + s['seed']) % OTHERS]}")
                except httpx.HTTPError:
                    return
                for status in (answer.status_code, looked.status_code):
                    self.statuses[status] = self.statuses.get(status, 0) + 1
                if looked.status_code == 200 and looked.json()["version"] != 0:
                    self.wrong = f"another session is at {looked.json()['version']}"
                    return
                if answer.status_code == 200:
                    s["acknowledged"].append(answer.json()["output"])
                elif not {answer.status_code, looked.status_code} <= {200, 503, 507}:
                    self.wrong = f"{answer.status_code} {answer.text}"
                    return
                else:
                    time.sleep(0.005)


class Harness:
    def __init__(self, folder, first):
        self.path, self.chance = folder / "faulty.db", random.Random(first)
        switch = (folder / "switch").open("r+b")
        self.switch = mmap.mmap(switch.fileno(), 4096)
        self.sessions, self.others, self.statuses, self.injected, self.ends = [], [], {}, {}, {}
        self.lost = self.doubled = 0

    def set(self, flags):
        self.switch[:4] = struct.pack("i", flags)

    @property
    def faults(self):
        return struct.unpack("i", self.switch[4:8])[0]

    def life(self, number):
        end = ENDS[number % len(ENDS)]
        server = Life(self.path)
        self.look(server)
        while len(self.sessions) < CLIENTS:
            tier = "power" if len(self.sessions) % 2 else "process"
            id = server.client.post("/v1/sessions", json={"model": "gru", "durability": tier}).json()["id"]
            self.sessions.append(dict(id=id, seed=len(self.sessions), sent=[], acknowledged=[]))
        while len(self.others) < OTHERS:
            self.others.append(server.client.post("/v1/sessions", json={"model": "gru"}).json()["id"])
        for session in self.sessions:
            session["over"] = False
        clients = [Client(session, server.url, self.others) for session in self.sessions]
        for client in clients:
            client.start()
        for kind in self.chance.sample(["reads", "writes", "full", "moved away"], 4):
            self.disturb(kind)
        self.finish(server, end)
        for session in self.sessions:
            session["over"] = True
        for client in clients:
            client.join(30)
            assert not client.is_alive() and not client.wrong, client.wrong or "a request was not answered"
            for status, times in client.statuses.items():
                self.statuses[status] = self.statuses.get(status, 0) + times

    def disturb(self, kind):
        time.sleep(self.chance.uniform(0.02, 0.1))
        before = self.faults
        if kind == "moved away":
            away = self.path.with_name("elsewhere")
            os.rename(self.path, away)
            time.sleep(0.2)
            os.rename(away, self.path)
            self.injected[kind] = self.injected.get(kind, 0) + 1
        else:
            self.set(FAULTS[kind])
            time.sleep(self.chance.uniform(0.05, 0.2))
            self.set(0)
            self.injected[kind] = self.injected.get(kind, 0) + self.faults - before
        time.sleep(self.chance.uniform(0.02, 0.1))

    def finish(self, server, end):
        before = self.faults
        if end == "failed sync":
            self.set(FAULTS["syncs"])
            status = server.wait()
            self.set(0)
            self.injected["syncs"] = self.injected.get("syncs", 0) + self.faults - before
            assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1, status
            said = self.path.with_name("said").read_text()
            assert "the server stops" in said and "sync" in said, said
        elif end == "SIGTERM":
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait() == 0
        else:
            if "SIGSTOP" in end:
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(server.pid, signal.SIGCONT)
                time.sleep(0.05)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        server.client.close()
        self.ends[end] = self.ends.get(end, 0) + 1

    def look(self, server):
        """What the next life finds: all that was acknowledged, and nothing that was not sent."""
        for session in self.sessions:
            version = server.client.get(f"/v1/sessions/{session['id']}").json()["version"]
            self.lost += version < len(session["acknowledged"])
            self.doubled += version > len(session["sent"])

    def compare(self):
        """Sessions whose outputs are not those of an offline run."""
        import numpy as np
        import torch
        from running import core

        wrong = 0
        for session in self.sessions:
            count = len(session["acknowledged"])
            with torch.no_grad():
                y = core(size=8).scan(torch.tensor(session["sent"][:count])[None, :, None])[0][0].numpy()
            wrong += not np.array_equal(np.array(session["acknowledged"], np.float32), y)
        return wrong


def inside(folder, lives, first):
    sys.path.insert(0, str(HERE))
    harness = Harness(Path(folder), first)
    for number in range(lives):
        harness.life(number)
    server = Life(harness.path)
    harness.look(server)
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait() == 0
    mixed, answers = harness.compare(), dict(sorted(harness.statuses.items()))
    print(f"{lives} lives; ends {harness.ends}; failed calls {harness.injected}; answers {answers}")
    print(f"lost {harness.lost}, doubled {harness.doubled}, mixed up {mixed}")
    refused = sum(times for status, times in answers.items() if status != 200)
    assert answers[200] > 20 * lives and refused > lives, "there was no load, or no fault reached a request"
    assert all(harness.injected.values()), "a fault was not met"


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        inside(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        with tempfile.TemporaryDirectory() as made:
            found = run(Path(made), *map(int, sys.argv[1:]))
            print(found.stdout, found.stderr)
