"""`/v1/responses` as OpenAI defines it: every response is a checkpoint, from which any number of others continue."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec

from elman.serve.api import bodies
from elman.serve.api.context import RequestContext
from elman.serve.api.session_routes import check
from elman.serve.engine import text_jobs
from elman.serve.engine.job import Job, Listener
from elman.serve.engine.jobs import Reply
from elman.serve.engine.text_jobs import Completed
from elman.serve.errors import HttpError
from elman.serve.json import JsonObject, to_json
from elman.tasks.serving import Writing

KEPT = 30 * 86_400.0  # seconds, as OpenAI keeps them
DEFAULT = 256  # tokens


async def create(x: RequestContext) -> None:
    body, data = await x.parse(bodies.ResponseBody)
    endless = bool(x.service.model(body.model).about.get("endless"))
    if not isinstance(body.input, str) or body.instructions or body.tools:
        raise HttpError(
            400, "input must be a text, without instructions or tools: these models continue a text and know no roles",
            param="input",
        )  # fmt: skip
    bodies.check_text(body.input, x.limits.prompt, x.limits, "input")
    most = DEFAULT if body.max_output_tokens is None else body.max_output_tokens
    check(x.limits, "max_tokens", "max_output_tokens", most)
    temperature, top_p = 1.0 if body.temperature is None else body.temperature, body.top_p or 1.0
    settings = Writing(most, temperature, top_p=top_p, keep_stop=False)
    seed = secrets.randbits(62) if body.seed is None else body.seed
    request, kept = x.write_request("responses", data), KEPT if body.store is not False else 0.0
    previous, created = body.previous_response_id or "", int(time.time())
    power = x.service.durability == "power"

    def answered(id: str, found: Completed) -> bytes:
        return to_json(_response(id, body, created, endless, found))

    def job(reply: Listener, listener: Listener | None = None) -> Job:
        return text_jobs.Respond(
            reply, request, body.model, body.input, settings, seed, previous, kept, power, answered, listener
        )

    if not body.stream:
        await x.reply(await x.run_watched(job))
        return
    await _stream(x, body, created, endless, job)


async def get(x: RequestContext) -> None:
    await x.reply(await x.run(lambda reply: text_jobs.GetResponse(reply, x.tenant, x.path_param("id"))))


async def delete(x: RequestContext) -> None:
    await x.reply(await x.run(lambda reply: text_jobs.DeleteResponse(reply, x.tenant, x.path_param("id"))))


def _response(id: str, body: bodies.ResponseBody, created: int, endless: bool, found: Completed | None) -> JsonObject:
    """The response object; without what was found, one that is in progress. A text without an end is complete when it
    is as long as it was to be; one that has an end, and was cut before it, is not."""
    text = None if found is None else found.choices[0].answer["text"]
    reason = None if found is None else found.choices[0].answer["finish_reason"]
    cut = reason == "length" and not endless
    whole: JsonObject = {
        "id": id, "object": "response", "created_at": created, "model": body.model,
        "status": "in_progress" if found is None else "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None, "instructions": None, "metadata": body.metadata or {}, "parallel_tool_calls": False,
        "tool_choice": "none", "tools": [], "temperature": body.temperature, "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens, "previous_response_id": body.previous_response_id,
        "store": body.store is not False, "output": [] if text is None else [_message(id, text, "completed")],
    }  # fmt: skip
    if found is not None:
        whole["usage"] = {
            "input_tokens": found.prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": found.completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": found.prompt_tokens + found.completion_tokens,
        }  # fmt: skip
    return whole


def _message(id: str, text: str | None, status: str) -> JsonObject:
    content = [] if text is None else [_part(text)]
    return {"type": "message", "id": f"msg_{id}", "status": status, "role": "assistant", "content": content}


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _stream(
    x: RequestContext, body: bodies.ResponseBody, created: int, endless: bool, job: Callable[..., Job]
) -> None:
    """The events of a response. What comes before response.completed is provisional."""
    number, made = 0, []

    async def say(kind: str, **more: object) -> None:
        nonlocal number
        await x.event({"type": kind, "sequence_number": number, **more}, kind)
        number += 1

    def kept(*given: Listener) -> Job:
        made.append(job(*given))
        return made[-1]

    async for what, value in x.listen(kept):
        # A reply to a key that was used before is that of an older response.
        id = msgspec.json.decode(value.body)["id"] if what == "result" else made[0].id  # type: ignore[attr-defined]
        place = {"item_id": f"msg_{id}", "output_index": 0, "content_index": 0}
        if not x.status:
            await x.begin_events()
            begun = _response(id, body, created, endless, None)
            await say("response.created", response=begun)
            await say("response.in_progress", response=begun)
            await say("response.output_item.added", output_index=0, item=_message(id, None, "in_progress"))
            await say("response.content_part.added", **place, part=_part(""))
        if what == "events":
            for new in value[1]:
                if new["text"]:
                    await say("response.output_text.delta", **place, delta=new["text"], logprobs=[])
            continue
        await _end(say, place, value)
    await x.end_events()


async def _end(say: Callable[..., Awaitable[None]], place: JsonObject, reply: Reply) -> None:
    response = msgspec.json.decode(reply.body)
    text = response["output"][0]["content"][0]["text"]
    await say("response.output_text.done", **place, text=text, logprobs=[])
    await say("response.content_part.done", **place, part=_part(text))
    await say("response.output_item.done", output_index=0, item=response["output"][0])
    await say(f"response.{response['status']}", response=response)
