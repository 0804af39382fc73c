"""The bugs of other servers that keep recurrent state in slots, each as a test of this one: over HTTP, to the last bit.

What a docstring says of an issue was read there. Where it says that the thread was not found, only the class of the bug
is meant, as it is described in the threads that stand beside it.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from running import core, error, language_model, running
from wire import until

from elman.serve.limits import Limits
from elman.serve.store.sqlite import SqliteStore
from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.serving import ServedText

CORE, LM = core(), language_model()
MODELS = {"gru": ServedNumbers.of_core(CORE), "book": ServedText(LM)}


def offline(x):
    with torch.no_grad():
        return CORE.scan(torch.tensor(x, dtype=torch.float32)[None, :, None])[0][0].numpy()


def same(outputs, x):
    """Whether these are the last outputs of an offline scan, bit for bit."""
    return np.array_equal(np.array(outputs, np.float32), offline(x)[-len(outputs) :])


def metric(server, name):
    text = server.client.get("/metrics").text
    return next(s.value for one in text_string_to_metric_families(text) for s in one.samples if s.name == name)


def abandon(server, path, body):
    """Begin a stream, read its first line, and go away; wait until the server has seen it."""
    with httpx.Client(base_url=server.url) as client, client.stream("POST", path, json={**body, "stream": True}) as one:
        next(one.iter_lines())
    assert until(lambda: metric(server, "elman_waiting") == 0)


def test_triton_7117_a_cancelled_sequence_does_not_give_its_place_away_twice(monkeypatch):
    """A cancelled request gave its slot back, and once more when its sequence was idle for too long; the two sequences
    that came next were put into the one slot and shared their state (the cause: triton-inference-server/core 341)."""
    for where in ("engine", "driver"):
        monkeypatch.setattr(f"elman.serve.engine.{where}.SWEEP", 0.02)
    with running(MODELS) as server:
        gone = server.session("book", ttl_seconds=0.2)
        abandon(server, f"/v1/sessions/{gone}/generate", {"version": 0, "max_new_tokens": 16_000})
        assert until(lambda: server.client.get(f"/v1/sessions/{gone}").status_code == 410)
        assert until(lambda: metric(server, "elman_sessions") == 0)
        ids, x = [server.session(), server.session()], [[1.0, -2.0, 0.5], [-3.0, 0.25, 4.0]]
        for t in range(3):
            items = [{"session": id, "version": t, "input": [x[i][t]]} for i, id in enumerate(ids)]
            data = server.post("/v1/steps", {"items": items}).json()["data"]
            for i, one in enumerate(data):
                assert same([one["body"]["output"]], x[i][: t + 1]), (i, t)


@pytest.mark.slow
def test_llama_cpp_27148_an_old_conversation_does_not_come_back_in_a_new_one(monkeypatch, tmp_path):
    """A cache of prompts in memory restored the state of an unrelated, finished conversation into a fresh slot, when
    several were evicted at the same time. Here: few are kept in memory, many old ones and new ones come at once."""
    monkeypatch.setattr("elman.serve.store.sessions.CACHED", 2)
    old = {f"Marker {i:02d} of an old talk": i for i in range(10)}
    new = {f"Marker {i:02d} of a new talk": 100 + i for i in range(6)}
    with running(MODELS, store=SqliteStore(tmp_path / "s.db")) as server:
        ids = [server.session("book", seed=seed) for seed in old.values()]
    with running(MODELS, store=SqliteStore(tmp_path / "s.db")) as server:
        for prompt, id in zip(old, ids, strict=True):
            assert server.step(id, prompt, version=0).status_code == 200
        ready = threading.Barrier(16)

        def asked(call):
            id, version, prompt = call
            body = {"version": version, "prompt": prompt, "max_new_tokens": 24}
            ready.wait(10)
            return httpx.post(f"{server.url}/v1/sessions/{id}/generate", json=body, timeout=20).json()["text"]

        calls = [(id, 1, "") for id in ids]
        calls += [(server.session("book", seed=seed), 0, prompt) for prompt, seed in new.items()]
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(asked, calls))
        wanted = [LM.generate(prompt, seed=seed, max_new_tokens=24) for prompt, seed in {**old, **new}.items()]
        assert found == wanted


def test_llama_cpp_25913_a_state_that_is_restored_is_gone_on_from(tmp_path):
    """A slot was saved without its checkpoints: restored after a restart, it was thrown away in silence, and the whole
    prompt was read again. Here: nothing is read again, and the past that was kept is still there."""
    x = [0.5, -1.0, 2.0, 3.0, -0.25]
    rows = [[v] for v in x]
    with running(MODELS, store=SqliteStore(tmp_path / "s.db")) as server:
        id = server.session(checkpoints={"every": 2, "keep": 4}, log_inputs=True)
        for row in rows[:4]:
            server.step(id, [row])
        kept = server.client.get(f"/v1/sessions/{id}").json()
        saved = server.client.get(f"/v1/sessions/{id}/state").content
    with running(MODELS, store=SqliteStore(tmp_path / "s.db")) as server:
        assert server.client.get(f"/v1/sessions/{id}").json() == kept and kept["checkpoints"] == [0, 2, 4]
        other = server.session()
        answer = server.client.put(f"/v1/sessions/{other}/state", content=saved, headers={"if-match": '"0"'})
        assert answer.status_code == 200
        for one in (id, other):
            assert same(server.step(one, rows[4:]).json()["outputs"], x)
        assert metric(server, "elman_inputs_total") == 2
        back = server.post(f"/v1/sessions/{id}/rollback", {"version": 5, "position": 3}).json()
        assert back["position"] == 3 and back["inexact"] is False
        assert same(server.step(id, [[7.0]]).json()["outputs"], [*x[:3], 7.0])


def test_ollama_17475_a_request_does_not_answer_an_earlier_one():
    """The thread was not found. The class, as in ollama 17847: requests one after the other, and one is answered with
    what an earlier one left behind, most of all after a prompt that was too long and was cut."""
    with running(MODELS, limits=Limits(prompt=40)) as server:

        def asked(prompt, seed):
            body = {"model": "book", "prompt": prompt, "max_tokens": 12, "seed": seed}
            return server.post("/v1/completions", body)

        for seed, prompt in enumerate(["What is six times seven?", "", "Name a colour.", "What is six times seven?"]):
            assert asked(prompt, seed).json()["choices"][0]["text"] == LM.generate(prompt, seed=seed, max_new_tokens=12)
            long = asked("x" * 41, seed)
            assert long.status_code == 400 and "40 at most" in error(long)["message"]
        id, texts = server.session("book", seed=9), []
        for version, prompt, status in ((0, "It was", 200), (1, "x" * 41, 400), (1, "", 200)):
            body = {"version": version, "prompt": prompt, "max_new_tokens": 6}
            answer = server.post(f"/v1/sessions/{id}/generate", body)
            assert answer.status_code == status
            texts.append(answer.json().get("text", ""))
        assert "".join(texts) == LM.generate("It was", seed=9, max_new_tokens=12)


@pytest.mark.parametrize("order", [1, -1])
def test_vllm_55600_a_row_does_not_feel_its_neighbours(order):
    """The thread was not found. The class, as in vLLM 55178 and 55894: rows of one batch that read one input, and rows
    that read many, are padded to one length, and the state of a short one goes on over the padding."""
    lengths = [1, 2, 63, 64, 65, 1, 128, 129, 3][::order]
    with running(MODELS) as server:
        ids = [server.session() for _ in lengths]
        x = [[((i + 1) * (t + 3) % 17 - 8) / 4 for t in range(2 * length)] for i, length in enumerate(lengths)]
        for version in (0, 1):  # the second time they go on from states that differ
            items = []
            for id, one, length in zip(ids, x, lengths, strict=True):
                piece = one[version * length : (version + 1) * length]
                items.append({"session": id, "version": version, "inputs": [[v] for v in piece]})
            data = server.post("/v1/steps", {"items": items}).json()["data"]
            for one, length, answer in zip(x, lengths, data, strict=True):
                assert same(answer["body"]["outputs"], one[: (version + 1) * length]), (version, length)


@pytest.mark.slow
def test_sglang_23496_a_shared_beginning_survives_whoever_goes_away():
    """The thread was not found. The class, as in SGLang 23392 and 37836: requests with the same beginning, some of them
    cancelled and sent again; the state that was kept for the beginning is let go of, or is that of another place."""
    begin, body = "Once upon a time there was", {"model": "book", "max_tokens": 20, "seed": 4}
    with running(MODELS) as server:
        parent = server.session("book", seed=4)
        server.step(parent, begin, version=0)
        children = [server.post(f"/v1/sessions/{parent}/fork", {"seed": seed}).json()["id"] for seed in range(3)]
        endless = {**body, "prompt": begin, "max_tokens": 16_000}

        def asked(more):
            return server.post("/v1/completions", {**body, "prompt": begin + more, "n": 2}).json()["choices"]

        for more in ("", " a", " no"):
            abandon(server, "/v1/completions", endless)
            abandon(server, f"/v1/sessions/{children[0]}/generate", {"version": 0, "max_new_tokens": 16_000})
            texts = [choice["text"] for choice in asked(more)]
            assert texts == [LM.generate(begin + more, seed=seed, max_new_tokens=20) for seed in (4, 5)]
        for seed, child in enumerate(children):
            text = server.post(f"/v1/sessions/{child}/generate", {"version": 0, "max_new_tokens": 20}).json()["text"]
            assert text == LM.generate(begin, seed=seed, max_new_tokens=20)
        last = server.post(f"/v1/sessions/{parent}/generate", {"version": 1, "max_new_tokens": 20}).json()
        assert last["text"] == LM.generate(begin, seed=4, max_new_tokens=20)
