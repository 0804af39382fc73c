"""`/v1/stream`: steps of many sessions on one socket, as JSON messages, answered in the order in which they are done.

A message is an item of /v1/steps with an `id` of the client's own; the answer has the same. Not more than `credits`
messages may be unanswered; the first message of the server says how many that is. When the server is about to stop,
its last message says where the sessions are that were stepped here: `{"goodbye": ..., "sessions": {ID: ...}}`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from elman.serve.errors import Refused
from elman.serve.jobs import Reply, Step
from elman.serve.session_routes import answered, checked, item_of

if TYPE_CHECKING:
    from elman.serve.app import Service

json = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """A message: a step, and what the client calls it."""

    id: int | str
    step: msgspec.Raw


class Socket:
    """One socket."""

    def __init__(self, service: Service, websocket: WebSocket) -> None:
        self.service, self.websocket = service, websocket
        self.flight = 0
        self.reached: dict[str, dict[str, int | None]] = {}  # where the sessions are that were stepped here last
        self.answers: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def run(self) -> None:
        """Take messages until the client goes, or the server drains."""
        try:
            tenant = self.service.admit(dict(self.websocket.scope["headers"]), "/v1/stream")
        except Refused as refused:
            await self.websocket.close(1008, refused.message[:120])
            return
        await self.websocket.accept()
        self.service.sockets.add(self)
        writer = asyncio.create_task(self._write())
        try:
            await self.websocket.send_bytes(json({"credits": self.service.limits.socket_flight}))
            await self._read(tenant)
        except WebSocketDisconnect:
            pass
        finally:
            self.service.sockets.discard(self)
            self.answers.put_nowait(None)
            await writer
            if self._open:
                with suppress(WebSocketDisconnect):  # the client may be gone without a word
                    await self.websocket.close(1000)

    async def _read(self, tenant: str) -> None:
        limits = self.service.limits
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes") or (message.get("text") or "").encode()
            if len(data) > limits.socket_message:
                await self.websocket.close(1009, f"a message has {limits.socket_message} bytes at most")
                return
            self._step(tenant, data)

    def _step(self, tenant: str, data: bytes) -> None:
        name: Any = None
        self.flight += 1
        try:
            envelope = msgspec.json.decode(data, type=Envelope)
            name = envelope.id
            if self.flight > self.service.limits.socket_flight:
                raise Refused(429, f"{self.service.limits.socket_flight} messages are unanswered, which is the limit")
            item = checked(item_of(envelope.step), self.service.limits)
            if isinstance(item, Refused):
                raise item
            self.service.engine.submit(Step.of(partial(self._stepped, name, item.session), tenant, item))
        except Refused as refused:
            self._answer(name, refused)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self._answer(name, Refused(400, f'a message is {{"id": ..., "step": {{...}}}}: {error}'))

    def _stepped(self, name: Any, session: str, result: Reply | Refused) -> None:
        if isinstance(result, Reply):
            self.reached.pop(session, None)
            self.reached[session] = {"version": result.version, "position": result.position}
            if len(self.reached) > self.service.limits.bulk:
                del self.reached[next(iter(self.reached))]
        self._answer(name, result)

    def _answer(self, name: Any, result: Reply | Refused) -> None:
        self.flight -= 1
        self.answers.put_nowait(json({"id": name, **answered(result)}))

    async def _write(self) -> None:
        while (answer := await self.answers.get()) is not None:
            try:
                await self.websocket.send_bytes(answer)
            except (RuntimeError, WebSocketDisconnect, OSError):
                return

    async def drain(self) -> None:
        """Answer what is under way, and say goodbye."""
        while self.flight and self._open:
            await asyncio.sleep(0.01)
        self.answers.put_nowait(json({"goodbye": "the server is about to stop", "sessions": self.reached}))
        while self._open and not self.answers.empty():
            await asyncio.sleep(0.01)
        if self._open:
            await self.websocket.close(1012, "the server is about to stop")

    @property
    def _open(self) -> bool:
        return self.websocket.application_state is WebSocketState.CONNECTED
