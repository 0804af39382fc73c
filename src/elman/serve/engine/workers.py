"""Long computations outside the engine, beam searches and `elman predict`: in a few threads, tenants in turn."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, cast

from elman.progress import cancellable
from elman.serve.engine.job import drain_error
from elman.serve.errors import Disconnected, busy
from elman.serve.limits import Limits

T = TypeVar("T")
THREADS = 4
EACH = 2  # of them for one tenant
Wait = Callable[[], Coroutine[None, None, None]]


class Call:
    """One of them; `future` is what came of it."""

    cancelled = False

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def run(self) -> object:
        with cancellable(self.check):
            self.check()
            return self.work()

    def check(self) -> None:
        """Called as often as the work can be left: with every token of a search, between batches of a prediction."""
        if self.cancelled:
            raise Disconnected


class Workers:
    """All of it but `Call.run` is called on the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.draining = limits, False
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="worker")
        self.waiting: dict[str, deque[Call]] = {}  # by tenant; the one whose turn it is first
        self.running: dict[Call, str] = {}
        self.counts: Counter[str] = Counter()  # of each tenant, those that wait or run

    async def run(self, tenant: str, work: Callable[[], T], gone: Wait) -> T:
        """What a work gives. It is left when the client is `gone`, or when the server stops."""
        if self.draining:
            raise drain_error()
        if self.counts[tenant] >= self.limits.tenant_threads:
            raise busy(f"{self.counts[tenant]} of your searches or predictions are under way, which is the limit", 500)
        call = Call(work)
        self.counts[tenant] += 1
        self.waiting.setdefault(tenant, deque()).append(call)
        self._start()
        watcher = asyncio.create_task(gone())
        try:
            await asyncio.wait((call.future, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not call.future.done():
                raise Disconnected
            return cast(T, call.future.result())
        finally:
            call.cancelled = True
            watcher.cancel()

    def _start(self) -> None:
        """Run what there are threads for, of each tenant in turn."""
        running = Counter(self.running.values())
        for tenant in list(self.waiting):
            if len(self.running) >= THREADS:
                return
            if running[tenant] < EACH:
                calls = self.waiting.pop(tenant)
                call = calls.popleft()
                if calls:
                    self.waiting[tenant] = calls  # after the others
                self.running[call] = tenant
                loop = asyncio.get_running_loop()
                loop.run_in_executor(self.pool, call.run).add_done_callback(partial(self._done, call))

    def _done(self, call: Call, found: asyncio.Future[object]) -> None:
        self.counts[self.running.pop(call)] -= 1
        error = None if found.cancelled() else found.exception()
        if not call.future.done() and not found.cancelled():
            if error is None:
                call.future.set_result(found.result())
            else:
                call.future.set_exception(error)
                call.future.exception()  # perhaps nothing awaits it any more
        self._start()

    def abandon(self) -> None:
        """Refuse what waits and what runs. A thread ends with its next token, or before its next batch; a hidden
        Markov model computes in one call, to its end."""
        for call in [*self.running, *(call for calls in self.waiting.values() for call in calls)]:
            call.cancelled = True
            if not call.future.done():
                call.future.set_exception(drain_error())
                call.future.exception()
        self.waiting, self.draining = {}, True
        self.pool.shutdown(wait=False)
