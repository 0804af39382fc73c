"""Sessions over a store: who may read and write one, its version, its keys, its past.

All of it runs in the engine's thread. What is changed here is durable when the engine has committed; if that fails, the
engine calls `forget`, and everything is read again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypeVar

import msgspec

from elman import kernels
from elman.serve.errors import Refused, busy
from elman.serve.limits import Limits
from elman.serve.records import Answered, Checkpoint, Inputs, Response, Session, Tombstone
from elman.serve.store import Store
from elman.tasks.serving import Served

DAY = 86_400.0
MODELS = "models"  # of sessions, so that none has to be read to know them
CACHED = 4_096  # sessions that are kept decoded
encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T")
_decoders = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Session, Checkpoint, Inputs, Response, Answered, Tombstone)
}


def decode(kind: type[T], data: bytes) -> T:
    """A record of the store."""
    found: T = _decoders[kind].decode(data)  # type: ignore[index, assignment]
    return found


def new_id(kind: str) -> str:
    """A name that nobody can guess and that never comes again."""
    return f"{kind}_{secrets.token_urlsafe(18)}"


class Sessions:
    """The sessions of all tenants."""

    def __init__(
        self, store: Store, models: Mapping[str, Served], limits: Limits, clock: Callable[[], float] = time.time
    ) -> None:
        self.store, self.models, self.limits, self.clock = store, models, limits, clock
        self.fingerprints = {name: bytes.fromhex(model.fingerprint) for name, model in models.items()}
        self.computed = kernels.isa() if kernels.active() == "native" else "reference"
        self.cache: OrderedDict[str, Session] = OrderedDict()
        self.touched: set[str] = set()  # since the last commit
        self.stones: deque[str] = deque()  # of this process, the oldest first
        self.sync = False  # whether what was changed since then has to be on the disk
        self.count()

    def count(self) -> None:
        """How many sessions and responses each tenant has."""
        self.counts = dict(self.store.counts("sessions"))
        for tenant, number in self.store.counts("responses").items():
            self.counts[tenant] = self.counts.get(tenant, 0) + number

    def strangers(self) -> list[str]:
        """The models of which the store has had sessions, and that are not loaded, or not with these weights."""
        known = {_model_id(*one) for one in self.fingerprints.items()}
        return sorted({name.decode() for id, name in self.store.children("meta", MODELS) if id not in known})

    # Finding

    def find(self, id: str, tenant: str) -> Session:
        """A session of this tenant's; refused where there is none, or where it has expired."""
        session = self.cache.get(id)
        if session is None:
            data = self.store.get("sessions", id)
            if data is None:
                raise self._gone(id, tenant)
            session = self.cache[id] = decode(Session, data)
        else:
            self.cache.move_to_end(id)
        if session.tenant != tenant:
            raise missing("session", id)
        if session.expires <= self.clock():
            raise Refused(410, f"the session {id} has expired", code="session_expired")
        return session

    def at_rest(self, id: str, tenant: str, version: int | str, model: str) -> Session | None:
        """A session that is at this version, of a model that is loaded (and of this one, if one is named), and keeps no
        past: nothing but its state is changed by a step. None if it is not, or not there."""
        try:
            session = self.find(id, tenant)
        except Refused:
            return None
        fits = version in ("any", session.version) and model in ("", session.model) and not session.every
        return session if fits and self.fingerprints.get(session.model) == session.fingerprint else None

    def usable(self, id: str, tenant: str) -> tuple[Session, Served]:
        """The same, with its model, which must be the one that it began with."""
        session = self.find(id, tenant)
        return session, self.model(session.model, session.fingerprint)

    def model(self, name: str, fingerprint: bytes | None = None) -> Served:
        """The model called `name`; with a fingerprint, only that one."""
        if name not in self.models:
            if fingerprint is not None:
                raise Refused(422, f"its model {name!r} is not loaded by this server", code="model_mismatch")
            known = ", ".join(sorted(self.models))
            raise Refused(404, f"there is no model {name!r}; there are {known}", code="model_not_found", param="model")
        if fingerprint is not None and fingerprint != self.fingerprints[name]:
            raise Refused(
                422, f"the model {name!r} has other weights than the one that it began with", code="model_mismatch"
            )
        return self.models[name]

    def _gone(self, id: str, tenant: str) -> Refused:
        stone = self.store.get("tombstones", id)
        if stone is not None and decode(Tombstone, stone).tenant == tenant:
            return Refused(410, f"the session {id} has expired", code="session_expired")
        return missing("session", id)

    # Changing

    def save(self, *changed: tuple[str, Session]) -> None:
        """Write sessions as they are now; they are `touched` until the commit."""
        now, rows = self.clock(), []
        for id, session in changed:
            if now + 0.98 * session.ttl > session.expires:  # not with every step, so that the index rests
                session.expires = now + session.ttl
            rows.append((id, encode(session), session.tenant, session.expires))
            self.sync = self.sync or session.power
        self.cache.update(changed)
        self.touched.update(id for id, _ in changed)
        self.store.put_all("sessions", rows)

    def add(self, id: str, session: Session) -> None:
        """A new session."""
        self.admit(session.tenant)
        model = _model_id(session.model, session.fingerprint)
        if self.store.get("meta", model) is None:
            self.store.put("meta", model, session.model.encode(), parent=MODELS)
        if session.every:
            self._mark(id, session)
        self.save((id, session))

    def admit(self, tenant: str, more: int = 1) -> None:
        """Count one more, or refuse it."""
        have = self.counts.get(tenant, 0)
        if more > 0 and have + more > self.limits.sessions:
            message = f"there are {have} sessions and responses, which is the limit; delete some"
            raise busy(message, 60_000, code="too_many_sessions")
        self.counts[tenant] = have + more

    def remove(self, id: str, session: Session, *, expired: bool = False) -> None:
        """Delete a session with its past; of one that has expired, that it was there is remembered for a day."""
        for table in ("checkpoints", "inputs"):
            for child, _ in self.store.children(table, id) if session.every else ():
                self.store.delete(table, child)
        self.store.delete("sessions", id)
        self.cache.pop(id, None)
        self.touched.add(id)
        self.admit(session.tenant, -1)
        self.sync |= session.power
        if expired:
            now = self.clock()
            stone = encode(Tombstone(session.tenant, now))
            self.store.put("tombstones", id, stone, parent="", expires=now + DAY)
            self.stones.append(id)
            if len(self.stones) > self.limits.tombstones:
                self.store.delete("tombstones", self.stones.popleft())

    def written(self, id: str, session: Session, state: bytes, taken: int, record: Callable[[], bytes]) -> None:
        """A write is done: the version goes up, and what it did is part of the past."""
        before = session.position
        session.version += 1
        session.state = state
        session.position += taken
        if session.log:
            inputs = Inputs(session.version, before, taken, record(), self.computed)
            self.store.put("inputs", child(id, session.version), encode(inputs), parent=id)
        if session.every and session.position - session.marks[-1] >= session.every:
            self._mark(id, session)

    # The past

    def _mark(self, id: str, session: Session) -> None:
        """Keep the state as a checkpoint, and let go of what is too old."""
        at = session.position
        record = Checkpoint(session.version, at, session.state, self.computed)
        self.store.put("checkpoints", child(id, at), encode(record), parent=id)
        session.marks = [*(mark for mark in session.marks if mark != at), at]
        if len(session.marks) > session.keep:
            for old in session.marks[: -session.keep]:
                self.store.delete("checkpoints", child(id, old))
            session.marks = session.marks[-session.keep :]
            if session.log:
                self._drop_inputs(id, lambda one: one.position + one.taken <= session.marks[0])

    def _drop_inputs(self, id: str, unwanted: Callable[[Inputs], bool]) -> None:
        for place, data in self.store.children("inputs", id):
            if unwanted(decode(Inputs, data)):
                self.store.delete("inputs", place)

    def past(self, id: str, session: Session, position: int) -> tuple[Checkpoint, list[Inputs]]:
        """A checkpoint at or before a position, and what was read between the two; refused if that is not kept."""
        if not session.every:
            raise Refused(
                422,
                "this session keeps no checkpoints; create one with checkpoints: {every, keep}",
                code="no_checkpoint",
            )
        marks = [mark for mark in session.marks if mark <= position]
        if position > session.position or not marks:
            raise Refused(
                422, f"position {position} cannot be gone back to; the session is at {session.position} and keeps "
                f"{session.marks[0]} and what follows", code="no_checkpoint",
            )  # fmt: skip
        data = self.store.get("checkpoints", child(id, marks[-1]))
        assert data is not None, "marks name checkpoints that are kept"
        if marks[-1] == position:
            return decode(Checkpoint, data), []
        if not session.log:
            raise Refused(
                422, f"position {position} is between two checkpoints, and inputs are not logged (log_inputs); kept "
                f"are {', '.join(map(str, session.marks))}", code="no_checkpoint",
            )  # fmt: skip
        # A checkpoint stands where a write began. What began before it and goes beyond was cut there by a rollback.
        logged = [decode(Inputs, value) for _, value in self.store.children("inputs", id)]
        return decode(Checkpoint, data), [one for one in logged if marks[-1] <= one.position < position]

    def rewound(self, id: str, session: Session, state: bytes, position: int) -> None:
        """The session is where it was: what came after that is no longer part of its past."""
        for mark in session.marks:
            if mark > position:
                self.store.delete("checkpoints", child(id, mark))
        session.marks = [mark for mark in session.marks if mark <= position]
        if session.log:
            self._drop_inputs(id, lambda one: one.position >= position)
        session.version, session.state, session.position = session.version + 1, state, position
        self._mark(id, session)

    def replaced(self, id: str, session: Session, state: bytes) -> None:
        """The session goes on from another state: what came before is no longer its past."""
        session.version, session.state = session.version + 1, state
        if session.every:
            for mark in session.marks:
                self.store.delete("checkpoints", child(id, mark))
            self._drop_inputs(id, lambda one: True)
            session.marks = []
            self._mark(id, session)

    # Keys

    def answered(self, scope: Iterable[str], key: str, digest: bytes) -> Answered | None:
        """What was answered to a key; refused if it stood for another request."""
        data = self.store.get("keys", key_id(scope, key))
        if data is None:
            return None
        found = decode(Answered, data)
        if found.digest != digest:
            raise reused(key)
        return found

    def answer(self, scope: Iterable[str], key: str, answered: Answered) -> None:
        """Keep an answer for a day."""
        self.store.put("keys", key_id(scope, key), encode(answered), expires=self.clock() + DAY)

    # The end of a tick

    def sweep(self, busy: Container[str] = (), most: int = 1_000) -> bool:
        """Delete what has expired, unless it is busy; whether there may be more."""
        found = self.store.expired(self.clock(), most)
        for table, id in found:
            if id in busy:
                continue
            if table == "sessions":
                data = self.store.get(table, id)
                assert data is not None
                self.remove(id, decode(Session, data), expired=True)
            else:
                if table == "responses":
                    data = self.store.get(table, id)
                    assert data is not None
                    self.admit(decode(Response, data).tenant, -1)
                self.store.delete(table, id)
        return len(found) == most

    def committed(self) -> None:
        """What was changed is in the store; what was used longest ago need not be in memory too."""
        self.touched.clear()
        self.sync = False
        while len(self.cache) > CACHED:
            self.cache.popitem(last=False)

    def forget(self) -> None:
        """A commit has failed: what was changed is read again."""
        for id in self.touched:
            self.cache.pop(id, None)
        self.committed()
        self.count()


def _model_id(name: str, fingerprint: bytes) -> str:
    return f"model/{fingerprint.hex()}/{name}"


def child(id: str, number: int) -> str:
    """What a checkpoint or inputs of a session are stored as: in order."""
    return f"{id}/{number:019d}"


def key_id(scope: Iterable[str], key: str) -> str:
    """A key with its scope, of one length."""
    return hashlib.sha256("\0".join([*scope, key]).encode()).hexdigest()


def missing(kind: str, id: str) -> Refused:
    return Refused(404, f"there is no {kind} {id}", code=f"{kind}_not_found")


def reused(key: str) -> Refused:
    return Refused(
        422, f"the idempotency key {key!r} was used for another request; a key stands for one", code="key_reused"
    )
