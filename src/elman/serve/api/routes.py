"""Every route: its handler, and what the OpenAPI document says of it. The most frequent are first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from elman.serve.api import about, answers, bodies, completions, responses, session_routes
from elman.serve.api.context import RequestContext
from elman.serve.api.openapi import Operation

Handler = Callable[[RequestContext], Awaitable[None]]


class Route(NamedTuple):
    """A method of a path, who handles it, and what is documented of it, if anything."""

    method: str
    path: str
    handler: Handler
    operation: Operation | None = None


ROUTES = [
    Route(
        "POST",
        "/v1/sessions/{id}/step",
        session_routes.step,
        Operation("step", "Read inputs", bodies.StepBody, 200, answers.Stepped),
    ),
    Route(
        "POST",
        "/v1/steps",
        session_routes.steps,
        Operation("stepMany", "Steps of many sessions", bodies.Items, 200, answers.ItemAnswers),
    ),
    Route(
        "POST",
        "/v1/sessions",
        session_routes.create,
        Operation("createSession", "A new session", bodies.NewSession, 201, answers.Session),
    ),
    Route(
        "GET", "/v1/sessions/{id}", session_routes.get, Operation("getSession", "A session", None, 200, answers.Session)
    ),
    Route(
        "DELETE",
        "/v1/sessions/{id}",
        session_routes.delete,
        Operation("deleteSession", "Delete a session", None, 200, answers.Deleted),
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/generate",
        session_routes.generate,
        Operation("generate", "Continue a text", bodies.GenerateBody, 200, answers.Generated),
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/fork",
        session_routes.fork,
        Operation("fork", "A new session from this state", bodies.ForkBody, 201, answers.Session),
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/rollback",
        session_routes.rollback,
        Operation("rollback", "Go back", bodies.RollbackBody, 200, answers.RolledBack),
    ),
    Route(
        "GET", "/v1/sessions/{id}/state", session_routes.get_state, Operation("getState", "The state", None, 200, bytes)
    ),
    Route(
        "PUT",
        "/v1/sessions/{id}/state",
        session_routes.put_state,
        Operation("putState", "Replace the state", bytes, 200, answers.StatePut),
    ),
    Route(
        "POST",
        "/v1/completions",
        completions.create,
        Operation("complete", "Texts after prompts", bodies.CompletionBody, 200, answers.Completion),
    ),
    Route(
        "POST",
        "/v1/responses",
        responses.create,
        Operation("respond", "A text that is a checkpoint", bodies.ResponseBody, 200, answers.Response),
    ),
    Route(
        "GET", "/v1/responses/{id}", responses.get, Operation("getResponse", "A response", None, 200, answers.Response)
    ),
    Route(
        "DELETE",
        "/v1/responses/{id}",
        responses.delete,
        Operation("deleteResponse", "Delete a response", None, 200, answers.Deleted),
    ),
    Route("POST", "/v1/chat/completions", completions.chat),
    Route("GET", "/v1/models", about.models, Operation("listModels", "The models", None, 200, answers.Models)),
    Route("GET", "/v1/models/{id}", about.model, Operation("getModel", "A model", None, 200, answers.Model)),
    Route(
        "POST",
        "/v1/predict",
        about.predict,
        Operation("predict", "The lines of `elman predict`", bodies.PredictBody, 200, answers.Prediction),
    ),
    Route(
        "GET", "/healthz", about.health, Operation("health", "Whether the process is alive", None, 200, answers.Status)
    ),
    Route("GET", "/readyz", about.ready, Operation("ready", "Whether it can serve", None, 200, answers.Status)),
    Route(
        "GET",
        "/metrics",
        about.metrics,
        Operation("metrics", "Numbers for Prometheus, by an operator's key", None, 200, str),
    ),
    Route("GET", "/openapi.json", about.openapi),
    Route("GET", "/", about.page),
    Route("GET", "/page.js", about.page),
    Route("GET", "/page.css", about.page),
]
