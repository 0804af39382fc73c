"""Exactly once, for every write and every way to name a version or a key; and what an error says."""

import hashlib
import json
import time
from contextlib import contextmanager

import httpx
import pytest
from direct import Clock, direct, fails, get, made, refused, step
from running import error, language_model, running, served_models
from websockets.sync.client import connect

from elman.serve.api.routes import ROUTES
from elman.serve.engine.jobs import Create, Generate, Options, WriteRequest
from elman.serve.limits import Limits
from elman.serve.net.keys import Keys
from elman.tasks.serving import Writing

MODELS, LM = served_models(), language_model()
WRITES = ("step", "generate", "rollback", "state")
BODIES = {  # of each write two that differ
    "step": ({"inputs": "Hi"}, {"inputs": "Ho"}),
    "generate": ({"prompt": "Hi", "max_new_tokens": 3}, {"prompt": "Ho", "max_new_tokens": 3}),
    "rollback": ({"position": 0}, {"position": 1}),
    "state": tuple(MODELS["book"].dump(MODELS["book"].start(seed)) for seed in (1, 2)),
}


def new(server):
    """A session at version 1, with a past."""
    id = server.session("book", seed=5, checkpoints={"every": 1, "keep": 9}, log_inputs=True)
    assert server.step(id, "Once", version=0).status_code == 200
    return id


def write(server, id, what, version, *, other=False, by="If-Match", key=""):
    body, headers = BODIES[what][other], {"idempotency-key": key} if key else {}
    if what == "state":
        return server.client.put(
            f"/v1/sessions/{id}/state", content=body, headers={**headers, "if-match": f'"{version}"'}
        )
    if by == "body":
        body = {**body, "version": version}
    else:
        headers["if-match"] = "*" if version == "any" else f'"{version}"'
    return server.post(f"/v1/sessions/{id}/{what}", body, headers=headers)


def now(server, id):
    """All that there is to see of a session."""
    found = server.client.get(f"/v1/sessions/{id}").json()
    return found["version"], found["position"], server.client.get(f"/v1/sessions/{id}/state").content


@pytest.mark.parametrize("by", ["body", "If-Match"])
@pytest.mark.parametrize("what", WRITES)
def test_every_write_raises_the_version_by_one_and_is_refused_at_another(server, what, by):
    id = new(server)
    before = now(server, id)
    for wrong in (0, 2):
        answer = write(server, id, what, wrong, by=by)
        assert answer.status_code == 412 and (error(answer)["version"], error(answer)["position"]) == before[:2]
    assert now(server, id) == before
    for version, expected in ((1, 2), ("any", 3)):
        answer = write(server, id, what, version, by=by)
        assert answer.status_code == 200 and answer.json()["version"] == expected, answer.text
        assert answer.headers["etag"] == f'"{expected}"' and now(server, id)[0] == expected


@pytest.mark.parametrize("what", WRITES)
def test_every_write_takes_a_key(server, what):
    id = new(server)
    first = write(server, id, what, 1, key="k")
    after = now(server, id)
    again = write(server, id, what, 1, key="k")
    assert first.status_code == again.status_code == 200 and first.content == again.content
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    wrong = write(server, id, what, 1, other=True, key="k")
    assert wrong.status_code == 422 and error(wrong)["code"] == "key_reused"
    assert now(server, id) == after and after[0] == 2
    for other in WRITES:  # at another route it is another key
        if other != what and (what, other) != ("state", "rollback"):  # a state that was put has no past
            version = now(server, id)[0]
            assert write(server, id, other, version, key="k").json()["version"] == version + 1


MANY_DIGITS = pytest.param("9" * 5_000, id="5000 digits")


@pytest.mark.parametrize("match", ['W/"1"', '"1", "2"', "-1", "+1", "1.0", "x", '"', "١".encode(), MANY_DIGITS])
def test_what_is_no_version_is_refused(server, match):
    id = new(server)
    answer = server.client.post(f"/v1/sessions/{id}/step", json={"inputs": "x"}, headers={"if-match": match})
    assert answer.status_code == 400 and now(server, id)[0] == 1


def test_what_failed_may_be_sent_again_with_its_key(server):
    """A key stands for what was done. Nothing was done for a request that was refused."""
    id = new(server)
    assert write(server, id, "step", 7, key="k").status_code == 412
    assert server.step(id, [999], version=1, headers={"idempotency-key": "k"}).status_code == 400
    assert write(server, id, "step", 1, key="k").json()["version"] == 2


def test_a_commit_that_failed_leaves_no_key_behind():
    engine = direct()
    store, commit = engine.engine.sessions.store, engine.engine.sessions.store.commit

    def create():
        request = WriteRequest("t", "create", "c", b"d")
        return engine.run(lambda r: Create(r, request, "gru", Options(9.0), 0, None))

    store.commit = fails
    refused(507, create)
    store.commit = commit
    first, again = create(), create()
    assert not first.replayed and again.replayed and first.body == again.body
    id = json.loads(first.body)["id"]
    store.commit = fails
    refused(507, lambda: step(engine, id, [1.0], version=0, key="k"))
    assert engine.engine.waiting == 0
    store.commit = commit
    assert get(engine, id)["version"] == 0
    for _ in range(2):
        assert step(engine, id, [1.0], version=0, key="k")["version"] == 1
    assert engine.engine.sessions.counts == {"t": 1}


@contextmanager
def tenants(tmp_path, **options):
    """A server with two tenants, and a client of each."""
    lines = [f"{name} {hashlib.sha256(name.encode()).hexdigest()}" for name in ("ann", "bob")]
    (tmp_path / "keys.txt").write_text("\n".join(lines))
    with running(MODELS, keys=Keys(tmp_path / "keys.txt"), **options) as server:
        clients = [httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {k}"}) for k in ("ann", "bob")]
        yield server, *clients
        for client in clients:
            client.close()


def test_a_key_is_one_tenants_and_one_sessions(tmp_path):
    with tenants(tmp_path) as (_, ann, bob):
        key, ids = {"idempotency-key": "k"}, []
        for client in (ann, bob):
            made_twice = [client.post("/v1/sessions", json={"model": "gru"}, headers=key).json()["id"] for _ in "ab"]
            assert made_twice[0] == made_twice[1]
            ids.append(made_twice[0])
            body = {"model": "book", "input": "Hi", "max_output_tokens": 1}
            ids.append(client.post("/v1/responses", json=body, headers=key).json()["id"])
        assert len(set(ids)) == 4
        other = ann.post("/v1/sessions", json={"model": "gru"}).json()["id"]
        for id in (ids[0], other):
            answer = ann.post(f"/v1/sessions/{id}/step", json={"version": 0, "input": [1.0]}, headers=key)
            assert answer.json()["version"] == 1 and "idempotency-replayed" not in answer.headers


def test_what_is_another_tenants_is_not_there(tmp_path):
    bodies = {
        "step": {"version": 0, "inputs": "x"}, "generate": {"version": 0}, "rollback": {"version": 0, "position": 0},
        "fork": {},
    }  # fmt: skip
    with tenants(tmp_path) as (server, ann, bob):
        body = {"model": "book", "input": "Hi", "max_output_tokens": 1}
        ids = {
            "sessions": ann.post("/v1/sessions", json={"model": "book"}).json()["id"],
            "responses": ann.post("/v1/responses", json=body).json()["id"],
        }
        for method, path, *_ in ROUTES:
            kind = path.split("/")[2] if "{id}" in path else ""
            if kind in ids:
                more = {"json": bodies.get(path.split("/")[-1], {})} if method == "POST" else {}
                if method == "PUT":
                    more = {"content": BODIES["state"][0], "headers": {"if-match": "*"}}
                answer = bob.request(method, path.replace("{id}", ids[kind]), **more)
                assert answer.status_code == 404 and "there is no" in error(answer)["message"], (method, path)
        assert bob.post("/v1/responses", json={**body, "previous_response_id": ids["responses"]}).status_code == 404
        item = {"session": ids["sessions"], "version": 0, "inputs": "x"}
        assert bob.post("/v1/steps", json={"items": [item]}).json()["data"][0]["status"] == 404
        url = server.url.replace("http", "ws") + "/v1/stream"
        with connect(url, additional_headers={"authorization": "Bearer bob"}) as ws:
            ws.recv()
            ws.send(json.dumps({"id": 1, "step": item}))
            assert json.loads(ws.recv())["status"] == 404
        assert ann.get(f"/v1/sessions/{ids['sessions']}").json()["version"] == 0
        assert ann.get(f"/v1/responses/{ids['responses']}").status_code == 200


def test_keys_of_what_is_new_are_kept_for_a_day():
    with running(MODELS) as server:
        clock = Clock()
        clock.now = time.time()
        server.service.engine.sessions.clock = clock
        parent = server.session(ttl_seconds=9e5)

        def ids():
            key = {"idempotency-key": "k"}
            body = {"model": "book", "input": "Hi", "max_output_tokens": 1}
            return [
                server.post("/v1/sessions", {"model": "gru", "ttl_seconds": 9e5}, headers=key).json()["id"],
                server.post(f"/v1/sessions/{parent}/fork", headers=key).json()["id"],
                server.post("/v1/responses", body, headers=key).json()["id"],
            ]

        first = ids()
        clock.now += 86_390
        server.client.get(f"/v1/sessions/{parent}")  # a tick, which would sweep them
        assert ids() == first
        clock.now += 20
        server.client.get(f"/v1/sessions/{parent}")
        assert not set(ids()) & set(first)


def test_a_stream_that_was_left_is_written_again_to_the_same_text(server):
    id, key = server.session("book", seed=5), {"idempotency-key": "k"}
    body = {"version": 0, "prompt": "Once", "max_new_tokens": 800, "stream": True}
    path = f"/v1/sessions/{id}/generate"
    with httpx.Client(base_url=server.url) as client, client.stream("POST", path, json=body, headers=key) as answer:
        next(answer.iter_lines())
    for _ in range(2):  # then it is done, and told again
        last = server.post(path, body, headers=key).text.strip().splitlines()[-1]
        done = json.loads(last.removeprefix("data: "))
        assert done["version"] == 1 and done["text"] == LM.generate("Once", seed=5, max_new_tokens=800)


def test_a_stream_whose_commit_fails_ends_with_an_error_and_nothing_is_changed():
    with running(MODELS) as server, httpx.Client(base_url=server.url) as client:
        id, store = server.session("book", seed=5), server.service.engine.sessions.store
        body = {"version": 0, "prompt": "Once", "max_new_tokens": 400, "stream": True}
        with client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            store.commit = fails
            rest = [line for line in lines if line]
        del store.commit
        assert first == "event: token" and rest[-2] == "event: error" and "event: done" not in rest
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "store_full"
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 0
        done = server.post(f"/v1/sessions/{id}/generate", {**body, "stream": False}).json()
        assert done["text"] == LM.generate("Once", seed=5, max_new_tokens=400)


@pytest.mark.parametrize(("limits", "status"), [(Limits(session_queue=0), 409), (Limits(queue=1), 429)])
def test_who_must_wait_is_told_how_long(limits, status):
    with running(MODELS, limits=limits) as server, httpx.Client(base_url=server.url) as client:
        id = server.session("book")
        body = {"version": 0, "max_new_tokens": 16_000, "stream": True}
        with client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
            lines = answer.iter_lines()  # which must live, or the client goes away
            next(lines)
            late = server.step(id, "x")
            assert late.status_code == status and error(late)["type"] in ("conflict_error", "rate_limit_error")
            assert 0 < int(late.headers["retry-after-ms"]) <= 1_000 and int(late.headers["retry-after"]) >= 1


def test_a_session_does_not_expire_while_it_is_busy():
    clock = Clock()
    engine = direct(clock=clock)
    id, found = made(engine, "book", options=Options(10.0)), []
    engine.engine.submit(Generate(found.append, WriteRequest("t", "g"), id, 0, "Hi", Writing(max_new_tokens=30), None))
    engine.engine.tick()
    clock.now += 60
    for _ in range(40):
        engine.engine.tick()
    assert json.loads(found[0].body)["text"] == LM.generate("Hi", seed=0, max_new_tokens=30)
    assert get(engine, id)["version"] == 1 and engine.engine.sessions.counts == {"t": 1}
    clock.now += 60
    refused(410, lambda: get(engine, id))


def test_a_reply_that_is_told_again_has_the_version_that_it_had():
    """In the ETag too: whoever goes on with it must not step over a write that it has not seen."""
    with running(MODELS) as server:
        id, key = server.session(), {"idempotency-key": "k"}
        first = server.step(id, [[1.0]], version=0, headers=key)
        server.step(id, [[2.0]], version=1)
        again = server.step(id, [[1.0]], version=0, headers=key)
        assert again.content == first.content and again.headers["etag"] == first.headers["etag"]
