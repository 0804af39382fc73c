"""Steps: one input, or several, of one session; one input of each of many, from a request or from a socket.

One input goes through `ServedRows.together`, with those of all other sessions of the tick, whatever their tenants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from elman.errors import ElmanError
from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Job, Listener
from elman.serve.engine.jobs import Reply, Write, WriteRequest
from elman.serve.errors import HttpError
from elman.serve.json import AnyJson, to_json
from elman.serve.store.records import Session
from elman.tasks.serving import NOT_FINITE, Outputs, Served, ServedRows, Work

OUTPUT = b'{"session":"%b","version":%d,"position":%d,"output":%b}'
ANSWER = b'{"status":200,"replayed":false,"body":' + OUTPUT + b"}"
Version = Annotated[int, Meta(ge=0, le=2**63 - 1)] | Literal["any"]


class Item(Struct, forbid_unknown_fields=True, gc=False):
    """One of many steps."""

    session: str
    version: Version
    key: str = ""
    input: AnyJson = UNSET
    inputs: AnyJson = UNSET


def step_inputs(input: AnyJson, inputs: AnyJson) -> tuple[object, bool]:
    """The inputs of a step, and whether it is one."""
    if isinstance(input, UnsetType) == isinstance(inputs, UnsetType):
        raise HttpError(400, "a step has either `input` or `inputs`", param="inputs")
    return ([input], True) if isinstance(inputs, UnsetType) else (inputs, False)


class Step(Write):
    """Read some inputs."""

    def __init__(
        self, reply: Listener, request: WriteRequest, id: str, version: int | str, inputs: Any, one: bool
    ) -> None:
        super().__init__(reply, request, id, version)
        self.inputs, self.one = inputs, one

    @classmethod
    def of(cls, reply: Listener, tenant: str, item: Item) -> Step:
        """An item of /v1/steps, or of a message on a socket. Its key identifies its content, however written."""
        digest = hashlib.sha256(b"step\0" + to_json(item)).digest() if item.key else b""
        inputs, one = step_inputs(item.input, item.inputs)
        return cls(reply, WriteRequest(tenant, "step", item.key, digest), item.session, item.version, inputs, one)

    def write(self, engine: Engine, session: Session, served: Served) -> None:
        if self.one and isinstance(served, ServedRows) and (x := served.encoded(self.inputs)) is not None:
            self._step(engine, session, served, x)
        else:
            self._read(engine, session, served)

    def _step(self, engine: Engine, session: Session, served: ServedRows, x: NDArray[np.generic]) -> None:
        def then(after: list[bytes], outputs: Outputs, good: list[bool]) -> None:
            if not good[0]:
                raise HttpError(422, NOT_FINITE, code="state_not_finite")
            text = texts(outputs)[0]
            engine.sessions.record_write(self.id, session, after[0], 1, x.tobytes)
            self.finish_reply(engine, session, OUTPUT % (self.id.encode(), session.version, session.position, text))

        engine.step(self, served, x, [session.state], then)

    def _read(self, engine: Engine, session: Session, served: Served) -> None:
        work = _reading(served, self.inputs, engine.sessions.limits.inputs)
        work.most_filled = engine.sessions.limits.filled
        work.begin(session.state)

        def then(work: Work) -> None:
            state, outputs = work.end(), [msgspec.Raw(text) for text in texts(work.answer()["outputs"])]
            engine.sessions.record_write(self.id, session, state, work.taken, work.record)
            self.finish_write(engine, session, {"output": outputs[0]} if self.one else {"outputs": outputs})

        engine.run(self, served, work, then)


def _reading(served: Served, inputs: object, most: int) -> Work:
    """A work that reads inputs."""
    try:
        work = served.reading(inputs)
    except ElmanError as error:
        raise HttpError(400, str(error), param="inputs") from error
    if len(work) > most:
        raise HttpError(400, f"there are {len(work)} inputs; {most} at most", param="inputs")
    return work


class Stepped(msgspec.Struct):
    """The results of one input of each of some sessions. They are encoded on demand, not necessarily in the engine."""

    places: list[int]
    sessions: list[str]
    versions: list[int]
    positions: list[int]
    outputs: Outputs
    good: list[bool]

    def joined(self) -> bytes:
        """All of them, with commas between."""
        if not all(self.good):
            return b",".join(self)
        parts = zip(map(str.encode, self.sessions), self.versions, self.positions, texts(self.outputs), strict=True)
        return b",".join([ANSWER] * len(self.sessions)) % (*chain.from_iterable(parts),)

    def __iter__(self) -> Iterator[bytes]:
        """Each as an answer of /v1/steps."""
        ids = map(str.encode, self.sessions)
        found = [ANSWER % each for each in zip(ids, self.versions, self.positions, texts(self.outputs), strict=True)]
        if not all(self.good):
            refused = answered(HttpError(422, NOT_FINITE, code="state_not_finite"))
            found = [answer if good else refused for answer, good in zip(found, self.good, strict=True)]
        return iter(found)


class Steps(Job):
    """One input of each of many sessions. What is plain, without a key, for sessions of one model that are at rest, is
    one write of all; of the rest each is a `Step` of its own, which replies by itself, to `apart(place)`. The reply is
    a `Stepped` of the plain ones."""

    def __init__(
        self, reply: Listener, tenant: str, items: Sequence[tuple[int, Item]], places: list[int],
        apart: Callable[[int], Listener],
    ) -> None:  # fmt: skip
        super().__init__(reply)
        self.tenant, self.items, self.apart, self.size = tenant, items, apart, len(items)
        self.places = places  # that it replies for: all, until it is known which are plain

    def start(self, engine: Engine) -> None:
        places, ids, sessions, inputs, rest = self._sorted(engine)
        served = engine.sessions.models[sessions[0].model] if sessions else None
        x = served.encoded(inputs) if isinstance(served, ServedRows) else None
        if x is None:
            places, rest = [], self.items
        apart = [Step.of(self.apart(place), self.tenant, item) for place, item in rest]
        self.places[:] = places  # not before: until here, a failure is the answer to all
        if not isinstance(served, ServedRows) or x is None:
            engine.finish(self, Stepped([], [], [], [], [], []))
            return engine.enter_more(apart)

        def then(after: list[bytes], outputs: Outputs, good: list[bool]) -> None:
            changed = []
            for id, session, state, fine in zip(ids, sessions, after, good, strict=True):
                if fine:
                    session.version += 1
                    session.position += 1
                    session.state = state
                    changed.append((id, session))
            engine.sessions.save(*changed)
            versions, positions = [one.version for one in sessions], [one.position for one in sessions]
            engine.finish(self, Stepped(places, ids, versions, positions, outputs, good))

        engine.lock(self, ids)
        engine.step(self, served, x, [session.state for session in sessions], then)
        engine.enter_more(apart)

    def _sorted(
        self, engine: Engine
    ) -> tuple[list[int], list[str], list[Session], list[object], Sequence[tuple[int, Item]]]:
        """Of the plain ones the places, names, sessions and inputs; and the rest.

        A second step of a session is not plain: it goes behind the first.
        """
        at_rest, queues, tenant, now = engine.sessions.at_rest, engine.queues, self.tenant, engine.sessions.clock()
        places, ids, sessions, inputs, rest, seen, model = [], [], [], [], [], set(), ""
        for place, item in self.items:
            id, session = item.session, None
            if not item.key and item.input is not UNSET and id not in queues and id not in seen:
                session = at_rest(id, tenant, item.version, model, now)
            seen.add(id)
            if session is None:
                rest.append((place, item))
                continue
            model = session.model
            places.append(place)
            ids.append(id)
            sessions.append(session)
            inputs.append(item.input)
        return places, ids, sessions, inputs, rest


def submit_steps(
    engine: Engine,
    tenant: str,
    items: Sequence[Item | HttpError],
    listener: Callable[[Sequence[int], Iterable[bytes]], None],
) -> None:
    """Ask the engine for many steps; each is answered once, by its place, what is done together at once."""
    limits = engine.sessions.limits
    good: list[tuple[int, Item]] = []
    bad: list[tuple[int, HttpError]] = []
    for place, item in enumerate(items):
        if isinstance(item, HttpError):
            bad.append((place, item))
        elif (item.input is UNSET) == (item.inputs is UNSET):
            bad.append((place, HttpError(400, "a step has either `input` or `inputs`", param="inputs")))
        elif item.key and len(item.key) > limits.key:
            bad.append((place, HttpError(400, f"the key is longer than {limits.key} characters", param="key")))
        else:
            good.append((place, item))

    def apart(place: int) -> Listener:
        return lambda result: listener([place], [answered(result)])

    def submit(some: list[tuple[int, Item]]) -> None:
        places = [place for place, _ in some]

        def together(found: Stepped | HttpError) -> None:  # does not know the job, which would be kept by that
            if isinstance(found, HttpError):
                listener(places, [answered(found)] * len(places))
            else:
                listener(found.places, found)

        engine.submit(Steps(together, tenant, some, places, apart))

    size = engine.crowd.rows
    submit(good[:size])
    for at in range(size, len(good), size):
        try:
            submit(good[at : at + size])
        except HttpError as refused:
            bad += [(place, refused) for place, _ in good[at : at + size]]
    listener([place for place, _ in bad], [answered(wrong) for _, wrong in bad])


def texts(outputs: Outputs) -> list[bytes]:
    """Each of some outputs as JSON."""
    return [one if type(one) is bytes else to_json(one) for one in outputs]


def answered(result: Reply | HttpError) -> bytes:
    """The answer to one of many steps."""
    if isinstance(result, HttpError):
        return to_json({"status": result.status, "error": result.error()})
    return to_json({"status": result.status, "replayed": result.replayed, "body": msgspec.Raw(result.body)})
