"""One request and its answer: a body within its limit and its time, an engine's reply, a stream of events."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeVar

from starlette.types import Receive, Scope, Send

from elman.serve.api import bodies
from elman.serve.engine.job import Job, Listener, Result
from elman.serve.engine.jobs import Reply, WriteRequest
from elman.serve.errors import Disconnected, HttpError, new_request_id
from elman.serve.json import to_json

if TYPE_CHECKING:
    from elman.serve.api.app import Service

T = TypeVar("T")
JSON = b"application/json"
PIECE = 256 << 10  # bytes of an answer that are given to a connection at once
SHORT = 64 << 10  # bytes of a body that is thrown away, rather than that the connection is closed
SANE = re.compile(rb"[A-Za-z0-9._:-]{1,128}")  # a name for a request that can stand in a header and in a log
Make = Callable[[Listener], Job]


class RequestContext:
    """What a handler is given."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope, self.receive, self._send = service, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.tenant: str = scope["tenant"]
        self.limits = service.limits
        self.status = 0
        own = self.headers.get(b"x-request-id")
        self.id = new_request_id() if own is None or not SANE.fullmatch(own) else own.decode()
        self.whole = False  # its body has been read
        self.reserved = 0  # bytes that the account of the tenant has for it

    def header(self, name: str) -> str:
        """A header of the request; empty if it is not there."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def path_param(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"][name])

    def reserve(self, size: int) -> None:
        """So many bytes of this request, or of its answer, are on their way until it is answered."""
        self.service.accounts.reserve(self.service.accounts.of(self.tenant), size)
        self.reserved += size

    async def body(self, most: int = 0) -> bytes:
        """The whole body; refused before it is read where it is too long. How long it may take, protocol.py says."""
        most = most or self.limits.body
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or (size := int(length)) > most:
            raise self._too_long(most)
        self.reserve(size)
        parts, came = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message["body"])
            came += len(parts[-1])
            if came > most:
                raise self._too_long(most)
            if came > size:
                self.reserve(came - size)
                size = came
            if not message["more_body"]:
                self.whole = True
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_long(self, most: int) -> HttpError:
        return HttpError(413, f"the body is longer than {most} bytes, which is the limit")

    async def parse(self, kind: type[T]) -> tuple[T, bytes]:
        """The body as JSON of a kind, and the bytes."""
        data = await self.json_body()
        return bodies.parse(kind, data), data

    async def json_body(self) -> bytes:
        """A body that says that it is JSON."""
        kind = self.headers.get(b"content-type", b"")
        if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
            raise HttpError(415, "the body must be JSON, with content-type: application/json")
        return await self.body()

    def write_request(self, route: str, data: bytes) -> WriteRequest:
        """Who asks for what, with which key."""
        key = self.header("idempotency-key")
        if len(key) > self.limits.key:
            raise HttpError(400, f"the idempotency key is longer than {self.limits.key} characters")
        digest = hashlib.sha256(route.encode() + b"\0" + data).digest() if key else b""
        return WriteRequest(self.tenant, route, key, digest)

    def version(self, in_body: int | str | None) -> int | str:
        """The version that a write expects, from the body or from If-Match."""
        match = self.header("if-match").strip().strip('"')
        if match == "*":
            match = "any"
        if match and match != "any" and not (match.isascii() and match.isdecimal() and len(match) < 20):
            raise HttpError(400, f"If-Match is {match!r}; it must be a version, or *", param="version")
        versions = {in_body} if in_body is not None else set()
        if match:
            versions.add(match if match == "any" else int(match))
        if len(versions) != 1:
            raise HttpError(
                400, 'name the version that you expect, as `version` or in If-Match; "any" accepts every version',
                param="version",
            )  # fmt: skip
        return versions.pop()

    async def run(self, make: Make) -> Result:
        """What the engine answers to a job."""
        return await self.service.run(make)

    async def run_watched(self, make: Make) -> Result:
        """The same for a job that takes long: if the client goes away, it is cancelled."""
        async for _, value in self.listen(lambda reply, _: make(reply)):
            result = value
        return result

    async def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, kind: bytes = JSON) -> None:
        """An answer."""
        self.status = status
        head = [
            (b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"x-request-id", self.id.encode())
        ]  # fmt: skip
        head += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        rest: bytes | memoryview = body
        while len(rest) > PIECE:  # a piece when the one before it was taken: what is not counts as held here
            whole = memoryview(rest)
            await self._send({"type": "http.response.body", "body": whole[:PIECE], "more_body": True})
            rest = whole[PIECE:]
        await self._send({"type": "http.response.body", "body": rest})

    async def reply(self, reply: Reply, kind: bytes = JSON) -> None:
        """An engine's reply."""
        headers = {}
        if reply.version is not None:
            headers["etag"] = f'"{reply.version}"'
        if reply.replayed:
            headers["idempotency-replayed"] = "true"
        await self.send(reply.status, reply.body, headers, kind)

    async def refuse(self, refused: HttpError) -> None:
        """An error, if nothing was sent yet; else the stream ends with it."""
        if self.status:
            await self.event({"error": {**refused.error(), "request_id": self.id}}, "error")
            await self._send({"type": "http.response.body", "body": b""})
            return
        headers = refused.headers
        if not self.whole and self._long():
            headers = {**headers, "connection": "close"}
        await self.send(refused.status, refused.body(self.id), headers)

    def _long(self) -> bool:
        """Whether so much of a body is still to come that it is not waited for."""
        length = self.headers.get(b"content-length", b"0")
        return b"transfer-encoding" in self.headers or not length.isdigit() or len(length) > 6 or int(length) > SHORT

    # Server-sent events

    async def begin_events(self) -> None:
        self.status = 200
        head = [
            (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"),
            (b"x-request-id", self.id.encode()),
        ]  # fmt: skip
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def event(self, data: object, name: str = "") -> None:
        """One event."""
        text = data if isinstance(data, bytes) else to_json(data)
        line = f"event: {name}\n".encode() if name else b""
        await self._send({"type": "http.response.body", "body": line + b"data: " + text + b"\n\n", "more_body": True})

    async def end_events(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def listen(self, make: Callable[[Listener, Listener], Job]) -> AsyncIterator[tuple[str, Result]]:
        """What a job says on its way, as ("events", value), and its result, as ("result", value). If the client goes
        away, the job is cancelled, and nothing of it is committed."""
        events: asyncio.Queue[tuple[str, Result]] = asyncio.Queue()
        job = make(
            lambda value: events.put_nowait(("result", value)), lambda value: events.put_nowait(("events", value))
        )
        watcher = asyncio.create_task(self._watch(events))
        try:
            self.service.engine.submit(job)
            while True:
                what, value = await events.get()
                if what == "gone":
                    raise Disconnected
                if isinstance(value, HttpError):
                    raise value
                yield what, value
                if what == "result":
                    return
        finally:
            job.cancelled = True  # of no account once it is done
            watcher.cancel()

    async def _watch(self, events: asyncio.Queue[tuple[str, Result]]) -> None:
        await self.gone()
        events.put_nowait(("gone", None))

    async def gone(self) -> None:
        """Wait until the client goes away."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
