"""Very many sessions: created and deleted they leave no memory behind, held they are exact.

`python tests/serve/test_many_sessions.py churn 1000000`, and `held 1000000 [STORE]` in place of it, do it at full size
and print what they took. The sessions are those of GRU 2 x 128, as in `bench.serving`.
"""

import resource
import sys
import time

import msgspec
import numpy as np
import pytest
import torch

import elman
from elman.serve.api.bodies import Item
from elman.serve.engine import jobs
from elman.serve.engine.engine import Engine
from elman.serve.engine.steps import submit_steps
from elman.serve.limits import Limits
from elman.serve.store.sessions import Sessions
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore
from elman.tasks.serving_numbers import ServedNumbers

TENANT, EACH = "local", 1_024


class Crowd:
    """An engine without a thread, and what it has answered."""

    def __init__(self, core, store=None):
        self.sessions = Sessions(store or MemoryStore(), {"gru": ServedNumbers.of_core(core)}, Limits())
        self.engine = Engine(self.sessions)

    def ask(self, makes):
        """What is answered to some jobs, in order."""
        found = [None] * len(makes)
        for i, make in enumerate(makes):
            self.engine.submit(make(lambda value, i=i: found.__setitem__(i, value)))
        while self.engine.waiting:
            self.engine.tick()
        return found

    def create(self, count):
        asked, options = jobs.WriteRequest(TENANT, "create"), jobs.Options(3600.0)
        found = self.ask([lambda reply: jobs.Create(reply, asked, "gru", options, 0, None)] * count)
        return [msgspec.json.decode(one.body)["id"] for one in found]

    def step(self, ids, values):
        """A step of each: the outputs."""
        found = {}
        items = [Item(id, "any", input=[float(value)]) for id, value in zip(ids, values, strict=True)]
        submit_steps(
            self.engine, TENANT, items, lambda places, answers: found.update(zip(places, answers, strict=True))
        )
        self.engine.tick()
        return np.array([msgspec.json.decode(found[i])["body"]["output"] for i in range(len(ids))], np.float32)

    def delete(self, ids):
        assert all(one.status == 200 for one in self.ask([_delete(id) for id in ids]))


def _delete(id):
    return lambda reply: jobs.Delete(reply, TENANT, id)


def pieces(count):
    return [range(at, min(at + EACH, count)) for at in range(0, count, EACH)]


def memory():
    """Megabytes of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def churn(crowd, count):
    """Create, step and delete; what is left, and the memory after the first tenth and at the end."""
    first = 0.0
    for piece in pieces(count):
        ids = crowd.create(len(piece))
        crowd.step(ids[:8], np.ones(8))
        crowd.delete(ids)
        if not first and piece.stop >= count // 10:
            first = memory()
    return sum(crowd.sessions.counts.values()), first, memory()


def held(crowd, core, count):
    """Create all, then two steps of each, in another order: every output is that of a scan alone."""
    ids = [id for piece in pieces(count) for id in crowd.create(len(piece))]
    values = np.random.default_rng(0).integers(-50, 50, (count, 2)) / 16
    with torch.no_grad():
        each = torch.tensor(np.arange(-50, 50) / 16, dtype=torch.float32)
        x = torch.stack(torch.meshgrid(each, each, indexing="ij"), -1).reshape(-1, 2, 1)
        wanted = core.scan(x)[0].numpy().reshape(100, 100, 2, -1)
    places = (values * 16 + 50).astype(int)
    for t in (0, 1):
        for piece in reversed(pieces(count)) if t else pieces(count):
            at = places[piece.start : piece.stop]
            found = crowd.step(ids[piece.start : piece.stop], values[piece.start : piece.stop, t])
            assert np.array_equal(found, wanted[at[:, 0], at[:, 1], t])
    return len(ids)


def gru(size=128):
    torch.manual_seed(0)
    return elman.from_torch(torch.nn.GRU(1, size, 2, batch_first=True)).eval()


def test_sessions_that_come_and_go_leave_nothing():
    crowd = Crowd(gru(8))
    left, first, last = churn(crowd, 8_000)
    assert left == 0 and last - first < 4, (first, last)
    assert not crowd.sessions.cache and not crowd.engine.queues


@pytest.mark.slow
def test_sessions_that_are_held_are_exact(tmp_path):
    core = gru(8)
    for store in (None, SqliteStore(tmp_path / "s.db")):
        assert held(Crowd(core, store), core, 5_000) == 5_000  # more than are kept decoded


def main(what, count, path=""):
    torch.set_num_threads(1)
    core = gru()
    crowd, began, before = Crowd(core, SqliteStore(path) if path else None), time.monotonic(), memory()
    if what == "churn":
        left, first, last = churn(crowd, count)
        print(
            f"{count} sessions created and deleted, {left} left; {first:.0f} MB after a tenth, {last:.0f} MB at the end"
        )
    else:
        found = held(crowd, core, count)
        print(f"{found} sessions held, two steps of each to the bits of a scan; {memory() - before:.0f} MB for them")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
