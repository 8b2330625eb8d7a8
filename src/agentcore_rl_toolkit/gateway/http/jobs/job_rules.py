"""The two reports of a SageMaker rollout to its Job Runtime, completion and then reward, and their rules. Pure.

A trajectory is sampling until it is completed, as ready or as failed; a ready one is rewarded once. Repeating a report
with its client token changes nothing. Reports are kept as the session's result, so that they outlive a restart.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ....errors import GatewayFault

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Token = Annotated[str, Meta(max_length=256)]
_ARN = r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:job/[a-zA-Z0-9_-]+/[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}\Z"


class CompleteRolloutRequest(Struct, rename="pascal"):
    """A request to `/complete-rollout`; AWS's SDK sends the job's ARN in the body, boto3 in a header."""

    trajectory_id: _Name
    status: str = "ready"
    client_token: _Token | None = None
    job_arn: _Name | None = None


class UpdateRewardRequest(Struct, rename="pascal"):
    """A request to `/update-reward`: one reward, or one for each turn."""

    trajectory_id: _Name
    rewards: Annotated[list[float], Meta(min_length=1, max_length=10_000)]
    client_token: _Token | None = None
    job_arn: _Name | None = None


class JobArn(Struct):
    arn: Annotated[str, Meta(max_length=256, pattern=_ARN)]


class JobReport(Struct, frozen=True):
    """A trajectory's reports so far."""

    job_status: str = "sampling"
    rewards: list[float] | None = None
    client_tokens: dict[str, str] = {}

    @classmethod
    def read(cls, result: Any) -> JobReport:
        """The reports that are a session's result; those of a new trajectory if it has none."""
        if result is None:
            return cls()
        try:
            if isinstance(result, dict) and "job_status" in result:
                return msgspec.convert(result, cls)
        except msgspec.ValidationError:
            pass
        raise GatewayFault("the session has another result", status=409, code="conflict")

    def complete(self, request: CompleteRolloutRequest) -> JobReport:
        status = request.status.lower()
        if status not in ("ready", "failed"):
            raise GatewayFault.invalid(f"Status is {request.status[:40]!r}: send ready or failed", param="Status")
        if self._repeats("complete", request.client_token):
            return self
        if self.job_status != "sampling":
            raise _conflict(f"Cannot transition trajectory {request.trajectory_id} from {self.job_status} to {status}")
        return self._with("complete", request.client_token, job_status=status)

    def reward(self, request: UpdateRewardRequest) -> JobReport:
        if not all(map(math.isfinite, request.rewards)):
            raise GatewayFault.invalid("Rewards must be finite numbers", param="Rewards")
        if self._repeats("reward", request.client_token):
            return self
        if self.job_status != "ready" or self.rewards is not None:
            state = self.job_status if self.rewards is None else "rewarded"
            raise _conflict(f"Trajectory {request.trajectory_id} is not in valid status: {state}")
        return self._with("reward", request.client_token, rewards=request.rewards)

    def _repeats(self, report: str, token: str | None) -> bool:
        return token is not None and self.client_tokens.get(report) == token

    def _with(self, report: str, token: str | None, **changes: Any) -> JobReport:
        tokens = self.client_tokens if token is None else {**self.client_tokens, report: token}
        return msgspec.structs.replace(self, client_tokens=tokens, **changes)


def is_complete(result: Any) -> bool:
    return isinstance(result, dict) and result.get("job_status") in ("ready", "failed")


def check_job(arn: str) -> None:
    """Refuse what is not the ARN of a job."""
    try:
        msgspec.convert({"arn": arn}, JobArn)
    except msgspec.ValidationError:
        raise GatewayFault.invalid(f"JobArn is {arn[:80]!r}, not the ARN of a job", param="JobArn") from None


def _conflict(message: str) -> GatewayFault:
    return GatewayFault(message, status=409, code="conflict")
