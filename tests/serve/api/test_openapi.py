"""The OpenAPI document is true: what it lists is there, and nothing that fits it or does not brings the server down."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from elman.serve.api.routes import ROUTES

OPERATIONS = [route for route in ROUTES if route.operation]
NUMBER = hypothesis.strategies.integers(0, 2)
SETTINGS = hypothesis.settings(
    max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


def test_it_lists_every_route():
    unlisted = {(route.method, route.path) for route in ROUTES if route.operation is None}
    assert unlisted == {
        ("POST", "/v1/chat/completions"), ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/page.js"),
        ("GET", "/page.css"),
    }  # fmt: skip


@pytest.mark.slow
def test_fuzzed_requests_are_answered_in_order(server):
    """Requests made of the schema, right and wrong; with real sessions where an id is asked for."""
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    ids = [server.session(), server.session("book")]
    seen = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.given(case=operation.as_strategy(), number=NUMBER)
        @SETTINGS
        def check(case, number):
            if "id" in (case.path_parameters or {}) and number < 2 and case.method != "DELETE":
                case.path_parameters["id"] = ids[number]
            if isinstance(case.body, dict) and "model" in case.body and number < 2:
                case.body["model"] = ("gru", "book")[number]
            answer = case.call(base_url=server.url)
            seen.add(answer.status_code)
            case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])
            assert str(answer.status_code) in case.operation.definition.raw["responses"], (
                answer.status_code,
                case.path,
            )

        check()
    assert server.client.get("/readyz").status_code == 200
    assert {200, 201, 400, 404} <= seen


def test_every_operation_has_a_name_and_says_what_it_answers(server):
    document = server.client.get("/openapi.json").json()
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names) == len(OPERATIONS)
    for one in operations:
        assert "400" in one["responses"]
        for status, answer in one["responses"].items():
            for schema in (content["schema"] for content in answer["content"].values()):
                name = schema.get("$ref", "").removeprefix("#/components/schemas/")
                assert name in document["components"]["schemas"] or schema["type"] == "string", (one, status)


def test_answers_are_what_the_document_says(server):
    """Those that are answered well, one by one: what is made by chance is mostly wrong."""
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    id, number = server.session("book", checkpoints={"every": 1, "keep": 9}), server.session()
    response = server.post("/v1/responses", {"model": "book", "input": "x", "max_output_tokens": 2}).json()["id"]
    calls = [
        ("POST", "/v1/sessions", {"model": "gru"}), ("GET", f"/v1/sessions/{id}", None),
        ("POST", f"/v1/sessions/{id}/step", {"version": 0, "inputs": "Once"}),
        ("POST", f"/v1/sessions/{number}/step", {"version": 0, "input": [0.5]}),
        ("POST", f"/v1/sessions/{id}/generate", {"version": 1, "max_new_tokens": 3, "logprobs": 2}),
        ("POST", f"/v1/sessions/{id}/fork", {}),
        ("POST", f"/v1/sessions/{id}/rollback", {"version": "any", "position": 4}),
        ("POST", "/v1/steps", {"items": [{"session": one, "version": "any", "input": [1]} for one in (number, "x")]}),
        ("POST", "/v1/completions", {"model": "book", "prompt": "x", "n": 2, "logprobs": 1, "return_state": True}),
        ("POST", "/v1/responses", {"model": "book", "input": "x"}), ("GET", f"/v1/responses/{response}", None),
        ("DELETE", f"/v1/responses/{response}", None), ("GET", "/v1/models", None), ("GET", "/v1/models/gru", None),
        ("GET", "/healthz", None), ("GET", "/readyz", None), ("GET", "/metrics", None),
        ("DELETE", f"/v1/sessions/{number}", None),
    ]  # fmt: skip
    seen = set()
    for method, path, body in calls:
        answer = (
            server.client.request(method, path, json=body) if body is not None else server.client.request(method, path)
        )
        assert answer.status_code in (200, 201), (path, answer.text)
        template = next(p for m, p, *_ in OPERATIONS if m == method and _fits(p, path))
        schema[template][method].validate_response(answer)
        seen.add((method.lower(), template))
    wrong = server.post(f"/v1/sessions/{id}/step", {"version": 99, "inputs": "x"})
    assert wrong.status_code == 412
    schema["/v1/sessions/{id}/step"]["POST"].validate_response(wrong)
    assert {(method.lower(), path) for method, path, *_ in OPERATIONS} - seen == {
        ("get", "/v1/sessions/{id}/state"), ("put", "/v1/sessions/{id}/state"), ("post", "/v1/predict"),
    }  # fmt: skip


def _fits(template, path):
    parts = list(zip(template.split("/"), path.split("/"), strict=False))
    return template.count("/") == path.count("/") and all(a in (b, "{id}") for a, b in parts)
