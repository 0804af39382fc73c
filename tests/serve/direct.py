"""An engine that is asked without HTTP, and what is asked of it most: what the tests of sessions share."""

import json

import numpy as np
import pytest
import torch
from running import core, language_model

from elman.serve.api.responses import KEPT
from elman.serve.engine.direct import Direct
from elman.serve.engine.jobs import Create, Get, Options, WriteRequest
from elman.serve.engine.steps import Item, Step, submit_steps
from elman.serve.engine.text_jobs import Respond
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.serve.store.sessions import Sessions
from elman.serve.store.store import MemoryStore, StoreFull
from elman.tasks.serving import Writing
from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.serving import ServedText


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


def direct(store=None, limits=None, clock=None, models=None):
    models = models or {"gru": ServedNumbers.of_core(core()), "book": ServedText(language_model())}
    return Direct(Sessions(store or MemoryStore(), models, limits or Limits(), clock or Clock()))


def made(engine, model="gru", options=None, tenant="t", seed=0):
    asked = WriteRequest(tenant, "create")
    reply = engine.run(lambda r: Create(r, asked, model, options or Options(3600.0), seed, None))
    return json.loads(reply.body)["id"]


def step(engine, id, x, version="any", tenant="t", key=""):
    asked = WriteRequest(tenant, "step", key, repr(x).encode())
    return json.loads(engine.run(lambda r: Step(r, asked, id, version, [[v] for v in x], False)).body)


def get(engine, id, tenant="t"):
    return json.loads(engine.run(lambda r: Get(r, tenant, id)).body)


def refused(status, call):
    with pytest.raises(HttpError) as found:
        call()
    assert found.value.status == status, found.value.message
    return found.value


def fails(sync):
    raise StoreFull("full")


CORES = {"gru": core(), "other": core(seed=1)}
NUMBERS = {name: ServedNumbers.of_core(one) for name, one in CORES.items()}


def scanned(x, model="gru"):
    with torch.no_grad():
        return CORES[model].scan(torch.tensor(x, dtype=torch.float32)[None, :, None])[0][0].numpy()


def item(id, **more):
    return Item(id, "any", **{"input": [1.0], **more})


def bulk(engine, ids, x):
    """A step of each of some sessions in one request: versions, positions and outputs."""
    answers = {}
    submit_steps(
        engine.engine, "t", [Item(id, "any", input=[x]) for id in ids],
        lambda places, found: answers.update(zip(places, found, strict=True)),
    )  # fmt: skip
    while engine.engine.waiting:
        engine.engine.tick()
        assert engine.engine.crowd.waiting.get("t", 0) == engine.engine.waiting  # each is counted once
    found = [json.loads(answers[place]) for place in range(len(ids))]
    assert [one["status"] for one in found] == [200] * len(ids), found
    return [(one["body"]["version"], one["body"]["position"], np.float32(one["body"]["output"])) for one in found]


# What is kept, in bytes
def respond(engine, key="", store=True, metadata="", tenant="t"):
    asked = WriteRequest(tenant, "responses", key, b"d")
    body = lambda id, found: json.dumps({"id": id, "metadata": metadata}).encode()  # noqa: E731
    reply = engine.run(
        lambda r: Respond(
            r, asked, "book", "Hi", Writing(max_new_tokens=1), 0, "", KEPT if store else 0.0, False, body, None
        )
    )
    return json.loads(reply.body)["id"]
