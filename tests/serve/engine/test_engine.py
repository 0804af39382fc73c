"""The engine, tick by tick: what is in a batch, what is committed, what is kept in memory; and how a server starts."""

import json
import random
from functools import partial

import numpy as np
from direct import direct, get, item, made, refused, scanned, step
from running import core, language_model, running

from elman.cli import main
from elman.serve.engine.engine import Engine
from elman.serve.engine.jobs import Delete, Generate, Get, Options, WriteRequest
from elman.serve.engine.steps import Step, submit_steps
from elman.serve.engine.text_jobs import Complete
from elman.serve.store.sqlite import SqliteStore
from elman.tasks.serving import Writing
from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.serving import ServedText


def submit(engine, found, id, x, version="any"):
    """A step that nobody waits for; its answer comes into `found`."""
    job = Step(lambda reply: found.append((id, reply)), WriteRequest("t", "step"), id, version, [[v] for v in x], False)
    engine.engine.submit(job)


def test_what_waits_is_one_batch_and_one_commit():
    engine, found = direct(), []
    ids = [made(engine) for _ in range(300)]
    for number, id in enumerate(ids):
        submit(engine, found, id, [number / 8])
    submit(engine, found, ids[0], [7.0])  # a second of the same session goes behind the first
    commits = engine.engine.commits
    engine.engine.tick()
    assert [id for id, _ in found] == ids and engine.engine.commits == commits + 1
    engine.engine.tick()
    assert [id for id, _ in found] == [*ids, ids[0]]
    for number, (_, reply) in enumerate(found[:300]):
        answer = json.loads(reply.body)
        assert np.array_equal(np.float32(answer["outputs"]), scanned([number / 8]))
    assert np.array_equal(np.float32(json.loads(found[300][1].body)["outputs"]), scanned([0.0, 7.0])[1:])


def test_a_long_prompt_goes_in_pieces_of_64_and_nobody_waits_behind_it():
    engine, found = direct(), []
    long, text, short = made(engine), made(engine, "book"), made(engine)
    x = [(t % 9 - 4) / 4 for t in range(64 * 3 + 1)]
    submit(engine, found, long, x)
    prompt = "Once upon a time " * 12  # 204 symbols
    written = Writing(max_new_tokens=1)
    engine.engine.submit(
        Generate(lambda reply: found.append((text, reply)), WriteRequest("t", "g"), text, 0, prompt, written, None)
    )
    for tick in range(1, 7):
        if tick == 2:
            submit(engine, found, short, [1.0])
        engine.engine.tick()
        done = [id for id, _ in found]
        assert (short in done) == (tick >= 2) and (long in done) == (tick >= 4), tick
    answers = {id: json.loads(reply.body) for id, reply in found}
    assert np.array_equal(np.float32(answers[long]["outputs"]), scanned(x))
    assert answers[text]["text"] == language_model().generate(prompt, seed=0, max_new_tokens=1)


def test_idle_sessions_leave_memory_and_come_back_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("elman.serve.store.sessions.CACHED", 4)
    engine = direct(SqliteStore(tmp_path / "s.db"))
    ids = [made(engine) for _ in range(12)]
    engine.engine.sessions.store.close()
    engine = direct(SqliteStore(tmp_path / "s.db"))
    for version, x in enumerate((1.0, -2.0)):
        for number, id in enumerate(ids):
            outputs = step(engine, id, [x + number], version=version)["outputs"]
            past = [1.0 + number, -2.0 + number][: version + 1]
            assert np.array_equal(np.float32(outputs), scanned(past)[-1:])
            assert len(engine.engine.sessions.cache) <= 5
    engine.engine.sessions.store.close()


def test_a_tick_is_synced_where_a_row_of_tier_power_is_in_it():
    engine, found = direct(), []
    store, commit, synced = engine.engine.sessions.store, engine.engine.sessions.store.commit, []

    def recorded(sync):
        synced.append(sync)
        commit(sync)

    store.commit = recorded
    plain, power = made(engine), made(engine, options=Options(3600.0, power=True))
    assert synced == [False, True]
    for rows in ([plain], [plain, power], [power], [plain]):
        for id in rows:
            submit(engine, found, id, [1.0])
        engine.engine.tick()
    engine.run(lambda r: Delete(r, "t", power))
    assert synced[2:] == [False, True, True, False, True]
    # A generation says so when it is done, and not before.
    text = made(engine, "book", options=Options(3600.0, power=True))
    del synced[:]
    engine.run(lambda r: Generate(r, WriteRequest("t", "g"), text, 0, "Hi", Writing(max_new_tokens=5), None))
    assert synced[-1] is True and not any(synced[:-1]) and len(synced) > 3


def test_a_model_that_fails_takes_one_tick_with_it_and_no_more():
    engine, found = direct(), []
    model, ids = engine.engine.sessions.models["gru"], [made(engine) for _ in range(2)]
    step(engine, ids[0], [1.0])
    advance = model.advance

    def broken(works):
        raise RuntimeError("out of order")

    model.advance = broken
    for id in ids:
        submit(engine, found, id, [2.0])
    engine.engine.tick()
    model.advance = advance
    assert [reply.status for _, reply in found] == [500, 500] and engine.engine.waiting == 0
    assert [get(engine, id)["version"] for id in ids] == [1, 0] and not engine.engine.queues
    assert np.array_equal(np.float32(step(engine, ids[0], [2.0], version=1)["outputs"]), scanned([1.0, 2.0])[1:])


def test_ids_cannot_be_guessed_and_do_not_come_again():
    engine, seen = direct(), set()
    for _ in range(200):
        random.seed(0)
        np.random.seed(0)
        id = made(engine)
        assert len(id.removeprefix("sess_")) >= 22  # 128 bits in base64
        engine.run(lambda r, id=id: Delete(r, "t", id))
        refused(404, lambda id=id: get(engine, id))
        seen.add(id)
    assert len(seen) == 200


def test_a_store_with_sessions_of_another_model_starts_with_a_warning(tmp_path, monkeypatch, capsys):
    lm = language_model()
    lm.save(tmp_path / "book")
    store = SqliteStore(tmp_path / "s.db")
    with running({"book": ServedText(lm), "ecg": ServedNumbers.of_core(core())}, store=store) as server:
        ids = [server.session("book"), server.session("ecg")]
    capsys.readouterr()
    asked = {}

    def serve(service, *where):
        """What `elman serve` would serve, without a port."""
        engine = Engine(service.engine.sessions)
        for id in ids:
            hear = partial(asked.__setitem__, id)
            engine.submit(Step(hear, WriteRequest("local", "step"), id, "any", "x", False))
        engine.tick()
        service.engine.sessions.store.close()
        return 0

    monkeypatch.setattr("elman.serve.server.serve", serve)
    assert main(["serve", str(tmp_path / "book"), "--store", str(tmp_path / "s.db")]) == 0
    said = capsys.readouterr().err
    assert "warning" in said and "ecg" in said and "book" not in said.split("warning")[1]
    assert [asked[id].status for id in ids] == [200, 422] and asked[ids[1]].code == "model_mismatch"


def test_a_light_tenant_is_answered_in_the_next_tick_whatever_a_heavy_one_has_sent():
    engine = direct()
    heavy, light = [made(engine, tenant="heavy") for _ in range(600)], made(engine, tenant="light")
    found, sent = [], []
    engine.engine.submit(Get(lambda value: None, "light", light))
    engine.engine.tick()
    items = [item(id) for id in heavy]
    for _ in range(4):  # 2,400 rows, one behind the other in the sessions' lines
        submit_steps(engine.engine, "heavy", items, lambda places, answers: found.extend(answers))
    engine.engine.tick()
    engine.engine.submit(Step(sent.append, WriteRequest("light", "s"), light, 0, [[1.0]], True))
    engine.engine.tick()
    assert [one.status for one in sent] == [200] and len(found) < 600
    while engine.engine.waiting:
        engine.engine.tick()
    assert len(found) == 2_400 and all(one.startswith(b'{"status":200') for one in found)
    assert get(engine, heavy[0], tenant="heavy")["version"] == 4


def test_one_step_is_not_computed_beside_the_many_of_another_tenant():
    engine = direct()
    heavy, light = [made(engine, tenant="heavy") for _ in range(40)], made(engine, tenant="light")
    for many, beside in ((40, 0), (4, 4)):  # a few are computed beside it, as that costs it nothing
        found, sent = [], []
        submit_steps(
            engine.engine, "heavy", [item(id) for id in heavy[:many]], lambda places, a, found=found: found.extend(a)
        )
        engine.engine.turns.charge("heavy", 1.0)  # so that it is not first
        engine.engine.submit(Step(sent.append, WriteRequest("light", "s"), light, "any", [[1.0]], True))
        engine.engine.tick()
        assert [one.status for one in sent] == [200] and len(found) == beside
        while engine.engine.waiting:
            engine.engine.tick()
        assert len(found) == many and all(one.startswith(b'{"status":200') for one in found)


def test_tenants_take_turns(monkeypatch):
    monkeypatch.setattr("elman.serve.engine.crowd.BATCH", 2)
    engine = direct().engine
    order = []

    def ask(tenant):
        job = Complete(lambda v: order.append(tenant), tenant, "gru", [], Writing(), 1, 0, None, None)
        job.start = lambda e: go(e, job)
        engine.submit(job)

    def go(e, job):
        work = e.sessions.models["gru"].reading([[1.0]])
        work.begin(e.sessions.models["gru"].start(0))
        e.run(job, e.sessions.models["gru"], work, lambda w: e.finish(job, None))

    for _ in range(6):
        ask("many")
    ask("one")
    engine.tick()
    assert sorted(order) == ["many", "one"]
