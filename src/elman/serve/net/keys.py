"""Who a request comes from. A file has `tenant sha256` a line: the hash of a key that a client sends as a bearer token.

A tenant may have several keys. A key with `operator` behind it may ask for /metrics, which show what all tenants do.
Without a file there is one tenant, and only this machine may ask.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from elman.errors import FileError
from elman.serve.errors import HttpError

LOCAL = "local"
LINE = re.compile(r"([A-Za-z0-9_.-]{1,64})\s+([0-9a-fA-F]{64})(\s+operator)?")
EMPTY = hashlib.sha256(b"").digest()


def readable_by_others(path: str | Path) -> str:
    """What is wrong with the rights of a file that holds secrets; nothing, or that it is not there yet, is ""."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return ""
    if not mode & 0o007:
        return ""
    return f"everyone on this machine can read {path}, which has secrets (mode {mode & 0o777:03o}): chmod 600 {path}"


class Keys:
    """The keys of a file; `read` reads it again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.read()

    def read(self) -> None:
        """Read the file; if it has an error, the keys stay as they are."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read the keys: {error}") from error
        found = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = LINE.fullmatch(line.strip())
            if match is None:
                raise FileError(
                    f"{self.path}, line {number} is neither `tenant sha256` nor `tenant sha256 operator`; "
                    "printf %s KEY | sha256sum gives the hash"
                )
            digest = bytes.fromhex(match[2])
            if digest == EMPTY:
                raise FileError(f"{self.path}, line {number} has the hash of an empty key, which is not a secret")
            found.append((match[1], digest, match[3] is not None))
        if not found:
            raise FileError(f"{self.path} has no key; a line is `tenant sha256`")
        self.known = found

    def tenant(self, authorization: bytes, operator: bool = False) -> str:
        """The tenant of a key, which must be an operator's if one is needed."""
        scheme, _, key = authorization.partition(b" ")
        return self.of_key(key.strip() if scheme.lower() == b"bearer" else b"", operator)

    def of_key(self, key: bytes, operator: bool = False) -> str:
        """The same for a key; each is compared, in constant time."""
        tenant, may = self._find(hashlib.sha256(key).digest())
        if not tenant and not key.isascii():  # a browser sends what is not ASCII as Latin-1
            tenant, may = self._find(hashlib.sha256(key.decode("latin-1").encode()).digest())
        if not key or not tenant:
            raise HttpError(
                401, "a valid key is needed: Authorization: Bearer KEY", code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip
        if operator and not may:
            raise HttpError(403, "this needs the key of an operator: a line of the key file that ends with `operator`")
        return tenant

    def _find(self, digest: bytes) -> tuple[str, bool]:
        found = "", False
        for tenant, known, operator in self.known:
            if hmac.compare_digest(digest, known):
                found = tenant, operator
        return found
