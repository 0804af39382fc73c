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
from elman.serve.app import Service
from elman.serve.frames import Frames
from elman.serve.protocol import protocol

DRAIN = 20.0  # seconds until what is still under way is refused, so that a client hears of it
CUT = 25  # seconds until connections that are busy even then are cut: with the engine's own end it is under 30
KEEP = 75  # seconds: longer than clients keep connections, or one is closed under the request that they send on it
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
                service, host=host, port=port, http=protocol(limits), ws=Frames, loop="uvloop",
                log_level="warning", access_log=False, lifespan="on",
                timeout_graceful_shutdown=CUT, ws_max_size=limits.socket_message, ws_per_message_deflate=False,
                server_header=False, date_header=False, proxy_headers=False, timeout_keep_alive=KEEP,
            )
        )  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Once: drain. Ctrl-C once more: leave at once. uvicorn's own would raise the signal again when all is done."""
        if self.started and not self.service.engine.draining:
            self.service.engine.draining = True
            self.service.driver.loop.call_soon_threadsafe(self._say_goodbye)
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def _leave(self) -> None:
        """The engine cannot go on: leave once its refusals are sent."""
        self.should_exit = self.force_exit = True

    def _say_goodbye(self) -> None:
        self.service.driver.loop.call_later(DRAIN, self.service.engine.abandon)
        self.goodbyes = [asyncio.ensure_future(socket.drain()) for socket in list(self.service.sockets)]

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.setswitchinterval(SWITCH)
            gc.collect()
            gc.freeze()  # what is loaded stays; it need not be looked through again
            gc.set_threshold(YOUNG)
            port = self.servers[0].sockets[0].getsockname()[1]
            say(f"elman serve: http://{self.config.host}:{port} ({', '.join(self.service.models)})")
            if self.service.keys is not None and threading.current_thread() is threading.main_thread():
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._read_keys)

    async def shutdown(self, sockets: Any = None) -> None:
        await super().shutdown(sockets)
        gc.unfreeze()

    def _read_keys(self) -> None:
        assert self.service.keys is not None
        try:
            self.service.keys.read()
            say(f"elman serve: read {self.service.keys.path} again")
        except ElmanError as error:
            say(f"elman serve: the keys stay as they were: {error}")


def serve(service: Service, host: str, port: int) -> int:
    """Run until a signal comes; the exit code."""
    server = Server(service, host, port)
    server.run()
    if service.engine.failed:
        os._exit(1)  # at once: to close the store would write to it, and nobody knows what is in it
    return 0 if server.started else 2
