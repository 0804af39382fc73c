"""A work with a bug ends alone: those beside it, of the same model and in the same tick, give what they give alone."""

import json

import pytest
from direct import direct, get, made, step
from running import LM

import elman
from elman.decoding.sample import Sampling
from elman.serve.engine.jobs import Generate, WriteRequest
from elman.serve.engine.steps import Step
from elman.tasks.forecast.serving import ServedSeries
from elman.tasks.forecast.task import ForecastConfig
from elman.tasks.serving import Writing


def submit(engine, replies, id, inputs):
    job = Step(lambda reply: replies.update({id: reply}), WriteRequest("t", "step"), id, "any", inputs, False)
    engine.engine.submit(job)


def statuses(engine, replies, ids):
    for _ in range(100):
        engine.engine.tick()
    return [replies[id].status for id in ids]


@pytest.mark.parametrize("place", ["scan", "outputs"])
def test_numbers(place):
    """Where all are computed at once, nothing was changed; where one is answered, only that one."""
    engine, replies = direct(), {}
    model, ids = engine.engine.sessions.models["gru"], [made(engine) for _ in range(3)]
    scan, outputs = model.core.scan, model.outputs

    def broken_scan(x, *rest, **more):
        assert not (x == 666).any(), "a bug"
        return scan(x, *rest, **more)

    calls = []

    def broken_outputs(y):
        calls.append(1)
        assert len(calls) != 2, "a bug"
        return outputs(y)

    model.__dict__.update({"outputs": broken_outputs} if place == "outputs" else {})
    if place == "scan":
        model.core.scan = broken_scan
    for id, x in zip(ids, (1.0, 666.0 if place == "scan" else 2.0, 3.0), strict=True):
        submit(engine, replies, id, [[x], [x + 0.5]])
    assert statuses(engine, replies, ids) == [200, 500, 200]
    model.core.scan, model.outputs = scan, outputs
    assert [get(engine, id)["version"] for id in ids] == [1, 0, 1] and not engine.engine.queues
    alone = direct()
    for id, x in ((ids[0], 1.0), (ids[2], 3.0)):
        other = made(alone)
        assert json.loads(replies[id].body)["outputs"] == step(alone, other, [x, x + 0.5])["outputs"]
        assert step(engine, id, [0.25])["outputs"] == step(alone, other, [0.25])["outputs"]


def test_texts(monkeypatch):
    """A bug in choosing a symbol: the others, which were drawn beside it, have the text that they have alone."""
    engine, replies = direct(), {}
    ids, choose = [made(engine, "book", seed=seed) for seed in range(3)], Sampling.choose
    marked = engine.engine.sessions.models["book"].vocabulary.encode("!")[0]

    def broken(self, scores, seen, u):
        assert not seen[:, marked].any(), "a bug"
        return choose(self, scores, seen, u)

    monkeypatch.setattr(Sampling, "choose", broken)
    settings = Writing(max_new_tokens=8, temperature=0.9)
    for id, prompt in zip(ids, ("Once", "No!", "There"), strict=True):
        reply = lambda found, id=id: replies.update({id: found})  # noqa: E731
        engine.engine.submit(Generate(reply, WriteRequest("t", "g"), id, 0, prompt, settings, None))
    assert statuses(engine, replies, ids) == [200, 500, 200]
    for id, prompt, seed in ((ids[0], "Once", 0), (ids[2], "There", 2)):
        wanted = LM.generate(prompt, seed=seed, max_new_tokens=8, temperature=0.9)
        assert json.loads(replies[id].body)["text"] == wanted


def test_series(tmp_path):
    """A row after which the model cannot say what follows: the session of another tenant beside it continues."""
    rows = {"ds": [str(t) for t in range(60)], "y": [str(t % 3) for t in range(60)]}
    settings = {"data": {"horizon": 3, "seasonality": 3}, "model": {"kind": "seasonal_naive"}}
    forecaster, _ = elman.train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": rows})
    served = ServedSeries(forecaster)
    engine, replies = direct(models={"sales": served}), {}
    ids = [made(engine, "sales") for _ in range(3)]
    said = served._next

    def broken(state):
        assert not (state.value == 666).any(), "a bug"
        return said(state)

    served._next = broken
    for id, y in zip(ids, (1.0, 666.0, 2.0), strict=True):
        submit(engine, replies, id, [{"ds": str(t), "y": y} for t in range(20)])
    assert statuses(engine, replies, ids) == [200, 500, 200]
    alone = direct(models={"sales": ServedSeries(forecaster)})
    for id, y in ((ids[0], 1.0), (ids[2], 2.0)):
        other, wanted = made(alone, "sales"), {}
        submit(alone, wanted, other, [{"ds": str(t), "y": y} for t in range(20)])
        assert statuses(alone, wanted, [other]) == [200]
        assert json.loads(replies[id].body)["outputs"] == json.loads(wanted[other].body)["outputs"]
