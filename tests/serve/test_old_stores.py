"""A store that was written at commit 867694c opens, and everything in it goes on."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from direct import get, refused
from running import core
from safetensors.torch import load_file

from elman.serve.engine.direct import Direct
from elman.serve.engine.jobs import Create, Options, Rollback, WriteRequest
from elman.serve.engine.steps import Step
from elman.serve.engine.text_jobs import DeleteResponse, GetResponse
from elman.serve.limits import Limits
from elman.serve.store.sessions import Sessions
from elman.serve.store.signing import Signer
from elman.serve.store.sqlite import SqliteStore
from elman.tasks import open_model
from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.serving import ServedText

FOLDER = Path(__file__).parent / "867694c"
ABOUT = json.loads((FOLDER / "about.json").read_text())


@pytest.fixture
def engine(tmp_path):
    (tmp_path / "s.db").write_bytes(gzip.decompress((FOLDER / "store.db.gz").read_bytes()))
    model = core(size=4)
    model.load_state_dict(load_file(FOLDER / "core.safetensors"))
    store = SqliteStore(tmp_path / "s.db")
    models = {"gru": ServedNumbers.of_core(model), "book": ServedText(open_model(str(FOLDER / "book"))[1])}
    found = Direct(Sessions(store, models, Limits(), lambda: 1_000_100.0))
    found.core = model
    assert found.engine.sessions.orphans() == []
    yield found
    store.close()


def asked(route, key=""):
    return WriteRequest("t", route, key, b"d")


def step(engine, id, x, key=""):
    reply = engine.run(lambda r: Step(r, asked("step", key), id, "any", [[v] for v in x], False))
    return json.loads(reply.body), reply.replayed


def offline(engine, x):
    with torch.no_grad():
        return engine.core.scan(torch.tensor(x)[None, :, None])[0][0].numpy()


def test_sessions_go_on_to_the_bit_and_keys_are_known(engine):
    answer, replayed = step(engine, ABOUT["plain"], [1.0, 2.0], "k")
    assert replayed and answer["version"] == 1
    answer, replayed = step(engine, ABOUT["plain"], [3.0])
    assert not replayed and np.array_equal(np.float32(answer["outputs"][0]), offline(engine, [1.0, 2.0, 3.0])[2])
    reply = engine.run(lambda r: Create(r, asked("create", "c"), "gru", Options(1e6), 0, None))
    assert reply.replayed and json.loads(reply.body)["id"] == ABOUT["keyed"]
    assert engine.engine.sessions.counts == {"t": 4}


def test_the_past_is_there(engine):
    assert get(engine, ABOUT["past"])["position"] == 5
    engine.run(lambda r: Rollback(r, asked("rb"), ABOUT["past"], "any", 2))
    answer, _ = step(engine, ABOUT["past"], [-1.0])
    assert np.array_equal(np.float32(answer["outputs"][0]), offline(engine, [1.0, 2.0, -1.0])[2])


def test_responses_states_and_what_is_counted(engine):
    id, sessions = ABOUT["response"]["id"], engine.engine.sessions
    assert json.loads(engine.run(lambda r: GetResponse(r, "t", id)).body) == ABOUT["response"]
    assert Signer.of_store(sessions.store).verify("t", "aa", ABOUT["token"]) == b"state"
    engine.run(lambda r: DeleteResponse(r, "t", id))
    refused(404, lambda: engine.run(lambda r: GetResponse(r, "t", id)))
    assert sessions.ledger.bytes == {} and sessions.counts == {"t": 3}  # what was not counted is not taken away
    answer, _ = step(engine, ABOUT["plain"], [3.0], "new")
    assert sessions.ledger.bytes == {"t": len(json.dumps(answer, separators=(",", ":")))}
