"""/v1/stream: steps over a WebSocket."""

import base64
import json

import pytest
from running import MODELS, language_model, running
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from wire import line, opened, url

from elman.serve.limits import Limits
from elman.serve.net.keys import Keys


@pytest.mark.slow
def test_a_socket_that_does_not_read_is_not_read_from():
    """Else answers that are not taken are kept without end."""
    with running(MODELS) as server, opened(server.port, 0.5) as connection:
        connection.sendall(
            b"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert connection.recv(1_000).startswith(b"HTTP/1.1 101")
        message = json.dumps({"id": "x" * 4_000, "step": {}}).encode()
        frame = b"\x81\xfe" + len(message).to_bytes(2, "big") + bytes(4) + message
        with pytest.raises(TimeoutError):
            for _ in range(400):  # 64 MB
                connection.sendall(frame * 40)


@pytest.fixture(scope="module")
def server():
    with running(MODELS, limits=Limits(socket_message=300, socket_flight=3)) as found:
        yield found


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


def test_a_socket_is_told_where_its_sessions_are_before_it_is_closed():
    found = running(MODELS)
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


def test_answers_on_a_socket_are_texts():
    with running(MODELS) as server, connect(url(server)) as ws:
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


def test_messages_on_a_socket_are_all_answered_though_they_come_in_one_packet():
    """More than is heard in a turn, and cut in the middle of a message."""
    with running(MODELS, limits=Limits(socket_flight=2_000)) as server:
        id = server.session()
        with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
            ws.recv()
            step = {"session": id, "version": "any", "input": [0.5]}
            for number in range(10):
                ws.send(json.dumps({"id": number, "step": step}).ljust(4_000))
            assert sorted(json.loads(ws.recv())["id"] for _ in range(10)) == list(range(10))
        assert server.client.get(f"/v1/sessions/{id}").json()["version"] == 10
