"""Signatures of states that are carried, and files that hold secrets."""

import base64

import pytest
from running import MODELS, language_model, running

from elman.cli import main
from elman.errors import FileError
from elman.serve.errors import HttpError
from elman.serve.store.signing import Signer
from elman.serve.store.sqlite import SqliteStore


def test_a_carried_state_of_another_version_is_refused():
    """The signature is over the version, but over the one that is expected: the byte itself must be looked at."""
    signer = Signer([b"k" * 32])
    data = base64.urlsafe_b64decode(signer.sign("t", "aa", b"state"))
    for version in (0, 2, 255):
        with pytest.raises(HttpError) as found:
            signer.verify("t", "aa", base64.urlsafe_b64encode(bytes([version]) + data[1:]).decode())
        assert found.value.code == "state_mismatch"


def test_signatures_are_compared_in_constant_time_and_whole(monkeypatch):
    signer, compared = Signer([b"k" * 32]), []
    token = signer.sign("t", "aa", b"state")

    def compare(one, other):
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("elman.serve.store.signing.hmac.compare_digest", compare)
    assert signer.verify("t", "aa", token) == b"state"
    data = bytearray(base64.urlsafe_b64decode(token))
    data[40] ^= 1  # the last byte of the signature
    with pytest.raises(HttpError):
        signer.verify("t", "aa", base64.urlsafe_b64encode(bytes(data)).decode())
    assert [(len(one), len(other)) for one, other in compared] == [(32, 32)] * 2
    assert compared[0][0] == compared[0][1] and compared[1][0][:31] == compared[1][1][:31]


@pytest.mark.parametrize("flag", ["--api_key_file", "--state_key_file", "--store"])
def test_a_file_of_secrets_that_everyone_can_read_is_warned_of(flag, tmp_path, monkeypatch, capsys):
    language_model().save(tmp_path / "book")
    path = tmp_path / "secrets"
    if flag == "--store":
        SqliteStore(path).close()
    else:
        text = f"ann {'a' * 64}" if flag == "--api_key_file" else "k" * 32
        path.write_text(text + "\n")

    def serve(service, *where):
        service.engine.sessions.store.close()
        return 0

    monkeypatch.setattr("elman.serve.server.serve", serve)
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o606, True)):
        path.chmod(mode)
        assert main(["serve", str(tmp_path / "book"), flag, str(path)]) == 0
        said = capsys.readouterr().err
        assert (f"chmod 600 {path}" in said) == warned, (oct(mode), said)


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


@pytest.mark.slow
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
