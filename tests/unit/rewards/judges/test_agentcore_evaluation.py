"""An evaluator of AgentCore as a reward, over boto3's own wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import ConfigError, JudgeFault
from agentcore_rl_toolkit.rewards import AgentCoreEvaluation
from support.fake_evaluate import FakeEvaluate, result

SPANS = [{"traceId": "t1", "spanId": "s1", "name": "invoke_agent", "attributes": {"session.id": "session-1"}}]


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "AKIA", "SECRET_ACCESS_KEY": "x", "REGION": "us-west-2"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def evaluation(url: str) -> AgentCoreEvaluation:
    return AgentCoreEvaluation("Builtin.Helpfulness", endpoint_url=url)


class Span:
    """As OpenTelemetry's SDK has it."""

    def to_json(self) -> str:
        return json.dumps(SPANS[0])


@pytest.mark.parametrize("spans", [SPANS, [Span()]])
def test_the_value_of_a_session(spans: list[Any]) -> None:
    service = FakeEvaluate([result(0.25), result(0.75)])
    with service.serving() as url:
        reward_fn = evaluation(url)
        assert reward_fn(session_spans=spans, prompt="ignored") == 0.5
    assert service.requests == [{"evaluatorId": "Builtin.Helpfulness", "evaluationInput": {"sessionSpans": SPANS}}]
    assert (reward_fn.usage.calls, reward_fn.usage.input_tokens, reward_fn.usage.output_tokens) == (1, 100, 10)


def test_an_evaluation_with_an_error_is_counted() -> None:
    with FakeEvaluate([result(1.0, errorCode="MODEL_ERROR"), result(0.5)]).serving() as url:
        reward_fn = evaluation(url)
        with pytest.raises(JudgeFault):
            reward_fn(session_spans=SPANS)
    assert (reward_fn.usage.calls, reward_fn.usage.input_tokens, reward_fn.usage.output_tokens) == (1, 100, 10)


def test_references_go_with_their_session() -> None:
    service = FakeEvaluate([result(1.0)])
    with service.serving() as url:
        evaluation(url)(session_spans=SPANS, session_id="session-1", ground_truth="4", assertions=["it adds"])
        with pytest.raises(ConfigError, match="need the session"):
            evaluation(url)(session_spans=SPANS, ground_truth="4")
    (reference,) = service.requests[0]["evaluationReferenceInputs"]
    assert reference == {
        "context": {"spanContext": {"sessionId": "session-1"}},
        "expectedResponse": {"text": "4"},
        "assertions": [{"text": "it adds"}],
    }


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([result(1.0, errorCode="MODEL_ERROR", errorMessage="it broke")], "MODEL_ERROR: it broke"),
        ([result(1.0), result()], "no value"),
        ([], "gave no result"),
        ("ValidationException", "ValidationException"),
        ("AccessDeniedException", "AccessDeniedException"),
    ],
)
def test_an_evaluation_without_a_value_is_an_error(answer: Any, problem: str) -> None:
    with FakeEvaluate(answer).serving() as url, pytest.raises(JudgeFault, match=problem):
        evaluation(url)(session_spans=SPANS)


def test_a_throttled_evaluation_is_tried_again() -> None:
    service = FakeEvaluate("ThrottlingException", [result(1.0)])
    with service.serving() as url:
        assert evaluation(url)(session_spans=SPANS) == 1.0


def test_a_session_without_spans_is_not_sent() -> None:
    with pytest.raises(JudgeFault, match="1 to 20,000 spans, not 0"):
        evaluation("http://127.0.0.1:9")(session_spans=[])
