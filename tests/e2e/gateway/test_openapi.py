"""The description a gateway serves is true: requests made from it are never answered with a 5xx, and as described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.http.openapi import AGENT, OPERATIONS, Operation, openapi
from agentcore_rl_toolkit.gateway.wire.routes import WIRES
from support.gateway import MODEL, Control, gateway, ids

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BOUNDED = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(ScriptedEngine(lambda request: ids("four")), log=tmp_path_factory.mktemp("log")) as served:
        yield served


def described(*, bounds: bool) -> Any:
    """The operations; with `bounds`, a request for each bound of each field as well, hundreds for a large body."""
    schema = schemathesis.openapi.from_dict(openapi())
    schema.config.phases.coverage.enabled = bounds
    return schema


def test_the_description_is_served(running: Gateway):
    assert httpx.get(f"{running.url}/openapi.json").json() == openapi()


def check(case: Any, running: Gateway) -> None:
    headers = {"Authorization": f"Bearer {running.admin_key}"}
    case.call_and_validate(base_url=running.url, headers=headers, checks=CHECKS, timeout=30)
    if running.core.gate.paused:
        Control(running)("POST", "/resume").raise_for_status()


TWINS = [
    *("converseStream", "countTokens", "invokeModel", "invokeModelWithResponseStream"),
    *("sampleStream", "streamGenerateContent"),
]
"""Operations with the body of another one: its bounds are tried there."""


@described(bounds=True).exclude(operation_id=TWINS).parametrize()
@BOUNDED
def test_any_request(case: Any, running: Gateway):
    check(within_a_session(case, running), running)


@described(bounds=False).include(operation_id=TWINS).parametrize()
@BOUNDED
def test_any_request_with_the_body_of_another_operation(case: Any, running: Gateway):
    check(within_a_session(case, running), running)


@described(bounds=False).include(path_regex=r"\{session").exclude(operation_id=TWINS).parametrize()
@BOUNDED
def test_any_request_to_a_session_that_is_not_there(case: Any, running: Gateway):
    check(case, running)


def within_a_session(case: Any, running: Gateway) -> Any:
    """The case, in a session that is there if its path has one."""
    if "{session" in case.path:
        session = running.open_session()
        name = session["base_url"].split("/")[4]
        case.path_parameters = {"session": name, "session_id": session["session_id"], "model": MODEL}
    return case


def test_every_model_call_is_described():
    calls = {operation.path.removeprefix(f"{AGENT}/") for operation in OPERATIONS if operation.method == "POST"}
    assert calls >= set(WIRES)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_is_served(operation: Operation, running: Gateway):
    session = running.open_session()
    names = {"session": session["base_url"].split("/")[4], "session_id": session["session_id"], "model": MODEL}
    url = running.url + operation.path.format(**names)
    answered = httpx.request(operation.method, url, headers={"Authorization": f"Bearer {running.admin_key}"}, json={})
    assert answered.status_code not in (404, 405, 500), answered.text
    Control(running)("POST", "/resume").raise_for_status()


def test_every_setting_of_a_session_is_described(running: Gateway):
    known = openapi()["components"]["schemas"]["SessionSettings"]
    refused = Control(running)("POST", "/sessions", json={"x": 1}).json()["error"]["message"]
    assert refused.partition("a session has ")[2] == ", ".join(known["properties"])
    for name in ("sampling", "enforced"):
        refused = Control(running)("POST", "/sessions", json={name: {"x": 1}}).json()["error"]["message"]
        sampling = openapi()["components"]["schemas"]["SamplingSettings"]
        assert known["properties"][name] == {"$ref": "#/components/schemas/SamplingSettings"}
        assert refused.partition("; it has ")[2].split(", ") == sorted(sampling["properties"])
        assert sampling["additionalProperties"] is False


def test_errors_are_described_in_openais_shape(running: Gateway):
    error = httpx.get(f"{running.url}/sessions/x").json()
    assert set(error["error"]) == {"message", "type", "param", "code"}
