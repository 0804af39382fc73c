"""A socket whose messages do not wait for a task each: all that came at once are heard at once, on the event loop.

But not without end: a piece of what came is heard in a turn of the loop, and whoever sends what needs no step (pings,
fragments, messages that are refused) faster than RATE is not read from until that is made up for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

CONNECTION = "elman.connection"  # where the extensions of a scope have the connection of a request
PIECE = 16 << 10  # bytes that are heard in a turn
RATE = 256  # frames a second that need no step; as many may come at once
BAD = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TEXT = 0x81  # a whole message that is a text (RFC 6455, 5.2)


class Timely:
    """A transport that is closed in time, though nobody takes what was written to it."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self.transport, self.seconds = transport, seconds
        self.write, self.is_closing = transport.write, transport.is_closing  # called most

    def close(self) -> None:
        self.transport.close()
        if self.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(self.seconds, self.transport.abort)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class Frames(WebSocketsSansIOProtocol):
    """uvicorn's, by the library `websockets`, which takes messages apart; who `listen`s is given them.

    Whoever does not read what is answered is not heard either, and is cut off after `patience` seconds.
    """

    listener: Callable[[list[bytes]], None] | None = None
    drained: Callable[[], None] = staticmethod(lambda: None)
    came: list[bytes]
    patience = 10.0
    stuck: asyncio.TimerHandle | None = None  # until it is cut off
    wait: asyncio.TimerHandle | None = None  # until it is read from again
    rest = b""  # what came and was not heard yet
    credit, counted = float(RATE), 0.0  # of frames that need no step; when that was
    idle = 0  # such frames in this turn

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Timely(transport, self.patience))  # type: ignore[arg-type]

    def listen(self, listener: Callable[[list[bytes]], None], drained: Callable[[], None]) -> None:
        """Messages go there; to be called before the socket is accepted, so that none goes elsewhere. `drained` is
        called when what was answered has been taken, after it was not."""
        self.listener, self.drained, self.came = listener, drained, []

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["extensions"][CONNECTION] = self  # type: ignore[assignment]

    # What comes in

    def data_received(self, data: bytes) -> None:
        self.rest = self.rest + data if self.rest else data
        if self.wait is None:
            self._hear()

    def _hear(self) -> None:
        """A piece of what came; the next one in another turn."""
        self.wait = None
        if self.transport.is_closing():
            self.rest = b""
            return
        piece, self.rest = (self.rest, b"") if len(self.rest) <= PIECE else (self.rest[:PIECE], self.rest[PIECE:])
        self._frames(piece)
        if self.listener is not None and self.came:
            came, self.came = self.came, []
            self.listener(came)
        pause = self._charged()
        if pause or self.rest:
            self.wait = self.loop.call_later(pause, self._hear)
        self._read()

    def _frames(self, data: bytes) -> None:
        self.conn.receive_data(data)
        if self.conn.parser_exc is not None:
            self.handle_parser_exception()
            return
        self.handle_events()
        wrong = self.conn.handshake_exc is not None and not self.handshake_initiated
        if output := self.conn.data_to_send():  # the answers to all pings at once, or to what is not a handshake
            self.transport.write(b"".join(output) or (BAD if wrong else b""))
        if wrong:
            self.transport.close()

    def charge(self, count: int) -> None:
        """So many of the messages that were heard needed no step."""
        self.idle += count

    def _charged(self) -> float:
        """Seconds to wait before more is heard."""
        idle, self.idle = self.idle, 0
        if not idle:
            return 0.0
        now = self.loop.time()
        self.credit = min(RATE, self.credit + RATE * (now - self.counted)) - idle
        self.counted = now
        return max(0.0, -self.credit / RATE)

    def handle_ping(self) -> None:
        self.idle += 1

    def handle_pong(self, event: Frame) -> None:
        self.idle += 1
        super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        self.idle += 1
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.listener is None:
            return super().send_receive_event_to_app()
        message, self.frames = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames), []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text" and not message.isascii():
            try:
                message.decode()
            except UnicodeDecodeError:
                self.fail(1007, "a text message is not UTF-8")
                return
        self.came.append(message)

    def fail(self, code: int, reason: str) -> None:
        """Close it because of what the client sent."""
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:  # there was no socket yet
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
            self.transport.close()
        else:
            super().handle_parser_exception()

    # What goes out

    def answer(self, messages: Sequence[bytes]) -> None:
        """Send messages."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.transport.write(b"".join([part for message in messages for part in (_head(len(message)), message)]))

    def shutdown(self) -> None:
        """The server stops. Who listens answers what is under way first, and says goodbye."""
        if self.listener is None:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.stuck is None:
            self.stuck = self.loop.call_later(self.patience, self.transport.abort)
        self._read()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stuck is not None:
            self.stuck.cancel()
            self.stuck = None
        self.drained()
        self._read()

    def _read(self) -> None:
        """Read on, unless it is not read from at the moment."""
        if self.transport.is_closing():
            return
        wanted = self.wait is None and self.stuck is None and not self.read_paused
        if wanted != self.transport.is_reading():
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.stuck, self.wait):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self.drained()


def frames(seconds: float) -> type[Frames]:
    """The class of a socket whose client has so many seconds to take an answer."""
    return type("Frames", (Frames,), {"patience": seconds})


def _head(length: int) -> bytes:
    """What stands before a message of so many bytes that a server sends whole (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((TEXT, length))
    if length < 1 << 16:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")
