"""Who comes in, with which key, and with which state: over every route; and what a signal does."""

import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import httpx
import pytest
from running import core, error, running, served_models, service
from websockets.sync.client import connect

from elman import state as states
from elman.errors import FileError
from elman.serve.api import about
from elman.serve.api.app import OPEN, ROUTES
from elman.serve.errors import HttpError
from elman.serve.net.keys import Keys
from elman.serve.net.server import Server
from elman.serve.store.signing import Signer
from elman.serve.store.sqlite import SqliteStore
from elman.tasks.number_serving import Numbers

MODELS = served_models()


def keys_file(path, *pairs):
    path.write_text("".join(f"{tenant} {hashlib.sha256(key.encode()).hexdigest()}\n" for tenant, key in pairs))
    return path


def test_every_route_needs_a_key_but_the_page_and_the_probes(tmp_path):
    with running(MODELS, keys=Keys(keys_file(tmp_path / "keys.txt", ("ann", "k")))) as server:
        for method, path, _ in ROUTES:
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
        for method, path, _ in ROUTES:
            if method == "POST" and "chat" not in path:
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
                    headers = {"content-type": kind} if kind else {}
                    answer = server.client.post(path.replace("{id}", "x"), content=b"{}", headers=headers)
                    assert answer.status_code == 415, (path, kind)
        assert server.post("/v1/sessions", {"model": "gru"}, headers={"origin": server.url}).status_code == 201


def test_insecure_listens_to_others():
    with running(MODELS, insecure=True) as server:
        headers = {"host": "elsewhere.example", "origin": "http://elsewhere.example"}
        assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_every_key_is_compared_in_constant_time(tmp_path, monkeypatch):
    pairs = [("ann", "a1"), ("ann", "a2"), ("bob", "b1")]
    keys, compared = Keys(keys_file(tmp_path / "keys.txt", *pairs)), []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a)) or compare(a, b))
    for tenant, key in pairs:
        assert keys.tenant(f"Bearer {key}".encode()) == tenant
    with pytest.raises(HttpError):
        keys.tenant(b"Bearer none")
    assert compared == [32] * 12  # three keys each time, whichever is right


def test_hup_reads_the_keys_again_and_term_drains(tmp_path, capsys):
    """With the signals themselves, which only a main thread gets."""
    path = keys_file(tmp_path / "keys.txt", ("ann", "old"))
    server, seen = Server(service(MODELS, keys=Keys(path)), "127.0.0.1", 0), {}

    def status(key):
        return client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    def changed(text, key, wanted):
        path.write_text(text)
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + 5
        while status(key) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        return [status("old"), status("new")]

    def ask():
        nonlocal client
        try:
            while not server.started:
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)
            seen["first"] = [status("old"), status("new")]
            seen["changed"] = changed(keys_file(path, ("ann", "new")).read_text(), "new", 200)
            seen["wrong"] = changed("this is no keys file", "old", 401)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    client = httpx.Client()
    asking = threading.Thread(target=ask)
    asking.start()
    began = time.monotonic()
    server.run()
    asking.join()
    client.close()
    assert seen == {"first": [200, 401], "changed": [401, 200], "wrong": [401, 200]}
    assert time.monotonic() - began < 30 and not server.service.driver.doing
    assert "stay as they were" in capsys.readouterr().err
    with pytest.raises(FileError):
        server.service.keys.read()


# States that are carried


def test_a_carried_state_is_one_tenants_and_one_models_whatever_they_are_called():
    signer = Signer([b"k" * 32])
    token = signer.sign("ab", "cd", b"state")
    assert signer.verify("ab", "cd", token) == b"state"
    for tenant, fingerprint in (("a", "bcd"), ("abc", "d"), ("", "abcd"), ("abcd", ""), ("ab", "ce"), ("AB", "cd")):
        with pytest.raises(HttpError) as found:
            signer.verify(tenant, fingerprint, token)
        assert found.value.status == 422


def test_keys_for_states_are_changed_by_putting_a_new_one_first(tmp_path):
    old, new = "o" * 32, "n" * 32
    signers = []
    for number, keys in enumerate(([old], [new, old], [new])):
        path = tmp_path / f"{number}.txt"
        path.write_text("# the first signs\n" + "\n".join(keys) + "\n")
        signers.append(Signer.of_file(path))
    tokens = [one.sign("t", "aa", b"state") for one in signers]
    accepted = []
    for one in signers:
        for token in tokens:
            try:
                accepted.append(one.verify("t", "aa", token) == b"state")
            except HttpError:
                accepted.append(False)
    assert accepted == [True, False, False, True, True, True, False, True, True]
    (tmp_path / "short.txt").write_text("x" * 31)
    with pytest.raises(FileError, match="32 characters"):
        Signer.of_file(tmp_path / "short.txt")


def test_the_key_of_a_store_is_random_and_stays(tmp_path):
    body = {"model": "book", "prompt": "Once", "max_tokens": 1, "seed": 1, "return_state": True}
    tokens = []
    for name, sent in (("a", None), ("a", 0), ("b", 0)):
        with running(MODELS, store=SqliteStore(tmp_path / f"{name}.db")) as server:
            more = {} if sent is None else {"state": tokens[sent]}
            answer = server.post("/v1/completions", {**body, **more})
            assert answer.status_code == (422 if name == "b" else 200)
            if name == "a":
                tokens.append(answer.json()["choices"][0]["state"])


def test_a_token_is_verified_before_anything_of_it_is_read(monkeypatch):
    with running(MODELS) as server:
        body = {"model": "book", "prompt": "", "max_tokens": 1}
        token = server.post("/v1/completions", {**body, "return_state": True}).json()["choices"][0]["state"]
        submitted = server.service.engine.submitted
        wrong = token[:60] + ("A" if token[60] != "A" else "B") + token[61:]
        for path in ("/v1/completions", "/v1/sessions"):
            sent = {"model": "book", "state": wrong}
            assert server.post(path, sent).status_code == 422
        assert server.service.engine.submitted == submitted  # the engine has not heard of it


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed():
    served = MODELS["gru"]
    rows = states.from_rows(served.stream.read([0]).copy(), served._like)
    with running(MODELS) as server:
        id = server.session()
        server.step(id, [[1.0]])
        before = server.client.get(f"/v1/sessions/{id}/state").content
        other = Numbers.of_core(core(seed=1))  # of the same shape
        smaller = Numbers.of_core(core(size=8))

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


# The page, and curl


def test_the_page_asks_nobody_else():
    with running(MODELS) as server:
        for path in about.FILES:
            answer = server.client.get(path)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "http://" not in answer.text and "https://" not in answer.text and 'src="//' not in answer.text


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
