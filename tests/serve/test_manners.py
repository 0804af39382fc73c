"""What HTTP, WebSocket and OpenAI's client expect of a server, each of which was wrong once."""

import base64
import hashlib
import json
import os
import re
import socket

import openai
import pytest
from running import error, language_model, running, served_models
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from elman import cli
from elman.errors import FileError
from elman.serve.api.predicting import predictor
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.serve.net.keys import Keys
from elman.tasks import open_model
from elman.tasks.text.serving import ServedText

MODELS = served_models()
UPGRADE = (
    b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%b\r\n"
)


@pytest.fixture(scope="module")
def server():
    with running(MODELS) as found:
        yield found


def line(name, key, *more):
    return " ".join([name, hashlib.sha256(key.encode()).hexdigest(), *more]) + "\n"


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


def test_errors_of_predict_name_no_file_of_the_server(tmp_path):
    (tmp_path / "x.csv").write_text("value\n" + "\n".join(map(str, [0.1, 0.2, -0.1, 5.0, 5.2, 4.9] * 4)) + "\n")
    assert cli.main(["train", "--task", "hmm", "--data.train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "hmm"),
                     "--model.n_components", "2"]) == 0  # fmt: skip
    task, model = open_model(tmp_path / "hmm")
    with running(MODELS, predictors={"hmm": predictor(task, model)}) as server:
        for data in ("value\nx\n", "value\n1\n2,3\n", "", "x"):
            answer = server.post("/v1/predict", {"model": "hmm", "data": data})
            assert answer.status_code == 400, answer.text
            assert (
                "data" in error(answer)["message"] and "/tmp" not in answer.text and os.sep + "data." not in answer.text
            )


# Keys


def test_keys_that_are_not_ascii(tmp_path):
    """UTF-8, as curl sends it from a terminal, or Latin-1, as a browser does; `à` ends with a byte that is a space in
    Latin-1."""
    path = tmp_path / "keys.txt"
    path.write_text("".join(line(name, key) for name, key in (("ann", "clé"), ("bob", "voilà"), ("cat", "密码"))))
    keys = Keys(path)
    assert keys.tenant("Bearer clé".encode()) == keys.tenant("Bearer clé".encode("latin-1")) == "ann"
    assert keys.tenant("Bearer voilà".encode()) == keys.tenant("bearer voilà".encode("latin-1")) == "bob"
    assert keys.tenant("Bearer 密码".encode()) == "cat"
    for wrong in ("Bearer cl", "Bearer clÃ©", "Bearer é"):
        with pytest.raises(HttpError):
            keys.tenant(wrong.encode())
    with running(MODELS, keys=keys) as server:
        headers = {b"authorization": "Bearer 密码".encode()}
        assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_an_empty_key_is_no_key(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(line("ann", "k") + line("bob", ""))
    with pytest.raises(FileError, match=r"line 2.*empty"):
        Keys(path)
    path.write_text(line("ann", "k"))
    for wrong in (b"", b"Bearer", b"Bearer ", b"Bearer \t"):
        with pytest.raises(HttpError):
            Keys(path).tenant(wrong)


def test_metrics_are_for_operators(tmp_path):
    """They show what all tenants do."""
    path = tmp_path / "keys.txt"
    path.write_text(line("ann", "a") + line("ops", "o", "operator"))
    with running(MODELS, keys=Keys(path)) as server:
        ask = lambda key, path: server.client.get(path, headers={"authorization": f"Bearer {key}"}).status_code  # noqa: E731
        assert [ask(key, "/metrics") for key in ("a", "o", "x")] == [403, 200, 401]
        assert [ask(key, "/v1/models") for key in ("a", "o", "x")] == [200, 200, 401]
    path.write_text(line("ann", "a", "boss"))
    with pytest.raises(FileError, match="operator"):
        Keys(path)


# Sockets


def url(server):
    return server.url.replace("http", "ws") + "/v1/stream"


def test_answers_on_a_socket_are_texts(server):
    with connect(url(server)) as ws:
        assert isinstance(ws.recv(), str)
        for message in ("{", b"{"):  # either kind is heard
            ws.send(message)
            assert isinstance(ws.recv(), str)
        for size in (10, 200, 70_000):  # each has a length of its own kind in front
            ws.send(json.dumps({"id": "x" * size, "step": {}}))
            assert json.loads(ws.recv())["id"] == "x" * size


def test_a_browser_gives_its_key_as_a_subprotocol(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(line("ann", "clé /?") + line("bob", "b"))
    spelt = lambda key: "elman.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")  # noqa: E731
    with running(MODELS, keys=Keys(path)) as server:
        for key, tenant in (("clé /?", "ann"), ("b", "bob")):
            with connect(url(server), subprotocols=["elman", spelt(key)]) as ws:
                assert ws.subprotocol == "elman" and "credits" in ws.recv()  # the key is not sent back
                assert [one.tenant for one in server.service.sockets] == [tenant]
        for wrong in (["elman"], ["elman", spelt("c")], ["elman", "elman.key."], ["elman", "elman.key.!"]):
            with pytest.raises(InvalidStatus) as refused, connect(url(server), subprotocols=wrong):
                pass
            assert refused.value.response.status_code == 401, wrong


def test_a_socket_without_a_key_is_answered_as_a_request_is(tmp_path, capsys):
    path = tmp_path / "keys.txt"
    path.write_text(line("ann", "a"))
    with running(MODELS, keys=Keys(path)) as server:
        for key, where, status in (("", "/v1/stream", 401), ("x", "/v1/stream", 401), ("", "/nowhere", 401),
                                   ("a", "/nowhere", 404), ("a", "/v1/models", 404)):  # fmt: skip
            headers = {"authorization": f"Bearer {key}"} if key else {}
            there = server.url.replace("http", "ws") + where
            with pytest.raises(InvalidStatus) as refused, connect(there, additional_headers=headers):
                pass
            answer = refused.value.response
            assert answer.status_code == status and answer.headers["x-request-id"]
            if status == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"
    assert "ERROR" not in capsys.readouterr().err


def test_a_text_that_is_not_utf_8_closes_the_socket(server):
    """RFC 6455, 8.1; of bytes nobody says that they are a text."""
    with connect(url(server)) as ws:
        ws.recv()
        ws.send(b"\xff\xfe")
        assert json.loads(ws.recv())["status"] == 400
        ws.send(json.dumps({"id": "é密", "step": {}}, ensure_ascii=False))
        assert json.loads(ws.recv())["id"] == "é密"
        ws.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=5)
        assert closed.value.rcvd.code == 1007


FRAMES = {
    "reserved bits": b"\xf1\x80" + bytes(4),
    "no such kind": b"\x83\x80" + bytes(4),
    "not masked": b"\x81\x02{}",
    "a long ping": b"\x89\xfe\x00\x80" + bytes(4 + 128),
    "a ping in parts": b"\x09\x80" + bytes(4),
    "a part of nothing": b"\x80\x80" + bytes(4),
    "a text within a text": (b"\x01\x80" + bytes(4)) * 2,
    "a close of one byte": b"\x88\x81" + bytes(4) + b"x",
    "a close with a code that is none": b"\x88\x82" + bytes(4) + b"\x00\x01",
    "too long": b"\x81\xff" + (1 << 40).to_bytes(8, "big") + bytes(4),
    "half of a text": b"\x81\xfe\x10\x00" + bytes(4) + b"x",
    "not UTF-8, then more": b"\x81\x81" + bytes(4) + b"\xff" + (b"\x81\x80" + bytes(4)) * 3,
}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", FRAMES)
def test_frames_that_are_wrong_leave_no_traceback(server, name, early, caplog, capsys):
    """Before there is a socket, too."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(UPGRADE % (b"/v1/stream", b""))
        if not early:
            assert connection.recv(1_000).startswith(b"HTTP/1.1 101")
        connection.sendall(FRAMES[name])
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(1_000):
                pass
        except ConnectionResetError:
            pass
    assert server.client.get("/healthz").status_code == 200
    said = caplog.text + "".join(capsys.readouterr())
    assert "Traceback" not in said and "Exception" not in said, said


@pytest.mark.parametrize(("path", "more"), [
    (b"/v1/stream", b"x: " + b"y" * 20_000 + b"\r\n"), (b"/v1/stream", b"a: b\r\n" * 200),
    (b"/v1/stream?" + b"y" * 20_000, b""), (b"/v1/\xc3\xa9", b""), (b"/v1/stream", b"x: \xff\xfe\r\n"),
    (b"/v1/stream", b"sec-websocket-protocol: elman.key.\xff, elman\r\n"), (b"/v1/stream", b"content-length: 5\r\n"),
    (b"/v1/stream", b"sec-websocket-version: 7\r\n"),
])  # fmt: skip
def test_handshakes_that_are_wrong_are_answered_and_closed(server, path, more, caplog, capsys):
    with socket.create_connection(("127.0.0.1", server.port), timeout=3) as connection:
        connection.sendall(UPGRADE % (path, more))
        answer = connection.recv(1_000)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 101")), answer
        if not answer.startswith(b"HTTP/1.1 101"):
            try:
                while connection.recv(1_000):
                    pass
            except ConnectionResetError:
                pass
    said = caplog.text + "".join(capsys.readouterr())
    assert "Traceback" not in said and "Exception" not in said, said


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
