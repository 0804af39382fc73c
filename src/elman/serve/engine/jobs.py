"""The jobs that sessions need, one class each; steps are in steps.py, texts without a session in text_jobs.py.

A result is a `Reply`: a status and the body, encoded once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from elman.errors import ElmanError
from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Job, Listener, Listening
from elman.serve.errors import HttpError, busy
from elman.serve.json import to_json
from elman.serve.store.records import Answered, Checkpoint, Damaged, Inputs, Session
from elman.serve.store.sessions import Sessions, key_id, new_id, reused
from elman.tasks.serving import Served, ServedWriter, Work, Writing, WritingWork


class Reply(msgspec.Struct):
    """An answer. Of a session it has the version, which is also its ETag."""

    body: bytes
    status: int = 200
    version: int | None = None
    position: int | None = None
    replayed: bool = False


class WriteRequest(msgspec.Struct):
    """What every write says: who asks, by which route, with which key, for which body."""

    tenant: str
    route: str
    key: str = ""
    digest: bytes = b""


def describe_session(id: str, session: Session, sessions: Sessions) -> dict[str, object]:
    """A session, as clients see it."""
    durability = "power" if session.power else "process" if sessions.store.durable else "none"
    about = {
        "id": id, "object": "session", "model": session.model, "version": session.version, "position": session.position,
        "created": int(session.created), "expires": int(session.expires), "state_bytes": len(session.state),
        "durability": durability, "checkpoints": session.checkpoints if session.every else [],
        "log_inputs": session.log, "parent": session.parent or None,
    }  # fmt: skip
    return about if session.model in sessions.models else {**about, "loaded": False}


# New ones


@dataclass(frozen=True)
class Options:
    """How a session is kept."""

    ttl: float
    power: bool = False
    every: int = 0
    keep: int = 0
    log: bool = False


class Keyed(Job):
    """A job that makes something new: with a key it makes it once, for a day."""

    def __init__(self, reply: Listener, request: WriteRequest, scope: str = "") -> None:
        Job.__init__(self, reply)  # not super: a Respond is a Complete too, and begins that by itself
        self.request, self.tenant, self.scope = request, request.tenant, (request.tenant, request.route, scope)
        # A retry that overtakes the first request waits for it.
        self.queue = key_id(self.scope, request.key) if request.key else ""

    def start(self, engine: Engine) -> None:
        if self.request.key:
            before = engine.sessions.find_answer(self.scope, self.request.key, self.request.digest)
            if before is not None:
                return engine.finish(self, Reply(before.body, before.status, replayed=True))
        self.make(engine)

    def make(self, engine: Engine) -> None:
        raise NotImplementedError

    def finish_new(self, engine: Engine, body: bytes, status: int = 200) -> None:
        """It is done; remember it."""
        if self.request.key:
            engine.sessions.answer(
                self.scope, self.request.key, Answered(self.request.digest, status, body, self.tenant)
            )
        engine.finish(self, Reply(body, status))


class Create(Keyed):
    """A session, from the start or from a state that was carried."""

    def __init__(
        self,
        reply: Listener,
        request: WriteRequest,
        model: str,
        options: Options,
        seed: int | None,
        state: bytes | None,
    ) -> None:
        super().__init__(reply, request)
        self.model, self.options, self.seed, self.state = model, options, seed, state

    def make(self, engine: Engine) -> None:
        sessions, now, o = engine.sessions, engine.sessions.clock(), self.options
        served = sessions.model(self.model)
        seed = secrets.randbits(62) if self.seed is None else self.seed
        state = served.start(seed) if self.state is None else self.state
        session = Session(
            self.tenant, self.model, sessions.fingerprints[self.model], state, now, o.ttl, now + o.ttl, power=o.power,
            every=o.every, keep=o.keep, log=o.log,
        )  # fmt: skip
        id = new_id("sess")
        sessions.add(id, session)
        self.finish_new(engine, to_json(describe_session(id, session, sessions)), 201)


class Fork(Keyed):
    """Another session that begins where one is."""

    def __init__(self, reply: Listener, request: WriteRequest, id: str, seed: int | None) -> None:
        super().__init__(reply, request, id)
        self.id, self.seed = id, seed

    def make(self, engine: Engine) -> None:
        sessions = engine.sessions
        parent, served = sessions.find_usable(self.id, self.tenant)
        if parent.forks >= sessions.limits.forks:
            raise busy(f"the session has {parent.forks} forks, which is the limit", 60_000, code="too_many_forks")
        state = parent.state if self.seed is None else served.seeded(parent.state, self.seed)
        now = sessions.clock()
        session = Session(
            parent.tenant, parent.model, parent.fingerprint, state, now, parent.ttl, now + parent.ttl,
            position=parent.position, power=parent.power, every=parent.every, keep=parent.keep, log=parent.log,
            parent=self.id,
        )  # fmt: skip
        id = new_id("sess")
        sessions.add(id, session)
        parent.forks += 1
        sessions.save((self.id, parent))
        self.finish_new(engine, to_json(describe_session(id, session, sessions)), 201)


# One session


class Get(Job):
    """What a session is."""

    def __init__(self, reply: Listener, tenant: str, id: str) -> None:
        super().__init__(reply)
        self.tenant, self.id = tenant, id

    def start(self, engine: Engine) -> None:
        session = engine.sessions.find(self.id, self.tenant)
        about = describe_session(self.id, session, engine.sessions)
        engine.finish(self, Reply(to_json(about), version=session.version))


class GetState(Get):
    """Its state, as a state file."""

    def start(self, engine: Engine) -> None:
        session, served = engine.sessions.find_usable(self.id, self.tenant)
        engine.finish(self, Reply(served.dump(session.state), version=session.version))


class Delete(Get):
    """Delete it."""

    def __init__(self, reply: Listener, tenant: str, id: str) -> None:
        super().__init__(reply, tenant, id)
        self.queue = id

    def start(self, engine: Engine) -> None:
        sessions = engine.sessions
        try:
            sessions.remove(self.id, sessions.find(self.id, self.tenant))
        except Damaged:  # it is this tenant's, or it would not be there
            sessions.remove_damaged(self.id, self.tenant)
        engine.finish(self, Reply(to_json({"id": self.id, "object": "session", "deleted": True})))


class _Then(msgspec.Struct):
    """Where a session was when a reply was made."""

    version: int
    position: int


class Write(Job):
    """A write of a session: its key is looked up, then its version; at its end both are stored with the state."""

    def __init__(self, reply: Listener, request: WriteRequest, id: str, version: int | str) -> None:
        super().__init__(reply)
        self.request, self.tenant, self.id, self.queue, self.version = request, request.tenant, id, id, version

    def start(self, engine: Engine) -> None:
        session, served = engine.sessions.find_usable(self.id, self.tenant)
        request = self.request
        if request.key and (session.key, session.route) == (request.key, request.route):
            if session.digest != request.digest:
                raise reused(request.key)
            then = msgspec.json.decode(session.reply, type=_Then)
            return engine.finish(self, Reply(session.reply, 200, then.version, then.position, replayed=True))
        if self.version != "any" and self.version != session.version:
            raise HttpError(
                412, f"the session is at version {session.version}, not {self.version}", code="version_mismatch",
                version=session.version, position=session.position,
            )  # fmt: skip
        self.write(engine, session, served)

    def write(self, engine: Engine, session: Session, served: Served) -> None:
        raise NotImplementedError

    def finish_write(self, engine: Engine, session: Session, answer: Mapping[str, object]) -> None:
        """State, version, key and reply are one record."""
        about = {"session": self.id, "version": session.version, "position": session.position}
        self.finish_reply(engine, session, to_json({**about, **answer}))

    def finish_reply(self, engine: Engine, session: Session, reply: bytes) -> None:
        if self.request.key:
            engine.sessions.reply(session, self.request.route, self.request.key, self.request.digest, reply)
        engine.sessions.save((self.id, session))
        engine.finish(self, Reply(reply, 200, session.version, session.position))


class Generate(Write, Listening):
    """Read a prompt and continue it. What is emitted before the end is provisional."""

    def __init__(
        self,
        reply: Listener,
        request: WriteRequest,
        id: str,
        version: int | str,
        prompt: object,
        settings: Writing,
        listener: Listener | None,
    ) -> None:
        super().__init__(reply, request, id, version)
        self.prompt, self.settings, self.listener = prompt, settings, listener

    def write(self, engine: Engine, session: Session, served: Served) -> None:
        work = prompt_work(served, self.prompt, self.settings, engine.sessions.limits.prompt)
        work.begin(session.state)

        def then(work: Work) -> None:
            self.emit_events(engine, work)
            state, answer = work.end(), work.answer()
            engine.sessions.record_write(self.id, session, state, work.taken, work.record)
            self.finish_write(engine, session, answer)

        engine.run(self, served, work, then)

    def emit_events(self, engine: Engine, work: Work) -> None:
        if self.listener is not None and (events := work.events()):
            engine.emit(self.listener, events)


class Rollback(Write):
    """Go back to a position: read what followed the checkpoint before it, a slice in a tick, and replay that."""

    def __init__(self, reply: Listener, request: WriteRequest, id: str, version: int | str, position: int) -> None:
        super().__init__(reply, request, id, version)
        self.position = position
        self.logged: list[Inputs] = []
        self.after: int | None = None  # the version after which the next slice begins, once there was one

    def write(self, engine: Engine, session: Session, served: Served) -> None:
        past = engine.sessions.past
        checkpoint = past.checkpoint(self.id, session, self.position)
        if checkpoint.position < self.position:
            after = checkpoint.version if self.after is None else self.after
            more, self.after = past.logged(self.id, after, self.position)
            self.logged += more
            if self.after is not None:
                return engine.again(self)
        self.replay(engine, session, served, checkpoint)

    def replay(self, engine: Engine, session: Session, served: Served, checkpoint: Checkpoint) -> None:
        """All that is needed was read."""
        sessions, logged = engine.sessions, self.logged
        exact = {checkpoint.computed, *(one.computed for one in logged)} == {sessions.past.computed} or not logged
        version = logged[-1].version if logged else checkpoint.version

        def then(work: Work | None) -> None:
            state = checkpoint.state if work is None else work.end()
            sessions.rewind(self.id, session, state, self.position, version)
            self.finish_write(engine, session, {"inexact": not exact})

        if not logged:
            return then(None)
        work = served.replaying([one.record for one in logged], self.position - checkpoint.position)
        work.begin(checkpoint.state)
        engine.run(self, served, work, then)


class PutState(Write):
    """Continue from a state that was sent."""

    def __init__(self, reply: Listener, request: WriteRequest, id: str, version: int | str, data: bytes) -> None:
        super().__init__(reply, request, id, version)
        self.data = data

    def write(self, engine: Engine, session: Session, served: Served) -> None:
        try:
            state = served.parse(self.data)
        except ElmanError as error:
            raise HttpError(422, str(error), code="state_mismatch") from error
        engine.sessions.replace_state(self.id, session, state)
        self.finish_write(engine, session, {"state_bytes": len(state)})


def writer(served: Served) -> ServedWriter:
    """A model that writes text, or a refusal."""
    if not isinstance(served, ServedWriter):
        raise HttpError(400, "this model does not write text; send inputs to step", param="prompt")
    return served


def prompt_work(served: Served, prompt: object, settings: Writing, most: int) -> WritingWork:
    """A work that reads a prompt and writes."""
    try:
        work = writer(served).writing(prompt, settings)
    except ElmanError as error:
        raise HttpError(400, str(error), param="prompt") from error
    if len(work) - settings.max_new_tokens > most:
        raise HttpError(
            400, f"the prompt has {len(work) - settings.max_new_tokens} tokens; {most} at most", param="prompt"
        )
    return work


class HealthProbe(Job):
    """A step of each model and a write of the store, which is the file that it was: what readiness means."""

    probe = True

    def start(self, engine: Engine) -> None:
        engine.sessions.store.check()
        engine.sessions.store.put("meta", "probe", str(engine.sessions.clock()).encode())
        left = dict(engine.sessions.models)
        if not left:
            return engine.finish(self, Reply(b""))

        def then(name: str) -> Callable[[Work], None]:
            def done(work: Work) -> None:
                left.pop(name)
                if not left:
                    engine.finish(self, Reply(b""))

            return done

        for name, served in engine.sessions.models.items():
            work = served.probe()
            work.begin(served.start(0))
            engine.run(self, served, work, then(name))
