"""The JSON of requests, as types: what is wrong with one is found where it is parsed, before anything is done."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Struct

from elman.serve.engine.steps import Item, Version
from elman.serve.errors import HttpError
from elman.serve.json import AnyJson
from elman.serve.limits import Limits

ANSWER = 2_048  # bytes that the answer to one input is taken to have: 128 numbers
TOKEN = 32  # the same of a token
SCORE = 256  # the same of a log-probability, until it is JSON
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Probability = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
Temperature = Annotated[float, Meta(ge=0, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
T = TypeVar("T")


class Body(Struct, forbid_unknown_fields=True):
    pass


class Checkpoints(Body):
    """Every so many inputs; so many are kept."""

    every: Annotated[int, Meta(ge=1, lt=2**53)]
    keep: Annotated[int, Meta(ge=1)] = 1


class NewSession(Body):
    """A new session."""

    model: str
    seed: Seed | None = None
    ttl_seconds: Positive | None = None
    durability: Literal["none", "process", "power"] | None = None
    checkpoints: Checkpoints | None = None
    log_inputs: bool = False
    state: str | None = None


class StepBody(Body):
    """One input, or several: rows of numbers; a text, or tokens."""

    version: Version | None = None
    input: AnyJson = UNSET
    inputs: AnyJson = UNSET


class Items(Body):
    """Steps of many sessions."""

    items: list[Item]


class RawItems(Body):
    """The same, where some are wrong: each is parsed by itself, and has an error of its own."""

    items: list[msgspec.Raw]


class GenerateBody(Body):
    """How to continue a text."""

    version: Version | None = None
    prompt: AnyJson = ""
    max_new_tokens: Count = 200
    temperature: Temperature = 1.0
    top_k: Count = 0
    top_p: Probability = 1.0
    repetition_penalty: Positive = 1.0
    stop: str | list[str] | None = None
    seed: Seed | None = None
    allow: list[Literal["end", "unknown"]] = []
    logprobs: Count | None = None
    stream: bool = False


class ForkBody(Body):
    """A fork; with a seed it draws other random numbers than its parent."""

    seed: Seed | None = None


class RollbackBody(Body):
    """Where to go back to."""

    position: Count
    version: Version | None = None


class StreamOptions(Struct):
    """Of a stream."""

    include_usage: bool = False


class CompletionBody(Body):
    """OpenAI's completions, with `state`, `return_state`, `top_k`, `num_beams` and `repetition_penalty` beside it."""

    model: str
    prompt: AnyJson = ""
    max_tokens: Count | None = 16
    temperature: Temperature | None = 1.0
    top_p: Probability | None = 1.0
    n: Annotated[int, Meta(ge=1)] | None = 1
    logprobs: Count | None = None
    echo: bool | None = False
    stop: str | list[str] | None = None
    seed: Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: int | None = None
    suffix: str | None = None
    state: str | None = None
    return_state: bool = False
    top_k: Count = 0
    repetition_penalty: Positive = 1.0
    num_beams: Annotated[int, Meta(ge=1)] = 1


class ResponseBody(Struct):
    """OpenAI's responses, as far as a model without roles and tools can answer them."""

    model: str
    input: AnyJson
    previous_response_id: str | None = None
    store: bool | None = True
    stream: bool | None = False
    max_output_tokens: Count | None = None
    temperature: Temperature | None = 1.0
    top_p: Probability | None = 1.0
    metadata: dict[str, str] | None = None
    instructions: str | None = None
    tools: list[AnyJson] | None = None
    seed: Seed | None = None


class PredictBody(Struct):
    """A prediction. What else it has depends on the task of the model: `predicting.body_of` makes that."""

    model: str


_decoders: dict[type, msgspec.json.Decoder[object]] = {}


def parse(kind: type[T], data: bytes) -> T:
    """A body of this kind, or a HttpError that says where it is not one."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return cast(T, decoder.decode(data))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        raise HttpError(400, str(error), param=path.strip("`$.") or None) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from error


def count(body: StepBody | Item, limits: Limits) -> int:
    """How many inputs a step has, at most; refused where they are too many, before any is looked at."""
    inputs = body.inputs
    if isinstance(inputs, str):
        check_text(inputs, limits.inputs, limits, "inputs")
        return min(len(inputs), limits.inputs)
    if not isinstance(inputs, list):
        return 1
    if len(inputs) > limits.inputs:
        raise HttpError(400, f"there are {len(inputs)} inputs; {limits.inputs} at most", param="inputs")
    return len(inputs)


def check_text(text: object, most: int, limits: Limits, param: str) -> None:
    """Refuse a text, or a list of tokens, that is too long for `most` tokens, however it is split."""
    if isinstance(text, str) and len(text) > most * limits.token_characters:
        raise HttpError(
            400, f"{param} has {len(text)} characters; {most} tokens at most, and a text of more than "
            f"{limits.token_characters} characters for each of them is not tokenised", param=param,
        )  # fmt: skip
    if isinstance(text, list) and len(text) > most:
        raise HttpError(400, f"{param} has {len(text)} tokens; {most} at most", param=param)
