"""`elman predict` over HTTP.

The body is made from the request of a task: its options with their ranges, what the server limits of them, and data as
a text or as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from elman.errors import InputError
from elman.progress import check_cancelled, quiet
from elman.serve.api import bodies
from elman.serve.limits import Limits
from elman.tasks import TASKS
from elman.tasks.predictor import AnyPredictor
from elman.tasks.request import Named, Option, Request
from elman.tasks.task import AnyTask

Type = Any  # a type, as msgspec takes it
Predicting = Callable[[bytes], list[str]]  # lines, of the body of a request


def predictor(task: AnyTask, model: AnyPredictor, limits: Limits | None = None) -> Predicting:
    """What answers for a model. It is shared by all who ask, side by side: nothing changes it."""
    most, (kind, respond) = limits or Limits(), task.requests["predict"]
    body = body_of(model.task, kind, most)
    inside = {named.name: getattr(most, named.option.limit) for named in kind.options() if named.option.inside}

    def predict(sent: bytes) -> list[str]:
        values = msgspec.structs.asdict(bodies.parse(body, sent))
        del values["model"]
        values["data"] = () if values["data"] is None else values["data"]
        with quiet():  # what is said of a file is for whoever named it
            return _lines(respond(model, kind(**values, **inside)), most.prediction)

    return predict


def body_of(task: str, kind: type[Request], limits: Limits) -> type[msgspec.Struct]:
    """The body of a request to a model of a task."""
    reads = kind.reads()
    assert reads is not None  # what is predicted is of data
    kinds: Type = str if reads.rows is None else str | reads.rows
    data: Type = Annotated[kinds, Meta(description="a text, as it would be in a file; or rows")]
    fields: list[Type] = [("model", str), ("data", data) if reads.least else ("data", data | None, None)]
    fields += [_field(named, limits) for named in kind.options() if not (named.option.local or named.option.inside)]
    return msgspec.defstruct(
        f"Predict{task.title()}", fields, bases=(bodies.Body,), namespace={"__doc__": kind.__doc__}
    )


def _field(named: Named, limits: Limits) -> tuple[str, Type, object]:
    several = get_origin(named.kind) is tuple
    kind = _kind(get_args(named.kind)[0] if several else named.kind, named.option, limits)
    whole: Type = tuple.__class_getitem__((kind, ...)) if several else kind | None if named.optional else kind
    return named.name, Annotated[whole, Meta(description=named.option.help)], named.default


def _kind(kind: Type, option: Option, limits: Limits) -> Type:
    """The type of a value, with its range: what the option has, and what the server limits of it."""
    if option.choices:
        return Literal[option.choices]
    limit = getattr(limits, option.limit) if option.limit else None
    tops = [value for value in (option.most, limit) if value is not None]
    meta = Meta(ge=option.least, le=min(tops) if tops else None)
    return Annotated[kind, meta] if kind in (int, float) else kind


def every_body(limits: Limits) -> list[type[msgspec.Struct]]:
    """The body for each task that predicts."""
    predicting = [(name, task.requests["predict"][0]) for name, task in TASKS.items() if "predict" in task.requests]
    return [body_of(name, kind, limits) for name, kind in predicting]


def _lines(answer: Iterable[str], most: int) -> list[str]:
    found, size = [], 0
    for line in answer:
        check_cancelled()
        found.append(line.rstrip("\n"))
        size += len(found[-1])
        if size > most:
            raise InputError(f"the answer has more than {most:,} bytes, which is the limit; send less data at once")
    return found
