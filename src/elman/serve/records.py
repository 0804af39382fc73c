"""What is kept. Each is a row of bytes in a store; fields are only ever added behind the others."""

from __future__ import annotations

import msgspec


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
    marks: list[int] = []  # positions of the checkpoints that are kept
    forks: int = 0
    parent: str = ""
    route: str = ""  # of the last write that had a key; with the key, what it asked, and what was answered
    key: str = ""
    digest: bytes = b""
    reply: bytes = b""


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


class Answered(msgspec.Struct, array_like=True):
    """What was answered to an idempotency key."""

    digest: bytes
    status: int
    body: bytes


class Tombstone(msgspec.Struct, array_like=True):
    """A session that expired."""

    tenant: str
    expired: float
