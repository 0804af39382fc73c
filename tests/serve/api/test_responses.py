"""/v1/responses, through the `openai` client and without."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from running import LM, MODELS, language_model, running, went_on

from elman.serve.store.sqlite import SqliteStore
from elman.tasks.text.serving import ServedText


def test_one_key_at_the_same_time_makes_one_response():
    """ "Create, fork and responses take keys too": a retry that overtakes the first makes a second response."""
    with running(MODELS) as server:
        ready = threading.Barrier(3)

        def ask(_):
            body = {"model": "book", "input": "Hi", "max_output_tokens": 800}
            ready.wait(5)
            headers = {"idempotency-key": "k"}
            return httpx.post(f"{server.url}/v1/responses", json=body, headers=headers, timeout=20).json()["id"]

        with ThreadPoolExecutor(3) as pool:
            assert len(set(pool.map(ask, range(3)))) == 1


def test_responses_of_a_server_of_tier_power_are_synced(tmp_path):
    """ "Tier power: every acknowledged write is there": a stored response is a write, and its commit is not FULL."""
    store = SqliteStore(tmp_path / "s.db")
    commit, synced = store.commit, []
    store.commit = lambda sync: (synced.append(sync), commit(sync))[1]
    with running(MODELS, store=store, durability="power") as server:
        del synced[:]
        server.session()
        assert any(synced)
        del synced[:]
        body = {"model": "book", "input": "Hi", "max_output_tokens": 2}
        id = server.post("/v1/responses", body).json()["id"]
        assert any(synced)
        del synced[:]
        server.client.delete(f"/v1/responses/{id}")
        assert any(synced)


# OpenAI's client
def test_the_last_response_of_a_stream(server):
    """The client has one if the status is `completed`: that of a text without an end is."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    with client.responses.stream(model="book", input="Once", max_output_tokens=6, extra_body={"seed": 1}) as events:
        last = events.get_final_response()
    assert last.output_text == language_model().generate("Once", seed=1, max_new_tokens=6)
    assert last.status == "completed" and last.incomplete_details is None and last.usage.output_tokens == 6
    assert client.responses.retrieve(last.id).status == "completed"


def test_a_text_that_has_an_end_and_was_cut_is_incomplete():
    served = ServedText(language_model())
    served.endless, served.about["endless"] = False, False
    with running({"book": served}) as server:
        body = {"model": "book", "input": "Once", "max_output_tokens": 2, "seed": 1}
        found = server.post("/v1/responses", body).json()
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_two_children_of_one_response(client):
    parent = client.responses.create(model="book", input="Once", max_output_tokens=6, extra_body={"seed": 1})
    assert parent.output_text == LM.generate("Once", seed=1, max_new_tokens=6)
    for seed in (2, 3):
        child = client.responses.create(
            model="book", input=" and", previous_response_id=parent.id, max_output_tokens=6, extra_body={"seed": seed}
        )
        assert child.output_text == went_on("Once", " and", seed, seed=1, max_new_tokens=6)
        assert child.previous_response_id == parent.id
    assert client.responses.retrieve(parent.id).output_text == parent.output_text
    client.responses.delete(parent.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(parent.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="book", input="x", previous_response_id=parent.id)


def test_a_response_that_is_not_stored(client):
    found = client.responses.create(model="book", input="Once", max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(found.id)


def test_a_streamed_response(client):
    kinds, text = [], ""
    with client.responses.stream(model="book", input="Once", max_output_tokens=6, extra_body={"seed": 1}) as events:
        for event in events:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    assert text == LM.generate("Once", seed=1, max_new_tokens=6)


def test_a_response_with_a_key_is_made_once(client, server):
    one, two = (
        client.responses.create(model="book", input="Hi", max_output_tokens=9, extra_headers={"Idempotency-Key": "r"})
        for _ in range(2)
    )
    assert one.id == two.id and one.output_text == two.output_text
