"""Who may ask: files of keys, and a server without them."""

import hmac

import pytest
from running import MODELS, running
from websockets.sync.client import connect
from wire import keys_file, line

from elman.errors import FileError
from elman.serve.errors import HttpError
from elman.serve.net.keys import Keys


def test_without_keys_only_this_machine_may_ask(server):
    for headers, status in (
        ({"host": "127.0.0.1:80"}, 200), ({"host": "localhost"}, 200), ({"host": "[::1]:8080"}, 200),
        ({"host": "evil.example"}, 403), ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": server.url}, 200),
    ):  # fmt: skip
        assert server.client.get("/v1/models", headers=headers).status_code == status, headers


def test_keys(tmp_path):
    keys = Keys(keys_file(tmp_path / "keys.txt", ("ann", "a1"), ("ann", "a2"), ("bob", "b1")))
    with running(MODELS, keys=keys) as server:

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
        keys_file(tmp_path / "keys.txt", ("bob", "b1"))
        keys.read()
        assert ask("a1").status_code == 401 and ask("b1").status_code == 200
        with pytest.raises(Exception, match="HTTP 401"):
            connect(server.url.replace("http", "ws") + "/v1/stream").recv()


@pytest.mark.parametrize("text", ["", "ann", "ann abc", "ann " + "g" * 64, "a/b " + "0" * 64])
def test_keys_files_that_are_wrong(tmp_path, text):
    (tmp_path / "keys.txt").write_text(text)
    with pytest.raises(FileError, match="tenant sha256"):
        Keys(tmp_path / "keys.txt")


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
