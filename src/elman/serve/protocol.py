"""One connection. uvicorn waits for ever for a request to come in, and takes headers of any size: this does not."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elman.serve.limits import Limits


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The class of a connection with these limits."""

    class Connection(HttpToolsProtocol):
        """Closed if a request's head does not come in time, or is too long. The body is the app's to wait for."""

        deadline: asyncio.TimerHandle | None = None
        head = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self.head >= 0:
                if self.deadline is None:
                    self._wait()
                self.head += len(data)
                if self.head > limits.headers and b"\r\n\r\n" not in data:
                    self._refuse(b"431 Request Header Fields Too Large")
                    return
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._stop()
            self.head = -1
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self.head = 0
            super().on_message_complete()

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

        def _refuse(self, status: bytes) -> None:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    return Connection
