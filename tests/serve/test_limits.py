"""Every limit at the limit and one past it: on two servers, of which the second has one more of everything.

What the first refuses and the second takes was refused for that limit and for nothing else. A limit that is added and
named nowhere here is found by `test_every_limit_is_tested`.
"""

import hashlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from direct import Clock, direct, get, made, refused, respond, step
from running import MODELS, error, running
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from wire import opened, until

import elman
from elman.data.vocabulary import Words
from elman.errors import InputError
from elman.serve.api.predicting import predictor
from elman.serve.engine.jobs import Delete, Fork, Generate, Get, Options, WriteRequest
from elman.serve.engine.text_jobs import DeleteResponse
from elman.serve.errors import HttpError
from elman.serve.limits import MEANING, Limits
from elman.serve.net.keys import Keys
from elman.tasks import open_model
from elman.tasks.forecast.task import ForecastConfig
from elman.tasks.request import Request, Rows, batch_size, data_option, option
from elman.tasks.serving import Writing
from elman.tasks.text.lm import LanguageModel, LMModelConfig, build
from elman.tasks.text.serving import ServedText

STATE = len(MODELS["gru"].dump(MODELS["gru"].start(0)))  # bytes in a state file, to the byte
SMALL = Limits(
    body=5_000, headers=2_048, prompt=10, prompts=2, max_tokens=6, n=3, beams=3, total_tokens=15, bias=3, stops=2,
    stop_characters=5, logprobs=4, scores=30, inputs=3, bulk=4, bulk_inputs=7, state_bytes=STATE, checkpoints=2, key=8,
    ttl_seconds=100.0, socket_message=300,
)  # fmt: skip
COUNTED = (
    "receive_seconds", "send_seconds", "token_characters", "keyless", "tenant_connections", "tenant_sockets",
    "tenant_bytes", "tenant_threads", "sessions", "forks", "session_queue", "queue", "socket_flight", "connections",
    "tombstones", "filled", "drawn", "prediction", "batch", "ratio",
)  # fmt: skip
LARGER = Limits(**{name: value + (name not in COUNTED) for name, value in asdict(SMALL).items()})


@pytest.fixture(autouse=True)
def set_limits(request, monkeypatch):
    """A test that is marked with the names of limits sets each of them somewhere to what it is not by itself."""
    seen, init = {}, Limits.__init__

    def watched(self, **values):
        seen.update((name, value) for name, value in values.items() if value != getattr(Limits, name))
        init(self, **values)

    monkeypatch.setattr(Limits, "__init__", watched)
    yield
    for mark in request.node.iter_markers("limits"):
        assert {*mark.args} <= seen.keys(), f"{request.node.name} does not set { ({*mark.args} - seen.keys()) }"


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


def an_item(server, **more):
    """A step of a session of the last model."""
    id = server.session(list(server.service.models)[-1])
    return {"session": id, "version": 0, **({} if "inputs" in more else {"input": [1.0]}), **more}


def item(server, **more):
    """The status of one item of /v1/steps."""
    return server.post("/v1/steps", {"items": [an_item(server, **more)]}).json()["data"][0]["status"]


@contextmanager
def talk(server):
    with connect(server.url.replace("http", "ws") + "/v1/stream") as ws:
        assert json.loads(ws.recv())["credits"] == server.service.limits.socket_flight
        yield ws


def message(server, pad=0, **more):
    """The status of a message on a socket, or the code that it was closed with."""
    with talk(server) as ws:
        ws.send(json.dumps({"id": 1, "step": an_item(server, **more)}).ljust(pad))
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


def scores(server, size):
    """Of two prompts and what is written after them."""
    prompt, most = {30: (["x" * 10, "x" * 10], 5), 31: (["x" * 10, "x" * 9], 6)}[size]
    return completion(server, prompt=prompt, max_tokens=most, echo=True, logprobs=0)


def bulk_inputs(server, size):
    items = [{"session": "none", "version": 0, "inputs": [[1.0]] * count} for count in (3, 3, size - 6)]
    return server.post("/v1/steps", {"items": items}).status_code


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
    "bias": (400, [lambda s, size: completion(s, logit_bias={"0" * i: 1.0 for i in range(1, size + 1)})]),
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
    "scores": (400, [scores]),
    "bulk": (400, [bulk]),
    "bulk_inputs": (400, [bulk_inputs]),
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


@pytest.mark.slow
@pytest.mark.limits("receive_seconds")
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


@pytest.mark.limits("token_characters")
def test_token_characters():
    """A text is refused by its length before it is split, however few words it has."""
    words = Words(["a", "b"])
    settings = LMModelConfig(size=4)
    models = {"book": ServedText(LanguageModel(build(settings, words.size), words, settings))}
    with running(models, limits=Limits(prompt=10, inputs=10, token_characters=2)) as server:
        asks = [lambda text: completion(server, prompt=text), lambda text: response(server, input=text),
                lambda text: generation(server, prompt=text),
                lambda text: server.step(server.session("book"), text).status_code,
                lambda text: item(server, inputs=text), lambda text: message(server, inputs=text)]  # fmt: skip
        for ask in asks:
            assert (ask("a" * 20) in (200, 412), ask("a" * 21)) == (True, 400)
    with running(models, limits=Limits(prompt=10, token_characters=3)) as server:
        assert completion(server, prompt="a" * 21) == 200


@pytest.mark.slow
@pytest.mark.limits("socket_flight")
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


@contextmanager
def keyed(tmp_path, **limits):
    """A server with a key of ann's and one of bob's, and what asks with one of them on a connection of its own."""
    path = tmp_path / "keys.txt"
    path.write_text("".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("ann", "bob")))
    opened = []

    def ask(server, key, path=b"/v1/models"):
        opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
        opened[-1].sendall(b"GET %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n" % (path, key))
        return int(opened[-1].recv(10_000).split()[1])

    try:
        with running(MODELS, limits=Limits(**limits), keys=Keys(path)) as server:
            server.client.close()
            yield server, ask, opened
    finally:
        for one in opened:
            one.close()


@pytest.mark.limits("connections")
def test_connections(tmp_path):
    """One more than may be open is refused, unless it asks for a probe."""
    with keyed(tmp_path, connections=4) as (server, ask, _):
        assert [ask(server, b"ann") for _ in range(5)] == [200] * 4 + [503]
        assert [ask(server, b"", path) for path in (b"/healthz", b"/readyz")] == [200, 200]
        assert ask(server, b"bob") == 503


@pytest.mark.slow
@pytest.mark.limits("keyless")
def test_keyless(tmp_path):
    """Those that are idle and have shown no key make room, the oldest first; busy ones do not."""
    with keyed(tmp_path, keyless=2, receive_seconds=5) as (server, ask, opened):
        assert [ask(server, b"nobody") for _ in range(4)] == [401] * 4
        for one in opened:
            one.settimeout(0.3)
        assert [closed(one) for one in opened] == [True, True, False, False]
        assert ask(server, b"ann") == 200  # from the same address


def closed(connection):
    """Whether the other side has closed it."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.limits("tenant_connections")
def test_tenant_connections(tmp_path):
    with keyed(tmp_path, tenant_connections=2) as (server, ask, opened):
        assert [ask(server, key) for key in (b"ann", b"ann", b"ann", b"bob")] == [200, 200, 429, 200]
        opened[0].close()
        assert until(lambda: ask(server, b"ann") == 200)


@pytest.mark.limits("tenant_sockets")
def test_tenant_sockets(tmp_path):
    with keyed(tmp_path, tenant_sockets=1) as (server, _, _):
        url = server.url.replace("http", "ws") + "/v1/stream"
        ann, bob = ({"authorization": f"Bearer {name}"} for name in ("ann", "bob"))
        with connect(url, additional_headers=ann):
            with pytest.raises(InvalidStatus, match="429"), connect(url, additional_headers=ann):
                pass
            with connect(url, additional_headers=bob):
                pass
        assert until(lambda: server.service.accounts.of("ann").sockets == 0)
        with connect(url, additional_headers=ann):
            pass


@pytest.mark.slow
@pytest.mark.limits("tenant_bytes")
def test_tenant_bytes(tmp_path):
    """A body that has not come yet counts, and is refused by its length before it is sent."""
    head = b"POST /v1/steps HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\n"
    with keyed(tmp_path, tenant_bytes=1_000) as (server, _, opened):

        def send(key, length):
            opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
            opened[-1].sendall(head % key + b"content-length: %d\r\n\r\n" % length)
            return opened[-1]

        first = send(b"ann", 600)
        assert until(lambda: server.service.accounts.of("ann").bytes == 600)
        assert send(b"ann", 401).recv(1_000).split()[1] == b"429"
        other, second = send(b"bob", 401), send(b"ann", 400)
        for one, length in ((other, 401), (second, 400), (first, 600)):
            one.sendall(b'{"items":[]}'.ljust(length))
            assert one.recv(1_000).split()[1] == b"200"
        assert until(lambda: server.service.accounts.of("ann").bytes == 0)


@pytest.mark.limits("tenant_threads")
def test_tenant_threads(tmp_path):
    release, path = threading.Event(), tmp_path / "keys.txt"
    path.write_text("".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("ann", "bob")))
    predictors = {"slow": lambda *_: release.wait(20) and [], "quick": lambda *_: ["done"]}

    def ask(name, model):
        headers = {"authorization": f"Bearer {name}"}
        body = {"model": model, "data": "x"}
        return httpx.post(f"{server.url}/v1/predict", json=body, headers=headers, timeout=20).status_code

    limits = Limits(tenant_threads=3)
    with (
        running(MODELS, limits=limits, keys=Keys(path), predictors=predictors) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        try:
            asked = [pool.submit(ask, "ann", "slow") for _ in range(3)]
            assert until(lambda: server.service.workers.counts["ann"] == 3)
            assert len(server.service.workers.running) == 2  # of one tenant, though there are four threads
            assert ask("ann", "quick") == 429 and ask("bob", "quick") == 200
        finally:
            release.set()
        assert [one.result() for one in asked] == [200] * 3


@pytest.mark.slow
@pytest.mark.limits("send_seconds")
def test_send_seconds():
    """An answer of some megabytes that nobody reads."""
    for seconds in (0.5, 30.0):
        with (
            running(MODELS, limits=Limits(send_seconds=seconds)) as server,
            opened(server.port, receive=4_096) as connection,
        ):
            items = [{"session": server.session(), "version": "any", "inputs": [[1.0]] * 8_192} for _ in range(4)]
            body = json.dumps({"items": items}).encode()
            head = "POST /v1/steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            held = server.service.accounts.of("local")
            assert until(lambda held=held: held.bytes > 1 << 20)
            assert until(lambda held=held: held.bytes == 0, 4) == (seconds < 1)


@pytest.mark.limits("tombstones")
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


@pytest.mark.slow
@pytest.mark.limits("filled", "drawn")
def test_filled_and_drawn(tmp_path):
    """Rows that are missing before new ones or between them, and the numbers of a forecast's paths."""
    rows = {"ds": [str(np.datetime64("2024-01-01") + t) for t in range(30)], "y": [str(t % 3) for t in range(30)]}
    settings = {"data": {"horizon": 2, "seasonality": 3, "gaps": "fill"}, "model": {"kind": "seasonal_naive"}}
    elman.train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": rows})
    task, model = open_model(tmp_path / "run")

    def step(server, *days):
        id = server.session("sales")
        assert server.step(id, [{"ds": "2024-01-01", "y": 1.0}]).status_code == 200
        return server.step(id, [{"ds": str(np.datetime64("2024-01-01") + t), "y": 1.0} for t in days])

    def predict(server, *days, **options):
        data = "ds,y\n" + "".join(f"{np.datetime64('2024-01-01') + t},1\n" for t in days)
        return server.post("/v1/predict", {"model": "sales", "data": data, **options})

    def predictors(limits):
        return {"sales": predictor(task, model, limits)}

    for most in (7, 8):
        limits = Limits(filled=most, drawn=100)
        with running({"sales": task.serve(model)}, limits=limits, predictors=predictors(limits)) as server:
            few = {"samples": 5}
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
            assert predict(server, 30, samples=47).status_code == 200  # and three quantiles
            assert predict(server, 30, samples=48).status_code == 400
            assert predict(server, 30, samples=5, horizon=1000000000).status_code == 400
    with running({"sales": task.serve(model)}, predictors=predictors(Limits(drawn=102))) as server:
        assert predict(server, 30, samples=48).status_code == 200


@dataclass(frozen=True)
class Echo(Request):
    """Whatever is sent."""

    data: Rows = data_option("rows", rows=list[str])
    num_beams: int = option(1, "beams", least=1, limit="beams")
    n_best: int = option(1, "the best of them", least=1, limit="beams")
    batch_size: int = batch_size(1, "rows")
    max_ratio: float = option(1.0, "symbols", least=0, limit="ratio")


@pytest.mark.limits("prediction", "batch", "ratio")
def test_lines_and_options_of_predictions():
    """What `/v1/predict` answers has an end, and so have the beams, rows and symbols that it is asked for."""
    task = SimpleNamespace(requests={"predict": (Echo, lambda _, request: ["abcd\n"] * 5)})
    model, tops = SimpleNamespace(task="echo"), {"num_beams": 3, "n_best": 3, "batch_size": 7, "max_ratio": 2}
    for most in (19, 20):
        predict = predictor(task, model, Limits(prediction=most, beams=3, batch=7, ratio=2))
        body = {"model": "echo", "data": "x"}
        if most == 20:
            assert predict(json.dumps({**body, **tops}).encode()) == ["abcd"] * 5
            for name, top in tops.items():
                with pytest.raises(HttpError, match=f"<= {top}") as refused:
                    predict(json.dumps({**body, name: top + 1}).encode())
                assert refused.value.param == name
        else:
            with pytest.raises(InputError, match="more than 19 bytes"):
                predict(json.dumps(body).encode())


def test_every_limit_has_its_meaning():
    assert [one.name for one in fields(Limits)] == list(MEANING)
    assert len(Limits().lines()) == len(MEANING)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"max_tokens": 7}),
        ("completions", {"prompt": "x" * 11}),
        ("completions", {"prompt": ["x"] * 3}),
        ("completions", {"n": 4}),
        ("completions", {"num_beams": 4}),
        ("completions", {"n": 3, "max_tokens": 6}),
        ("completions", {"stop": ["a", "b", "c"]}),
        ("completions", {"stop": "a" * 6}),
        ("completions", {"logprobs": 5}),
        ("sessions", {"ttl_seconds": 101}),
        ("sessions", {"checkpoints": {"every": 1, "keep": 3}}),
    ],
)
def test_what_is_past_a_limit_is_told_the_most(small, path, body):
    enough = {"model": "book", "prompt": "x", "max_tokens": 1} if path == "completions" else {"model": "gru"}
    answer = small.post(f"/v1/{path}", {**enough, **body})
    assert answer.status_code == 400 and "at most" in error(answer)["message"], answer.text


@pytest.mark.limits("sessions", "forks")
def test_sessions_and_forks_have_a_limit_and_deleting_makes_room():
    engine = direct(limits=Limits(sessions=3, forks=2))
    first, _ = made(engine), made(engine)
    fork = lambda: engine.run(lambda r: Fork(r, WriteRequest("t", "fork"), first, None))  # noqa: E731
    fork()
    refused(429, lambda: made(engine))
    refused(429, fork)
    made(engine, tenant="other")
    engine.run(lambda r: Delete(r, "t", first))
    made(engine)
    engine = direct(limits=Limits(forks=2))
    first = made(engine)
    fork()
    fork()
    assert refused(429, fork).code == "too_many_forks"


@pytest.mark.limits("session_queue")
def test_writes_of_a_session_wait_in_line_and_the_line_has_an_end():
    engine = direct(limits=Limits(session_queue=2))
    id, found = made(engine, "book"), []
    generate = Generate(found.append, WriteRequest("t", "generate"), id, "any", "Hi", Writing(max_new_tokens=4), None)
    engine.engine.submit(generate)
    for _ in range(4):
        engine.engine.submit(
            Generate(found.append, WriteRequest("t", "g"), id, "any", "", Writing(max_new_tokens=1), None)
        )
    for _ in range(30):
        engine.engine.tick()
    statuses = [one.status for one in found]
    assert sorted(statuses) == [200, 200, 200, 409, 409]
    assert get(engine, id)["version"] == 3 and not engine.engine.queues and engine.engine.waiting == 0


@pytest.mark.limits("queue")
def test_the_queue_has_an_end():
    engine = direct(limits=Limits(queue=2)).engine
    for _ in range(2):
        engine.submit(Get(lambda value: None, "t", "none"))
    with pytest.raises(HttpError) as found:
        engine.submit(Get(lambda value: None, "t", "none"))
    assert found.value.status == 429 and "retry-after-ms" in found.value.headers
    engine.tick()
    engine.submit(Get(lambda value: None, "t", "none"))


@pytest.mark.limits("kept_bytes")
def test_past_its_bytes_a_tenant_is_refused_and_nothing_is_changed():
    engine = direct(limits=Limits(kept_bytes=3_000))
    first = respond(engine, metadata="m" * 2_000)
    assert refused(429, lambda: respond(engine, metadata="m" * 2_000)).code == "too_many_bytes"
    assert refused(429, lambda: respond(engine, key="k", store=False, metadata="m" * 2_000)).code == "too_many_bytes"
    assert engine.engine.sessions.counts == {"t": 1}
    id = made(engine)
    assert refused(429, lambda: step(engine, id, [1.0] * 60, key="k")).code == "too_many_bytes"
    assert get(engine, id)["version"] == 0 and step(engine, id, [1.0] * 60)["version"] == 1
    respond(engine, metadata="m" * 2_000, tenant="other")
    engine.run(lambda r: DeleteResponse(r, "t", first))
    respond(engine, metadata="m" * 2_000)


def test_every_limit_is_tested():
    """By the table, or by a test that is marked with its name and so must set it."""
    marks = [mark for test in globals().values() for mark in getattr(test, "pytestmark", ()) if mark.name == "limits"]
    assert sorted([*CHECKS, *(name for mark in marks for name in mark.args)]) == sorted(
        one.name for one in fields(Limits)
    )
