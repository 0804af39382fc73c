"""The engine owns the models and the store. It works in ticks; jobs that arrive during one are part of the next.

A tick: `take`: start the jobs whose turn it is, of each tenant in turn, as many as a tick has room for; `begin`: group
their work by model; `compute`: let the models compute a piece of each work, those of one model side by side; `settle`:
write what is finished; `commit`, once; only then the replies are sent. So no reply is sent before its content is in the
store, and if a commit fails, so do all jobs of its tick. `compute` and `commit` may take long, and may run in another
thread than the rest: driver.py runs one at a time.

There is one write of a session at a time: the others wait in its queue, in the order of arrival. A failing job affects
only itself: what it wrote is undone, and the rest of the tick continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from elman.progress import say
from elman.serve.engine.crowd import LEAST, Crowd
from elman.serve.engine.groups import Group, Inputs, Rows, Running, TakesRows
from elman.serve.engine.job import Job, Listener, Listening, Result, drain_error, failure_error, refusal
from elman.serve.engine.turns import Turns
from elman.serve.errors import HttpError, busy
from elman.serve.store.sessions import Sessions
from elman.serve.store.store import StoreFailed, StoreUnknown
from elman.tasks.serving import Served, ServedRows, Work

SWEEP = 5.0  # seconds between two looks for what has expired
PACE = 2e-5  # seconds that a model takes for a work in a tick, until it is known
AROUND = 2e-5  # seconds that a job takes around that


class Engine:
    """Runs jobs."""

    def __init__(self, sessions: Sessions, faults: Callable[[str], None] = lambda place: None) -> None:
        self.sessions, self.fault = sessions, faults
        self.wake: Callable[[], None] = lambda: None  # called when there is something to do
        self.turns: Turns[Job | Running] = Turns()
        self.chosen: list[Running | Rows] = []  # what runs in the next tick
        self.groups: list[Group] = []  # what runs in this one
        self.queues: dict[str, list[Job]] = {}
        self.ready: list[Job] = []  # at the next tick: whose turn in a queue has come, or who starts once more
        self.replies: list[tuple[Job, Result]] = []
        self.events: list[tuple[Listener, object]] = []
        self.crowd = Crowd(sessions.limits.queue)
        self.room = self.crowd.room  # works that the next tick still has room for
        self.taken = ""  # whose jobs it has
        self.began, self.size = 0.0, 0  # of this tick: when its models began, and how many works it has
        self.submitted, self.answered = 0, 0
        self.ticks, self.steps, self.commits, self.failures = 0, 0, 0, 0
        self.paces: dict[int, float] = {}
        self.swept, self.sweeping = self.sessions.clock(), False
        self.draining = False
        self.abandoned = False  # what is still under way is refused
        self.failed = ""  # why it has come to its end, if it has

    # Coming

    def submit(self, job: Job) -> None:
        """Take a job, or refuse it."""
        if self.failed:
            raise failure_error(self.failed)
        if self.draining:
            raise drain_error()
        if not job.probe:
            self.crowd.admit(job.tenant)
        self.submitted += 1
        self.turns.add(job.tenant, job)
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
        return not (self.turns or self.ready or self.chosen or self.replies or self.sweeping)

    def tick(self) -> None:
        """All of a tick, one after the other."""
        self.take()
        self.begin()
        self.compute()
        self.settle()
        self.commit()
        for listener, value in self.outgoing():
            listener(value)

    # Taking

    def take(self) -> None:
        """Start jobs and choose works, of each tenant in turn, until the next tick is full. Not while a commit is under
        way."""
        turns = self.turns
        while self.room > 0 and turns:
            one = turns.next()
            tenant = one.tenant
            if self.taken not in ("", tenant) and one.size > LEAST:  # whoever asks for one step need not wait for many
                return turns.add_first(tenant, one)
            self.taken = tenant
            if isinstance(one, Running):
                self._choose(one)
            else:
                self._enter(one)
        self.fault("taken")

    def _enter(self, job: Job) -> None:
        """Start a job, or put it into the queue of its session."""
        if not job.queue or job.locked:  # or its turn in the queue has come
            return self._start(job)
        queue = self.queues.get(job.queue)
        if queue is None:
            self.lock(job, (job.queue,))
            return self._start(job)
        if queue[0].tenant != job.tenant:  # it must not wait in another tenant's queue, nor learn that there is one
            return self._start(job)
        if len(queue) > self.sessions.limits.session_queue:
            return self.replies.append((job, busy(f"{len(queue)} requests are waiting for this session", 50, 409)))
        queue.append(job)

    def enter_more(self, jobs: Sequence[Job]) -> None:
        """Jobs that a job has made of itself. Each is answered, though none was submitted."""
        self.submitted += len(jobs)
        for job in jobs:
            self.crowd.add(job.tenant, 1)
            self._enter(job)

    def lock(self, job: Job, ids: Sequence[str]) -> None:
        """Only this job writes these sessions: later ones wait until that is committed."""
        job.locked = ids
        for id in ids:
            self.queues[id] = [job]

    def _release(self, job: Job) -> None:
        """The next in each queue begins with the next tick."""
        locked, job.locked = job.locked, ()
        for id in locked:
            queue = self.queues.pop(id)
            if len(queue) > 1:
                self.queues[id] = queue[1:]
                queue[1].locked = (id,)
                self.ready.append(queue[1])

    def _start(self, job: Job) -> None:
        room, began = self.room, time.perf_counter()
        if not self._dropped(job):
            self._guarded(job, job.start, self)
        self.turns.charge(job.tenant, time.perf_counter() - began)
        if self.room == room:  # nothing was chosen, but it took its time
            self.room -= 1

    def _dropped(self, job: Job) -> bool:
        """Whether a job must not continue; then it is refused."""
        if job.cancelled:
            self.finish(job, HttpError(409, "cancelled"))
        elif self.abandoned:
            self.finish(job, drain_error())
        return job.finished

    def _guarded(self, job: Job, call: Callable[..., None], *given: object) -> None:
        """Run a part of a job. If it raises, that is its answer, and what it has written is undone."""
        mark = self.sessions.mark()
        try:
            call(*given)
        except Exception as error:
            self.sessions.back(mark, job.locked)
            self._refuse(job, refusal(error))

    def _refuse(self, job: Job, refused: HttpError) -> None:
        """Refuse a job, whatever it has said of itself in this tick."""
        if job.finished:
            self.replies = [(one, refused if one is job else result) for one, result in self.replies]
        self.finish(job, refused)

    def run(self, job: Job, served: Served, work: Work, then: Callable[[Work], None]) -> None:
        """Run a work, which has begun, until it is done; `then` takes it."""
        if work.done:
            return then(work)
        running = Running(job, served, work, then)
        if self.room > 0:
            self._choose(running)
        else:
            self.turns.add(job.tenant, running)

    def again(self, job: Job) -> None:
        """A job has done a part of its start, and starts once more in the next tick."""
        self.ready.append(job)

    def step(self, job: Job, served: ServedRows, x: Inputs, states: list[bytes], then: TakesRows) -> None:
        """Have one input read after each of some states; `then` takes what `ServedRows.together` gives."""
        self._choose(Rows(job, served, x, states, then))

    def _choose(self, one: Running | Rows) -> None:
        self.chosen.append(one)
        self.room -= one.size
        self.turns.charge(one.job.tenant, one.size * (AROUND + self.paces.get(id(one.served), PACE)))

    def finish(self, job: Job, result: Result) -> None:
        """The job is done. Its sessions stay locked until the commit: nobody may start from what may be undone. What is
        left of its works is dropped."""
        if job.finished:
            return
        job.finished = True
        self.replies.append((job, result))

    def emit(self, listener: Listener, event: object) -> None:
        """Something provisional, on its way before the end."""
        self.events.append((listener, event))

    # What the models do

    def begin(self) -> None:
        """Put what was chosen together by model; then there is room for the tick after this one."""
        groups: dict[int, Group] = {}
        for one in self.chosen:
            if self._dropped(one.job):
                continue
            group = groups.get(id(one.served))
            if group is None:
                group = groups[id(one.served)] = Group(one.served)
            (group.rows if isinstance(one, Rows) else group.works).append(one)  # type: ignore[arg-type]
        self.groups, self.chosen = list(groups.values()), []
        self.crowd.update()
        self.room, self.taken = self.crowd.room, ""

    @property
    def expected(self) -> float:
        """Seconds that the models will take for it, as far as is known."""
        return sum(group.size * self.paces.get(id(group.served), PACE) for group in self.groups)

    def compute(self) -> None:
        """Run the models. Nothing but the models and the works is touched."""
        self.began = time.monotonic()
        for group in self.groups:
            began = time.thread_time()
            group.compute()
            pace = (time.thread_time() - began) / group.size
            # A work alone takes longer than one of many: what many took counts for some ticks to come.
            self.paces[id(group.served)] = min(pace, 1.05 * self.paces.get(id(group.served), pace))

    # What comes of it

    def settle(self) -> None:
        """Write what is finished, and look for what has expired."""
        groups, self.groups = self.groups, []
        self.size = 0
        for group in groups:
            self.size += group.size
            self._settle(group)
        if self.draining:
            self.sweeping = False
        elif self.sessions.clock() - self.swept >= SWEEP:
            self._sweep()
        self.sessions.seal()

    def _sweep(self) -> None:
        """Delete what has expired, some of it in a tick. If that fails, everything else continues."""
        mark = self.sessions.mark()
        try:
            self.sweeping = self.sessions.sweep(self.queues)
        except Exception as error:
            say(f"elman serve: warning: expired sessions were not deleted: {type(error).__name__}: {error}")
            self.sessions.back(mark)
            self.sweeping = False
        if not self.sweeping:
            self.swept = self.sessions.clock()

    def _settle(self, group: Group) -> None:
        self.steps += group.steps
        for rows in group.rows:
            if rows.result is None:
                assert rows.error is not None
                self._refuse(rows.job, refusal(rows.error))
            else:
                self._guarded(rows.job, rows.then, *rows.result)
        for running in group.works:
            if running.work.error is None:
                self._continue_work(running)
            else:
                self._refuse(running.job, refusal(running.work.error))

    def _continue_work(self, running: Running) -> None:
        work, job = running.work, running.job
        if work.failed:
            return self.finish(job, HttpError(422, work.failed, code="state_not_finite"))
        if not work.done:
            self.turns.add(job.tenant, running)
            if isinstance(job, Listening):
                self._guarded(job, job.emit_events, self, work)
            return
        self._guarded(job, running.then, work)

    @property
    def waits(self) -> bool:
        """Whether the commit will wait for the disk."""
        return self.sessions.store.waits(self.sessions.sync)

    def commit(self) -> None:
        """Have it all in the store, or nothing of it. If it is not known which, or if what was not stored cannot be
        forgotten, the engine has come to its end."""
        self.fault("before commit")
        synced = self.sessions.sync
        try:
            self.sessions.store.commit(synced)
            self.sessions.committed()
            self.commits += 1
        except Exception as error:  # whatever it is, a reply must not say that it is in the store: that comes first
            refused = error if isinstance(error, StoreFailed) else StoreUnknown(f"{type(error).__name__}: {error}")
            self.replies = [(job, _worse(result, refused)) for job, result in self.replies]
            self.failures += 1
            self._forget(refused)
        if not synced:  # a disk takes as long for one as for many
            self.crowd.took(time.monotonic() - self.began, self.size)

    def _forget(self, refused: StoreFailed) -> None:
        if isinstance(refused, StoreUnknown):
            self.failed = refused.message
            return
        self.sweeping, self.swept = False, self.sessions.clock()  # not at once again: on a full disk that would not end
        try:
            self.sessions.store.undo()
            self.sessions.forget()
        except Exception as error:
            self.failed = f"what was not stored cannot be forgotten: {type(error).__name__}: {error}"

    def outgoing(self) -> list[tuple[Listener, Result]]:
        """What is delivered to whom, now that it is in the store."""
        self.fault("before reply")
        messages = [*self.events, *((job.reply, result) for job, result in self.replies)]
        for job, _ in self.replies:
            self._release(job)
            if not job.probe:
                self.crowd.add(job.tenant, -1)
        self.answered += len(self.replies)
        self.ticks += 1
        self.events, self.replies = [], []
        while self.ready:
            job = self.ready.pop()
            self.turns.add_first(job.tenant, job)
        return messages

    def end(self, why: str) -> list[tuple[Listener, Result]]:
        """It cannot continue: all waiting and all new jobs are refused."""
        self.failed = self.failed or why
        parts = [*self.turns.all(), *self.chosen]
        for group in self.groups:
            parts += [*group.rows, *group.works]
        jobs = [one if isinstance(one, Job) else one.job for one in parts]
        jobs += [*self.ready, *(job for queue in self.queues.values() for job in queue)]
        jobs = [job for job in jobs if not job.finished] + [job for job, _ in self.replies]
        known = {id(job): result for job, result in self.replies if isinstance(result, HttpError)}
        refused = {id(job): (job.reply, known.get(id(job), failure_error(self.failed))) for job in jobs}
        self.replies, self.queues, self.ready, self.chosen, self.groups, self.turns = [], {}, [], [], [], Turns()
        self.answered = self.submitted
        return list(refused.values())


def _worse(result: Result, refused: HttpError) -> HttpError:
    """The error for a request of a tick that failed: its own bug, if it had one."""
    return result if isinstance(result, HttpError) and result.status == 500 else refused
