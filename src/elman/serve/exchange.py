"""One request and its answer: a body within its limit and its time, an engine's reply, a stream of events."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from elman.serve import bodies
from elman.serve.engine import Job
from elman.serve.errors import Refused
from elman.serve.jobs import Asked, Reply

if TYPE_CHECKING:
    from elman.serve.app import Service

T = TypeVar("T")
JSON = b"application/json"
Make = Callable[[Callable[[Any], None]], Job]
json = msgspec.json.Encoder().encode


class Exchange:
    """What a handler is given."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope, self.receive, self._send = service, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.tenant: str = scope["tenant"]
        self.limits = service.limits
        self.status = 0

    def header(self, name: str) -> str:
        """A header of the request; empty if it is not there."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def named(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"][name])

    async def body(self) -> bytes:
        """The whole body, refused where it is too long. How long it may take, protocol.py says."""
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.body:
            raise self._too_long()
        parts, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message["body"])
            size += len(parts[-1])
            if size > self.limits.body:
                raise self._too_long()
            if not message["more_body"]:
                return b"".join(parts)

    def _too_long(self) -> Refused:
        return Refused(
            413,
            f"the body is longer than {self.limits.body} bytes, which is the limit",
            headers={"connection": "close"},
        )

    async def parsed(self, kind: type[T]) -> tuple[T, bytes]:
        """The body as JSON of a kind, and the bytes."""
        data = await self.json_body()
        return bodies.parse(kind, data), data

    async def json_body(self) -> bytes:
        """A body that says that it is JSON."""
        if not self.headers.get(b"content-type", b"").startswith(JSON):
            raise Refused(415, "the body must be JSON, with content-type: application/json")
        return await self.body()

    def asked(self, route: str, data: bytes) -> Asked:
        """Who asks for what, with which key."""
        key = self.header("idempotency-key")
        if len(key) > self.limits.key:
            raise Refused(400, f"the idempotency key is longer than {self.limits.key} characters")
        digest = hashlib.sha256(route.encode() + b"\0" + data).digest() if key else b""
        return Asked(self.tenant, route, key, digest)

    def version(self, given: int | str | None) -> int | str:
        """The version that a write expects, from the body or from If-Match."""
        match = self.header("if-match").strip().strip('"')
        if match == "*":
            match = "any"
        if match and match != "any" and not (match.isascii() and match.isdecimal() and len(match) < 20):
            raise Refused(400, f"If-Match is {match!r}; it is a version, or *", param="version")
        named = {given} if given is not None else set()
        if match:
            named.add(match if match == "any" else int(match))
        if len(named) != 1:
            raise Refused(
                400, 'name the version that you expect, as `version` or by If-Match; "any" takes every one',
                param="version",
            )  # fmt: skip
        return named.pop()

    async def ask(self, make: Make) -> Any:
        """What the engine answers to a job."""
        return await self.service.ask(make)

    async def ask_watched(self, make: Make) -> Any:
        """The same for a job that takes long: if the client goes away, it is cancelled."""
        async for _, value in self.listen(lambda reply, _: make(reply)):
            result = value
        return result

    async def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, kind: bytes = JSON) -> None:
        """An answer."""
        self.status = status
        head = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        head += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    async def reply(self, reply: Reply, kind: bytes = JSON) -> None:
        """An engine's reply."""
        headers = {}
        if reply.version is not None:
            headers["etag"] = f'"{reply.version}"'
        if reply.replayed:
            headers["idempotency-replayed"] = "true"
        await self.send(reply.status, reply.body, headers, kind)

    async def refuse(self, refused: Refused) -> None:
        """An error, if nothing was sent yet; else the stream ends with it."""
        if self.status:
            await self.event({"error": refused.error()}, "error")
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self.send(refused.status, refused.body(), refused.headers)

    # Server-sent events

    async def begin_events(self) -> None:
        self.status = 200
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def event(self, data: Any, name: str = "") -> None:
        """One event."""
        text = data if isinstance(data, bytes) else json(data)
        line = f"event: {name}\n".encode() if name else b""
        await self._send({"type": "http.response.body", "body": line + b"data: " + text + b"\n\n", "more_body": True})

    async def end_events(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def listen(self, make: Callable[[Callable[[Any], None], Callable[[Any], None]], Job]) -> AsyncIterator[Any]:
        """What a job says on its way, as ("news", value), and its result, as ("result", value). If the client goes
        away, the job is cancelled, and nothing of it is committed."""
        heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        job = make(lambda value: heard.put_nowait(("result", value)), lambda value: heard.put_nowait(("news", value)))
        watcher = asyncio.create_task(self._watch(heard))
        try:
            self.service.engine.submit(job)
            while True:
                what, value = await heard.get()
                if what == "gone":
                    raise Gone
                if isinstance(value, Refused):
                    raise value
                yield what, value
                if what == "result":
                    return
        finally:
            job.cancelled = True  # of no account once it is done
            watcher.cancel()

    async def _watch(self, heard: asyncio.Queue[tuple[str, Any]]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        heard.put_nowait(("gone", None))


class Gone(Exception):
    """The client is no longer there."""
