"""The interface as an OpenAPI document, made of the types that requests are parsed with."""

from __future__ import annotations

from typing import Any

import msgspec

from elman import __version__
from elman.serve import bodies

Text = dict[str, Any]
ERRORS = {
    400: "what was sent is wrong", 401: "a key is needed", 403: "from elsewhere", 404: "not there",
    405: "another method", 408: "it came too slowly", 409: "busy", 410: "expired", 412: "another version",
    413: "too long", 415: "not JSON", 422: "a state or model that does not fit, or a key used before",
    429: "too much at once", 503: "about to stop", 507: "the store is full",
}  # fmt: skip
# Method, path, summary, what is sent, status, what is answered
PATHS: list[tuple[str, str, str, Any, int, str]] = [
    ("post", "/v1/sessions", "A new session", bodies.NewSession, 201, "application/json"),
    ("get", "/v1/sessions/{id}", "A session", None, 200, "application/json"),
    ("delete", "/v1/sessions/{id}", "Delete a session", None, 200, "application/json"),
    ("post", "/v1/sessions/{id}/step", "Read inputs", bodies.StepBody, 200, "application/json"),
    ("post", "/v1/sessions/{id}/generate", "Write on", bodies.GenerateBody, 200, "application/json"),
    ("post", "/v1/sessions/{id}/fork", "Another session from here", bodies.ForkBody, 201, "application/json"),
    ("post", "/v1/sessions/{id}/rollback", "Go back", bodies.RollbackBody, 200, "application/json"),
    ("get", "/v1/sessions/{id}/state", "The state", None, 200, "application/octet-stream"),
    ("put", "/v1/sessions/{id}/state", "Go on from a state", bytes, 200, "application/json"),
    ("post", "/v1/steps", "Steps of many sessions", bodies.Items, 200, "application/json"),
    ("post", "/v1/completions", "Texts after prompts", bodies.CompletionBody, 200, "application/json"),
    ("post", "/v1/responses", "A text that is a checkpoint", bodies.ResponseBody, 200, "application/json"),
    ("get", "/v1/responses/{id}", "A response", None, 200, "application/json"),
    ("delete", "/v1/responses/{id}", "Delete a response", None, 200, "application/json"),
    ("get", "/v1/models", "The models", None, 200, "application/json"),
    ("get", "/v1/models/{id}", "A model", None, 200, "application/json"),
    ("post", "/v1/predict", "What `elman predict` answers", bodies.PredictBody, 200, "application/json"),
    ("get", "/healthz", "Whether the process lives", None, 200, "application/json"),
    ("get", "/readyz", "Whether it can serve", None, 200, "application/json"),
    ("get", "/metrics", "Numbers for Prometheus", None, 200, "text/plain"),
]


def openapi(keys: bool) -> Text:
    """The document; with `keys` it says that one is needed."""
    kinds = [kind for *_, kind, _, _ in PATHS if kind is not None and kind is not bytes]
    (*schemas,), components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    refs = dict(zip(map(id, kinds), schemas, strict=True))
    error = {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]}
    paths: dict[str, Text] = {}
    for method, path, summary, kind, status, answer in PATHS:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        if kind is not None and kind is not bytes:
            content = {"application/json": {"schema": refs[id(kind)]}}
        operation: Text = {
            "summary": summary,
            "responses": _responses(status, answer),
            "parameters": _parameters(path, method),
        }
        if kind is not None:
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[method] = operation
    whole: Text = {
        "openapi": "3.1.0",
        "info": {"title": "Elman", "version": __version__, "description": "Models with a state that you own."},
        "paths": paths,
        "components": {"schemas": {**components, "Error": error}},
    }
    if keys:
        whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole


def _responses(status: int, answer: str) -> Text:
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    schema: Text = {"type": "object"} if answer == "application/json" else {"type": "string"}
    good = {"description": "done", "content": {answer: {"schema": schema}}}
    return {str(status): good, **{str(code): {"description": why, "content": problem} for code, why in ERRORS.items()}}


def _parameters(path: str, method: str) -> list[Text]:
    found: list[Text] = []
    if "{id}" in path:
        found.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    if method in ("post", "put") and ("sessions" in path or path == "/v1/responses"):
        found.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}})
    if method == "put":
        found.append({"name": "If-Match", "in": "header", "required": True, "schema": {"type": "string"}})
    return found
