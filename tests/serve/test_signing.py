"""Signatures of states that are carried, and files that hold secrets."""

import base64

import pytest
from running import language_model

from elman.cli import main
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

    monkeypatch.setattr("elman.serve.net.server.serve", serve)
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o606, True)):
        path.chmod(mode)
        assert main(["serve", str(tmp_path / "book"), flag, str(path)]) == 0
        said = capsys.readouterr().err
        assert (f"chmod 600 {path}" in said) == warned, (oct(mode), said)
