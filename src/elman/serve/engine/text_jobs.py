"""Texts without a session: completions, and responses, each of which is a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elman.serve.engine.engine import Engine
from elman.serve.engine.job import Listener, Listening
from elman.serve.engine.jobs import Get, Keyed, Reply, WriteRequest, prompt_work, writer
from elman.serve.errors import HttpError
from elman.serve.json import JsonObject, to_json
from elman.serve.store.records import Response
from elman.serve.store.sessions import new_id
from elman.tasks.serving import ServedWriter, Work, Writing, WritingWork


@dataclass
class Choice:
    """One of the texts that follow a prompt."""

    prompt: int
    answer: JsonObject
    state: bytes
    read: list[JsonObject]  # scores of the prompt


@dataclass(frozen=True)
class Completed:
    """What follows some prompts, `n` texts each."""

    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int


class Complete(Listening):
    """Read prompts, each once; then write `n` texts after each. Listeners get (number of the choice, events)."""

    def __init__(
        self, reply: Listener, tenant: str, model: str, prompts: Sequence[object], settings: Writing, n: int, seed: int,
        state: bytes | None, listener: Listener | None,
    ) -> None:  # fmt: skip
        super().__init__(reply)
        self.tenant, self.model, self.prompts, self.settings, self.n = tenant, model, prompts, settings, n
        self.seed, self.state, self.listener = seed, state, listener

    def start(self, engine: Engine) -> None:
        served = writer(engine.sessions.model(self.model))
        self.numbers: dict[int, int] = {}
        self.found: list[Choice | None] = [None] * (len(self.prompts) * self.n)
        self.tokens = [0, 0]
        start = served.start(self.seed) if self.state is None else self.state
        reading, most = self._settings(0, 0), engine.sessions.limits.prompt
        works = [prompt_work(served, prompt, reading, most) for prompt in self.prompts]
        for number, work in enumerate(works):
            self.tokens[0] += len(work)
            work.begin(start)
            engine.run(self, served, work, self._read(engine, served, number, work))

    def _settings(self, most: int, i: int) -> Writing:
        return replace(self.settings, max_new_tokens=most, seed=(self.seed + i) % 2**63)

    def _read(self, engine: Engine, served: ServedWriter, number: int, reading: WritingWork) -> Callable[[Work], None]:
        def then(work: Work) -> None:
            state, scores = work.end(), list(work.answer().get("logprobs", []))
            for i in range(self.n):
                place = number * self.n + i
                writing = served.again(reading, self._settings(self.settings.max_new_tokens, i))
                writing.begin_read(state)
                self.numbers[id(writing)] = place
                engine.run(self, served, writing, self._wrote(engine, place, number, scores))

        return then

    def _wrote(self, engine: Engine, place: int, number: int, scores: list[JsonObject]) -> Callable[[Work], None]:
        def then(work: Work) -> None:
            self.emit_events(engine, work)
            answer = work.answer()
            self.tokens[1] += len(answer["tokens"])
            self.found[place] = Choice(number, answer, work.end(), scores)
            if all(one is not None for one in self.found):
                self.done(engine, Completed([one for one in self.found if one is not None], *self.tokens))

        return then

    def done(self, engine: Engine, completed: Completed) -> None:
        engine.finish(self, completed)

    def emit_events(self, engine: Engine, work: Work) -> None:
        place = self.numbers.get(id(work))
        if self.listener is not None and place is not None and (events := work.events()):
            engine.emit(self.listener, (place, events, work.answer()["finish_reason"] if work.done else None))


class Respond(Keyed, Complete):
    """A text that continues an earlier response, or starts from nothing; it is kept for `kept` seconds, if any, on the
    disk with `power`."""

    def __init__(
        self, reply: Listener, request: WriteRequest, model: str, prompt: object, settings: Writing, seed: int,
        previous: str, kept: float, power: bool, body: Callable[[str, Completed], bytes], listener: Listener | None,
    ) -> None:  # fmt: skip
        Complete.__init__(self, reply, request.tenant, model, [prompt], settings, 1, seed, None, listener)
        Keyed.__init__(self, reply, request)
        self.previous, self.kept, self.power, self.body, self.id = previous, kept, power, body, new_id("resp")

    def start(self, engine: Engine) -> None:
        Keyed.start(self, engine)

    def make(self, engine: Engine) -> None:
        sessions = engine.sessions
        if self.previous:
            before = sessions.response(self.previous, self.tenant)
            served = sessions.model(self.model, None)
            if (before.model, before.fingerprint) != (self.model, sessions.fingerprints[self.model]):
                raise HttpError(
                    422, f"{self.previous} is a response of the model {before.model!r} with other weights than "
                    f"{self.model!r} has", code="model_mismatch",
                )  # fmt: skip
            self.state = served.seeded(before.state, self.seed)
        if self.kept:  # if there is room, or will not be, say so before the work is done
            sessions.ledger.admit(self.tenant)
            sessions.ledger.admit(self.tenant, -1)
        Complete.start(self, engine)

    def done(self, engine: Engine, completed: Completed) -> None:
        sessions, body = engine.sessions, self.body(self.id, completed)
        if self.kept:
            expires = sessions.clock() + self.kept
            record = Response(
                self.tenant, self.model, sessions.fingerprints[self.model], completed.choices[0].state, body, expires,
                self.power,
            )  # fmt: skip
            sessions.respond(self.id, record)
        self.finish_new(engine, body)


class GetResponse(Get):
    """What was answered."""

    def start(self, engine: Engine) -> None:
        engine.finish(self, Reply(engine.sessions.response(self.id, self.tenant).body))


class DeleteResponse(Get):
    """Delete it; responses that continue it stay."""

    def start(self, engine: Engine) -> None:
        engine.sessions.drop_response(self.id, engine.sessions.response(self.id, self.tenant))
        engine.finish(self, Reply(to_json({"id": self.id, "object": "response", "deleted": True})))
