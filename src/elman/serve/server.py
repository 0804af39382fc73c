"""Start, listen, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import uvicorn

from elman.errors import ElmanError
from elman.progress import say
from elman.serve.api.app import Service
from elman.serve.net.frames import frames
from elman.serve.net.protocol import KEEP, protocol
from elman.serve.store.signing import Signer

DRAIN = 20.0  # seconds until what is still under way is refused, so that a client hears of it
CUT = 25  # seconds until connections that are busy even then are cut: with the engine's own end it is under 30
YOUNG = 20_000  # objects that are made before the garbage of requests is looked for; few of them are in cycles
SWITCH = 0.0005  # seconds: how soon the engine's thread gets its turn beside a busy event loop


class Server(uvicorn.Server):
    """uvicorn, with a drain: from the signal on readyz says no, and sockets are closed behind their last answer."""

    def __init__(self, service: Service, host: str, port: int) -> None:
        self.service = service
        service.driver.ended = self._leave
        limits = service.limits
        super().__init__(
            uvicorn.Config(
                service, host=host, port=port, http=protocol(limits, service.accounts), ws=frames(limits.send_seconds),
                loop="uvloop", log_level="warning", access_log=False, lifespan="on",
                timeout_graceful_shutdown=CUT, ws_max_size=limits.socket_message, ws_per_message_deflate=False,
                server_header=False, date_header=False, proxy_headers=False, timeout_keep_alive=KEEP,
            )
        )  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Once: say no to probes, and drain after the delay. Once more: drain now; Ctrl-C then: leave at once.
        uvicorn's own would raise the signal again when all is done."""
        first, self.service.stopping = not self.service.stopping, True
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        if not self.started:
            self.should_exit = True
        elif not self.service.driver.loop.is_closed():  # a signal may come after the last answer
            delay = self.service.drain_delay if first else 0.0
            self.service.driver.loop.call_soon_threadsafe(self._drain_in, delay)

    def _leave(self) -> None:
        """The engine cannot continue: exit once its refusals are sent."""
        self.should_exit = self.force_exit = True

    def _drain_in(self, delay: float) -> None:
        if delay:
            self.service.driver.loop.call_later(delay, self._drain)
        else:
            self._drain()

    def _drain(self) -> None:
        """Take no request more, finish what is under way, and stop."""
        if self.should_exit:
            return
        self.service.engine.draining = self.service.workers.draining = self.should_exit = True
        self.service.driver.loop.call_later(DRAIN, self._abandon)
        self.goodbyes = [asyncio.ensure_future(socket.drain()) for socket in list(self.service.sockets)]

    def _abandon(self) -> None:
        self.service.engine.abandon()
        self.service.workers.abandon()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.setswitchinterval(SWITCH)
            gc.collect()
            gc.freeze()  # what is loaded stays; it need not be looked through again
            gc.set_threshold(YOUNG)
            if threading.current_thread() is threading.main_thread():
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.read_keys)
            port = self.servers[0].sockets[0].getsockname()[1]
            say(f"elman serve: http://{self.config.host}:{port} ({', '.join(self.service.models)})")

    async def shutdown(self, sockets: Any = None) -> None:
        await super().shutdown(sockets)
        gc.unfreeze()

    def read_keys(self) -> None:
        """Read all keys again. Sockets whose key was removed are closed; a file with an error changes nothing."""
        service = self.service
        try:
            signer = service.signer if service.signer.path is None else Signer.of_file(service.signer.path)
            if service.keys is not None:
                service.keys.read()
            service.signer = signer  # all files are right, or nothing is changed
            for path in (service.keys.path if service.keys else None, signer.path):
                if path is not None:
                    say(f"elman serve: read {path} again")
        except ElmanError as error:
            say(f"elman serve: the keys were not changed: {error}")
        if service.keys is not None:
            self.revoked = [asyncio.ensure_future(socket.revoke()) for socket in list(service.sockets)]


def serve(service: Service, host: str, port: int) -> int:
    """Run until a signal comes; the exit code. It ends with the drain, whatever a thread may still compute."""
    server = Server(service, host, port)
    server.run()
    if service.engine.failed:
        os._exit(1)  # at once: to close the store would write to it, and nobody knows what is in it
    code = 0 if server.started else 2
    if service.workers.running or service.driver.doing:
        say("elman serve: computations that were still running were abandoned")
        sys.stdout.flush()
        os._exit(code)  # Python itself would wait for the threads
    return code
