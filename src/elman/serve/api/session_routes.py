"""Sessions over HTTP."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from elman.serve.api import bodies
from elman.serve.api.bodies import parse
from elman.serve.api.context import RequestContext
from elman.serve.engine import jobs
from elman.serve.engine.job import Job, Listener
from elman.serve.engine.steps import Item, Step, step_inputs
from elman.serve.errors import HttpError
from elman.serve.limits import Limits
from elman.tasks.serving import Writing


async def create(x: RequestContext) -> None:
    body, data = await x.parse(bodies.NewSession)
    served = x.service.model(body.model)
    state = None if body.state is None else x.service.signer.verify(x.tenant, served.fingerprint, body.state)
    if state is not None and body.seed is not None:
        state = served.seeded(state, body.seed)
    request, options = x.write_request("create", data), _options(x, body)
    await x.reply(await x.run(lambda reply: jobs.Create(reply, request, body.model, options, body.seed, state)))


def _options(x: RequestContext, body: bodies.NewSession) -> jobs.Options:
    limits, wanted = x.limits, body.durability or x.service.durability
    durable = x.service.engine.sessions.store.durable
    if wanted != "none" and not durable:
        raise HttpError(400, f"durability {wanted} needs a server with --store; this one has none", param="durability")
    if wanted == "none" and durable:
        raise HttpError(400, "this server stores every session: durability is process or power", param="durability")
    ttl = x.service.ttl if body.ttl_seconds is None else body.ttl_seconds
    if ttl > limits.ttl_seconds:
        raise HttpError(400, f"ttl_seconds is {ttl}; {limits.ttl_seconds:g} at most", param="ttl_seconds")
    marks = body.checkpoints
    if marks is not None and marks.keep > limits.checkpoints:
        raise HttpError(
            400, f"checkpoints.keep is {marks.keep}; {limits.checkpoints} at most", param="checkpoints.keep"
        )
    if body.log_inputs and marks is None:
        raise HttpError(400, "log_inputs needs checkpoints to replay from", param="log_inputs")
    every, keep = (marks.every, marks.keep) if marks is not None else (0, 0)
    return jobs.Options(ttl, wanted == "power", every, keep, body.log_inputs)


async def get(x: RequestContext) -> None:
    await x.reply(await x.run(lambda reply: jobs.Get(reply, x.tenant, x.path_param("id"))))


async def delete(x: RequestContext) -> None:
    await x.reply(await x.run(lambda reply: jobs.Delete(reply, x.tenant, x.path_param("id"))))


async def step(x: RequestContext) -> None:
    body, data = await x.parse(bodies.StepBody)
    inputs, one = step_inputs(body.input, body.inputs)
    x.reserve(bodies.count(body, x.limits) * bodies.ANSWER)
    version, request = x.version(body.version), x.write_request("step", data)
    await x.reply(await x.run(lambda reply: Step(reply, request, x.path_param("id"), version, inputs, one)))


async def generate(x: RequestContext) -> None:
    body, data = await x.parse(bodies.GenerateBody)
    bodies.check_text(body.prompt, x.limits.prompt, x.limits, "prompt")
    settings, version, request = writing(body, x.limits), x.version(body.version), x.write_request("generate", data)
    scores = 0 if body.logprobs is None else 1 + body.logprobs
    x.reserve(body.max_new_tokens * (bodies.TOKEN + scores * bodies.SCORE))
    id = x.path_param("id")
    if not body.stream:

        def alone(reply: Listener) -> Job:
            return jobs.Generate(reply, request, id, version, body.prompt, settings, None)

        await x.reply(await x.run_watched(alone))
        return

    def heard(reply: Listener, listener: Listener) -> Job:
        return jobs.Generate(reply, request, id, version, body.prompt, settings, listener)

    async for what, value in x.listen(heard):
        if not x.status:
            await x.begin_events()
        if what == "events":
            for events in value:
                await x.event(events, "token")
        else:
            await x.event(value.body, "done")
    await x.end_events()


def writing(body: bodies.GenerateBody, limits: Limits) -> Writing:
    """The settings of a body, within the limits."""
    check(limits, "max_tokens", "max_new_tokens", body.max_new_tokens)
    check(limits, "logprobs", "logprobs", body.logprobs or 0)
    return Writing(
        body.max_new_tokens, body.temperature, body.top_k, body.top_p, body.repetition_penalty,
        stops(body.stop, limits), seed=body.seed, allow=tuple(body.allow), logprobs=body.logprobs,
    )  # fmt: skip


def check(limits: Limits, name: str, param: str, value: float) -> None:
    """Refuse what is past a limit."""
    if value > getattr(limits, name):
        raise HttpError(400, f"{param} is {value}; {getattr(limits, name)} at most", param=param)


def stops(given: str | list[str] | None, limits: Limits) -> tuple[str, ...]:
    """The strings that end a text."""
    found = (given,) if isinstance(given, str) else tuple(given or ())
    check(limits, "stops", "the number of stop strings", len(found))
    check(limits, "stop_characters", "the length of a stop string", max(map(len, found), default=0))
    if "" in found:
        raise HttpError(400, "stop is the empty string, which every text contains", param="stop")
    return found


async def fork(x: RequestContext) -> None:
    body, data = await x.parse(bodies.ForkBody)
    request = x.write_request("fork", data)
    await x.reply(await x.run(lambda reply: jobs.Fork(reply, request, x.path_param("id"), body.seed)))


async def rollback(x: RequestContext) -> None:
    body, data = await x.parse(bodies.RollbackBody)
    version, request = x.version(body.version), x.write_request("rollback", data)
    await x.reply(await x.run(lambda reply: jobs.Rollback(reply, request, x.path_param("id"), version, body.position)))


async def get_state(x: RequestContext) -> None:
    reply = await x.run(lambda reply: jobs.GetState(reply, x.tenant, x.path_param("id")))
    await x.reply(reply, b"application/octet-stream")


async def put_state(x: RequestContext) -> None:
    data = await x.body(x.limits.state_bytes)
    version, request = x.version(None), x.write_request("state", data)
    await x.reply(await x.run(lambda reply: jobs.PutState(reply, request, x.path_param("id"), version, data)))


async def steps(x: RequestContext) -> None:
    """Steps of many sessions; each has a status of its own."""
    data = await x.json_body()
    items: list[Item | HttpError]
    try:
        items = list(parse(bodies.Items, data).items)
        check(x.limits, "bulk", "the number of items", len(items))
    except HttpError:
        raws = parse(bodies.RawItems, data).items
        check(x.limits, "bulk", "the number of items", len(raws))
        items = [item_of(raw) for raw in raws]
    counts = [
        1 if isinstance(item, Item) and item.inputs is UNSET else _count(x, items, place)
        for place, item in enumerate(items)
    ]
    check(x.limits, "bulk_inputs", "the number of inputs in all items", sum(counts))
    x.reserve(sum(counts) * bodies.ANSWER)
    answers = await x.service.run_steps(x.tenant, items)
    await x.send(200, b'{"object":"list","data":[%b]}' % answers)


def _count(x: RequestContext, items: list[Item | HttpError], place: int) -> int:
    """How many inputs an item has; if they are too many, it is refused in its place."""
    item = items[place]
    try:
        return 0 if isinstance(item, HttpError) else bodies.count(item, x.limits)
    except HttpError as refused:
        items[place] = refused
        return 0


def item_of(raw: msgspec.Raw) -> Item | HttpError:
    """An item of /v1/steps."""
    try:
        return parse(Item, bytes(raw))
    except HttpError as refused:
        return refused
