"""A socket whose messages do not wait for a task each: all that came at once are heard at once, on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

CONNECTION = "elman.connection"  # where the scope has it


class Frames(WebSocketsSansIOProtocol):
    """uvicorn's, by the library `websockets`, which takes messages apart; who `listen`s is given them.

    Whoever does not read what is answered is not heard either, so what waits for a client has an end.
    """

    hear: Callable[[list[bytes]], None] | None = None
    came: list[bytes]

    def listen(self, hear: Callable[[list[bytes]], None]) -> None:
        """Messages go there; to be called before the socket is accepted, so that none goes elsewhere."""
        self.hear, self.came = hear, []

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["extensions"][CONNECTION] = self  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.hear is not None and self.came:
            came, self.came = self.came, []
            self.hear(came)

    def send_receive_event_to_app(self) -> None:
        if self.hear is None:
            return super().send_receive_event_to_app()
        message, self.frames = b"".join(self.frames), []
        if not self.close_sent:
            self.came.append(message)

    def answer(self, messages: Sequence[bytes]) -> None:
        """Send messages."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.transport.write(b"".join([part for message in messages for part in (_head(len(message)), message)]))

    def shutdown(self) -> None:
        """The server stops. Who listens answers what is under way first, and says goodbye."""
        if self.hear is None:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.transport.is_reading():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not (self.transport.is_closing() or self.transport.is_reading()):
            self.transport.resume_reading()


def _head(length: int) -> bytes:
    """What stands before a message of so many bytes that a server sends whole (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((0x82, length))
    if length < 1 << 16:
        return b"\x82\x7e" + length.to_bytes(2, "big")
    return b"\x82\x7f" + length.to_bytes(8, "big")
