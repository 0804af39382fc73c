"""Runs the ticks of an engine next to an event loop, one at a time.

A short tick runs on the event loop: waking another thread, and being woken by it, takes longer than most ticks.
If the models take long, or a tick waits for the disk, that part runs in a thread of its own; meanwhile the loop
continues to read requests and to send replies.

If a tick itself fails, other than a job in it, its effects are not known: the engine ends, all requests are refused,
and `ended` is called, so that the process stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from elman.progress import say
from elman.serve.engine.engine import SWEEP, Engine
from elman.serve.engine.job import Listener, Result

LONG = 0.005  # seconds that others may have to wait for a tick
ROUNDS = 3  # of the loop, in which a reply leaves, a request comes in, is parsed and is submitted


class Driver:
    """All of it is called on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.woken, self.over = engine, False, False
        self.doing = ""  # "compute" or "commit", if the thread does that; "begin" if a tick is about to be run here
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.ended: Callable[[], None] = lambda: None  # called when the engine cannot continue
        engine.wake = self.wake

    def start(self) -> None:
        """Begin, on the loop that runs."""
        self.loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        """A tick now and then, though nobody asks: something may have expired."""
        self.timer = self.loop.call_later(SWEEP, self._look)
        self.wake()

    def wake(self) -> None:
        """Something has come. It is taken once all has come that is on its way, be the models at work or not."""
        if not self.woken:
            self.woken = True
            self.loop.call_soon(self._do, self._woken)

    def _do(self, part: Callable[[], None]) -> None:
        """A part of a tick."""
        if self.over:  # the store may be closed
            return
        try:
            part()
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")

    def _woken(self) -> None:
        self.woken = False
        if self.doing not in ("commit", "begin"):  # what comes before the next tick begins is then taken in turn
            self.engine.take()
        if not self.doing:
            self.engine.begin()
            if not self._in_thread():
                self._run()

    def _in_thread(self) -> bool:
        """Have the thread compute, if that takes long."""
        if self.engine.expected < LONG:
            return False
        self._away("compute", self.engine.compute, self._computed)
        return True

    def _run(self) -> None:
        self.doing = ""
        self.engine.compute()
        self._computed()

    def _computed(self) -> None:
        self.engine.settle()
        if self.engine.waits:
            self._away("commit", self.engine.commit, self._committed)
        else:
            self.engine.commit()
            self._committed()

    def _committed(self) -> None:
        messages = self.engine.outgoing()
        if self.engine.failed:
            self._deliver(messages)
            return self._end(self.engine.failed)
        if self.engine.crowd.several:
            return self._make_way(messages)
        if not self.engine.idle:
            self.engine.take()
            self.engine.begin()
            if not self._in_thread():  # else it computes while the replies leave
                self.doing = "begin"
                self.loop.call_soon(self._do, self._run)
        self._deliver(messages)

    def _make_way(self, messages: Iterable[tuple[Listener, Result]]) -> None:
        """Before the next tick, let replies leave and requests come in: or each would wait for some ticks of others."""
        self._deliver(messages)
        if not self.engine.idle:
            self.doing = "begin"
            self.loop.call_soon(self._round, ROUNDS)

    def _round(self, left: int) -> None:
        if left:
            self.loop.call_soon(self._round, left - 1)
        else:
            self._do(self._next)

    def _next(self) -> None:
        self.engine.take()
        self.engine.begin()
        if not self._in_thread():
            self._run()

    def _deliver(self, messages: Iterable[tuple[Listener, Result]]) -> None:
        for listener, value in messages:
            try:
                listener(value)
            except Exception as error:  # what becomes of a reply is no matter of the engine's
                say(f"elman serve: a reply could not be delivered: {type(error).__name__}: {error}")

    def _away(self, doing: str, call: Callable[[], None], then: Callable[[], None]) -> None:
        """Call the one in the thread, and then the other here."""

        def done(future: asyncio.Future[None]) -> None:
            def rest() -> None:
                future.result()
                then()

            self.doing = ""
            self._do(rest)

        self.doing = doing
        self.loop.run_in_executor(self.thread, call).add_done_callback(done)

    def _end(self, why: str) -> None:
        self.over, self.doing = True, ""
        say(f"elman serve: the engine cannot continue, and the server stops: {why}")
        self._deliver(self.engine.end(why))
        self.ended()

    async def stop(self, seconds: float) -> bool:
        """Finish what is there, or refuse what is left after some seconds; commit, and end. Whether that came about, so
        that the store can be closed."""
        self.engine.draining = True
        self.timer.cancel()
        for wait in (seconds, 2.0):
            deadline = time.monotonic() + wait
            while (self.doing or self.engine.waiting) and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            self.engine.abandon()
        self.over = True  # whatever wakes it now, there is no tick any more
        self.thread.shutdown(wait=not self.doing)
        return not self.doing and not self.engine.failed
