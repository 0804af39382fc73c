"""`/v1/completions` as OpenAI has it. A state may be carried: `return_state` gives one, signed, `state` takes it in."""

from __future__ import annotations

import dataclasses
import secrets
import time
from functools import partial

from elman.serve.api import bodies
from elman.serve.api.context import RequestContext
from elman.serve.api.session_routes import check, stops
from elman.serve.engine import jobs, text_jobs
from elman.serve.engine.job import Job, Listener
from elman.serve.engine.text_jobs import Choice, Completed
from elman.serve.errors import HttpError
from elman.serve.json import JsonObject, to_json
from elman.serve.store.sessions import new_id
from elman.tasks.serving import Served, Writing

LONG = 16_384  # log-probabilities in an answer that is encoded in a thread, so that nobody waits for it


async def chat(x: RequestContext) -> None:
    raise HttpError(
        404, "there is no chat here: these models continue a text and know no roles. Use /v1/completions, or "
        "/v1/responses with a text as input.", code="no_chat",
    )  # fmt: skip


async def create(x: RequestContext) -> None:
    body, _ = await x.parse(bodies.CompletionBody)
    served = x.service.model(body.model)
    prompts, settings, n = prompts_of(body.prompt), _settings(x, body), body.n or 1
    check(x.limits, "prompts", "the number of prompts", len(prompts))
    check(x.limits, "n", "n", n)
    check(x.limits, "beams", "num_beams", body.num_beams)
    total = len(prompts) * max(n, body.num_beams) * settings.max_new_tokens
    check(x.limits, "total_tokens", "prompts x n (or num_beams) x max_tokens", total)
    for prompt in prompts:
        bodies.check_text(prompt, x.limits.prompt, x.limits, "prompt")
    read = sum(map(len, prompts)) * n if settings.scored else 0  # type: ignore[arg-type]
    scores = 0 if body.logprobs is None else (total + read) * (1 + body.logprobs)
    check(x.limits, "scores", "tokens x (1 + logprobs)", scores)
    # Each text has a state, and a byte for each symbol of the vocabulary that says whether it was seen.
    states = len(prompts) * n * (served.row_bytes * (7 if body.return_state else 3) // 3 + _symbols(served))
    x.reserve(total * bodies.TOKEN + scores * bodies.SCORE + states)
    if body.state is not None and len(prompts) != 1:
        raise HttpError(400, "with a state there can be only one prompt", param="state")
    state = None if body.state is None else x.service.signer.verify(x.tenant, served.fingerprint, body.state)
    seed = secrets.randbits(62) if body.seed is None else body.seed % 2**63
    answer = _Answer(x, body, prompts)
    if body.num_beams > 1:
        await _search(x, answer, prompts, settings, state)
        return

    def job(reply: Listener, listener: Listener | None = None) -> Job:
        return text_jobs.Complete(reply, x.tenant, body.model, prompts, settings, n, seed, state, listener)

    if not body.stream:
        found = await x.run_watched(job)
        if scores > LONG:
            data = await x.service.workers.run(x.tenant, lambda: to_json(answer.whole(found)), x.gone)
        else:
            data = to_json(answer.whole(found))
        await x.send(200, data)
        return
    async for what, value in x.listen(job):
        if not x.status:
            await x.begin_events()
        for chunk in answer.chunks(*value) if what == "events" else answer.last(value):
            await x.event(chunk)
    await x.event(b"[DONE]")
    await x.end_events()


def _symbols(served: Served) -> int:
    """Of the vocabulary of a model; none where it reads no text."""
    symbols = served.about.get("symbols", 0)
    return symbols if isinstance(symbols, int) else 0


async def _search(
    x: RequestContext, answer: _Answer, prompts: list[object], settings: Writing, state: bytes | None
) -> None:
    """The most probable texts. The engine reads the prompts; the search runs in a thread, so nobody waits for it."""
    body, served = answer.body, jobs.writer(x.service.model(answer.body.model))
    read = dataclasses.replace(settings, max_new_tokens=0)
    begun: Completed = await x.run(
        lambda reply: text_jobs.Complete(reply, x.tenant, body.model, prompts, read, 1, 0, state, None)
    )
    choices = []
    for one in begun.choices:
        prompt = prompts[one.prompt]
        search = partial(served.search, one.state, prompt, settings, body.num_beams)
        found: list[tuple[JsonObject, bytes]] = await x.service.workers.run(x.tenant, search, x.gone)
        choices += [Choice(one.prompt, *each, []) for each in found[: body.n or 1]]
    wrote = sum(len(choice.answer["tokens"]) for choice in choices)
    whole = Completed(choices, begun.prompt_tokens, wrote)
    if not body.stream:
        await x.send(200, to_json(answer.whole(whole)))
        return
    await x.begin_events()
    for chunk in answer.last(whole):
        await x.event(chunk)
    await x.event(b"[DONE]")
    await x.end_events()


def prompts_of(given: object) -> list[object]:
    """A text, tokens, or a list of either."""
    if isinstance(given, str) or (isinstance(given, list) and given and all(type(i) is int for i in given)):
        return [given]
    if isinstance(given, list) and given and all(isinstance(one, str | list) for one in given):
        return given
    raise HttpError(400, "prompt is a text, a list of tokens, or a list of either", param="prompt")


def _settings(x: RequestContext, body: bodies.CompletionBody) -> Writing:
    if body.num_beams > 1:
        _check_search(body)
    if body.suffix:
        raise HttpError(400, "suffix cannot be used: these models read from left to right", param="suffix")
    if body.best_of not in (None, 1, body.n):
        raise HttpError(400, "best_of cannot be used: all n are returned", param="best_of")
    most = 16 if body.max_tokens is None else body.max_tokens
    check(x.limits, "max_tokens", "max_tokens", most)
    check(x.limits, "logprobs", "logprobs", body.logprobs or 0)
    check(x.limits, "bias", "the number of tokens in logit_bias", len(body.logit_bias or ()))
    try:
        bias = tuple((int(token), value) for token, value in (body.logit_bias or {}).items())
    except ValueError as error:
        raise HttpError(400, "logit_bias has tokens, as numbers, for keys", param="logit_bias") from error
    return Writing(
        most, _or(body.temperature, 1.0), body.top_k, _or(body.top_p, 1.0), body.repetition_penalty,
        stops(body.stop, x.limits), keep_stop=False, bias=bias, presence=_or(body.presence_penalty, 0.0),
        frequency=_or(body.frequency_penalty, 0.0), logprobs=body.logprobs,
        scored=bool(body.echo) and body.logprobs is not None,
    )  # fmt: skip


def _check_search(body: bodies.CompletionBody) -> None:
    """A beam search finds what is most probable, and draws nothing."""
    drawn = (_or(body.temperature, 1.0), _or(body.top_p, 1.0), body.top_k, body.repetition_penalty) != (
        1.0,
        1.0,
        0,
        1.0,
    )
    if drawn or body.logit_bias or body.presence_penalty or body.frequency_penalty or body.logprobs is not None:
        raise HttpError(
            400, "a beam search does not sample: leave out temperature, top_p, top_k, penalties, logit_bias and "
            "logprobs, or num_beams", param="num_beams",
        )  # fmt: skip
    if (body.n or 1) > body.num_beams:
        raise HttpError(400, f"n is {body.n}; a search with {body.num_beams} beams finds at most as many", param="n")


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


class _Answer:
    """What was found, in OpenAI's words."""

    def __init__(self, x: RequestContext, body: bodies.CompletionBody, prompts: list[object]) -> None:
        self.x, self.body, self.prompts = x, body, prompts
        self.head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }
        self.begun: set[int] = set()

    def whole(self, found: Completed) -> JsonObject:
        choices = [self._choice(i, choice) for i, choice in enumerate(found.choices)]
        return {**self.head, "choices": choices, "usage": usage(found)}

    def _choice(self, index: int, choice: Choice) -> JsonObject:
        before = self._echo(choice.prompt)
        scores = [*choice.read, *choice.answer.get("logprobs", [])]
        logprobs = None if self.body.logprobs is None else legacy(scores, 0 if choice.read else len(before))
        answer = {"index": index, "text": before + choice.answer["text"], "logprobs": logprobs}
        answer["finish_reason"] = reason(choice.answer["finish_reason"])
        if self.body.return_state:
            fingerprint = self.x.service.model(self.body.model).fingerprint
            answer["state"] = self.x.service.signer.sign(self.x.tenant, fingerprint, choice.state)
        return answer

    def _echo(self, number: int) -> str:
        prompt = self.prompts[number]
        if not self.body.echo:
            return ""
        return prompt if isinstance(prompt, str) else jobs.writer(self.x.service.model(self.body.model)).spelt(prompt)

    def chunks(self, place: int, events: list[JsonObject], _: str | None) -> list[JsonObject]:
        found = []
        for new in events:
            text = new["text"]
            if place not in self.begun:
                self.begun.add(place)
                text = self._echo(place // (self.body.n or 1)) + text
            logprobs = legacy([new["logprob"]], 0) if self.body.logprobs is not None else None
            found.append(self._chunk({"index": place, "text": text, "logprobs": logprobs, "finish_reason": None}))
        return found

    def last(self, found: Completed) -> list[JsonObject]:
        """What ends each text; and how much was read and written, if that was wanted."""
        ends = []
        for i, choice in enumerate(found.choices):
            whole = self._choice(i, choice)
            ends.append(self._chunk({**whole, "text": "" if i in self.begun else whole["text"], "logprobs": None}))
        options = self.body.stream_options
        if options is not None and options.include_usage:
            ends.append({**self.head, "choices": [], "usage": usage(found)})
        return ends

    def _chunk(self, choice: JsonObject) -> JsonObject:
        return {**self.head, "choices": [choice]}


def usage(found: Completed) -> dict[str, int]:
    read, wrote = found.prompt_tokens, found.completion_tokens
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def reason(given: str) -> str:
    """OpenAI knows two: it stopped by itself, or it was as long as it might be."""
    return "length" if given == "length" else "stop"


def legacy(scores: list[JsonObject], offset: int) -> JsonObject:
    """Log-probabilities in the form of OpenAI's completions."""
    offsets = []
    for score in scores:
        offsets.append(offset)
        offset += len(score["text"])
    return {
        "tokens": [score["text"] for score in scores],
        "token_logprobs": [score["logprob"] for score in scores],
        "top_logprobs": [{one["text"]: one["logprob"] for one in score.get("top", [])} for score in scores],
        "text_offset": offsets,
    }
