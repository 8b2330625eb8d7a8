"""`AgentCoreEvaluation`: an evaluator of AgentCore, built in or your own, as a reward (`Evaluate` through boto3)."""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...agent.reward import RewardFunction
from ...common.env_file import aws_region
from ...errors import ConfigError, JudgeFault
from .judge_model import JudgeUsage, read_count

_MOST_SPANS = 20_000  # of one request


class AgentCoreEvaluation(RewardFunction):
    """The value that an evaluator gives a session's spans; the mean, if it gives several.

    `session_spans` are the OpenTelemetry spans that the agent's instrumentation recorded, as dicts or as objects with
    `to_json`. `assertions` and `ground_truth` (the expected response) are passed on; they need `session_id`.
    An evaluation without a value, or with an error, raises `JudgeFault`.

    >>> reward_fn = AgentCoreEvaluation("Builtin.GoalSuccessRate", region="us-west-2")
    >>> reward_fn(session_spans=exporter.get_finished_spans())  # doctest: +SKIP
    0.5
    >>> reward_fn.usage.calls
    0
    """

    def __init__(
        self, evaluator_id: str, *, region: str | None = None, endpoint_url: str | None = None, timeout: float = 60.0
    ) -> None:
        self.evaluator_id = evaluator_id
        self.usage = JudgeUsage()
        self._settings = {"region_name": region or aws_region(), "endpoint_url": endpoint_url}
        self._timeout = timeout
        self._client: Any = None
        self._lock = threading.Lock()

    def __call__(
        self,
        *,
        session_spans: Sequence[Any],
        session_id: str | None = None,
        ground_truth: str | None = None,
        assertions: Sequence[str] = (),
        **kwargs: Any,
    ) -> float:
        from botocore.exceptions import BotoCoreError, ClientError

        spans = [_document(span) for span in session_spans]
        if not 1 <= len(spans) <= _MOST_SPANS:
            raise JudgeFault(f"an evaluation takes 1 to {_MOST_SPANS:,} spans, not {len(spans)}")
        references = _references(session_id, ground_truth, assertions)
        try:
            reply = self._boto().evaluate(
                evaluatorId=self.evaluator_id, evaluationInput={"sessionSpans": spans}, **references
            )
        except (BotoCoreError, ClientError) as error:
            raise JudgeFault(f"the evaluator {self.evaluator_id}: {error}") from error
        return self._value(reply["evaluationResults"])

    def _value(self, results: Sequence[Mapping[str, Any]]) -> float:
        with self._lock:
            self.usage.calls += 1
            for result in results:
                self.usage.input_tokens += read_count(result.get("tokenUsage"), "inputTokens")
                self.usage.output_tokens += read_count(result.get("tokenUsage"), "outputTokens")
        values = []
        for result in results:
            if result.get("errorCode") or result.get("value") is None:
                problem = f"{result.get('errorCode') or 'no value'}: {result.get('errorMessage', '')}"
                raise JudgeFault(f"the evaluator {self.evaluator_id}: {problem[:500]}")
            values.append(float(result["value"]))
        if not values:
            raise JudgeFault(f"the evaluator {self.evaluator_id} gave no result", hint="does the session have spans?")
        return statistics.fmean(values)

    def _boto(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            config = Config(read_timeout=self._timeout, retries={"total_max_attempts": 4, "mode": "standard"})
            self._client = boto3.client("bedrock-agentcore", config=config, **self._settings)
        return self._client


def _document(span: Any) -> Any:
    return json.loads(span.to_json()) if hasattr(span, "to_json") else dict(span)


def _references(session_id: str | None, expected: str | None, assertions: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if expected is not None:
        given["expectedResponse"] = {"text": expected}
    if assertions:
        given["assertions"] = [{"text": text} for text in assertions]
    if not given:
        return {}
    if session_id is None:
        raise ConfigError("references need the session that they are for", hint="give session_id too")
    return {"evaluationReferenceInputs": [{"context": {"spanContext": {"sessionId": session_id}}, **given}]}
