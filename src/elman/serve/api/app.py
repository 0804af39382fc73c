"""The routes, and what is common to all of them: keys, hosts and origins, and the form of errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from elman.progress import say
from elman.serve.api import about, socket
from elman.serve.api.context import Make, RequestContext
from elman.serve.api.predicting import Predicting
from elman.serve.api.routes import ROUTES, Handler
from elman.serve.engine.driver import Driver
from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Result
from elman.serve.engine.metrics import Metrics
from elman.serve.engine.steps import Item, Stepped, submit_steps
from elman.serve.engine.workers import Workers
from elman.serve.errors import Disconnected, HttpError, new_request_id
from elman.serve.limits import Limits
from elman.serve.net.accounts import Accounts
from elman.serve.net.frames import CONNECTION
from elman.serve.net.keys import LOCAL, Keys
from elman.serve.store.sessions import Sessions
from elman.serve.store.signing import Signer
from elman.tasks.serving import Served

OPEN = ("/", "/page.js", "/page.css", "/healthz", "/readyz")  # without a key
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Service:
    """All that handlers use; and the ASGI application."""

    def __init__(
        self, sessions: Sessions, signer: Signer, *, keys: Keys | None = None, durability: str = "none",
        ttl: float = 86_400.0, insecure: bool = False, drain_delay: float = 0.0,
        predictors: dict[str, Predicting] | None = None,
        faults: Callable[[str], None] = lambda place: None,
    ) -> None:  # fmt: skip
        self.limits: Limits = sessions.limits
        self.models, self.signer, self.keys = sessions.models, signer, keys
        self.durability, self.ttl, self.insecure, self.drain_delay = durability, ttl, insecure, drain_delay
        self.predictors = predictors or {}
        self.engine = Engine(sessions, faults)
        self.driver = Driver(self.engine)
        self.metrics = Metrics(self.engine)
        self.accounts = Accounts(self.limits, keys is not None)
        self.workers = Workers(self.limits)
        self.stopping = False  # a signal came: probes say so, though requests are still served for a while
        self.readiness = about.Readiness()
        self.routes = ROUTES
        self.sockets: set[socket.Socket] = set()
        # A redirect would go to whatever the Host header says, so there is none.
        self.router = Router(self._routes(), redirect_slashes=False)

    def _routes(self) -> list[Route]:
        paths: dict[str, dict[str, Handler]] = {}
        for route in ROUTES:
            paths.setdefault(route.path, {})[route.method] = route.handler
        return [Route(path, _Endpoint(self, path, handlers), methods=None) for path, handlers in paths.items()]

    def model(self, name: str) -> Served:
        """The model called `name`, or a HttpError."""
        return self.engine.sessions.model(name)

    # To the engine and back

    async def run(self, make: Make) -> Result:
        """What the engine answers to a job; a HttpError is raised."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.engine.submit(make(partial(_settle, future)))
        result = await future
        if isinstance(result, HttpError):
            raise result
        return result

    async def run_steps(self, tenant: str, items: Sequence[Item | HttpError]) -> bytes:
        """The answers to many steps, with commas between."""
        answers = [b""] * len(items)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(items)

        def listener(places: Sequence[int], found: Iterable[bytes]) -> None:
            nonlocal left
            if isinstance(found, Stepped) and places and places[-1] - places[0] == len(places) - 1:
                answers[places[0]] = found.joined()  # side by side: the first place has them all, the others nothing
            else:
                for place, answer in zip(places, found, strict=True):
                    answers[place] = answer
            left -= len(places)
            if not left and not future.done():
                future.set_result(None)

        submit_steps(self.engine, tenant, items, listener)
        await future
        return b",".join(filter(None, answers))

    # The application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        scope["tenant"] = ""
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        context = RequestContext(self, scope, receive, send)
        began = time.perf_counter()
        try:
            scope["tenant"] = context.tenant = self._admit(context, scope)
            scope["context"] = context
            scope["app"] = self  # has starlette raise what it would answer itself
            await self.router(scope, receive, send)
        except HttpError as refused:
            await context.refuse(refused)
        except HTTPException as error:
            await context.refuse(HttpError(error.status_code, error.detail, headers=dict(error.headers or {})))
        except Disconnected:
            context.status = 499
        except Exception as error:  # a bug of ours: the client hears of it in the form that it reads errors in
            say(f"elman serve: {context.id}: {type(error).__name__}: {error}")
            await context.refuse(HttpError(500, "this is a bug of the server"))
        finally:
            scope.pop("context", None)  # which knows the scope: they would keep each other until they are looked for
            if context.reserved:
                self.accounts.of(context.tenant).bytes -= context.reserved
            self.metrics.count(scope.get("route_path", "other"), context.status, time.perf_counter() - began)

    def _admit(self, context: RequestContext, scope: Scope) -> str:
        """The tenant of a request; refused if it may not ask. Its connection is the tenant's from now on."""
        path = scope["path"]
        if self.keys is not None and path in OPEN:
            return ""
        tenant = self.admit(context.headers, path)
        scope["extensions"][CONNECTION].show(tenant)
        return tenant

    def admit(self, headers: dict[bytes, bytes], path: str) -> str:
        """The tenant that asks; refused if it may not."""
        if self.keys is not None:
            return self.keys.tenant(headers.get(b"authorization", b""), operator=path == "/metrics")
        if not self.insecure:
            self._check_local(headers)
        return LOCAL

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A socket, or the answer of a request that would be one."""
        websocket = WebSocket(scope, receive, send)
        try:
            found = socket.Socket(self, websocket)
        except HttpError as refused:
            name = new_request_id()
            headers = {**refused.headers, "x-request-id": name}
            answer = Response(refused.body(name), refused.status, headers, "application/json")
            await websocket.send_denial_response(answer)
            scope["extensions"][CONNECTION].handshake_complete = True  # it is answered, which uvicorn does not see
            return
        await found.run()

    def _check_local(self, headers: dict[bytes, bytes]) -> None:
        """Without keys, a page of somewhere else must not reach us through the browser of whoever runs this."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in LOOPBACK:
            raise HttpError(
                403, f"the host is {host!r}; without keys only this machine has access, as 127.0.0.1 or localhost"
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1") != f"http://{host}":
            raise HttpError(
                403, f"the origin is {origin.decode('latin-1')!r}; without keys only the server's own page has access"
            )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.driver.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                self.workers.abandon()
                if await self.driver.stop(2):
                    self.engine.sessions.store.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


class _Endpoint:
    """One path: which handler answers which method."""

    def __init__(self, service: Service, path: str, handlers: dict[str, Handler]) -> None:
        self.service, self.path, self.handlers = service, path, handlers
        self.allowed = ", ".join(sorted({*handlers, *(["HEAD"] if "GET" in handlers else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["context"]
        scope["route_path"] = self.path
        context.scope = scope
        method = scope["method"]
        handler = self.handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise HttpError(
                405,
                f"this path does not support {scope['method']}; it supports {self.allowed}",
                headers={"allow": self.allowed},
            )
        await handler(context)


def _settle(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)
