"""What is kept. Each is a row of bytes in a store; fields are only ever added behind the others.

A row that cannot be decoded is left as it is: requests for it get an error, and the log names it once.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from elman.progress import say
from elman.serve.errors import HttpError
from elman.serve.store.store import Store

T = TypeVar("T")
encode = msgspec.msgpack.Encoder().encode


class Session(msgspec.Struct, array_like=True):
    """A state with a name, and one writer at a time."""

    tenant: str
    model: str
    fingerprint: bytes
    state: bytes
    created: float
    ttl: float
    expires: float
    version: int = 0
    position: int = 0
    power: bool = False  # a commit with it waits for the disk
    every: int = 0  # inputs between two checkpoints; 0 for none
    keep: int = 0
    log: bool = False
    checkpoints: list[int] = []  # positions of the checkpoints that are kept
    forks: int = 0
    parent: str = ""
    route: str = ""  # of the last write that had a key; with the key, what was requested, and what was answered
    key: str = ""
    digest: bytes = b""
    reply: bytes = b""
    counted: int = 0  # bytes of the reply that are counted for the tenant


class Checkpoint(msgspec.Struct, array_like=True):
    """A state that a session was in."""

    version: int
    position: int
    state: bytes
    computed: str  # by which kernels


class Inputs(msgspec.Struct, array_like=True):
    """What one write read and made."""

    version: int
    position: int  # before it
    taken: int
    record: bytes
    computed: str


class Response(msgspec.Struct, array_like=True):
    """An immutable state with the answer that led to it."""

    tenant: str
    model: str
    fingerprint: bytes
    state: bytes
    body: bytes
    expires: float
    power: bool = False  # a commit with it waits for the disk
    counted: bool = False  # whether its bytes are counted for the tenant


class Answered(msgspec.Struct, array_like=True):
    """What was answered to an idempotency key."""

    digest: bytes
    status: int
    body: bytes
    tenant: str = ""  # whose bytes these are; of old ones that was not kept


class Tombstone(msgspec.Struct, array_like=True):
    """A session that expired."""

    tenant: str
    expired: float


_decoders = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Session, Checkpoint, Inputs, Response, Answered, Tombstone)
}


class Damaged(HttpError):
    """A row that cannot be decoded."""

    def __init__(self, table: str, id: str) -> None:
        message = f"{table}/{id} cannot be read: it is damaged in the store, where it is left as it is"
        super().__init__(500, message, code="record_damaged")


class Records:
    """The rows of a store, decoded."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._reported: set[tuple[str, str]] = set()

    def read(self, table: str, kind: type[T], id: str) -> T | None:
        """A row, if it is there."""
        data = self.store.get(table, id)
        return None if data is None else self.decoded(table, kind, id, data)

    def decoded(self, table: str, kind: type[T], id: str, data: bytes) -> T:
        """What a row is; a `Damaged` where it is not one."""
        try:
            found: T = _decoders[kind].decode(data)  # type: ignore[index, assignment]
            return found
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise self.damaged(table, id, str(error)) from error

    def damaged(self, table: str, id: str, why: str) -> Damaged:
        """Report a row that cannot be decoded."""
        if (table, id) not in self._reported:
            self._reported.add((table, id))
            say(f"elman serve: warning: {table}/{id} in the store is damaged, and is left as it is: {why}")
        return Damaged(table, id)
