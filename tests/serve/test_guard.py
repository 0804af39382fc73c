"""Who may ask, how much, and how slowly."""

import hashlib
import json
import socket
import time
from dataclasses import fields

import httpx
import pytest
from running import error, language_model, running, served_models
from websockets.sync.client import connect

from elman.errors import FileError
from elman.serve.limits import MEANING, Limits
from elman.serve.net.keys import Keys

SMALL = Limits(
    body=5_000, headers=4_096, receive_seconds=0.4, prompt=10, prompts=2, max_tokens=6, n=3, beams=3, total_tokens=12,
    stops=2, stop_characters=5, logprobs=4, inputs=3, bulk=2, state_bytes=3_000, checkpoints=2, key=8,
    ttl_seconds=100.0, socket_message=300, socket_flight=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def models():
    return served_models()


@pytest.fixture(scope="module")
def server(models):
    with running(models, limits=SMALL) as found:
        yield found


def test_every_limit_has_its_meaning():
    assert [one.name for one in fields(Limits)] == list(MEANING)
    assert len(Limits().lines()) == len(MEANING)


COMPLETION = {"model": "book", "prompt": "x", "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "at", "past"),
    [
        ("/v1/completions", {**COMPLETION, "max_tokens": 6}, {**COMPLETION, "max_tokens": 7}),
        ("/v1/completions", {**COMPLETION, "prompt": "x" * 10}, {**COMPLETION, "prompt": "x" * 11}),
        ("/v1/completions", {**COMPLETION, "prompt": ["x"] * 2}, {**COMPLETION, "prompt": ["x"] * 3}),
        ("/v1/completions", {**COMPLETION, "n": 3}, {**COMPLETION, "n": 4}),
        ("/v1/completions", {**COMPLETION, "num_beams": 3}, {**COMPLETION, "num_beams": 4}),
        ("/v1/completions", {**COMPLETION, "n": 2, "max_tokens": 6}, {**COMPLETION, "n": 3, "max_tokens": 5}),
        ("/v1/completions", {**COMPLETION, "stop": ["a", "b"]}, {**COMPLETION, "stop": ["a", "b", "c"]}),
        ("/v1/completions", {**COMPLETION, "stop": "a" * 5}, {**COMPLETION, "stop": "a" * 6}),
        ("/v1/completions", {**COMPLETION, "logprobs": 4}, {**COMPLETION, "logprobs": 5}),
        ("/v1/sessions", {"model": "gru", "ttl_seconds": 100}, {"model": "gru", "ttl_seconds": 101}),
        (
            "/v1/sessions",
            {"model": "gru", "checkpoints": {"every": 1, "keep": 2}},
            {"model": "gru", "checkpoints": {"every": 1, "keep": 3}},
        ),
    ],
)
def test_at_a_limit_and_past_it(server, path, at, past):
    if path == "/v1/sessions":
        at, past = {"ttl_seconds": 50, **at}, {"ttl_seconds": 50, **past}
    assert server.post(path, at).status_code in (200, 201), server.post(path, at).text
    answer = server.post(path, past)
    assert answer.status_code == 400 and "at most" in error(answer)["message"], answer.text


def test_limits_of_steps(server):
    id, other = (server.session(ttl_seconds=50) for _ in range(2))
    assert server.step(id, [[1.0]] * 3).status_code == 200
    assert server.step(id, [[1.0]] * 4).status_code == 400
    item = {"session": id, "version": "any", "input": [1.0]}
    assert server.post("/v1/steps", {"items": [item, {**item, "session": other}]}).status_code == 200
    assert server.post("/v1/steps", {"items": [item] * 3}).status_code == 400
    for length, status in ((8, 200), (9, 400)):
        assert server.step(id, [[1.0]], headers={"idempotency-key": "k" * length}).status_code == status
    data = server.client.get(f"/v1/sessions/{id}/state").content
    for pad, status in ((0, 200), (SMALL.state_bytes - len(data), 422), (SMALL.state_bytes - len(data) + 1, 413)):
        answer = server.client.put(f"/v1/sessions/{id}/state", content=data + b"\0" * pad, headers={"if-match": "*"})
        assert answer.status_code == status, (pad, answer.text)


def test_bodies(server):
    head = {"content-type": "application/json"}
    for size, status in ((5_000, 400), (5_001, 413), (50_000, 413)):
        assert server.client.post("/v1/steps", content=b" " * size, headers=head).status_code == status
        chunks = (b" " * 1_000 for _ in range(size // 1_000 + (size % 1_000 > 0)))
        expected = 413 if size > 5_000 else 400
        assert server.client.post("/v1/steps", content=chunks, headers=head).status_code == expected


def raw(server, data, wait=3.0):
    """What comes back for some bytes, until the other side closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        connection.sendall(data)
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


def test_a_gigabyte_is_refused_before_it_is_sent(server):
    head = b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    assert raw(server, head % (1 << 30)).startswith(b"HTTP/1.1 413")


def test_a_slow_head_a_slow_body_and_a_long_head(server):
    began = time.monotonic()
    assert raw(server, b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n").startswith(b"HTTP/1.1 408")
    body = b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    assert raw(server, body).startswith(b"HTTP/1.1 408")
    assert raw(server, body[:-1]).startswith(b"HTTP/1.1 408")  # nothing of the body at all
    assert time.monotonic() - began < 3
    flood = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 2_000
    assert raw(server, flood).startswith(b"HTTP/1.1 431")
    assert server.client.get("/healthz").status_code == 200


def test_without_keys_only_this_machine_may_ask(server):
    for headers, status in (
        ({"host": "127.0.0.1:80"}, 200), ({"host": "localhost"}, 200), ({"host": "[::1]:8080"}, 200),
        ({"host": "evil.example"}, 403), ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": server.url}, 200),
    ):  # fmt: skip
        assert server.client.get("/v1/models", headers=headers).status_code == status, headers


def keys_file(path, **tenants):
    lines = [f"{tenant} {hashlib.sha256(key.encode()).hexdigest()}" for tenant, keys in tenants.items() for key in keys]
    path.write_text("# keys\n" + "\n".join(lines) + "\n")
    return path


def test_keys(models, tmp_path):
    keys = Keys(keys_file(tmp_path / "keys.txt", ann=["a1", "a2"], bob=["b1"]))
    with running(models, keys=keys) as server:

        def ask(key, method="GET", path="/v1/models", **more):
            return server.client.request(method, path, headers={"authorization": f"Bearer {key}"}, **more)

        for path in ("/healthz", "/readyz", "/", "/page.js", "/page.css"):
            assert server.client.get(path).status_code == 200, path
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
            assert server.client.get(path).status_code == 401, path
        assert [ask(key).status_code for key in ("a1", "a2", "b1", "c", "a1x")] == [200, 200, 200, 401, 401]
        id = ask("a1", "POST", "/v1/sessions", json={"model": "gru"}).json()["id"]
        assert ask("a2", path=f"/v1/sessions/{id}").status_code == 200
        assert ask("b1", path=f"/v1/sessions/{id}").status_code == 404
        body = {"model": "book", "prompt": "x", "max_tokens": 1, "return_state": True}
        state = ask("a1", "POST", "/v1/completions", json=body).json()["choices"][0]["state"]
        assert ask("a2", "POST", "/v1/completions", json={**body, "state": state}).status_code == 200
        assert ask("b1", "POST", "/v1/completions", json={**body, "state": state}).status_code == 422
        keys_file(tmp_path / "keys.txt", bob=["b1"])
        keys.read()
        assert ask("a1").status_code == 401 and ask("b1").status_code == 200
        with pytest.raises(Exception, match="HTTP 401"):
            connect(server.url.replace("http", "ws") + "/v1/stream").recv()


@pytest.mark.parametrize("text", ["", "ann", "ann abc", "ann " + "g" * 64, "a/b " + "0" * 64])
def test_keys_files_that_are_wrong(tmp_path, text):
    (tmp_path / "keys.txt").write_text(text)
    with pytest.raises(FileError, match="tenant sha256"):
        Keys(tmp_path / "keys.txt")


def test_a_socket(server):
    lm = language_model()
    id, text = server.session(ttl_seconds=50), server.session("book", ttl_seconds=50)
    with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
        assert json.loads(ws.recv()) == {"credits": 3}

        def ask(name, **step):
            ws.send(json.dumps({"id": name, "step": step}))

        ask(1, session=id, version=0, input=[1.0])
        ask("two", session=text, version=0, inputs="Hi")
        found = {one["id"]: one for one in (json.loads(ws.recv()) for _ in range(2))}
        assert found[1]["status"] == found["two"]["status"] == 200 and found[1]["body"]["version"] == 1
        assert sum(o["logprob"] for o in found["two"]["body"]["outputs"]) == pytest.approx(
            -lm.score("Hi")[0].nats, abs=1e-4
        )
        for version in (1, 2):  # one behind the other, without waiting
            ask(version, session=id, version=version, input=[1.0])
        assert [json.loads(ws.recv())["status"] for _ in range(2)] == [200, 200]
        ask(7, session=id, version=0, input=[1.0])
        assert json.loads(ws.recv())["error"]["version"] == 3
        ask(8, session=id, version="any", input=[1.0], key="k")
        ask(9, session=id, version="any", input=[1.0], key="k")
        assert [json.loads(ws.recv())["replayed"] for _ in range(2)] == [False, True]
        ws.send("{")
        assert json.loads(ws.recv())["status"] == 400
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 4


def test_a_socket_is_told_where_its_sessions_are_before_it_is_closed(models):
    found = running(models)
    server = found.__enter__()
    ids = [server.session(), server.session()]
    with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
        ws.recv()
        for i, id in enumerate(ids):
            ws.send(json.dumps({"id": i, "step": {"session": id, "version": 0, "inputs": [[1.0]] * (i + 2)}}))
        assert [json.loads(ws.recv())["status"] for _ in ids] == [200, 200]
        found.__exit__(None, None, None)
        last = json.loads(ws.recv())
        assert last["sessions"] == {id: {"version": 1, "position": i + 2} for i, id in enumerate(ids)}
        with pytest.raises(Exception, match="1012"):
            ws.recv()


def test_a_client_that_asks_before_it_sends_is_answered(server):
    head = b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
        connection.sendall(head + b"content-length: 12\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b'{"items":[]}')
        assert connection.recv(1000).endswith(b'{"object":"list","data":[]}')
        connection.sendall(b"HEAD /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200") and b"content-length: 15" in answer and answer.endswith(b"\r\n\r\n")


def test_clients_let_go_of_a_connection_before_the_server_does(server):
    """Else it is closed under a request: httpx, and so OpenAI's client, keeps one as long as uvicorn does by itself."""
    assert server.server.config.timeout_keep_alive > 2 * httpx.Limits().keepalive_expiry


def test_a_socket_has_limits(server):
    url = server.url.replace("http", "ws") + "/v1/stream"
    id = server.session(ttl_seconds=50)
    message = json.dumps({"id": 1, "step": {"session": id, "version": "any", "input": [1.0]}})
    with connect(url) as ws:
        ws.recv()
        ws.send(message + " " * (300 - len(message)))
        assert json.loads(ws.recv())["status"] == 200
        ws.send(message + " " * (301 - len(message)))
        with pytest.raises(Exception, match="1009"):
            ws.recv()
    with connect(url) as ws:
        ws.recv()
        for _ in range(60):
            ws.send(message)
        statuses = [json.loads(ws.recv())["status"] for _ in range(60)]
    assert set(statuses) <= {200, 429, 409} and statuses.count(200) >= 3
    with pytest.raises(Exception, match="403"):
        connect(url, additional_headers={"origin": "http://evil.example"}).recv()


def test_what_it_says_of_itself(server):
    assert server.client.get("/readyz").json() == {"status": "ready"}
    from prometheus_client.parser import text_string_to_metric_families

    families = {one.name: one for one in text_string_to_metric_families(server.client.get("/metrics").text)}
    assert families["elman_ticks"].samples[0].value > 0 and "elman_requests" in families
    found = {one["id"]: one for one in server.client.get("/v1/models").json()["data"]}
    assert found["gru"]["state_bytes"] == 128 and found["book"]["writes"] is True


def test_readiness_passes_through_engine_and_store_at_most_once_a_second(models, capsys):
    with running(models) as server:
        ticks = lambda: server.service.engine.steps  # noqa: E731
        before = ticks()
        for _ in range(20):
            assert server.client.get("/readyz").status_code == 200
        assert 0 < ticks() - before <= 4
        server.service.readiness.at = 0.0
        server.service.engine.sessions.store.commit = broken
        answer = server.client.get("/readyz")
        assert answer.status_code == 503 and "store" in error(answer)["message"]
        assert "it is gone" not in answer.text and server.client.get("/readyz").status_code == 503
        assert capsys.readouterr().err.count("it is gone") == 1  # whoever asks without a key need not know why
        del server.service.engine.sessions.store.commit
        assert server.client.get("/readyz").status_code == 200
        server.service.engine.draining = True
        assert server.client.get("/readyz").status_code == 503
        assert server.client.get("/healthz").status_code == 200
        assert server.post("/v1/sessions", {"model": "gru"}).status_code == 503


def broken(sync):
    from elman.serve.store.store import StoreFailed

    raise StoreFailed("it is gone")


def test_a_client_that_goes_away_leaves_nothing(models):
    with running(models) as server:
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
