"""Sessions over HTTP: exact, exactly once, and refused in the right words."""

import json
import shutil
import subprocess
import time

import httpx
import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies
from running import MODELS, core, error, language_model, running

from elman import state as states
from elman.serve.limits import Limits
from elman.tasks.serving_numbers import ServedNumbers


def offline(x):
    with torch.no_grad():
        y, _ = core().scan(torch.tensor(x, dtype=torch.float32)[None, :, None])
    return y[0].numpy()


def test_steps_are_those_of_a_scan_bit_for_bit(server):
    x = [0.5, -1.25, 3.0, 0.125, 7.0]
    id, found = server.session(), []
    for t in (0, 1):
        answer = server.post(f"/v1/sessions/{id}/step", {"version": t, "input": [x[t]]})
        found.append(answer.json()["output"])
        assert answer.json()["version"] == t + 1 == answer.json()["position"] and answer.headers["etag"] == f'"{t + 1}"'
    found += server.step(id, [[v] for v in x[2:]], version=2).json()["outputs"]
    assert np.array_equal(np.array(found, np.float32), offline(x))


def test_a_text_is_read_scored_and_written_as_offline(server):
    lm = language_model()
    id = server.session("book", seed=5)
    read = server.step(id, "Once upon a time", version=0).json()
    score, state = lm.score("Once upon a time")
    assert sum(one["logprob"] for one in read["outputs"]) == pytest.approx(-score.nats, abs=1e-4)
    wrote = server.post(f"/v1/sessions/{id}/generate", {"version": 1, "max_new_tokens": 20}).json()
    assert wrote["text"] == lm.generate("Once upon a time", seed=5, max_new_tokens=20)
    assert wrote["position"] == 36 and wrote["finish_reason"] == "length"
    again = server.post(f"/v1/sessions/{id}/generate", {"version": 2, "max_new_tokens": 20}).json()
    assert wrote["text"] + again["text"] == lm.generate("Once upon a time", seed=5, max_new_tokens=40)


def test_events_are_the_text_and_the_last_is_what_was_committed(server):
    id, lm = server.session("book", seed=1), language_model()
    body = {"version": 0, "prompt": "It", "max_new_tokens": 12, "temperature": 0.7, "stream": True}
    events = []
    with server.client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
    *tokens, done = events
    assert "".join(one["text"] for one in tokens) == done["text"]
    assert done["text"] == lm.generate("It", seed=1, max_new_tokens=12, temperature=0.7) and done["version"] == 1


def test_versions(server):
    id = server.session()
    assert server.step(id, [[1.0]], version=0).status_code == 200
    late = server.step(id, [[1.0]], version=0)
    assert late.status_code == 412 and error(late)["version"] == 1 and error(late)["position"] == 1
    assert server.post(f"/v1/sessions/{id}/step", {"input": [1.0]}).status_code == 400
    assert server.post(f"/v1/sessions/{id}/step", {"input": [1.0]}, headers={"if-match": '"1"'}).status_code == 200
    assert server.post(f"/v1/sessions/{id}/step", {"input": [1.0]}, headers={"if-match": "*"}).status_code == 200
    both = server.post(f"/v1/sessions/{id}/step", {"input": [1.0], "version": 3}, headers={"if-match": '"4"'})
    assert both.status_code == 400


def test_a_key_applies_once_and_stands_for_one_body(server):
    id, key = server.session(), {"idempotency-key": "a"}
    first = server.step(id, [[1.0]], version=0, headers=key)
    again = server.step(id, [[1.0]], version=0, headers=key)
    assert again.status_code == 200 and again.content == first.content
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 1
    other = server.step(id, [[2.0]], version=0, headers=key)
    assert other.status_code == 422 and error(other)["code"] == "key_reused"
    # Only the last key is kept: an older one is answered by its version.
    assert server.step(id, [[1.0]], version=1, headers={"idempotency-key": "b"}).status_code == 200
    assert server.step(id, [[1.0]], version=0, headers=key).status_code == 412


def test_create_and_fork_take_keys_too(server):
    key = {"idempotency-key": "c"}
    one = server.post("/v1/sessions", {"model": "gru"}, headers=key)
    two = server.post("/v1/sessions", {"model": "gru"}, headers=key)
    assert one.json()["id"] == two.json()["id"] and two.status_code == 201
    assert server.post("/v1/sessions", {"model": "book"}, headers=key).status_code == 422
    path = f"/v1/sessions/{one.json()['id']}/fork"
    assert server.post(path, headers=key).json()["id"] == server.post(path, headers=key).json()["id"]
    assert server.post(path).json()["id"] != server.post(path).json()["id"]


def test_a_fork_goes_its_own_way(server):
    id = server.session()
    server.step(id, [[1.0], [2.0]])
    other = server.post(f"/v1/sessions/{id}/fork").json()
    assert other["parent"] == id and other["position"] == 2 and other["version"] == 0
    mine = server.step(id, [[3.0]]).json()["outputs"]
    theirs = server.step(other["id"], [[-3.0]]).json()["outputs"]
    assert np.array_equal(np.float32(mine[0]), offline([1, 2, 3])[2])
    assert np.array_equal(np.float32(theirs[0]), offline([1, 2, -3])[2])


@pytest.mark.parametrize("position", [0, 3, 4, 7, 9])
def test_rollback_is_as_if_it_had_not_happened(server, position):
    x = [float(v) for v in range(10)]
    id = server.session(checkpoints={"every": 4, "keep": 4}, log_inputs=True)
    server.step(id, [[v] for v in x[:3]])
    for v in x[3:]:
        server.step(id, [[v]])
    back = server.post(f"/v1/sessions/{id}/rollback", {"version": 8, "position": position}).json()
    assert back["position"] == position and back["version"] == 9 and back["inexact"] is False
    found = server.step(id, [[v] for v in x[position:]]).json()["outputs"]
    assert np.array_equal(np.array(found, np.float32), offline(x)[position:])


def test_rollback_behind_a_rollback_into_the_middle_of_a_write(server):
    """What the first one cut off is no part of the past that the second one replays."""
    id = server.session(checkpoints={"every": 1, "keep": 8}, log_inputs=True)
    server.step(id, [[1.0], [2.0], [3.0], [4.0], [5.0]])
    server.post(f"/v1/sessions/{id}/rollback", {"version": 1, "position": 3})
    server.step(id, [[-6.0], [-7.0]])
    server.post(f"/v1/sessions/{id}/rollback", {"version": 3, "position": 4})
    found = server.step(id, [[8.0]], version=4).json()["outputs"]
    assert np.array_equal(np.float32(found[0]), offline([1, 2, 3, -6, 8])[4])


def test_rollback_of_a_text_brings_back_its_random_numbers(server):
    lm = language_model()
    id = server.session("book", seed=2, checkpoints={"every": 5, "keep": 9}, log_inputs=True)
    server.step(id, "Call me", version=0)
    text = server.post(f"/v1/sessions/{id}/generate", {"version": 1, "max_new_tokens": 15}).json()["text"]
    assert text == lm.generate("Call me", seed=2, max_new_tokens=15)
    server.post(f"/v1/sessions/{id}/rollback", {"version": 2, "position": 12})
    rest = server.post(f"/v1/sessions/{id}/generate", {"version": 3, "max_new_tokens": 10}).json()
    whole = lm.start("Call me", seed=2, max_new_tokens=15)
    symbols = [whole.state.token.item() for _ in whole]
    assert rest["tokens"] == symbols[5:]


def test_rollback_is_refused_where_the_past_was_not_kept(server):
    plain = server.session()
    server.step(plain, [[1.0]])
    assert server.post(f"/v1/sessions/{plain}/rollback", {"version": "any", "position": 0}).status_code == 422
    marks = server.session(checkpoints={"every": 2, "keep": 2})
    for v in range(7):
        server.step(marks, [[float(v)]])
    assert server.client.get(f"/v1/sessions/{marks}").json()["checkpoints"] == [4, 6]
    for position, status in ((0, 422), (5, 422), (8, 422), (6, 200), (4, 200)):
        answer = server.post(f"/v1/sessions/{marks}/rollback", {"version": "any", "position": position})
        assert answer.status_code == status, (position, answer.text)


def test_a_state_goes_out_and_in(server):
    id, other = server.session(), server.session()
    server.step(id, [[1.0], [2.0]])
    data = server.client.get(f"/v1/sessions/{id}/state").content
    answer = server.client.put(f"/v1/sessions/{other}/state", content=data, headers={"if-match": '"0"'})
    assert answer.status_code == 200 and answer.json()["version"] == 1
    assert server.step(other, [[3.0]]).json()["outputs"] == server.step(id, [[3.0]]).json()["outputs"]
    text = server.session("book")
    assert server.client.put(f"/v1/sessions/{text}/state", content=data, headers={"if-match": "*"}).status_code == 422
    broken = bytearray(data)
    broken[-1] ^= 1
    assert (
        server.client.put(f"/v1/sessions/{id}/state", content=bytes(broken), headers={"if-match": "*"}).status_code
        == 422
    )


def test_the_state_file_is_that_of_the_library(server, tmp_path):
    lm, id = language_model(), server.session("book", seed=4)
    server.step(id, "Hello wor")
    (tmp_path / "state.safetensors").write_bytes(server.client.get(f"/v1/sessions/{id}/state").content)
    state = lm.load_state(tmp_path / "state.safetensors")
    text = server.post(f"/v1/sessions/{id}/generate", {"version": "any", "max_new_tokens": 9}).json()["text"]
    assert text == lm.generate("", state=state, max_new_tokens=9)


def test_many_sessions_in_one_request(server):
    ids = [server.session() for _ in range(5)]
    items = [{"session": id, "version": 0, "input": [float(i)]} for i, id in enumerate(ids)]
    items += [{"session": "sess_none", "version": 0, "input": [1.0]}, {"session": ids[0], "version": 9, "input": [1.0]}]
    items += [{"session": ids[0], "version": 1, "input": ["x"]}, {"session": ids[0]}]
    answer = server.post("/v1/steps", {"items": items}).json()["data"]
    assert [one["status"] for one in answer] == [200] * 5 + [404, 412, 400, 400]
    for i, one in enumerate(answer[:5]):
        assert np.array_equal(np.float32(one["body"]["output"]), offline([float(i)])[0])


def test_many_steps_with_repeats_keys_and_checkpoints(server):
    """What is not plain waits for its turn, in the order in which it was sent."""
    plain, kept, text = server.session(), server.session(checkpoints={"every": 1, "keep": 2}), server.session("book")
    items = [
        {"session": plain, "version": 0, "input": [1.0], "key": "k"}, {"session": plain, "version": 1, "input": [2.0]},
        {"session": kept, "version": 0, "input": [1.0]}, {"session": text, "version": 0, "input": 65},
        {"session": plain, "version": "any", "inputs": [[3.0], [4.0]]},
    ]  # fmt: skip
    data = server.post("/v1/steps", {"items": items}).json()["data"]
    assert [one["status"] for one in data] == [200] * 5, data
    assert [data[i]["body"]["version"] for i in (0, 1, 4)] == [1, 2, 3]
    outputs = [data[0]["body"]["output"], data[1]["body"]["output"], *data[4]["body"]["outputs"]]
    assert np.array_equal(np.array(outputs, np.float32), offline([1, 2, 3, 4]))
    assert server.client.get(f"/v1/sessions/{kept}").json()["checkpoints"] == [0, 1]
    again = server.post("/v1/steps", {"items": [{"session": plain, "version": "any", "input": [5.0], "key": "z"}] * 2})
    assert [one["replayed"] for one in again.json()["data"]] == [False, True]


def test_a_state_that_is_not_finite_is_one_items_error(server):
    ids = [server.session(), server.session()]
    model = server.service.models["gru"]
    together = model.together

    def first_broken(x, states):
        after, outputs, good = together(x, states)
        return after, outputs, [False, *good[1:]]

    model.together = first_broken
    try:
        items = [{"session": id, "version": 0, "input": [1.0]} for id in ids]
        data = server.post("/v1/steps", {"items": items}).json()["data"]
    finally:
        del model.together
    assert [one["status"] for one in data] == [422, 200] and data[0]["error"]["code"] == "state_not_finite"
    assert [server.client.get(f"/v1/sessions/{id}").json()["version"] for id in ids] == [0, 1]


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(at=strategies.integers(0, 4000), put=strategies.binary(max_size=40), cut=strategies.integers(0, 80))
def test_states_and_tokens_that_were_changed_are_refused(server, at, put, cut):
    """Anywhere, in any way: a state file or a token is as it was, or it is refused in words."""
    state, token = _sent(server)
    for data in (state, token):
        place = at % len(data)
        changed = data[:place] + put + data[place + cut :]
        if data is state:
            path = f"/v1/sessions/{server.fuzzed}/state"
            answer = server.client.put(path, content=changed, headers={"if-match": "*"})
        else:
            body = {"model": "book", "max_tokens": 1, "state": changed.decode("latin-1")}
            answer = server.post("/v1/completions", body)
        assert answer.status_code == (200 if changed == data else 422), (changed[:80], answer.text)


def _sent(server):
    """A state file and a token of this server's."""
    if not hasattr(server, "fuzzed"):
        server.fuzzed = server.session("book", seed=3)
        server.step(server.fuzzed, "Once")
        server.file = server.client.get(f"/v1/sessions/{server.fuzzed}/state").content
        body = {"model": "book", "prompt": "Once", "max_tokens": 1, "return_state": True}
        server.token = server.post("/v1/completions", body).json()["choices"][0]["state"].encode()
    return server.file, server.token


def test_what_is_refused(server):
    id = server.session()
    for body, status in (
        ({"version": 0}, 400),
        ({"version": 0, "inputs": "text"}, 400),
        ({"version": 0, "inputs": [[1.0, 2.0]]}, 400),
        ({"version": 0, "inputs": [[True]]}, 400),
        ({"version": 0, "inputs": [[1e39]]}, 400),
        ({"version": 0, "input": [1.0], "inputs": [[1.0]]}, 400),
        ({"version": 0, "inputs": [[1.0]], "extra": 1}, 400),
        ({"version": -1, "inputs": [[1.0]]}, 400),
        ({"version": "some", "inputs": [[1.0]]}, 400),
    ):
        answer = server.post(f"/v1/sessions/{id}/step", body)
        assert answer.status_code == status, (body, answer.text)
        assert {"message", "type", "param", "code"} <= set(error(answer))
    assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 0
    for raw in (b'{"version": 0, "inputs": [[NaN]]}', b'{"version": 0, "inputs": [[1e999]]}', b"{", b"[" * 100_000):
        answer = server.client.post(
            f"/v1/sessions/{id}/step", content=raw, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, raw[:20]
    assert server.post(f"/v1/sessions/{id}/generate", {"version": 0}).status_code == 400  # it does not write
    assert server.client.post(f"/v1/sessions/{id}/step", content=b"{}").status_code == 415
    assert server.client.get("/v1/sessions/none").status_code == 404
    assert server.client.put(f"/v1/sessions/{id}/step").status_code == 405
    assert server.client.get("/nowhere").status_code == 404
    assert server.post("/v1/sessions", {"model": "none"}).status_code == 404
    assert server.post("/v1/sessions", {"model": "gru", "durability": "process"}).status_code == 400


@pytest.mark.parametrize("step", [{"input": [1.0]}, {"inputs": [[1.0]]}, {"inputs": [[1.0]] * 3}])
def test_a_state_that_is_no_longer_a_number_changes_nothing(server, monkeypatch, step):
    id = server.session()
    server.step(id, [[1.0]])
    before = server.client.get(f"/v1/sessions/{id}/state").content
    monkeypatch.setattr("elman.tasks.serving_numbers.cut", lambda whole, width: [b"\xff" * width])
    monkeypatch.setattr("elman.tasks.serving_numbers.finite", lambda rows, like: [False] * len(rows))
    answer = server.post(f"/v1/sessions/{id}/step", {"version": "any", **step})
    assert answer.status_code == 422 and error(answer)["code"] == "state_not_finite"
    assert server.client.get(f"/v1/sessions/{id}/state").content == before
    assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 1


def test_deleting(server):
    id = server.session()
    assert server.client.delete(f"/v1/sessions/{id}").json() == {"id": id, "object": "session", "deleted": True}
    assert server.client.get(f"/v1/sessions/{id}").status_code == 404
    assert server.client.delete(f"/v1/sessions/{id}").status_code == 404


def test_a_generation_that_nobody_waits_for_commits_nothing():
    """ "A disconnect commits nothing": of a generation that is not streamed it is not noticed."""
    with running(MODELS) as server:
        id = server.session("book")
        with pytest.raises(httpx.TimeoutException):
            body = {"version": 0, "max_new_tokens": 16_000}
            httpx.post(f"{server.url}/v1/sessions/{id}/generate", json=body, timeout=0.2)
        deadline = time.monotonic() + 2
        while server.service.engine.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.service.engine.waiting == 0
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 0


def test_a_state_from_elsewhere_cannot_make_the_server_fail():
    with running(MODELS) as server:
        id, model = server.session("book"), server.service.models["book"]
        core, token, seed, _, seen = model.states.unpack(model.start(1))
        data = model.dump(model.states.pack(core, token, seed, 2**63 - 1, seen))  # so many random numbers were drawn
        put = server.client.put(f"/v1/sessions/{id}/state", content=data, headers={"if-match": "*"})
        wrote = server.post(f"/v1/sessions/{id}/generate", {"version": "any", "max_new_tokens": 2})
        assert put.status_code == 422 and wrote.status_code == 200


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed():
    served = MODELS["gru"]
    rows = served.core.init_state(1)
    with running(MODELS) as server:
        id = server.session()
        server.step(id, [[1.0]])
        before = server.client.get(f"/v1/sessions/{id}/state").content
        other = ServedNumbers.of_core(core(seed=1))  # of the same shape
        smaller = ServedNumbers.of_core(core(size=8))

        def file(change):
            return states.dump(states.map(change, rows), fingerprint=served.fingerprint)

        for data in (
            other.dump(other.start(0)), smaller.dump(smaller.start(0)),
            states.dump(smaller.core.init_state(1), fingerprint=served.fingerprint),
            file(lambda leaf: leaf * float("nan")), file(lambda leaf: leaf + float("inf")),
            file(lambda leaf: leaf.repeat(2, 1)), file(lambda leaf: leaf[:0]), file(lambda leaf: leaf.double()),
        ):  # fmt: skip
            answer = server.client.put(f"/v1/sessions/{id}/state", content=data, headers={"if-match": "*"})
            assert answer.status_code == 422 and error(answer)["code"] == "state_mismatch", answer.text
        assert server.client.get(f"/v1/sessions/{id}/state").content == before
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl():
    with running(MODELS) as server:

        def curl(path, body=None, *more):
            sent = [] if body is None else ["-H", "content-type: application/json", "-d", json.dumps(body)]
            command = ["curl", "-sS", "--noproxy", "*", "--max-time", "10", *sent, *more, server.url + path]
            return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout

        id = json.loads(curl("/v1/sessions", {"model": "book", "seed": 3}))["id"]
        before = ["-H", "expect: 100-continue", "--expect100-timeout", "30"]  # as it does by itself for a long body
        assert (
            json.loads(curl(f"/v1/sessions/{id}/step", {"version": 0, "inputs": "x" * 2_000}, *before))["version"] == 1
        )
        events = curl(f"/v1/sessions/{id}/generate", {"version": 1, "max_new_tokens": 5, "stream": True}, "-N").decode()
        done = json.loads(events.split("event: done\ndata: ")[1])
        assert done["version"] == 2 and done["position"] == 2_005
        state = curl(f"/v1/sessions/{id}/state")
        put = ["-X", "PUT", "--data-binary", "@-", "-H", 'If-Match: "2"']
        command = ["curl", "-sS", "--noproxy", "*", *put, f"{server.url}/v1/sessions/{id}/state"]
        answer = subprocess.run(command, input=state, capture_output=True, check=True, timeout=30).stdout
        assert json.loads(answer)["version"] == 3


def test_a_state_may_be_longer_than_a_body():
    """`state_bytes` could not be reached where it was above `body`."""
    with running(MODELS, limits=Limits(body=200, state_bytes=5_000)) as server:
        id = server.session()
        data = server.client.get(f"/v1/sessions/{id}/state").content
        assert len(data) > 200
        path, head = f"/v1/sessions/{id}/state", {"if-match": "*"}
        assert server.client.put(path, content=data, headers=head).status_code == 200
        assert server.client.put(path, content=data.ljust(5_001), headers=head).status_code == 413
        assert server.client.post("/v1/steps", json={"items": [{"session": "x" * 200}]}).status_code == 413
