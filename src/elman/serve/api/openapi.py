"""The interface as an OpenAPI document, made of the types that requests are parsed with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from elman import __version__
from elman.serve.api import answers, bodies
from elman.serve.api.predicting import every_body
from elman.serve.json import JsonObject
from elman.serve.limits import Limits

ERRORS = {
    400: "the request is invalid", 401: "a key is needed", 403: "wrong host or origin", 404: "not found",
    405: "method not supported", 408: "it arrived too slowly", 409: "busy", 410: "expired", 412: "another version",
    413: "too long", 415: "not JSON", 422: "a state or model that does not match, or a key used before",
    429: "too much at once", 431: "the headers are too large", 503: "about to stop", 507: "the store is full",
}  # fmt: skip
JSON, BINARY = "application/json", "application/octet-stream"
CONTENTS: dict[type, tuple[str, JsonObject]] = {  # of what is not JSON
    bytes: (BINARY, {"type": "string", "format": "binary"}),
    str: ("text/plain", {"type": "string"}),
}


class Operation(NamedTuple):
    """What is documented of a route."""

    id: str
    summary: str
    sent: type | None
    status: int
    answer: type


class Documented(Protocol):
    """A route, as far as the document needs it."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def operation(self) -> Operation | None: ...


def openapi(routes: Sequence[Documented], keys: bool) -> JsonObject:
    """The document; with `keys` it says that one is needed."""
    operations = [(route.method.lower(), route.path, route.operation) for route in routes if route.operation]
    predicting = every_body(Limits())
    named = {kind for *_, each in operations for kind in (each.sent, each.answer, answers.Problem) if kind is not None}
    ordered = sorted(named - {bytes, str, bodies.PredictBody} | {*predicting}, key=lambda kind: str(kind.__name__))
    found, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(ordered, found, strict=True))
    schemas[bodies.PredictBody] = {"anyOf": [schemas[body] for body in predicting]}  # by the task of the model
    paths: dict[str, JsonObject] = {}
    for method, path, (name, summary, sent, status, answer) in operations:
        operation: JsonObject = {
            "operationId": name,
            "summary": summary,
            "responses": _responses(status, _content(answer, schemas), _content(answers.Problem, schemas)),
            "parameters": _parameters(path, method),
        }
        if sent is not None:
            operation["requestBody"] = {"required": True, "content": _content(sent, schemas)}
            if "stream" in getattr(sent, "__struct_fields__", ()):
                events = {"text/event-stream": {"schema": {"type": "string"}}}
                operation["responses"][str(status)]["content"].update(events)
        paths.setdefault(path, {})[method] = operation
    whole: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "Elman", "version": __version__, "description": "Models with a state that you own."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if keys:
        whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
        for path in ("/healthz", "/readyz"):
            paths[path]["get"]["security"] = []
    return whole


def _content(kind: type, schemas: dict[type, JsonObject]) -> JsonObject:
    name, schema = CONTENTS[kind] if kind in CONTENTS else (JSON, schemas[kind])
    return {name: {"schema": schema}}


def _responses(status: int, content: JsonObject, problem: JsonObject) -> JsonObject:
    good = {"description": "done", "content": content}
    return {str(status): good, **{str(code): {"description": why, "content": problem} for code, why in ERRORS.items()}}


def _parameters(path: str, method: str) -> list[JsonObject]:
    found: list[JsonObject] = [
        {"name": "x-request-id", "in": "header", "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}}
    ]
    if "{id}" in path:
        found.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    if method in ("post", "put") and ("sessions" in path or path == "/v1/responses"):
        found.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}})
    if method == "put":
        found.append({"name": "If-Match", "in": "header", "required": True, "schema": {"type": "string"}})
    return found
