"""One connection: how long a request may take to come in, and an answer to be taken; how much of it is kept.

uvicorn waits for ever for either, takes heads and trailers of any size, and any number of connections.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elman.serve.errors import HttpError, new_request_id
from elman.serve.limits import Limits
from elman.serve.net.accounts import Accounts
from elman.serve.net.frames import CONNECTION, Timely

PROBES = (b"/healthz", b"/readyz", b"/metrics")  # answered even where there is no room for a connection more
KEEP = 75  # seconds: longer than clients keep connections, or one is closed under the request that they send on it
RESERVE = 64  # connections more than there may be, each for one probe
PIPELINE = 16  # requests that wait behind one on the same connection
HEADERS = 256  # lines in a head
CHUNK = 32  # bytes around a chunk: its length in hexadecimal, the ends of two lines
LINGER = 1.0  # seconds for which the rest of a refused request is read, so that the answer is not lost
DISCARD = 1 << 20  # bytes of it, at most
REASONS = {400: b"Bad Request", 408: b"Request Timeout", 429: b"Too Many Requests",
           431: b"Request Header Fields Too Large", 503: b"Service Unavailable"}  # fmt: skip


class Together(Timely):
    """A transport that holds the head of an answer back until its body comes: one packet, where uvicorn sends two. It
    is not closed before whoever sends a request that is refused could read that."""

    def __init__(self, connection: Any, transport: asyncio.Transport, seconds: float) -> None:
        super().__init__(transport, seconds)
        self.connection, self.held = connection, b""
        self.write = self.write_together  # type: ignore[assignment]

    def write_together(self, data: bytes) -> None:
        if self.held:
            self.transport.writelines((self.held, data))
            self.held = b""
        elif data[:9] == b"HTTP/1.1 " and data[9:10] != b"1":  # 100 is not an answer yet
            self.held = data
        else:
            self.transport.write(data)

    def flush(self) -> None:
        """Where there is no body."""
        if self.held:
            self.transport.write(self.held)
            self.held = b""

    def close(self) -> None:
        self.flush()
        if self.connection.unfinished and not self.transport.is_closing():
            return self.connection.linger(self.transport)
        self.close_now()

    def close_now(self) -> None:
        """Whatever may still come."""
        super().close()


def protocol(limits: Limits, accounts: Accounts) -> type[HttpToolsProtocol]:
    """The class of a connection with these limits."""

    class Connection(HttpToolsProtocol):
        """Closed if a request does not come in time or is too long around its body, or if an answer is not taken."""

        address = ""
        tenant: str | None = None
        deadline: asyncio.TimerHandle | None = None  # for the request
        stuck: asyncio.TimerHandle | None = None  # for the answer
        head = 0  # bytes of it so far; -1 while a body comes
        fresh = False  # the head has ended in this packet
        body = 0  # bytes of it so far, and what stands around its chunks
        around = 0  # bytes behind a head that are neither: extensions of chunks, trailers
        coming = True  # a request, or the rest of one
        over: HttpError | None = None  # there is no room for it
        refused = lingering = False  # nothing more of it is read, or only to be thrown away
        discarded = 0
        tail = b""  # the last bytes of a head that has not ended

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(Together(self, transport, limits.send_seconds))  # type: ignore[arg-type]
            self.address = _address(self.client)
            self.timeout_keep_alive = min(limits.receive_seconds, KEEP)  # type: ignore[assignment]
            self.over = accounts.enter(self)
            if accounts.count > limits.connections + RESERVE:
                transport.abort()
            self._wait()

        # Whose it is

        @property
        def idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def shed(self) -> None:
            accounts.leave(self)
            self.transport.close_now()  # type: ignore[attr-defined]

        def show(self, tenant: str) -> None:
            """A request on it has a key of this tenant."""
            if tenant != self.tenant:
                accounts.show(self, tenant)
                self.timeout_keep_alive = KEEP

        # What comes in

        def data_received(self, data: bytes) -> None:
            if self.refused or self.lingering:
                self._discard(len(data))
                return
            if self.head >= 0 and self._long_head(data):
                self.refuse(HttpError(431, f"the request line and headers are longer than {limits.headers} bytes"))
                return
            self._unset_keepalive_if_required()
            self.coming, self.fresh, before = True, False, self.body
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                if not self.refused and self._should_upgrade():
                    self.handle_websocket_upgrade()
            except httptools.HttpParserError as error:
                if not self.refused:
                    self.refuse(error.__context__ if isinstance(error.__context__, HttpError) else _not_http())
            if self.refused:
                return
            if self.head < 0 and not self.fresh:
                self.around += len(data) - (self.body - before)
                if self.around > limits.headers:
                    self.refuse(HttpError(431, f"chunk headers and trailers are longer than {limits.headers} bytes"))
                    return
            if self.coming and self.deadline is None:  # most requests come whole, and need no timer
                self._wait()

        def _long_head(self, data: bytes) -> bool:
            joined = self.tail + data
            end = joined.find(b"\r\n\r\n")
            self.head += len(data) if end < 0 else end + 4 - len(self.tail)
            self.tail = joined[-3:]
            return self.head > limits.headers

        def on_message_begin(self) -> None:
            if len(self.pipeline) >= PIPELINE:
                raise HttpError(429, f"more than {PIPELINE} requests wait on this connection; wait for their answers")
            self.coming = True  # it may begin in the packet of the one before it
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self.head < 0:
                return  # a trailer: nobody asks for them, and they have no end
            if len(self.headers) >= HEADERS:
                raise HttpError(431, f"there are more than {HEADERS} headers")
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self.head, self.tail, self.fresh, self.body, self.around, self.discarded = -1, b"", True, 0, 0, 0
            if self.over is not None and self.url.partition(b"?")[0] not in PROBES:
                raise self.over  # once: then it is closed
            self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]
            super().on_headers_complete()
            if self.over is not None and self.cycle is not None:
                self.cycle.keep_alive = False

        def on_chunk_header(self) -> None:
            self.body += CHUNK

        def on_body(self, body: bytes) -> None:
            self.body += len(body)
            if self.cycle is not None and self.cycle.response_complete:
                self._discard(len(body))
            else:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self.head, self.coming = 0, False
            self._stop()
            super().on_message_complete()

        def _discard(self, size: int) -> None:
            self.discarded += size
            if self.discarded > DISCARD:
                self.transport.abort()

        # What goes out

        @property
        def unfinished(self) -> bool:
            """Whether the rest of a request is still to come."""
            return (self.refused or (self.coming and self.head < 0)) and not self.lingering

        def linger(self, transport: asyncio.Transport) -> None:
            """Close behind an answer to a request that still comes: if it were not read, the answer would be lost."""
            self.lingering = True
            self._stop()
            if transport.can_write_eof():
                transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(LINGER, self.transport.close_now)  # type: ignore[attr-defined]

        def on_response_complete(self) -> None:
            self.transport.flush()  # type: ignore[attr-defined]
            if self.lingering:
                self.server_state.total_requests += 1
            else:
                super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self.stuck is None:
                self.stuck = self.loop.call_later(limits.send_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unstick()

        def _unstick(self) -> None:
            if self.stuck is not None:
                self.stuck.cancel()
                self.stuck = None

        # Its end

        def handle_websocket_upgrade(self) -> None:
            self._stop()
            self._unstick()
            self.coming = False
            self.transport = self.transport.transport  # type: ignore[attr-defined]
            accounts.leave(self)
            super().handle_websocket_upgrade()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            self._unstick()
            accounts.leave(self)
            self.lingering = True  # uvicorn closes once more
            super().connection_lost(exc)

        def _wait(self) -> None:
            self.deadline = self.loop.call_later(limits.receive_seconds, self._late)

        def _stop(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def _late(self) -> None:
            self.deadline = None
            if self.transport.is_closing():
                return
            if self.idle and self.cycle is not None and self.head < 0:
                self.transport.close_now()  # type: ignore[attr-defined]  # it is answered, and its rest does not come
            else:
                self.refuse(HttpError(408, f"the request did not arrive within {limits.receive_seconds:g} seconds"))

        def refuse(self, refused: HttpError) -> None:
            """Answer with an error, and close."""
            self.refused = True
            self._stop()
            started = self.cycle is not None and self.cycle.response_started
            if not self.idle and (started or self.pipeline or self.head >= 0):
                return self.transport.abort()  # it would be read as the answer to a request before it, or as part of it
            name = new_request_id()
            body = refused.body(name)
            lines = {**refused.headers, "content-type": "application/json", "x-request-id": name,
                     "content-length": str(len(body)), "connection": "close"}  # fmt: skip
            head = b"".join(f"{line}: {value}\r\n".encode() for line, value in lines.items())
            self.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (refused.status, REASONS[refused.status], head))
            self.transport.write(body)
            if refused.status == 408:  # nothing more comes
                self.transport.close_now()  # type: ignore[attr-defined]
            else:
                self.transport.close()

    return Connection


def _not_http() -> HttpError:
    return HttpError(400, "the request is not HTTP/1.1")


def _address(client: tuple[str, int] | None) -> str:
    """Where a connection comes from; of IPv6, the network that one machine has for itself."""
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))
