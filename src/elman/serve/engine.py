"""One thread that owns the models and the store. It works in ticks; what waits while one runs is in the next.

A tick: take every job that has come; let all works go on a piece, those of one model side by side; write what is
finished; commit once; let the replies go. So a reply never leaves before what it says is in the store, and a commit
that fails takes all replies of its tick with it.

One write of a session at a time: the others wait in its line, in the order in which they came.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from elman.errors import ElmanError
from elman.progress import say
from elman.serve.errors import Refused, busy
from elman.serve.sessions import Sessions
from elman.serve.store import StoreFailed, StoreFull
from elman.tasks.serving import Served, Work

SWEEP = 5.0  # seconds between two looks for what has expired
BATCH = 1_024  # works in a tick, at most
Post = Callable[[list[tuple[Callable[[Any], None], Any]]], None]


class Job:
    """What a request asks of the engine. `reply` is called once, with a result or a `Refused`, on the caller's side."""

    tenant: str = ""
    line: str = ""  # the session that it writes
    cancelled = False  # whoever asked is gone
    finished = False

    def __init__(self, reply: Callable[[Any], None]) -> None:
        self.reply = reply

    def start(self, engine: Engine) -> None:
        """Do it, or have the engine `go` on with works; at its end `engine.finish(self, result)`."""
        raise NotImplementedError


class _Running:
    __slots__ = ("job", "served", "then", "work")

    def __init__(self, job: Job, served: Served, work: Work, then: Callable[[Work], None]) -> None:
        self.job, self.served, self.work, self.then = job, served, work, then


class Engine:
    """Runs jobs. `post` takes calls to the side where the requests are."""

    def __init__(self, sessions: Sessions, post: Post, faults: Callable[[str], None] = lambda place: None) -> None:
        self.sessions, self.post, self.fault = sessions, post, faults
        self.coming: queue.SimpleQueue[Sequence[Job]] = queue.SimpleQueue()
        self.active: dict[str, deque[_Running]] = {}  # by tenant
        self.lines: dict[str, list[Job]] = {}
        self.ready: deque[Job] = deque()  # whose turn has come, at the next tick
        self.replies: list[tuple[Job, Any]] = []
        self.news: list[tuple[Callable[[Any], None], Any]] = []
        # Each is counted by one thread, so that none is lost.
        self.submitted, self.answered = 0, 0
        self.ticks, self.steps, self.commits, self.failures = 0, 0, 0, 0
        self.swept = self.sessions.clock()
        self.draining = False
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # From any thread

    def submit(self, *jobs: Job) -> None:
        """Take jobs, or refuse them all. From one thread, that of the event loop."""
        # Counted before it is asked whether the engine drains: it does not end while a job is counted.
        self.submitted += len(jobs)
        if self.draining or self.waiting > self.sessions.limits.queue:
            self.submitted -= len(jobs)
            if self.draining:
                raise busy("the server is about to stop; send it to another, or later", 1_000, 503)
            raise busy(f"{self.waiting} requests are waiting, which is the limit")
        self.coming.put(jobs)

    @property
    def waiting(self) -> int:
        """Jobs that have not been answered."""
        return self.submitted - self.answered

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> bool:
        """Finish what is there, commit, and end; whether that came about in time."""
        self.draining = True
        self.coming.put(())
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def _run(self) -> None:
        while not (self.draining and not self.waiting):
            self.tick(wait=True)

    # In the engine's thread

    def tick(self, wait: bool = False) -> None:
        """Take, step, commit, reply."""
        self._take(wait and not self.active and not self.ready)
        self.fault("taken")
        self._advance()
        self._sweep()
        self.fault("before commit")
        self._commit()
        self.fault("before reply")
        self._send()
        self.ticks += 1

    def _take(self, wait: bool) -> None:
        starting, self.ready = self.ready, deque()
        for job in starting:
            self._start(job)
        try:
            came = self.coming.get(timeout=SWEEP) if wait else self.coming.get_nowait()
            while True:
                for job in came:
                    self._enter(job)
                came = self.coming.get_nowait()
        except queue.Empty:
            pass

    def _enter(self, job: Job) -> None:
        """Start a job, or put it into the line of its session."""
        if not job.line:
            return self._start(job)
        line = self.lines.get(job.line)
        if line is None:
            self.lines[job.line] = [job]
            return self._start(job)
        if len(line) > self.sessions.limits.line:
            return self.finish_outside(job, busy(f"{len(line)} requests wait for this session", 50, 409))
        line.append(job)

    def enter_more(self, jobs: Sequence[Job]) -> None:
        """Jobs that a job has made of itself. Each is answered, though none was submitted."""
        self.answered -= len(jobs)
        for job in jobs:
            self._enter(job)

    def _start(self, job: Job) -> None:
        if job.cancelled:
            return self.finish(job, Refused(409, "cancelled"))
        self._guarded(job, job.start, self)

    def _guarded(self, job: Job, call: Callable[[Any], None], given: Any) -> None:
        """What a job does. Whatever it raises is its own answer: a bug in one must not end the thread of all."""
        try:
            call(given)
        except Exception as error:
            self.sessions.cache.pop(job.line, None)  # half changed, perhaps: the store has it whole
            self.finish(job, _refusal(error))

    def go(self, job: Job, served: Served, work: Work, then: Callable[[Work], None]) -> None:
        """Have a work, which has begun, go on until it is done; `then` takes it."""
        if work.done:
            return then(work)
        self.active.setdefault(job.tenant, deque()).append(_Running(job, served, work, then))

    def finish(self, job: Job, result: Any) -> None:
        """The job is done; the next in its line begins with the next tick. What is left of its works is dropped."""
        if job.finished:
            return
        job.finished = True
        self.replies.append((job, result))
        line = self.lines.get(job.line) if job.line else None
        if line and line[0] is job:
            del line[0]
            if line:
                self.ready.append(line[0])
            else:
                del self.lines[job.line]

    def finish_outside(self, job: Job, result: Any) -> None:
        """The same for a job that is in no line."""
        self.replies.append((job, result))

    def tell(self, hear: Callable[[Any], None], news: Any) -> None:
        """Something provisional, on its way before the end."""
        self.news.append((hear, news))

    def _advance(self) -> None:
        chosen = self._chosen()
        groups: dict[int, list[_Running]] = {}
        for running in chosen:
            groups.setdefault(id(running.served), []).append(running)
        for group in groups.values():
            before = sum(running.work.taken for running in group)
            try:
                group[0].served.advance([running.work for running in group])
            except (
                Exception
            ) as error:  # as in _guarded, of a model: the works of the tick are refused, the rest goes on
                say(f"elman serve: a tick failed: {type(error).__name__}: {error}")
                for running in group:
                    self.finish(running.job, _refusal(error))
                continue
            self.steps += sum(running.work.taken for running in group) - before
            for running in group:
                self._went_on(running)

    def _went_on(self, running: _Running) -> None:
        work, job = running.work, running.job
        if work.failed:
            return self.finish(job, Refused(422, work.failed, code="state_not_finite"))
        if not work.done:
            self.active.setdefault(job.tenant, deque()).append(running)
            if isinstance(job, Hearing):
                job.heard(self, work)
            return
        self._guarded(job, running.then, work)

    def _chosen(self) -> list[_Running]:
        """What goes on in this tick: all, or as many as a tick has room for, of each tenant in turn."""
        chosen: list[_Running] = []
        if len(self.active) == 1 and len(everyone := next(iter(self.active.values()))) <= BATCH:
            self.active.clear()
            for running in everyone:
                self._choose(running, chosen)
            return chosen
        while self.active and len(chosen) < BATCH:
            for tenant in list(self.active):
                waiting = self.active[tenant]
                running = waiting.popleft()
                if not waiting:
                    del self.active[tenant]
                self._choose(running, chosen)
        return chosen

    def _choose(self, running: _Running, chosen: list[_Running]) -> None:
        if running.job.cancelled:
            self.finish(running.job, Refused(409, "cancelled"))
        elif not running.job.finished:
            chosen.append(running)

    def _sweep(self) -> None:
        now = self.sessions.clock()
        if now - self.swept >= SWEEP:
            self.swept = now
            self.sessions.sweep(self.lines)

    def _commit(self) -> None:
        try:
            self.sessions.store.commit(self.sessions.sync)
            self.commits += 1
        except StoreFailed as error:
            self.failures += 1
            self.sessions.store.undo()
            self.sessions.forget()
            full = isinstance(error, StoreFull)
            why = "the store is full" if full else f"the store could not be written ({error})"
            refused = Refused(507 if full else 503, f"{why}; nothing was changed", code="store_full" if full else None)
            self.replies = [(job, refused) for job, _ in self.replies]
        self.sessions.committed()

    def _send(self) -> None:
        if self.replies or self.news:
            self.answered += len(self.replies)
            calls = [*self.news, *((job.reply, result) for job, result in self.replies)]
            self.replies, self.news = [], []
            self.post(calls)


class Hearing(Job):
    """A job whose caller hears of it while it goes on."""

    def heard(self, engine: Engine, work: Work) -> None:
        """Called after each tick in which a work of the job has gone on."""


def _refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, ElmanError):
        return Refused(422, str(error))
    say(f"elman serve: {type(error).__name__}: {error}")
    return Refused(500, "this is a bug of the server; nothing was changed")


class Direct:
    """An engine without a thread: `ask` runs ticks until the job is answered. For tests and for offline use."""

    def __init__(self, sessions: Sessions) -> None:
        self.engine = Engine(sessions, _at_once)

    def ask(self, make: Callable[[Callable[[Any], None]], Job]) -> Any:
        """The result of a job; a `Refused` is raised."""
        found: list[Any] = []
        self.engine.submit(make(found.append))
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:
            self.engine.tick()
        if isinstance(found[0], Refused):
            raise found[0]
        return found[0]


def _at_once(calls: list[tuple[Callable[[Any], None], Any]]) -> None:
    for hear, value in calls:
        hear(value)
