"""SageMaker's Job Runtime, scripted from botocore's service model: states, client tokens, errors, a counting model.

A trajectory is sampling until it is completed, and is rewarded once. A repeated client token is answered like the first
time; another report of the same kind is a conflict.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from support.fake_server import FakeServer

ARN = "arn:aws:sagemaker:us-east-1:123456789012:job/AgentRFT/math"
STATUSES = {
    "ValidationException": 400,
    "ServiceQuotaExceededException": 402,
    "AccessDeniedException": 403,
    "ResourceNotFoundException": 404,
    "ConflictException": 409,
    "ThrottlingException": 429,
    "InternalServiceError": 500,
}


@dataclass
class Trajectory:
    """What the service knows of one trajectory."""

    status: str = "sampling"
    rewards: list[float] | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    completions: int = 0
    rewardings: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class FakeJobRuntime(FakeServer):
    """Answers CompleteRollout, UpdateReward and chat completions on a real port."""

    def __init__(self, trajectories: list[str]) -> None:
        super().__init__()
        self.trajectories = {name: Trajectory() for name in trajectories}
        self.refusals: list[str] = []
        """Errors to answer the next reports with."""
        model = botocore.session.get_session().get_service_model("sagemakerjobruntime")
        self._shapes = {
            "/complete-rollout": model.operation_model("CompleteRollout").input_shape,
            "/update-reward": model.operation_model("UpdateReward").input_shape,
        }
        self._states = threading.Lock()

    def handle(self, handler: Any, path: str, body: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        if path == "/v1/chat/completions":
            self._sample(handler, headers, body)
        elif path in self._shapes:
            self._report(handler, path, headers, body)
        else:
            self._refuse(handler, "ResourceNotFoundException", f"no such operation: {path}")

    def _sample(self, handler: Any, headers: dict[str, str], body: dict[str, Any]) -> None:
        trajectory = self.trajectories.get(headers.get("x-amzn-sagemaker-trajectory-id", ""))
        if trajectory is None or headers.get("x-amzn-sagemaker-job-arn") != ARN:
            self._refuse(handler, "ResourceNotFoundException", "unknown trajectory")
            return
        trajectory.calls.append(body)
        trajectory.headers.append(headers)
        message = {"role": "assistant", "content": f"answer {len(trajectory.calls)}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        shared = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
        handler.json({**shared, "choices": [choice]})

    def _report(self, handler: Any, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        sent = {**body, "JobArn": headers.get("x-amzn-sagemaker-job-arn")}
        problems = ParamValidator().validate(sent, self._shapes[path])
        if problems.has_errors() or body.get("Status", "ready") not in ("ready", "failed"):
            self._refuse(handler, "ValidationException", problems.generate_report() or "Status")
            return
        with self._states:
            code, message = self._apply(path, sent)
        if code is None:
            handler.json({})
        else:
            self._refuse(handler, code, message)

    def _apply(self, path: str, sent: dict[str, Any]) -> tuple[str | None, str]:
        if self.refusals:
            return self.refusals.pop(0), "scripted"
        trajectory = self.trajectories.get(sent["TrajectoryId"])
        if trajectory is None or sent["JobArn"] != ARN:
            return "ResourceNotFoundException", f"trajectory {sent['TrajectoryId']} does not exist"
        if trajectory.tokens.get(path) == sent["ClientToken"]:
            return None, ""
        if path == "/complete-rollout":
            if trajectory.status != "sampling":
                return "ConflictException", f"Cannot transition trajectory from {trajectory.status}"
            trajectory.status = sent.get("Status", "ready")
            trajectory.completions += 1
        else:
            if trajectory.status != "ready" or trajectory.rewards is not None:
                return "ConflictException", f"trajectory is not in valid status: {trajectory.status}"
            trajectory.rewards = sent["Rewards"]
            trajectory.rewardings += 1
        trajectory.tokens[path] = sent["ClientToken"]
        return None, ""

    def _refuse(self, handler: BaseHTTPRequestHandler, code: str, message: str) -> None:
        handler.json({"Message": message}, STATUSES[code], {"x-amzn-errortype": code})  # type: ignore[attr-defined]
