"""The OpenAPI document is true: what it lists is there, and nothing that fits it or does not brings the server down."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from running import running
from schemathesis.checks import not_a_server_error

from elman.serve.app import ROUTES
from elman.serve.openapi import PATHS

NUMBER = hypothesis.strategies.integers(0, 2)
SETTINGS = hypothesis.settings(
    max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


def test_it_lists_every_route():
    listed = {(method.upper(), path) for method, path, *_ in PATHS}
    unlisted = {(method, path) for method, path, _ in ROUTES} - listed
    assert unlisted == {
        ("POST", "/v1/chat/completions"), ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/page.js"),
        ("GET", "/page.css"),
    }  # fmt: skip
    assert listed <= {(method, path) for method, path, _ in ROUTES}


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
            case.validate_response(answer, checks=[not_a_server_error])
            assert str(answer.status_code) in case.operation.definition.raw["responses"], (
                answer.status_code,
                case.path,
            )

        check()
    assert server.client.get("/readyz").status_code == 200
    assert {200, 201, 400, 404} <= seen
