"""States that clients carry: signed, so that nothing is parsed that this server, or one with its key, did not write.

    token = base64url(version 1 byte, key id 8 bytes, signature 32 bytes, bytes of the state)

The signature is HMAC-SHA256 over version, key id, tenant, fingerprint of the model and bytes, each behind its length in
8 bytes, so that no two lists of parts have the same message. The first key signs; all verify.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path

from elman.errors import FileError
from elman.serve.errors import HttpError
from elman.serve.store.store import Store

VERSION = b"\x01"
HEAD = 1 + 8 + 32


class Signer:
    """Signs and verifies.

    >>> signer = Signer([b"0" * 32])
    >>> token = signer.sign("tenant", "ab12", b"state")
    >>> signer.verify("tenant", "ab12", token)
    b'state'
    """

    path: Path | None = None  # the file of its keys

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = {hashlib.sha256(key).digest()[:8]: key for key in keys}
        self.first = next(iter(self.keys))

    @classmethod
    def of_file(cls, path: str | Path) -> Signer:
        """Keys from a file, a line each of at least 32 characters."""
        try:
            lines = [line.strip().encode() for line in Path(path).read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read the keys for states: {error}") from error
        keys = [line for line in lines if line and not line.startswith(b"#")]
        if not keys or any(len(key) < 32 for key in keys):
            raise FileError(f"{path} must have one key per line, each of at least 32 characters: openssl rand -hex 32")
        signer = cls(keys)
        signer.path = Path(path)
        return signer

    @classmethod
    def of_store(cls, store: Store) -> Signer:
        """A random key, which the store keeps."""
        key = store.get("meta", "state_key")
        if key is None:
            key = secrets.token_bytes(32)
            store.put("meta", "state_key", key)
            store.commit(sync=True)
        return cls([key])

    def sign(self, tenant: str, fingerprint: str, state: bytes) -> str:
        """A state as a token."""
        mark = self._signature(self.first, tenant, fingerprint, state)
        return base64.urlsafe_b64encode(VERSION + self.first + mark + state).decode()

    def verify(self, tenant: str, fingerprint: str, token: str) -> bytes:
        """The state in a token; refused unless it was signed for this tenant and this model."""
        try:
            data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError, ValueError):
            data = b""
        name, mark, state = data[1:9], data[9:HEAD], data[HEAD:]
        # An unknown key costs as much as a wrong signature.
        expected = self._signature(name if name in self.keys else self.first, tenant, fingerprint, state)
        if data[:1] != VERSION or name not in self.keys or not hmac.compare_digest(mark, expected):
            raise HttpError(
                422, "the state was not signed by this server for this tenant and this model, or was changed",
                code="state_mismatch", param="state",
            )  # fmt: skip
        return state

    def _signature(self, name: bytes, tenant: str, fingerprint: str, state: bytes) -> bytes:
        message = hmac.new(self.keys[name], digestmod=hashlib.sha256)
        for part in (VERSION, name, tenant.encode(), fingerprint.encode(), state):
            message.update(len(part).to_bytes(8, "little"))
            message.update(part)
        return message.digest()
