"""Many steps in one request."""

import gc

import numpy as np
import pytest
from direct import NUMBERS, bulk, direct, item, made, scanned, step

from elman.serve.engine.steps import submit_steps


@pytest.mark.parametrize("version", ["any", 0])
def test_a_step_of_no_inputs_changes_no_state(version):
    engine = direct()
    id = made(engine)
    state = engine.engine.sessions.find(id, "t").state
    assert step(engine, id, [], version=version)["outputs"] == []
    found = engine.engine.sessions.find(id, "t")
    assert (found.version, found.position, found.state) == (1, 0, state)


def test_a_request_for_many_is_cut_while_others_are_there_and_only_then():
    engine = direct()
    ids, jobs = [made(engine) for _ in range(200)], []
    submit = engine.engine.submit

    def submitted(job):
        jobs.append(len(job.items))
        submit(job)

    engine.engine.submit = submitted
    submit_steps(engine.engine, "t", [item(id) for id in ids], lambda places, answers: None)
    engine.engine.tick()
    assert jobs == [200]
    engine.engine.crowd.admit("other")
    engine.engine.tick()
    submit_steps(engine.engine, "t", [item(id) for id in ids], lambda places, answers: None)
    assert jobs[1:] == [64, 64, 64, 8]


def test_requests_leave_nothing_to_be_looked_for():
    """What refers to itself is kept until it is looked for: of 256 steps, some 800 objects a request."""
    engine = direct(models=NUMBERS)
    ids = [made(engine) for _ in range(64)]
    bulk(engine, ids, 0.5)
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            bulk(engine, ids, 0.5)
        assert gc.collect() < 64
    finally:
        gc.enable()


def test_steps_of_two_models_in_one_request_are_each_read_by_their_own():
    engine = direct(models=NUMBERS)
    ids = [made(engine, model) for model in ("gru", "other", "gru", "other")]
    first = bulk(engine, ids, 1.0)
    assert [one[:2] for one in first] == [(1, 1)] * 4
    for id, model, (_, _, output) in zip(ids, ("gru", "other", "gru", "other"), first, strict=True):
        assert np.array_equal(output, scanned([1.0], model)[0])
        outputs = step(engine, id, [2.0])["outputs"]
        assert np.array_equal(np.float32(outputs[0]), scanned([1.0, 2.0], model)[1])
