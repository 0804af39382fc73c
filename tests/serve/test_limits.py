"""Every limit at the limit and one past it: on two servers, of which the second has one more of everything.

What the first refuses and the second takes was refused for that limit and for nothing else. A limit that is added and
named nowhere here is found by `test_every_limit_is_tested`.
"""

import inspect
import json
import socket
import time
from contextlib import contextmanager
from dataclasses import asdict, fields

import httpx
import numpy as np
import pytest
import test_sessions
from running import running, served_models
from test_sessions import Clock, direct, get, made, refused
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import elman
from elman.saved import open_model
from elman.serve.jobs import Options
from elman.serve.limits import Limits
from elman.serve.predicting import predictor
from elman.tasks.forecast import RunConfig

MODELS = served_models()
STATE = len(MODELS["gru"].dump(MODELS["gru"].start(0)))  # bytes in a state file, to the byte
SMALL = Limits(
    body=5_000, headers=2_048, prompt=10, prompts=2, max_tokens=6, n=3, beams=3, total_tokens=15, stops=2,
    stop_characters=5, logprobs=4, inputs=3, bulk=4, state_bytes=STATE, checkpoints=2, key=8, ttl_seconds=100.0,
    socket_message=300,
)  # fmt: skip
COUNTED = (
    "receive_seconds", "sessions", "forks", "line", "queue", "socket_flight", "connections", "tombstones", "filled",
    "drawn",
)  # fmt: skip
LARGER = Limits(**{name: value + (name not in COUNTED) for name, value in asdict(SMALL).items()})


@pytest.fixture(scope="module")
def small():
    with running(MODELS, limits=SMALL, ttl=50.0) as found:
        yield found


@pytest.fixture(scope="module")
def larger():
    with running(MODELS, limits=LARGER, ttl=50.0) as found:
        yield found


# Requests of a size, and the status of their answers


def completion(server, **more):
    return server.post("/v1/completions", {"model": "book", "prompt": "x", "max_tokens": 1, **more}).status_code


def response(server, headers=None, **more):
    body = {"model": "book", "input": "x", "max_output_tokens": 1, **more}
    return server.post("/v1/responses", body, headers=headers).status_code


def generation(server, **more):
    body = {"version": "any", "max_new_tokens": 1, **more}
    return server.post(f"/v1/sessions/{server.session('book')}/generate", body).status_code


def session(server, headers=None, **more):
    return server.post("/v1/sessions", {"model": "gru", **more}, headers=headers).status_code


def item(server, **more):
    """The status of one item of /v1/steps."""
    items = [{"session": server.session(), "version": 0, **({"input": [1.0]} if "inputs" not in more else {}), **more}]
    return server.post("/v1/steps", {"items": items}).json()["data"][0]["status"]


@contextmanager
def talk(server):
    with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
        assert json.loads(ws.recv())["credits"] == server.service.limits.socket_flight
        yield ws


def message(server, pad=0, **more):
    """The status of a message on a socket, or the code that it was closed with."""
    step = {"session": server.session(), "version": 0, **({"input": [1.0]} if "inputs" not in more else {}), **more}
    with talk(server) as ws:
        ws.send(json.dumps({"id": 1, "step": step}).ljust(pad))
        try:
            return json.loads(ws.recv())["status"]
        except ConnectionClosed as closed:
            return closed.rcvd.code


def raw(server, *parts):
    """What is answered first to bytes that come in parts."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, (wait, part) in enumerate(parts):
            time.sleep(wait if number else 0)
            connection.sendall(part)
        return int(connection.recv(1_000).split()[1])


def head(server, size):
    start = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
    whole = start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"
    return raw(server, (0, whole[:-1]), (0.05, whole[-1:]))


def body(server, size, chunked=False):
    data = b'{"items":[]}'.ljust(size)
    content = iter([data[:9], data[9:]]) if chunked else data
    return server.client.post("/v1/steps", content=content, headers={"content-type": "application/json"}).status_code


def bulk(server, size):
    items = [{"session": "none", "version": 0, "input": [1.0]}] * size
    return server.post("/v1/steps", {"items": items}).status_code


def state(server, size):
    """A state file; what is too long by a byte is not one, which is found only where its length is within the limit."""
    data = server.client.get(f"/v1/sessions/{server.session()}/state").content
    path = f"/v1/sessions/{server.session()}/state"
    status = server.client.put(path, content=data.ljust(size), headers={"if-match": "*"}).status_code
    return 200 if status == 422 and size == STATE + 1 else status


def total(server, size, many):
    shape = {15: {"max_tokens": 5, many: 3}, 16: {"max_tokens": 4, many: 2, "prompt": ["x", "x"]}}
    return completion(server, **shape[size])


# Limit: the status of what is past it, and all the requests that have it. The size is that of the limit, or one more.
CHECKS = {
    "body": (413, [body, lambda s, size: body(s, size, chunked=True)]),
    "headers": (431, [head]),
    "prompt": (400, [
        lambda s, size: completion(s, prompt="x" * size), lambda s, size: completion(s, prompt=[7] * size),
        lambda s, size: response(s, input="x" * size), lambda s, size: generation(s, prompt="x" * size),
    ]),
    "prompts": (400, [lambda s, size: completion(s, prompt=["x"] * size)]),
    "max_tokens": (400, [
        lambda s, size: completion(s, max_tokens=size), lambda s, size: response(s, max_output_tokens=size),
        lambda s, size: generation(s, max_new_tokens=size),
    ]),
    "n": (400, [lambda s, size: completion(s, n=size)]),
    "beams": (400, [lambda s, size: completion(s, num_beams=size)]),
    "total_tokens": (400, [lambda s, size: total(s, size, "n"), lambda s, size: total(s, size, "num_beams")]),
    "stops": (400, [
        lambda s, size: completion(s, stop=list("abcd")[:size]), lambda s, size: generation(s, stop=list("abcd")[:size])
    ]),
    "stop_characters": (400, [
        lambda s, size: completion(s, stop="é" * size), lambda s, size: generation(s, stop=["a", "é" * size])
    ]),
    "logprobs": (400, [lambda s, size: completion(s, logprobs=size), lambda s, size: generation(s, logprobs=size)]),
    "inputs": (400, [
        lambda s, size: s.step(s.session(), [[1.0]] * size).status_code, lambda s, size: item(s, inputs=[[1.0]] * size),
        lambda s, size: s.step(s.session("book"), "x" * size).status_code,
        lambda s, size: message(s, inputs=[[1.0]] * size),
    ]),
    "bulk": (400, [bulk]),
    "state_bytes": (413, [state]),
    "checkpoints": (400, [lambda s, size: session(s, checkpoints={"every": 1, "keep": size})]),
    "key": (400, [
        lambda s, size: s.step(s.session(), [[1.0]], headers={"idempotency-key": "k" * size}).status_code,
        lambda s, size: session(s, headers={"idempotency-key": "k" * size}),
        lambda s, size: response(s, headers={"idempotency-key": "k" * size}),
        lambda s, size: item(s, key="é" * size), lambda s, size: message(s, key="é" * size),
    ]),
    "ttl_seconds": (400, [lambda s, size: session(s, ttl_seconds=size)]),
    "socket_message": (1009, [lambda s, size: message(s, pad=size)]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "which"), [(name, i) for name, (_, asks) in CHECKS.items() for i in range(len(asks))])
def test_at_the_limit_and_one_past_it(small, larger, name, which):
    status, asks = CHECKS[name]
    ask, limit = asks[which], getattr(SMALL, name)
    assert ask(small, limit) in (200, 201)
    assert ask(small, limit + 1) == status
    assert ask(larger, limit + 1) in (200, 201)


# Those that no single request can reach


def test_receive_seconds():
    start = (
        b"POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n"
    )
    with running(MODELS, limits=Limits(receive_seconds=0.6)) as server:
        assert raw(server, (0, start[:30]), (0.1, start[30:]), (0.1, b'{"items":[]}')) == 200
        began = time.monotonic()
        assert raw(server, (0, start), (0.4, b"{")) == 408  # a byte now and then does not make it longer
        assert time.monotonic() - began < 0.95
    with running(MODELS, limits=Limits(receive_seconds=5.0)) as server:
        assert raw(server, (0, start), (0.7, b'{"items":[]}')) == 200


def test_socket_flight():
    """Messages to a session that writes a long text: none is answered before its end."""
    for limit in (3, 4):
        with running(MODELS, limits=Limits(socket_flight=limit)) as server, httpx.Client(base_url=server.url) as client:
            id = server.session("book")
            body = {"version": 0, "max_new_tokens": 16_000, "stream": True}
            with talk(server) as ws, client.stream("POST", f"/v1/sessions/{id}/generate", json=body) as answer:
                lines = answer.iter_lines()  # which must live, or the client goes away
                next(lines)
                for number in range(4):
                    ws.send(json.dumps({"id": number, "step": {"session": id, "version": "any", "inputs": "x"}}))
                if limit == 3:
                    last = json.loads(ws.recv())
                    assert (last["id"], last["status"]) == (3, 429)
                answer.close()
                assert [json.loads(ws.recv())["status"] for _ in range(limit)] == [200] * limit


def test_connections():
    """Of a limit of 4, four are served, and the fifth is refused."""
    with running(MODELS, limits=Limits(connections=4)) as server:
        server.client.close()
        opened, statuses = [], []
        try:
            for _ in range(5):
                opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
                opened[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                statuses.append(int(opened[-1].recv(1_000).split()[1]))
            assert statuses == [200, 200, 200, 200, 503]
        finally:
            for one in opened:
                one.close()


def test_tombstones():
    clock = Clock()
    engine = direct(limits=Limits(tombstones=2), clock=clock)
    ids = []
    for _ in range(3):
        ids.append(made(engine, options=Options(5.0)))
        clock.now += 6
        engine.engine.tick()
        if len(ids) == 2:
            for id in ids:
                refused(410, lambda id=id: get(engine, id))
    refused(404, lambda: get(engine, ids[0]))
    for id in ids[1:]:
        refused(410, lambda id=id: get(engine, id))


def test_filled_and_drawn(tmp_path):
    """Rows that are missing before new ones or between them, and the numbers of a forecast's paths."""
    rows = {"ds": [str(np.datetime64("2024-01-01") + t) for t in range(30)], "y": [str(t % 3) for t in range(30)]}
    settings = {"data": {"horizon": 2, "seasonality": 3, "gaps": "fill"}, "model": {"kind": "seasonal_naive"}}
    elman.train(RunConfig(**settings, out=str(tmp_path / "run")), {"train": rows})
    task, face = open_model(tmp_path / "run")

    def step(server, *days):
        id = server.session("sales")
        assert server.step(id, [{"ds": "2024-01-01", "y": 1.0}]).status_code == 200
        return server.step(id, [{"ds": str(np.datetime64("2024-01-01") + t), "y": 1.0} for t in days])

    def predict(server, *days, **options):
        data = "ds,y\n" + "".join(f"{np.datetime64('2024-01-01') + t},1\n" for t in days)
        return server.post("/v1/predict", {"model": "sales", "data": data, "ending": "csv", "options": options})

    def predictors(limits):
        return {"sales": predictor(task, face, limits)}

    for most in (7, 8):
        limits = Limits(filled=most, drawn=100)
        with running({"sales": task.serve(face)}, limits=limits, predictors=predictors(limits)) as server:
            few = {"samples": "5"}
            assert step(server, 8).status_code == 200  # 7 are missing, the first of January is there
            assert predict(server, 37, **few).status_code == 200
            assert predict(server, 30, 38, **few).status_code == 200
            wanted = (200, 200, 200) if most == 8 else (422, 400, 400)
            late = step(server, 9), predict(server, 38, **few), predict(server, 30, 39, **few)
            assert tuple(answer.status_code for answer in late) == wanted
            if most == 7:
                assert all("8 rows missing before" in answer.text and "7 at most" in answer.text for answer in late)
            began = time.monotonic()  # what would be years of memory is seen before anything is made
            far = step(server, 2_900_000), predict(server, 2_900_000, **few), predict(server, 30, 2_900_000, **few)
            assert [answer.status_code for answer in far] == [422, 400, 400] and time.monotonic() - began < 5
            assert server.client.get("/readyz").status_code == 200
            assert predict(server, 30, samples="50").status_code == 200
            assert predict(server, 30, samples="51").status_code == 400
            assert predict(server, 30, samples="5", horizon="1000000000").status_code == 400
    with running({"sales": task.serve(face)}, predictors=predictors(Limits(drawn=102))) as server:
        assert predict(server, 30, samples="51").status_code == 200


TESTED = {
    "filled": test_filled_and_drawn,
    "drawn": test_filled_and_drawn,
    "receive_seconds": test_receive_seconds,
    "connections": test_connections,
    "socket_flight": test_socket_flight,
    "tombstones": test_tombstones,
    "sessions": test_sessions.test_sessions_and_forks_have_a_limit_and_deleting_makes_room,
    "forks": test_sessions.test_sessions_and_forks_have_a_limit_and_deleting_makes_room,
    "line": test_sessions.test_writes_of_a_session_wait_in_line_and_the_line_has_an_end,
    "queue": test_sessions.test_the_queue_has_an_end,
}


def test_every_limit_is_tested():
    assert sorted([*CHECKS, *TESTED]) == sorted(one.name for one in fields(Limits))
    for name, test in TESTED.items():
        assert f"{name}=" in inspect.getsource(test), f"{test.__name__} sets no {name}"
