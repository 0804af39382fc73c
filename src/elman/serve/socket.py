"""`/v1/stream`: steps of many sessions on one socket, as JSON messages, answered in the order in which they are done.

A message is an item of /v1/steps with an `id` of the client's own; the answer has the same. Not more than `credits`
messages may be unanswered; the first message of the server says how many that is. When the server is about to stop,
its last message says where the sessions are that were stepped here: `{"goodbye": ..., "sessions": {ID: ...}}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from elman.serve import bodies
from elman.serve.bodies import Item
from elman.serve.errors import Refused
from elman.serve.frames import CONNECTION, Frames
from elman.serve.steps import answered, submit_steps

if TYPE_CHECKING:
    from elman.serve.app import Service

json = msgspec.json.Encoder().encode


class Message(bodies.Body):
    """A step, and what the client calls it."""

    id: int | str
    step: Item


class Envelope(bodies.Body):
    """The same, whatever the step is."""

    id: int | str
    step: msgspec.Raw


class Socket:
    """One socket."""

    def __init__(self, service: Service, websocket: WebSocket) -> None:
        self.service, self.websocket = service, websocket
        self.flight = 0
        self.reached: dict[str, None] = {}  # the sessions that were stepped here, the last one last

    async def run(self) -> None:
        """Take messages until the client goes, or the server drains."""
        try:
            self.tenant = self.service.admit(dict(self.websocket.scope["headers"]), "/v1/stream")
        except Refused as refused:
            await self.websocket.close(1008, refused.message[:120])
            return
        self.connection: Frames = self.websocket.scope["extensions"][CONNECTION]
        self.connection.listen(self.hear)
        await self.websocket.accept()
        self.service.sockets.add(self)
        self.connection.answer([json({"credits": self.service.limits.socket_flight})])
        try:
            while (await self.websocket.receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self.service.sockets.discard(self)
            if self._open:
                with suppress(WebSocketDisconnect):  # the client may be gone without a word
                    await self.websocket.close(1000)

    def hear(self, messages: Sequence[bytes]) -> None:
        """Messages that came together."""
        names, items, refused = [], [], []
        for data in messages:
            name, item = self._message(data)
            if isinstance(item, Refused):
                refused.append(_named(name, answered(item)))
            else:
                names.append(name)
                items.append(item)
        if refused:
            self.connection.answer(refused)
        if items:
            self._submit(names, items)

    def _message(self, data: bytes) -> tuple[int | str | None, Item | Refused]:
        """What the client calls a message, and the step in it."""
        limits = self.service.limits
        try:
            message = bodies.parse(Message, data)
        except Refused as refused:
            return _name(data), refused
        if self.flight >= limits.socket_flight:
            return message.id, Refused(429, f"{self.flight} messages are unanswered, which is the limit", code="busy")
        self.flight += 1
        return message.id, message.step

    def _submit(self, names: list[int | str | None], items: list[Item]) -> None:
        def hear(places: Sequence[int], answers: Sequence[bytes]) -> None:
            self.flight -= len(places)
            self.connection.answer(
                [_named(names[place], answer) for place, answer in zip(places, answers, strict=True)]
            )

        try:
            submit_steps(self.service.engine, self.tenant, items, hear)
        except Refused as refused:
            hear(range(len(items)), [answered(refused)] * len(items))
        for item in items:
            self.reached.pop(item.session, None)
            self.reached[item.session] = None
        while len(self.reached) > self.service.limits.bulk:
            del self.reached[next(iter(self.reached))]

    async def drain(self) -> None:
        """Answer what is under way, and say goodbye."""
        while self._open and (self.flight or self.service.driver.doing == "commit"):  # which has the store
            await asyncio.sleep(0.01)
        if self._open:
            self.connection.answer([json({"goodbye": "the server is about to stop", "sessions": self._positions()})])
            await self.websocket.close(1012, "the server is about to stop")

    def _positions(self) -> dict[str, dict[str, int]]:
        found = {}
        for id in self.reached:
            with suppress(Refused):
                session = self.service.engine.sessions.find(id, self.tenant)
                found[id] = {"version": session.version, "position": session.position}
        return found

    @property
    def _open(self) -> bool:
        return self.websocket.application_state is WebSocketState.CONNECTED


def _name(data: bytes) -> int | str | None:
    """What the client calls a message whose step is wrong."""
    try:
        return bodies.parse(Envelope, data).id
    except Refused:
        return None


def _named(name: int | str | None, answer: bytes) -> bytes:
    """An answer with the name of its message in front."""
    return b'{"id":%b,%b' % (json(name), answer[1:])
