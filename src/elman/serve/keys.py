"""Who a request comes from. A file has `tenant sha256` a line: the hash of a key that a client sends as a bearer token.

A tenant may have several keys. Without a file there is one tenant, and only this machine may ask.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from elman.errors import FileError
from elman.serve.errors import Refused

LOCAL = "local"
LINE = re.compile(r"([A-Za-z0-9_.-]{1,64})\s+([0-9a-fA-F]{64})")


def readable_by_others(path: str | Path) -> str:
    """What is wrong with the rights of a file that holds secrets; nothing, or that it is not there yet, is ""."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return ""
    if not mode & 0o007:
        return ""
    return f"everyone on this machine can read {path}, which holds secrets (mode {mode & 0o777:03o}): chmod 600 {path}"


class Keys:
    """The keys of a file; `read` reads it again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.read()

    def read(self) -> None:
        """Take what stands in the file; if it is wrong, the keys stay as they are."""
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
                    f"{self.path}, line {number} is not `tenant sha256`; printf %s KEY | sha256sum gives the hash"
                )
            found.append((match[1], bytes.fromhex(match[2])))
        if not found:
            raise FileError(f"{self.path} has no key; a line is `tenant sha256`")
        self.known = found

    def tenant(self, authorization: str) -> str:
        """The tenant of a key; each is compared, in constant time."""
        scheme, _, key = authorization.partition(" ")
        digest, found = hashlib.sha256(key.strip().encode()).digest(), ""
        for tenant, known in self.known:
            if hmac.compare_digest(digest, known):
                found = tenant
        if scheme.lower() != "bearer" or not found:
            raise Refused(
                401, "a valid key is needed: Authorization: Bearer KEY", code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip
        return found
