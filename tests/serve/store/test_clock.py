"""A step of the wall clock."""

import time

from direct import direct, get, made, step
from running import core

from elman.serve.engine.jobs import Options
from elman.serve.limits import Limits
from elman.serve.store.sessions import Sessions
from elman.serve.store.sqlite import SqliteStore
from elman.tasks.serving_numbers import ServedNumbers


# The clock
def test_a_step_of_the_wall_clock_expires_nothing(tmp_path, monkeypatch):
    wall = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    store = SqliteStore(tmp_path / "s.db")
    models = {"gru": ServedNumbers.of_core(core())}
    engine = direct(store, clock=Sessions(store, models, Limits()).clock)
    id = made(engine, options=Options(3600.0))
    wall[0] += 10 * 86_400
    engine.engine.swept = 0.0
    engine.engine.tick()
    assert get(engine, id)["version"] == 0
    assert step(engine, id, [1.0])["version"] == 1
    store.close()
    wall[0] = 5.0  # and back, while the server was down
    store = SqliteStore(tmp_path / "s.db")
    now = Sessions(store, models, Limits()).clock
    assert 1_000_000.0 <= now() < 1_000_100.0
    engine = direct(store, clock=now)
    assert 1_003_500 < get(engine, id)["expires"] < 1_003_700
    store.close()
