"""The engine owns the models and the store. It works in ticks; what comes while one runs is in the next.

A tick: `take` every job that has come; `begin`: choose what goes on; `compute`: let the models go on with all of it, a
piece each, those of one model side by side; `settle`: write what is finished; `commit`, once; only then the replies go
out. So no reply leaves before what it says is in the store, and a commit that fails takes all replies of its tick with
it. `compute` and `commit` may take long, and may run in another thread than the rest: driver.py has one done at a time.

One write of a session at a time: the others wait in its line, in the order in which they came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.errors import ElmanError
from elman.progress import say
from elman.serve.errors import Refused, busy
from elman.serve.sessions import Sessions
from elman.serve.store import StoreFailed, StoreFull
from elman.tasks.serving import Outputs, Served, Work

SWEEP = 5.0  # seconds between two looks for what has expired
BATCH = 1_024  # works in a tick, at most
PACE = 2e-5  # seconds that a model takes for a work in a tick, until it is known
Stepped = Callable[[list[bytes], Outputs, list[bool]], None]


class Job:
    """What a request asks of the engine. `reply` is called once, with a result or a `Refused`, on the event loop."""

    tenant: str = ""
    line: str = ""  # the session that it is to write
    held: Sequence[str] = ()  # the sessions that it writes now, and nobody else
    cancelled = False  # whoever asked is gone
    finished = False

    def __init__(self, reply: Callable[[Any], None]) -> None:
        self.reply = reply

    def start(self, engine: Engine) -> None:
        """Do it, or have the engine `go` on with works; at its end `engine.finish(self, result)`."""
        raise NotImplementedError


class _Running:
    """A work of a job."""

    __slots__ = ("job", "served", "then", "work")
    size = 1

    def __init__(self, job: Job, served: Served, work: Work, then: Callable[[Work], None]) -> None:
        self.job, self.served, self.work, self.then = job, served, work, then


class _Rows:
    """One input for each of some states."""

    __slots__ = ("job", "served", "size", "states", "then", "x")

    def __init__(self, job: Job, served: Served, x: NDArray[Any], states: list[bytes], then: Stepped) -> None:
        self.job, self.served, self.x, self.states, self.then = job, served, x, states, then
        self.size = len(states)


class _Group:
    """What one model does in a tick."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.rows: list[_Rows] = []
        self.works: list[_Running] = []
        self.found: tuple[list[bytes], Outputs, list[bool]] = [], [], []
        self.error: Exception | None = None
        self.steps = 0

    @property
    def size(self) -> int:
        return sum(rows.size for rows in self.rows) + len(self.works)

    def compute(self) -> None:
        """A bug of a model must not end the ticks of all: what it was to do is refused, the rest goes on."""
        before = sum(running.work.taken for running in self.works)
        try:
            if self.rows:
                x, states = self._joined()
                self.found = self.served.together(x, states)
            if self.works:
                self.served.advance([running.work for running in self.works])
        except Exception as error:
            self.error = error
        self.steps = sum(running.work.taken for running in self.works) - before + len(self.found[0])

    def _joined(self) -> tuple[NDArray[Any], list[bytes]]:
        if len(self.rows) == 1:
            return self.rows[0].x, self.rows[0].states
        return np.concatenate([rows.x for rows in self.rows]), [state for rows in self.rows for state in rows.states]


class Engine:
    """Runs jobs."""

    def __init__(self, sessions: Sessions, faults: Callable[[str], None] = lambda place: None) -> None:
        self.sessions, self.fault = sessions, faults
        self.wake: Callable[[], None] = lambda: None  # called when there is something to do
        self.coming: list[Job] = []
        self.active: dict[str, deque[_Running | _Rows]] = {}  # by tenant
        self.groups: list[_Group] = []  # of these, what goes on in this tick
        self.lines: dict[str, list[Job]] = {}
        self.ready: list[Job] = []  # whose turn has come, at the next tick
        self.replies: list[tuple[Job, Any]] = []
        self.news: list[tuple[Callable[[Any], None], Any]] = []
        self.submitted, self.answered = 0, 0
        self.ticks, self.steps, self.commits, self.failures = 0, 0, 0, 0
        self.paces: dict[int, float] = {}
        self.swept = self.sessions.clock()
        self.draining = False
        self.abandoned = False  # what is still under way is refused
        self.spoilt = False  # a job of this tick may have written half of what it was to write

    def submit(self, job: Job) -> None:
        """Take a job, or refuse it."""
        if self.draining:
            raise _stopping()
        if self.waiting >= self.sessions.limits.queue:
            raise busy(f"{self.waiting} requests are waiting, which is the limit")
        self.submitted += 1
        self.coming.append(job)
        self.wake()

    @property
    def waiting(self) -> int:
        """Jobs that have not been answered."""
        return self.submitted - self.answered

    def abandon(self) -> None:
        """Refuse what is still under way."""
        self.abandoned = True
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether a tick would do nothing."""
        return not (self.coming or self.ready or self.active or self.replies)

    def tick(self) -> None:
        """All of a tick, one after the other."""
        self.take()
        self.begin()
        self.compute()
        self.settle()
        self.commit()
        for hear, value in self.outgoing():
            hear(value)

    # Taking

    def take(self) -> None:
        """Start every job that has come, or whose turn it is. Not while a commit is under way."""
        ready, self.ready = self.ready, []
        came, self.coming = self.coming, []
        for job in ready:
            self._start(job)
        for job in came:
            self._enter(job)
        self.fault("taken")

    def _enter(self, job: Job) -> None:
        """Start a job, or put it into the line of its session."""
        if not job.line:
            return self._start(job)
        line = self.lines.get(job.line)
        if line is None:
            self.hold(job, (job.line,))
            return self._start(job)
        if len(line) > self.sessions.limits.line:
            return self.replies.append((job, busy(f"{len(line)} requests wait for this session", 50, 409)))
        line.append(job)

    def enter_more(self, jobs: Sequence[Job]) -> None:
        """Jobs that a job has made of itself. Each is answered, though none was submitted."""
        self.submitted += len(jobs)
        for job in jobs:
            self._enter(job)

    def hold(self, job: Job, ids: Sequence[str]) -> None:
        """A job writes these sessions, which nobody does: whoever comes waits in line until it has finished."""
        job.held = ids
        for id in ids:
            self.lines[id] = [job]

    def _release(self, job: Job) -> None:
        """The next in each line begins with the next tick."""
        held, job.held = job.held, ()
        for id in held:
            line = self.lines.pop(id)
            if len(line) > 1:
                self.lines[id] = line[1:]
                line[1].held = (id,)
                self.ready.append(line[1])

    def _start(self, job: Job) -> None:
        if not self._dropped(job):
            self._guarded(job, job.start, self)

    def _dropped(self, job: Job) -> bool:
        """Whether a job is not to go on; then it is refused."""
        if job.cancelled:
            self.finish(job, Refused(409, "cancelled"))
        elif self.abandoned:
            self.finish(job, _stopping())
        return job.finished

    def _guarded(self, job: Job, call: Callable[..., None], *given: Any) -> None:
        """What a job does. Whatever it raises is its own answer: a bug in one must not end the ticks of all. But what a
        bug left behind must not be committed, so then nothing of the tick is."""
        try:
            call(*given)
        except Exception as error:
            self.spoilt = self.spoilt or not isinstance(error, Refused | ElmanError)
            for id in job.held:
                self.sessions.cache.pop(id, None)  # half changed, perhaps: the store has it whole
            self.finish(job, _refusal(error))

    def go(self, job: Job, served: Served, work: Work, then: Callable[[Work], None]) -> None:
        """Have a work, which has begun, go on until it is done; `then` takes it."""
        if work.done:
            return then(work)
        self._wait(_Running(job, served, work, then))

    def step(self, job: Job, served: Served, x: NDArray[Any], states: list[bytes], then: Stepped) -> None:
        """Have one input read after each of some states; `then` takes what `Served.together` gives."""
        self._wait(_Rows(job, served, x, states, then))

    def _wait(self, one: _Running | _Rows) -> None:
        self.active.setdefault(one.job.tenant, deque()).append(one)

    def finish(self, job: Job, result: Any) -> None:
        """The job is done; the next in its line begins with the next tick. What is left of its works is dropped."""
        if job.finished:
            return
        job.finished = True
        self.replies.append((job, result))
        self._release(job)

    def tell(self, hear: Callable[[Any], None], news: Any) -> None:
        """Something provisional, on its way before the end."""
        self.news.append((hear, news))

    def _chosen(self) -> list[_Running | _Rows]:
        """What goes on in this tick: all, or as much as a tick has room for, of each tenant in turn."""
        chosen: list[_Running | _Rows] = []
        room = BATCH
        while self.active and room > 0:
            for tenant in list(self.active):
                waiting = self.active[tenant]
                while waiting:
                    one = waiting.popleft()
                    if not self._dropped(one.job):
                        chosen.append(one)
                        room -= one.size
                        if len(self.active) > 1 or room <= 0:
                            break
                if not waiting:
                    del self.active[tenant]
        return chosen

    # What the models do

    def begin(self) -> None:
        """Choose what goes on in this tick."""
        groups: dict[int, _Group] = {}
        for one in self._chosen():
            group = groups.setdefault(id(one.served), _Group(one.served))
            (group.rows if isinstance(one, _Rows) else group.works).append(one)  # type: ignore[arg-type]
        self.groups = list(groups.values())

    @property
    def expected(self) -> float:
        """Seconds that the models will take for it, as far as is known."""
        return sum(group.size * self.paces.get(id(group.served), PACE) for group in self.groups)

    def compute(self) -> None:
        """Let it go on. Nothing but the models and the works is touched."""
        for group in self.groups:
            began = time.thread_time()
            group.compute()
            self.paces[id(group.served)] = (time.thread_time() - began) / group.size

    # What comes of it

    def settle(self) -> None:
        """Write what is finished, and look for what has expired."""
        groups, self.groups = self.groups, []
        for group in groups:
            self._settle(group)
        now = self.sessions.clock()
        if now - self.swept >= SWEEP and not self.sessions.sweep(self.lines):  # if there is more, the next tick goes on
            self.swept = now

    def _settle(self, group: _Group) -> None:
        if group.error is not None:
            say(f"elman serve: a tick failed: {type(group.error).__name__}: {group.error}")
            for job in (*(rows.job for rows in group.rows), *(running.job for running in group.works)):
                self.finish(job, _refusal(group.error))
            return
        self.steps += group.steps
        at = 0
        for rows in group.rows:
            mine = slice(at, at + rows.size)
            self._guarded(rows.job, rows.then, *(part[mine] for part in group.found))
            at += rows.size
        for running in group.works:
            self._went_on(running)

    def _went_on(self, running: _Running) -> None:
        work, job = running.work, running.job
        if work.failed:
            return self.finish(job, Refused(422, work.failed, code="state_not_finite"))
        if not work.done:
            self._wait(running)
            if isinstance(job, Hearing):
                job.heard(self, work)
            return
        self._guarded(job, running.then, work)

    @property
    def waits(self) -> bool:
        """Whether the commit will wait for the disk."""
        return self.sessions.store.waits(self.sessions.sync)

    def commit(self) -> None:
        """Have it all in the store, or nothing of it."""
        self.fault("before commit")
        try:
            if self.spoilt:
                raise StoreFailed("another request failed beside it")
            self.sessions.store.commit(self.sessions.sync)
            self.commits += 1
        except Exception as error:  # whatever it is, a reply must not say that it is in the store
            self.failures += 1
            self.sessions.store.undo()
            self.sessions.forget()
            full = isinstance(error, StoreFull)
            why = "the store is full" if full else f"the store could not be written ({error})"
            refused = Refused(507 if full else 503, f"{why}; nothing was changed", code="store_full" if full else None)
            self.replies = [(job, _worse(result, refused)) for job, result in self.replies]
        self.spoilt = False
        self.sessions.committed()

    def outgoing(self) -> list[tuple[Callable[[Any], None], Any]]:
        """What is to be told to whom, now that it is in the store."""
        self.fault("before reply")
        told = [*self.news, *((job.reply, result) for job, result in self.replies)]
        self.answered += len(self.replies)
        self.ticks += 1
        self.news, self.replies = [], []
        return told


class Hearing(Job):
    """A job whose caller hears of it while it goes on."""

    def heard(self, engine: Engine, work: Work) -> None:
        """Called after each tick in which a work of the job has gone on."""


def _stopping() -> Refused:
    return busy("the server is about to stop; send it to another, or later", 1_000, 503)


def _worse(result: Any, refused: Refused) -> Refused:
    """What a request hears of a tick that came to nothing: of a bug, if that was its own."""
    return result if isinstance(result, Refused) and result.status == 500 else refused


def _refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, ElmanError):
        return Refused(422, str(error))
    say(f"elman serve: {type(error).__name__}: {error}")
    return Refused(500, "this is a bug of the server; nothing was changed")


class Direct:
    """An engine without an event loop: `ask` runs ticks until the job is answered. For tests and for offline use."""

    def __init__(self, sessions: Sessions) -> None:
        self.engine = Engine(sessions)

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
