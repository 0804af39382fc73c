"""The JSON of answers, as types, for /openapi.json. They are built elsewhere; a test compares the two."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from elman.serve.json import AnyJson, JsonObject


class Session(Struct):
    """A session. `state_bytes` is the length of its state."""

    id: str
    object: Literal["session"]
    model: str
    version: int
    position: int
    created: int
    expires: int
    state_bytes: int
    durability: Literal["none", "process", "power"]
    checkpoints: list[int]
    log_inputs: bool
    parent: str | None


class Deleted(Struct):
    """What was deleted."""

    id: str
    object: Literal["session", "response"]
    deleted: Literal[True]


class Written(Struct):
    """Where a session is after a write."""

    session: str
    version: int
    position: int


class Stepped(Written):
    """The output for `input`, or for each of the `inputs`: numbers, a score, or the prediction of the next row."""

    output: AnyJson = UNSET
    outputs: list[AnyJson] | UnsetType = UNSET


class Score(Struct):
    """A token with its log-probability, and those of others in its place."""

    token: int
    text: str
    logprob: float
    top: list[AnyJson] | UnsetType = UNSET


class Generated(Written):
    """A text that was written."""

    text: str
    finish_reason: str
    seed: int
    tokens: list[int]
    logprobs: list[Score] | UnsetType = UNSET


class RolledBack(Written):
    """Where the session is now; `inexact` if the replay ran on another instruction set than the first time."""

    inexact: bool


class StatePut(Written):
    """A state that was stored."""

    state_bytes: int


class Error(Struct):
    """What went wrong. `request_id` is also in the header x-request-id, and in the log if the error is the server's."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


class Problem(Struct):
    """OpenAI's error object."""

    error: Error


class ItemAnswer(Struct):
    """The result of one item: a `body`, or an `error`."""

    status: int
    replayed: bool | UnsetType = UNSET
    body: Stepped | UnsetType = UNSET
    error: Error | UnsetType = UNSET


class ItemAnswers(Struct):
    """In the order of the items."""

    object: Literal["list"]
    data: list[ItemAnswer]


class Usage(Struct):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(Struct):
    """One of the texts."""

    index: int
    text: str
    logprobs: JsonObject | None
    finish_reason: Literal["stop", "length"]
    state: str | UnsetType = UNSET


class Completion(Struct):
    """OpenAI's object."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Response(Struct):
    """OpenAI's object; it has more fields than are listed."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    output: list[JsonObject]
    usage: JsonObject
    previous_response_id: str | None
    store: bool


class Model(Struct):
    """A model. The optional fields are those of models with sessions."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    predicts: bool
    sessions: bool
    fingerprint: str | UnsetType = UNSET
    state_bytes: int | UnsetType = UNSET
    reads: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    writes: bool | UnsetType = UNSET


class Models(Struct):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Prediction(Struct):
    """The lines that `elman predict` prints."""

    object: Literal["prediction"]
    model: str
    lines: list[str]


class Status(Struct):
    """Of the server."""

    status: str
