"""Every route: who may use it, what it takes, and how it names a request and an error."""

import json
import re
import socket

import pytest
from running import MODELS, error, running
from websockets.sync.client import connect
from wire import keys_file

from elman.serve.api.app import OPEN
from elman.serve.api.routes import ROUTES
from elman.serve.limits import Limits
from elman.serve.net.keys import Keys


def test_every_429_says_when_to_come_back():
    with running(MODELS, limits=Limits(sessions=1, forks=0)) as server:
        id = server.session()
        for answer in (server.post("/v1/sessions", {"model": "gru"}), server.post(f"/v1/sessions/{id}/fork")):
            assert answer.status_code == 429 and "retry-after-ms" in answer.headers


def test_every_route_needs_a_key_but_the_page_and_the_probes(tmp_path):
    with running(MODELS, keys=Keys(keys_file(tmp_path / "keys.txt", ("ann", "k")))) as server:
        for method, path, *_ in ROUTES:
            sent = {"content": b"{}", "headers": {"content-type": "application/json"}} if method != "GET" else {}
            answer = server.client.request(method, path.replace("{id}", "x"), **sent)
            assert answer.status_code == (200 if path in OPEN else 401), (method, path)
            if path not in OPEN:
                assert error(answer)["type"] == "authentication_error"
        assert set(OPEN) == {"/", "/page.js", "/page.css", "/healthz", "/readyz"}
        for wrong in ("k", "Basic k", "Bearer", "Bearer kk", "Bearer \xe9"):
            found = server.client.get("/v1/models", headers={"authorization": wrong.encode("latin-1")})
            assert found.status_code == 401, wrong
        url = server.url.replace("http", "ws") + "/v1/stream"
        with pytest.raises(Exception, match="401"), connect(url) as ws:
            ws.recv()
        with connect(url, additional_headers={"authorization": "Bearer k"}) as ws:
            assert "credits" in json.loads(ws.recv())


def test_without_keys_every_body_says_that_it_is_json():
    """A page of somewhere else can send a form or a text without being asked; JSON it cannot."""
    with running(MODELS) as server:
        for method, path, *_ in ROUTES:
            if method == "POST" and "chat" not in path:
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
                    headers = {"content-type": kind} if kind else {}
                    answer = server.client.post(path.replace("{id}", "x"), content=b"{}", headers=headers)
                    assert answer.status_code == 415, (path, kind)
        assert server.post("/v1/sessions", {"model": "gru"}, headers={"origin": server.url}).status_code == 201


# HTTP
def test_head_is_get_without_a_body(server):
    for path in ("/", "/healthz", "/v1/models", "/metrics"):
        head, get = server.client.head(path), server.client.get(path)
        assert head.status_code == 200 and head.content == b"", path
        assert head.headers["content-type"] == get.headers["content-type"]
        if path != "/metrics":  # which counts them
            assert head.headers["content-length"] == get.headers["content-length"]
    answer = server.client.head("/v1/steps")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert "HEAD" in server.client.put("/v1/models").headers["allow"]


@pytest.mark.parametrize("kind", [
    "application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=UTF-8",
    "application/json ; x=y",
])  # fmt: skip
def test_json_in_any_spelling(server, kind):
    headers = {"content-type": kind}
    assert server.client.post("/v1/steps", content=b'{"items":[]}', headers=headers).status_code == 200


@pytest.mark.parametrize("kind", [
    "application/jsonp", "application/json-patch+json", "application/jsonx; a=b", "text/plain; application/json",
    "json",
])  # fmt: skip
def test_nothing_else_is_json(server, kind):
    headers = {"content-type": kind}
    assert server.client.post("/v1/steps", content=b'{"items":[]}', headers=headers).status_code == 415


def test_nobody_is_sent_elsewhere_by_the_host_that_it_names():
    with running(MODELS, insecure=True) as server:
        for path in ("/v1/models/", "/healthz/", "//evil.example/v1/models/"):
            answer = server.client.get(server.url + path, headers={"host": "evil.example"}, follow_redirects=False)
            assert answer.status_code == 404 and "location" not in answer.headers, path


def test_a_request_has_a_name(server):
    assert server.client.get("/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = [server.client.get("/healthz").headers["x-request-id"] for _ in range(2)]
    first, second = (int(one.removeprefix("req_"), 16) for one in made)
    assert abs(second - first) > 2**20  # a count would tell how many others ask
    assert made[0] != made[1] and all(re.fullmatch(r"req_[0-9a-f]+", one) for one in made)
    for wrong in ("", "a b", "x" * 129, "a\tb", "ä"):
        headers = {"x-request-id": wrong.encode("latin-1")}
        assert server.client.get("/healthz", headers=headers).headers["x-request-id"].startswith("req_"), wrong
    answer = server.client.get("/v1/sessions/none", headers={"x-request-id": "mine-2"})
    assert answer.headers["x-request-id"] == error(answer)["request_id"] == "mine-2"
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        answer = connection.recv(10_000)
    name = re.search(rb"x-request-id: (req_\w+)", answer)[1].decode()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["request_id"] == name
    stream = {"model": "book", "prompt": "x", "max_tokens": 2, "stream": True}
    assert "x-request-id" in server.post("/v1/completions", stream).headers


def test_a_bug_is_logged_with_the_name_of_its_request(server, monkeypatch, capsys):
    monkeypatch.setattr(server.service.metrics, "text", lambda: 1 / 0)
    answer = server.client.get("/metrics", headers={"x-request-id": "mine-3"})
    assert answer.status_code == 500 and error(answer)["request_id"] == "mine-3"
    assert "mine-3: ZeroDivisionError" in capsys.readouterr().err
