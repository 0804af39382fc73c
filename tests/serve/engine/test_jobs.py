"""Jobs: who waits for whom, what is left when nobody waits, and how one fails."""

import json
import time
from functools import partial

import httpx
import pytest
from direct import NUMBERS, direct, get, made, refused
from running import MODELS, language_model, running

from elman import kernels
from elman.serve.engine.jobs import Fork, Generate, Options, WriteRequest
from elman.serve.engine.steps import Step
from elman.serve.engine.text_jobs import Respond
from elman.serve.store.store import MemoryStore
from elman.tasks.serving import Writing
from elman.tasks.text.serving import ServedText


def test_a_client_that_goes_away_leaves_nothing():
    with running(MODELS) as server:
        id = server.session("book")
        body = {"version": 0, "max_new_tokens": 16_000, "stream": True}
        client = httpx.Client(base_url=server.url)
        with client, client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
            next(answer.iter_lines())
        deadline = time.monotonic() + 5
        while server.service.engine.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.service.engine.waiting == 0 and not server.service.engine.queues
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 0


def test_a_generation_that_is_cancelled_commits_nothing():
    engine = direct()
    id, found = made(engine, "book"), []
    job = Generate(found.append, WriteRequest("t", "generate"), id, 0, "Hi", Writing(max_new_tokens=50), None)
    engine.engine.submit(job)
    for _ in range(5):
        engine.engine.tick()
    job.cancelled = True
    engine.engine.tick()
    assert get(engine, id)["version"] == 0 and found[0].status == 409 and not engine.engine.queues
    text = json.loads(
        engine.run(
            lambda r: Generate(r, WriteRequest("t", "generate"), id, 0, "Hi", Writing(max_new_tokens=50), None)
        ).body
    )["text"]
    assert text == language_model().generate("Hi", seed=0, max_new_tokens=50)


def test_a_key_of_a_fork_stands_for_the_session_that_is_forked():
    engine = direct(models=NUMBERS)
    a, b = made(engine), made(engine)

    def fork(id):
        return json.loads(engine.run(lambda r: Fork(r, WriteRequest("t", "fork", "k", b"same"), id, None)).body)

    first, second = fork(a), fork(b)
    assert (first["parent"], second["parent"]) == (a, b) and fork(a) == first and fork(b) == second


def test_a_fork_is_as_durable_as_its_parent():
    engine = direct(models=NUMBERS)
    for power in (True, False):
        id = made(engine, options=Options(3600.0, power=power))
        fork = json.loads(engine.run(lambda r, id=id: Fork(r, WriteRequest("t", "fork"), id, None)).body)
        assert fork["durability"] == get(engine, id)["durability"] == ("power" if power else "none")


def test_a_response_goes_on_with_the_weights_that_made_it_and_no_others(tmp_path):
    def respond(engine, previous=""):
        asked, settings = WriteRequest("t", "responses"), Writing(max_new_tokens=3)
        body = lambda id, completed: json.dumps({"id": id}).encode()  # noqa: E731
        job = lambda r: Respond(r, asked, "book", "Hi", settings, 0, previous, 3600.0, False, body, None)  # noqa: E731
        return json.loads(engine.run(job).body)["id"]

    store = MemoryStore()
    first = respond(direct(store, models={"book": ServedText(language_model())}))
    assert respond(direct(store, models={"book": ServedText(language_model())}), first) != first
    other = direct(store, models={"book": ServedText(language_model(seed=1))})
    assert refused(422, lambda: respond(other, first)).code == "model_mismatch"


@pytest.mark.skipif("native" not in kernels.available(), reason="other weights are those of a native stream")
def test_a_session_continues_with_the_kind_of_weights_that_it_began_with_and_a_state_file_with_any():
    whole = ServedText(language_model())
    kinds = {None: whole, "bfloat16": whole.with_weights("bfloat16"), "int8": whole.with_weights("int8")}
    assert len({served.fingerprint for served in kinds.values()}) == 3
    for began, served in kinds.items():
        store = MemoryStore()
        id = made(direct(store, models={"book": served}), "book")
        for resumed, other in kinds.items():
            assert other.parse(served.dump(served.start(3))) == served.start(3)
            read = partial(read_text, direct(store, models={"book": other}), id)
            if began == resumed:
                read()
            else:
                assert refused(422, read).code == "model_mismatch"


def read_text(engine, id):
    engine.run(lambda r: Step(r, WriteRequest("t", "step"), id, "any", "Hi", False))
