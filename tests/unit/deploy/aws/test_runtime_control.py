"""Runtimes made from images, through boto3's real wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentcore_rl_toolkit.deploy.aws.calls import Aws
from agentcore_rl_toolkit.deploy.aws.runtime_control import RuntimeControl, RuntimeSpec
from agentcore_rl_toolkit.errors import AwsRefused, ConfigError, RuntimeFault
from support.fake_agentcore_control import FakeAgentCoreControl

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/agents/math:abc"
ROLE = "arn:aws:iam::123456789012:role/math"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAgentCoreControl]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with FakeAgentCoreControl().serving() as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def control(service: FakeAgentCoreControl) -> Iterator[RuntimeControl]:
    with closing(Aws("us-west-2")) as aws:
        yield RuntimeControl(aws, pause=0.001, timeout=5)


def spec(**members: Any) -> RuntimeSpec:
    return RuntimeSpec(**{"name": "math", "container_uri": IMAGE, "role_arn": ROLE} | members)


def test_a_runtime_is_created_once_and_updated_where_it_differs(
    service: FakeAgentCoreControl, control: RuntimeControl
) -> None:
    for name in ("one", "two", "three"):  # the list comes in pages
        control.apply(spec(name=name))
    service.calls.clear()
    said: list[str] = []
    made = control.apply(spec(environment={"A": "1", "B": "2"}), say=said.append)
    assert (made.change, made.version, said) == ("created", "1", ["creating the runtime math"])
    assert service.runtimes[made.id]["status"] == "READY"
    assert control.apply(spec(environment={"A": "1", "B": "2"})).change == "unchanged"
    assert service.changes == ["CreateAgentRuntime"]
    changed = control.apply(spec(environment={"A": "1"}))
    assert (changed.arn, changed.change, changed.version) == (made.arn, "updated", "2")
    assert service.runtimes[made.id]["environmentVariables"] == {"A": "1"}
    assert control.apply(spec(environment={"A": "1"}, lifetime_seconds=60)).change == "updated"
    assert control.apply(spec()).arn == made.arn
    assert not service.runtimes[made.id].get("environmentVariables")
    assert service.changes == ["CreateAgentRuntime"] + ["UpdateAgentRuntime"] * 3


def test_an_update_keeps_what_others_set(service: FakeAgentCoreControl, control: RuntimeControl) -> None:
    made = control.apply(spec())
    headers = {"requestHeaderAllowlist": ["X-Team"]}
    service.runtimes[made.id]["requestHeaderConfiguration"] = headers
    control.apply(spec(subnets=("subnet-12345678",), security_groups=("sg-12345678",)))
    known = service.runtimes[made.id]
    assert known["requestHeaderConfiguration"] == headers
    assert known["networkConfiguration"]["networkMode"] == "VPC"


def test_a_new_role_is_waited_for(service: FakeAgentCoreControl, control: RuntimeControl) -> None:
    service.refuse["CreateAgentRuntime"] = [("ValidationException", "Role validation failed")] * 2
    assert control.apply(spec(), role_seconds=60).change == "created"
    service.refuse["UpdateAgentRuntime"] = [("ValidationException", "Bad image")]
    with pytest.raises(AwsRefused, match="UpdateAgentRuntime: Bad image"):
        control.apply(spec(environment={"A": "1"}))


def test_a_runtime_that_fails_says_why_and_is_replaced_next_time(
    service: FakeAgentCoreControl, control: RuntimeControl
) -> None:
    service.fail = "image is for amd64"
    with pytest.raises(RuntimeFault, match=r"CREATE_FAILED: image is for amd64\nhint: .*linux/arm64"):
        control.apply(spec())
    service.fail = None
    assert control.apply(spec()).change == "created"
    service.fail = "no such tag"
    with pytest.raises(RuntimeFault, match="UPDATE_FAILED: no such tag"):
        control.apply(spec(environment={"A": "1"}))
    service.fail = None
    assert control.apply(spec(environment={"A": "1"})).change == "updated"
    assert service.changes == [
        *["CreateAgentRuntime", "DeleteAgentRuntime", "CreateAgentRuntime"],
        *["UpdateAgentRuntime", "UpdateAgentRuntime"],
    ]


def test_refusals_name_the_permission(service: FakeAgentCoreControl, control: RuntimeControl) -> None:
    service.refuse["CreateAgentRuntime"] = [("AccessDeniedException", "not authorized")]
    expected = (
        rf"not authorized .*\nhint: allow your credentials bedrock-agentcore:CreateAgentRuntime.*PassRole on {ROLE}"
    )
    with pytest.raises(AwsRefused, match=expected):
        control.apply(spec())
    service.refuse["ListAgentRuntimes"] = [("AccessDeniedException", "no")]
    with pytest.raises(AwsRefused, match=r"allow your credentials bedrock-agentcore:ListAgentRuntimes$"):
        control.apply(spec())


def test_what_boto3_refuses_is_not_tried_again(service: FakeAgentCoreControl, control: RuntimeControl) -> None:
    with pytest.raises(AwsRefused, match="Parameter validation failed"):
        control.apply(spec(lifetime_seconds=1), role_seconds=60)
    made = control.apply(spec())
    service.runtimes[made.id]["hooksConfiguration"] = {}  # an empty one would be refused
    assert control.apply(spec(environment={"A": "1"})).change == "updated"
    assert "hooksConfiguration" not in service.runtimes[made.id]


def test_deleting_waits_and_is_repeatable(service: FakeAgentCoreControl, control: RuntimeControl) -> None:
    service.moving = 3
    made = control.apply(spec())
    assert control.delete(made.id)
    assert service.runtimes == {}
    assert not control.delete(made.id)
    with pytest.raises(RuntimeFault, match="does not exist"):
        control.wait_ready(made.id)


def test_waiting_ends(service: FakeAgentCoreControl) -> None:
    service.moving = 1_000_000
    with closing(Aws("us-west-2")) as aws, pytest.raises(RuntimeFault, match=r"still CREATING after 0\.05 s"):
        RuntimeControl(aws, pause=0.001, timeout=0.05).apply(spec())


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "math agent!"}, "hint: .*: math_agent"),
        ({"container_uri": "docker.io/math:1"}, "not an image in ECR"),
        ({"role_arn": "math"}, "not the ARN of a role"),
        ({"subnets": ("subnet-1",)}, "needs both"),
    ],
)
def test_what_can_not_be_is_refused_before_any_call(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(**members)


def test_the_region_that_the_hint_asks_for_is_used(
    service: FakeAgentCoreControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_REGION", "us-west-2")  # boto3 doesn't read it
    with closing(Aws()) as aws:
        assert RuntimeControl(aws).find("math") is None
