"""The past of a session: its log, its checkpoints, and rolling back to them."""

import json

import numpy as np
import pytest
from direct import NUMBERS, Clock, direct, fails, get, made, refused, scanned, step

from elman.serve.engine.jobs import Delete, GetState, Options, PutState, Rollback, WriteRequest
from elman.serve.store.past import SLICE
from elman.serve.store.sqlite import SqliteStore
from elman.serve.store.store import MemoryStore


def test_replays_by_other_kernels_say_so():
    engine = direct()
    id = made(engine, options=Options(3600.0, every=4, keep=3, log=True))
    step(engine, id, [1.0, 2.0])
    engine.engine.sessions.past.computed = "another"
    back = engine.run(lambda r: Rollback(r, WriteRequest("t", "rollback"), id, 1, 1))
    assert json.loads(back.body)["inexact"] is True


def test_a_second_rollback_knows_nothing_of_what_the_first_has_abandoned():
    engine = direct(models=NUMBERS)
    id = made(engine, options=Options(3600.0, every=99, keep=9, log=True))

    def back(position):
        reply = engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, "any", position))
        assert json.loads(reply.body)["position"] == position

    for x in (1.0, 2.0, 3.0):
        step(engine, id, [x])
    back(2)  # away with 3
    step(engine, id, [-1.0])
    step(engine, id, [-2.0])
    back(3)
    assert np.array_equal(np.float32(step(engine, id, [5.0])["outputs"][0]), scanned([1.0, 2.0, -1.0, 5.0])[3])
    back(1)
    back(0)
    assert np.array_equal(np.float32(step(engine, id, [7.0])["outputs"][0]), scanned([7.0])[0])


def test_a_state_that_is_put_has_no_past():
    engine = direct(models=NUMBERS)
    id = made(engine, options=Options(3600.0, every=2, keep=9, log=True))
    for x in range(5):
        step(engine, id, [float(x)])
    state = engine.run(lambda r: GetState(r, "t", id)).body
    engine.run(lambda r: PutState(r, WriteRequest("t", "state"), id, "any", state))
    assert get(engine, id)["checkpoints"] == [5]
    for position in (0, 3, 4):
        rollback = lambda r, position=position: Rollback(r, WriteRequest("t", "rb"), id, "any", position)  # noqa: E731
        assert refused(422, lambda rollback=rollback: engine.run(rollback)).code == "no_checkpoint"
    step(engine, id, [7.0])
    engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, "any", 5))
    assert np.array_equal(np.float32(step(engine, id, [8.0])["outputs"][0]), scanned([0.0, 1, 2, 3, 4, 8])[5])


@pytest.mark.parametrize("position", [8, 9, 10, 11, 12, 13, 14, 15])
def test_a_log_that_was_cut_in_front_still_leads_to_every_position(position):
    """Writes of several inputs, so that positions and versions differ; of seven checkpoints three are kept."""
    engine = direct(models=NUMBERS)
    id = made(engine, options=Options(3600.0, every=2, keep=3, log=True))
    x = [float(number % 5) for number in range(17)]
    for at in (0, 3, 6, 8, 11, 13, 15):
        step(engine, id, x[at : at + (2 if at in (6, 11, 13, 15) else 3)])
    assert get(engine, id)["checkpoints"] == [13, 15, 17]
    ask = lambda: engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, "any", position))  # noqa: E731
    if position < 13:
        assert refused(422, ask).code == "no_checkpoint"
        return
    ask()
    assert np.array_equal(np.float32(step(engine, id, [9.0])["outputs"][0]), scanned([*x[:position], 9.0])[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_long_log_is_read_and_deleted_some_rows_at_a_time(kind, tmp_path):
    opened = lambda: MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")  # noqa: E731
    clock, store = Clock(), opened()
    engine = direct(store, clock=clock, models=NUMBERS)
    id = made(engine, options=Options(1e6, every=10_000, keep=9, log=True))
    x = [float(number % 7 - 3) for number in range(6 * SLICE)]
    for one in x:
        step(engine, id, [one])

    def back(position):
        found = []
        engine.engine.submit(Rollback(found.append, WriteRequest("t", "rb"), id, "any", position))
        ticks = 0
        while not found:
            engine.engine.tick()
            ticks += 1
        assert json.loads(found[0].body)["position"] == position
        return ticks

    def rows():
        return len(store.children("inputs", id))

    whole = back(2 * SLICE + 5)
    assert whole >= 3  # a neighbour's step is never behind more than a slice
    del x[2 * SLICE + 5 :]
    assert np.array_equal(np.float32(step(engine, id, [5.0])["outputs"][0]), scanned([*x, 5.0])[-1])
    back(5)  # of what is abandoned most is still in the store
    del x[5:]
    assert rows() > SLICE
    for one in (4.0, -4.0):
        x.append(one)
        assert np.array_equal(np.float32(step(engine, id, [one])["outputs"][0]), scanned(x)[-1])
    if kind == "sqlite":
        store.close()
        store = opened()
        engine = direct(store, clock=clock, models=NUMBERS)
    back(6)  # the checkpoint at 5 is behind what is dead, that at 0 before it
    assert np.array_equal(np.float32(step(engine, id, [1.0])["outputs"][0]), scanned([*x[:6], 1.0])[-1])
    back(4)
    assert np.array_equal(np.float32(step(engine, id, [2.0])["outputs"][0]), scanned([*x[:4], 2.0])[-1])
    clock.now += 10
    before, slices = rows(), 0
    while rows() > 5:
        engine.engine.tick()
        assert before - rows() <= SLICE
        before, slices = rows(), slices + 1
    assert slices >= 2 and rows() == 5
    engine.engine.tick()
    assert store.children("meta", "dead") == []
    back(3)
    assert np.array_equal(np.float32(step(engine, id, [2.0])["outputs"][0]), scanned([*x[:3], 2.0])[-1])


def test_of_a_session_that_is_deleted_the_log_goes_too():
    clock, store = Clock(), MemoryStore()
    engine = direct(store, clock=clock, models=NUMBERS)
    id = made(engine, options=Options(1e6, every=10_000, keep=2, log=True))
    for _ in range(2 * SLICE + 3):
        step(engine, id, [1.0])
    engine.run(lambda r: Delete(r, "t", id))
    clock.now += 10
    while not engine.engine.idle or store.children("inputs", id):
        engine.engine.tick()
    assert store.counts("inputs") == {} == store.counts("checkpoints") and store.children("meta", "dead") == []


def test_a_rollback_whose_commit_fails_leaves_the_log_as_it_was():
    store = MemoryStore()
    engine = direct(store, models=NUMBERS)
    id = made(engine, options=Options(1e6, every=10_000, keep=2, log=True))
    x = [float(number % 5) for number in range(SLICE + 9)]
    for one in x:
        step(engine, id, [one])
    commit, store.commit = store.commit, fails
    refused(507, lambda: engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, "any", 2)))
    store.commit = commit
    engine.run(lambda r: Rollback(r, WriteRequest("t", "rb"), id, "any", SLICE + 4))
    found = step(engine, id, [3.0])["outputs"][0]
    assert np.array_equal(np.float32(found), scanned([*x[: SLICE + 4], 3.0])[-1])
