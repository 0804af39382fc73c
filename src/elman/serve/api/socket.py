"""`/v1/stream`: steps of many sessions on one socket, as JSON messages, answered in the order in which they are done.

A message is an item of /v1/steps with an `id` of the client's own; the answer has the same. Not more than `credits`
messages may be unanswered; the first message of the server says how many that is. When the server is about to stop,
its last message says where the sessions are that were stepped here: `{"goodbye": ..., "sessions": {ID: ...}}`.

A browser cannot send a header with a socket. It gives its key as a subprotocol, in base64url without `=`, beside the
one that is chosen: `new WebSocket(url, ["elman", "elman.key." + base64url(key)])`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from elman.serve.api import bodies
from elman.serve.engine.steps import Item, answered, submit_steps
from elman.serve.errors import HttpError, busy
from elman.serve.json import to_json
from elman.serve.net.frames import CONNECTION, Frames

if TYPE_CHECKING:
    from elman.serve.api.app import Service

PROTOCOL, KEY = "elman", "elman.key."  # the subprotocol, and what a key stands behind


class Message(bodies.Body):
    """A step, and what the client calls it."""

    id: int | str
    step: Item


class Envelope(bodies.Body):
    """The same, whatever the step is."""

    id: int | str
    step: msgspec.Raw


class Socket:
    """One socket; refused where it may not be."""

    def __init__(self, service: Service, websocket: WebSocket) -> None:
        self.service, self.websocket = service, websocket
        self.flight, self.inputs = 0, 0  # messages that are not answered, and inputs in them
        self.unread = 0  # bytes that the account of the tenant has for answers that may not have been taken
        self.reached: dict[str, None] = {}  # the sessions that were stepped here, the last one last
        headers, offered = dict(websocket.scope["headers"]), websocket.scope["subprotocols"]
        if b"authorization" not in headers and service.keys is not None:
            headers[b"authorization"] = b"Bearer " + _offered_key(offered)
        self.authorization = headers.get(b"authorization", b"")
        self.protocol = PROTOCOL if PROTOCOL in offered else None
        self.tenant = service.admit(headers, websocket.scope["path"])
        if websocket.scope["path"] != "/v1/stream":
            raise HttpError(404, "there is no socket at this path; use /v1/stream")
        if service.engine.draining:
            raise busy("the server is about to stop", 1_000, 503)
        self.account = service.accounts.open_socket(self.tenant)

    async def run(self) -> None:
        """Take messages until the client goes, or the server drains."""
        self.connection: Frames = self.websocket.scope["extensions"][CONNECTION]
        self.connection.listen(self.take, self.drained)
        self.service.sockets.add(self)
        try:
            await self.websocket.accept(self.protocol)
            self.connection.answer([to_json({"credits": self.service.limits.socket_flight})])
            while (await self.websocket.receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self.service.sockets.discard(self)
            self.service.accounts.close_socket(self.account)
            if self._open:
                with suppress(WebSocketDisconnect):  # the client may be gone without a word
                    await self.websocket.close(1000)

    async def revoke(self) -> None:
        """Close it, if its key is no longer one of its tenant's."""
        try:
            if self.service.keys is not None and self.service.keys.tenant(self.authorization) == self.tenant:
                return
        except HttpError:
            pass
        with suppress(WebSocketDisconnect):
            if self._open:
                await self.websocket.close(1008, "the key is no longer valid")

    def take(self, messages: Sequence[bytes]) -> None:
        """Messages that came together."""
        names, items, sizes, refused = [], [], [], []
        for data in messages:
            name, item, size = self._message(data)
            if isinstance(item, HttpError):
                refused.append(_named(name, answered(item)))
            else:
                names.append(name)
                items.append(item)
                sizes.append(size)
        if refused:
            self.connection.charge(len(refused))
            self.connection.answer(refused)
        if items:
            self._submit(names, items, sizes)

    def _message(self, data: bytes) -> tuple[int | str | None, Item | HttpError, tuple[int, int]]:
        """What the client calls a message, the step in it, how many inputs that has, and how many bytes it may take."""
        limits = self.service.limits
        try:
            message = bodies.parse(Message, data)
        except HttpError as refused:
            return _name(data), refused, (0, 0)
        try:
            if self.flight >= limits.socket_flight:
                raise busy(f"{self.flight} messages are unanswered, which is the limit", 50)
            inputs = bodies.count(message.step, limits)
            if self.inputs and self.inputs + inputs > limits.bulk_inputs:
                raise busy(f"{self.inputs} inputs are under way on this socket, and this has {inputs} more", 50)
            size = len(data) + inputs * bodies.ANSWER
            self.service.accounts.reserve(self.account, size)
        except HttpError as refused:
            return message.id, refused, (0, 0)
        self.flight += 1
        self.inputs += inputs
        return message.id, message.step, (inputs, size)

    def _submit(self, names: list[int | str | None], items: list[Item], sizes: list[tuple[int, int]]) -> None:
        def listener(places: Sequence[int], answers: Iterable[bytes]) -> None:
            self.flight -= len(places)
            for place in places:
                self.inputs -= sizes[place][0]
                self.unread += sizes[place][1]
            self.connection.answer(
                [_named(names[place], answer) for place, answer in zip(places, answers, strict=True)]
            )
            self.drained()

        try:
            submit_steps(self.service.engine, self.tenant, items, listener)
        except HttpError as refused:
            listener(range(len(items)), [answered(refused)] * len(items))
        for item in items:
            self.reached.pop(item.session, None)
            self.reached[item.session] = None
        while len(self.reached) > self.service.limits.bulk:
            del self.reached[next(iter(self.reached))]

    def drained(self) -> None:
        """What was answered has been taken, or never will be."""
        if self.connection.stuck is None or self.connection.disconnected:
            self.account.bytes -= self.unread
            self.unread = 0

    async def drain(self) -> None:
        """Answer what is under way, and say goodbye."""
        while self._open and (self.flight or self.service.driver.doing == "commit"):  # which has the store
            await asyncio.sleep(0.01)
        if self._open:
            self.connection.answer([to_json({"goodbye": "the server is about to stop", "sessions": self._positions()})])
            await self.websocket.close(1012, "the server is about to stop")

    def _positions(self) -> dict[str, dict[str, int]]:
        found = {}
        for id in self.reached:
            with suppress(HttpError):
                session = self.service.engine.sessions.find(id, self.tenant)
                found[id] = {"version": session.version, "position": session.position}
        return found

    @property
    def _open(self) -> bool:
        accepted = self.websocket.application_state is WebSocketState.CONNECTED
        return accepted and not (self.connection.close_sent or self.connection.disconnected)


def _name(data: bytes) -> int | str | None:
    """What the client calls a message whose step is wrong."""
    try:
        return bodies.parse(Envelope, data).id
    except HttpError:
        return None


def _named(name: int | str | None, answer: bytes) -> bytes:
    """An answer with the name of its message in front."""
    return b'{"id":%b,%b' % (to_json(name), answer[1:])


def _offered_key(offered: Sequence[str]) -> bytes:
    """The key among the subprotocols that a client offers; empty if there is none."""
    text = next((one.removeprefix(KEY) for one in offered if one.startswith(KEY)), "")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
