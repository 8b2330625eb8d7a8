"""What is refused before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.preflight import check
from agentcore_rl_toolkit.backends.settings import RolloutSettings, TrainSettings
from agentcore_rl_toolkit.errors import ConfigError

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/mine"


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", raising=False)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": }\n{"prompt": "b"}\n')
    return str(path)


def test_an_agent_on_this_machine(tmp_path: Path, rows: str) -> None:
    agent = tmp_path / "rl_app.py"
    settings = {"agent": str(agent), "data": rows, "eval_data": rows, "rows_per_step": 2}
    with pytest.raises(ConfigError, match="there is no agent at"):
        check(TrainSettings(**settings))
    agent.write_text("")
    assert check(TrainSettings(**settings)) == (
        f"agent: {agent}, on this machine",
        f"data: 2 rows in {rows}",
        "data: line 2: Expecting value at column 12; left out",
        f"eval_data: 2 rows in {rows}",
        "eval_data: line 2: Expecting value at column 12; left out",
    )
    with pytest.raises(ConfigError, match="has 2 rows, and a step takes 3"):
        check(TrainSettings(**settings | {"rows_per_step": 3}))


def test_sessions_on_aws_need_a_bucket_and_a_way_to_the_gateway(rows: str) -> None:
    settings = {"agent": ARN, "data": rows, "rows_per_step": 1}
    for store in (None, "./runs", "/runs"):
        with pytest.raises(ConfigError, match="sessions on AWS can't store results in"):
            check(TrainSettings(store=store, **settings))
    check(TrainSettings(store="bucket", **settings))
    for url in (None, "http://localhost:9000", "http://127.0.0.1:9000"):
        with pytest.raises(ConfigError, match="can't reach a gateway"):
            check(RolloutSettings(store="bucket", gateway_url=url, **settings))
    found = check(RolloutSettings(store="bucket", gateway_url="https://gw.example.com", **settings))
    assert found[0] == f"agent: {ARN}, on AWS"


def test_what_is_not_on_aws_needs_neither(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for arn in (ARN.replace("us-west-2", "local"), ARN.replace("us-west-2", "ray")):
        assert "not on AWS" in check(RolloutSettings(agent=arn, data=rows, rows_per_step=1))[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", "http://127.0.0.1:1")
    assert "not on AWS" in check(RolloutSettings(agent=ARN, data=rows, rows_per_step=1))[0]
