"""One connection. uvicorn waits for ever for a request to come in, and takes headers of any size: this does not."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elman.serve.errors import busy
from elman.serve.limits import Limits

FULL = busy("there are as many connections as may be open at the same time", 1_000, 503).body()


class Together:
    """A transport that holds the head of an answer back until its body comes: one packet, where uvicorn sends two."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport, self.held = transport, b""

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1" and not self.held:  # 100 is not an answer yet
            self.held = data
        else:
            self.transport.write(self.held + data)
            self.held = b""

    def flush(self) -> None:
        """Where there is no body."""
        if self.held:
            self.transport.write(self.held)
            self.held = b""

    def close(self) -> None:
        self.flush()
        self.transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The class of a connection with these limits."""

    class Connection(HttpToolsProtocol):
        """Closed if a request does not come in time, or if its head is too long."""

        deadline: asyncio.TimerHandle | None = None
        head = 0  # bytes of it so far; -1 while a body comes
        coming = True  # a request, or the rest of one
        over = False  # it is one more than may be open
        tail = b""  # the last bytes of a head that has not ended

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(Together(transport))  # type: ignore[arg-type]
            self.over = len(self.connections) > limits.connections
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self.over:
                self._refuse(b"503 Service Unavailable\r\nretry-after-ms: 1000\r\ncontent-type: application/json", FULL)
                return
            if self.head >= 0:
                joined = self.tail + data
                end = joined.find(b"\r\n\r\n")
                self.head += len(data) if end < 0 else end + 4 - len(self.tail)
                self.tail = joined[-3:]
                if self.head > limits.headers:
                    self._refuse(b"431 Request Header Fields Too Large")
                    return
            self.coming = True
            super().data_received(data)
            if self.coming and self.deadline is None:  # most requests come whole, and need no timer
                self._wait()

        def on_message_begin(self) -> None:
            self.coming = True  # it may begin in the packet of the one before it
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.head, self.tail = -1, b""
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self.head, self.coming = 0, False
            self._stop()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            self.transport.flush()  # type: ignore[attr-defined]
            super().on_response_complete()

        def handle_websocket_upgrade(self) -> None:
            self._stop()
            self.coming = False
            self.transport = self.transport.transport  # type: ignore[attr-defined]
            super().handle_websocket_upgrade()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self.deadline = self.loop.call_later(limits.receive_seconds, self._late)

        def _stop(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def _late(self) -> None:
            self.deadline = None
            if not self.transport.is_closing():
                self._refuse(b"408 Request Timeout")

        def _refuse(self, status: bytes, body: bytes = b"") -> None:
            head = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
            self.transport.write(head)
            self.transport.write(body)
            self.transport.close()

    return Connection
