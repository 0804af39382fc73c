"""Sessions over a store: who may read and write one, its version, its keys; past.py has their past.

One thread at a time uses it. What is changed here is durable when the engine has committed; if that fails, the engine
calls `forget`, and what was changed is read again when somebody asks for it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress

from elman.errors import FileError
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.serve.store import clock as clocks
from elman.serve.store.ledger import Ledger
from elman.serve.store.past import Past
from elman.serve.store.records import Answered, Damaged, Records, Response, Session, Tombstone, encode
from elman.serve.store.store import Store
from elman.tasks.serving import Served

DAY = 86_400.0
MODELS = "models"  # of sessions, so that none has to be read to know them
CACHED = 4_096  # sessions that are kept decoded
SWEPT = 256  # rows that are deleted in one tick, at most, because they have expired


def new_id(kind: str) -> str:
    """A name that nobody can guess and that never comes again."""
    return f"{kind}_{secrets.token_urlsafe(18)}"


class Sessions:
    """The sessions of all tenants."""

    def __init__(
        self, store: Store, models: Mapping[str, Served], limits: Limits, clock: Callable[[], float] | None = None
    ) -> None:
        self.store, self.models, self.limits = store, models, limits
        self.clock = clocks.Steady(store) if clock is None else clock
        self.fingerprints = {name: bytes.fromhex(model.fingerprint) for name, model in models.items()}
        self.cache: OrderedDict[str, Session] = OrderedDict()
        self.touched: set[str] = set()  # since the last commit
        self.tombstones: deque[str] = deque()  # of this process, the oldest first
        self.sync = False  # whether what was changed since then has to be on the disk
        self.ledger = Ledger(store, limits)
        self.noted = clocks.last(store)  # when it was noted last that something was committed
        self.records = Records(store)
        self.past = Past(store, self.records)

    @property
    def counts(self) -> dict[str, int]:
        """How many sessions and responses each tenant has."""
        return self.ledger.counts

    def orphans(self) -> list[str]:
        """The models of which the store has had sessions, and that are not loaded, or not with these weights."""
        known = {_model_id(*one) for one in self.fingerprints.items()}
        return sorted({name.decode() for id, name in self.store.children("meta", MODELS) if id not in known})

    # Finding

    def find(self, id: str, tenant: str) -> Session:
        """A session of this tenant's; refused where there is none, or where it has expired."""
        session = self.cache.get(id)
        if session is None:
            session = self._stored(id, tenant)
        else:
            self.cache.move_to_end(id)
        if session.tenant != tenant:
            raise missing("session", id)
        if session.expires <= self.clock():
            raise HttpError(410, f"the session {id} has expired", code="session_expired")
        return session

    def _stored(self, id: str, tenant: str) -> Session:
        try:
            session = self.records.read("sessions", Session, id)
            if session is None:
                raise self._gone(id, tenant)
            if self.fingerprints.get(session.model) == session.fingerprint:
                session.state = self._current(id, session)
        except Damaged:
            if self.store.owner("sessions", id) != tenant:
                raise missing("session", id) from None
            raise
        self.cache[id] = session
        return session

    def _current(self, id: str, session: Session) -> bytes:
        """Its state as its model lays it out now."""
        try:
            return self.models[session.model].current(session.state)
        except FileError as error:
            raise self.records.damaged("sessions", id, str(error)) from error

    def at_rest(self, id: str, tenant: str, version: int | str, model: str, now: float) -> Session | None:
        """A session that is at this version `now`, of a model that is loaded (and of this one, if one is named), and
        keeps no past: nothing but its state is changed by a step. None if it is not, or not there."""
        session = self.cache.get(id)
        if session is None:
            try:
                session = self._stored(id, tenant)
            except HttpError:
                return None
        else:
            self.cache.move_to_end(id)
        fits = (
            session.tenant == tenant
            and session.expires > now
            and (version == session.version or version == "any")
            and (not model or model == session.model)
            and not session.every
            and self.fingerprints.get(session.model) == session.fingerprint
        )
        return session if fits else None

    def find_usable(self, id: str, tenant: str) -> tuple[Session, Served]:
        """The same, with its model, which must be the one that it began with."""
        session = self.find(id, tenant)
        return session, self.model(session.model, session.fingerprint)

    def model(self, name: str, fingerprint: bytes | None = None) -> Served:
        """The model called `name`; with a fingerprint, only that one."""
        if name not in self.models:
            if fingerprint is not None:
                raise HttpError(422, f"its model {name!r} is not loaded by this server", code="model_mismatch")
            known = ", ".join(sorted(self.models))
            raise HttpError(
                404, f"there is no model {name!r}; there are {known}", code="model_not_found", param="model"
            )
        if fingerprint is not None and fingerprint != self.fingerprints[name]:
            raise HttpError(
                422, f"the model {name!r} has other weights than the session started with", code="model_mismatch"
            )
        return self.models[name]

    def _gone(self, id: str, tenant: str) -> HttpError:
        with suppress(Damaged):
            tombstone = self.records.read("tombstones", Tombstone, id)
            if tombstone is None or tombstone.tenant != tenant:
                return missing("session", id)
            return HttpError(410, f"the session {id} has expired", code="session_expired")
        return missing("session", id)

    # Changing

    def save(self, *changed: tuple[str, Session]) -> None:
        """Write sessions as they are now; they are `touched` until the commit."""
        now, rows = self.clock(), []
        for id, session in changed:
            if now + 0.98 * session.ttl > session.expires:  # not with every step, so that the index rests
                session.expires = now + session.ttl
            rows.append((id, encode(session), session.tenant, session.expires))
            if session.power:
                self.sync = True
        self.cache.update(changed)
        self.touched.update(id for id, _ in changed)
        self.store.put_all("sessions", rows)

    def add(self, id: str, session: Session) -> None:
        """A new session."""
        self.ledger.admit(session.tenant)
        model = _model_id(session.model, session.fingerprint)
        if self.store.get("meta", model) is None:
            self.store.put("meta", model, session.model.encode(), parent=MODELS)
        if session.every:
            self.past.add_checkpoint(id, session)
        self.save((id, session))

    def remove(self, id: str, session: Session, *, expired: bool = False) -> None:
        """Delete a session with its past; of one that has expired, that it was there is remembered for a day."""
        if session.every:
            self.past.clear(id, session)
        self.store.delete("sessions", id)
        self.cache.pop(id, None)
        self.touched.add(id)
        self.ledger.admit(session.tenant, -1)
        self.ledger.keep(session.tenant, -session.counted)
        self.sync |= session.power
        if expired:
            now = self.clock()
            tombstone = encode(Tombstone(session.tenant, now))
            self.store.put("tombstones", id, tombstone, parent="", expires=now + DAY)
            self.tombstones.append(id)
            if len(self.tombstones) > self.limits.tombstones:
                self.store.delete("tombstones", self.tombstones.popleft())

    def remove_damaged(self, id: str, tenant: str) -> None:
        """Delete a session that cannot be decoded. The bytes of its last reply stay counted: nobody knows how many."""
        self.past.clear_damaged(id)
        self.store.delete("sessions", id)
        self.touched.add(id)
        self.ledger.admit(tenant, -1)

    def record_write(self, id: str, session: Session, state: bytes, taken: int, record: Callable[[], bytes]) -> None:
        """A write is done: the version goes up, and what it did is part of the past."""
        session.version += 1
        session.state = state
        session.position += taken
        if session.log:
            self.past.log(id, session, taken, record())
        if session.every and session.position - session.checkpoints[-1] >= session.every:
            self.past.add_checkpoint(id, session)

    def rewind(self, id: str, session: Session, state: bytes, position: int, version: int) -> None:
        """The session is where it was: what came after that, in writes after a version, is no longer its past."""
        self.past.cut(id, session, position, version)
        session.version, session.state, session.position = session.version + 1, state, position
        self.past.add_checkpoint(id, session)

    def replace_state(self, id: str, session: Session, state: bytes) -> None:
        """The session continues from another state: earlier inputs are no longer its past."""
        if session.every:
            self.past.clear(id, session)
        session.version, session.state = session.version + 1, state
        if session.every:
            self.past.add_checkpoint(id, session)

    # Keys

    def find_answer(self, scope: Iterable[str], key: str, digest: bytes) -> Answered | None:
        """What was answered to a key; refused if it stood for another request."""
        found = self.records.read("keys", Answered, key_id(scope, key))
        if found is not None and found.digest != digest:
            raise reused(key)
        return found

    def answer(self, scope: Iterable[str], key: str, answered: Answered) -> None:
        """Keep an answer for a day."""
        data = encode(answered)
        self.ledger.keep(answered.tenant, len(data))
        self.store.put("keys", key_id(scope, key), data, parent=answered.tenant, expires=self.clock() + DAY)

    def reply(self, session: Session, route: str, key: str, digest: bytes, reply: bytes) -> None:
        """Keep what a session answered last to a key, until the next."""
        self.ledger.keep(session.tenant, len(reply) - session.counted)
        session.route, session.key, session.digest, session.reply = route, key, digest, reply
        session.counted = len(reply)

    def respond(self, id: str, response: Response) -> None:
        """Keep a response."""
        response.counted = True
        data = encode(response)
        self.ledger.admit(response.tenant)
        self.ledger.keep(response.tenant, len(data))
        self.sync |= response.power
        self.store.put("responses", id, data, parent=response.tenant, expires=response.expires)

    def response(self, id: str, tenant: str) -> Response:
        """A response of this tenant's."""
        try:
            found = self.records.read("responses", Response, id)
        except Damaged:
            if self.store.owner("responses", id) != tenant:
                raise missing("response", id) from None
            raise
        if found is None or found.tenant != tenant or found.expires <= self.clock():
            raise missing("response", id)
        return found

    def drop_response(self, id: str, response: Response) -> None:
        """Delete a response."""
        size = len(self.store.get("responses", id) or b"")
        self.sync |= response.power
        self.store.delete("responses", id)
        self.ledger.admit(response.tenant, -1)
        if response.counted:
            self.ledger.keep(response.tenant, -size)

    # The end of a tick

    def sweep(self, busy: Container[str] = (), most: int = SWEPT) -> bool:
        """Delete what has expired, unless it is busy; whether there may be more. What is damaged does not expire any
        more: it stays until somebody has looked at it."""
        found = self.store.expired(self.clock(), most)
        over = [(table, id) for table, id in found if id not in busy]
        for table, id in over:
            try:
                self._expire(table, id)
            except Damaged:
                data, owner = self.store.get(table, id), self.store.owner(table, id)
                assert data is not None and owner is not None
                self.store.put(table, id, data, parent=owner)
        more = self.past.sweep()
        return more or (bool(over) and len(found) == most)

    def _expire(self, table: str, id: str) -> None:
        if table == "sessions" and (session := self.records.read(table, Session, id)) is not None:
            return self.remove(id, session, expired=True)
        if table == "responses" and (response := self.records.read(table, Response, id)) is not None:
            return self.drop_response(id, response)
        if table == "keys" and (answered := self.records.read(table, Answered, id)) is not None and answered.tenant:
            self.ledger.keep(answered.tenant, -len(self.store.get(table, id) or b""))
        self.store.delete(table, id)

    def seal(self) -> None:
        """A tick is about to be committed: put down what is counted, and now and then what time it is."""
        self.ledger.write()
        if self.store.durable and self.store.changed() and (now := self.clock()) - self.noted >= clocks.EVERY:
            self.noted = now
            self.store.put("meta", clocks.LAST, repr(now).encode())

    def committed(self) -> None:
        """What was changed is in the store; what was used longest ago need not be in memory too."""
        self.touched.clear()
        self.ledger.committed()
        self.sync = False
        while len(self.cache) > CACHED:
            self.cache.popitem(last=False)

    def forget(self) -> None:
        """A commit has failed: what was changed is read again. Nothing is read here, for that may fail too."""
        for id in self.touched:
            self.cache.pop(id, None)
        self.ledger.back(0)
        self.past.forget()
        self.noted = 0.0
        self.committed()

    def mark(self) -> tuple[int, int]:
        """Where the changes of this tick are now."""
        return self.store.mark(), self.ledger.mark()

    def back(self, mark: tuple[int, int], locked: Sequence[str] = ()) -> None:
        """Undo what was changed since a mark; sessions that are locked may be half changed, which the store does not
        know."""
        undone = self.store.back(mark[0])
        for table, id in undone:
            if table == "sessions":
                self.cache.pop(id, None)
        self.past.forget(undone)
        for id in locked:
            self.cache.pop(id, None)
        self.ledger.back(mark[1])


def _model_id(name: str, fingerprint: bytes) -> str:
    return f"model/{fingerprint.hex()}/{name}"


def key_id(scope: Iterable[str], key: str) -> str:
    """A key with its scope, of one length."""
    return hashlib.sha256("\0".join([*scope, key]).encode()).hexdigest()


def missing(kind: str, id: str) -> HttpError:
    return HttpError(404, f"there is no {kind} {id}", code=f"{kind}_not_found")


def reused(key: str) -> HttpError:
    return HttpError(
        422, f"the idempotency key {key!r} was used for another request; use a new key for each", code="key_reused"
    )
