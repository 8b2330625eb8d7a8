"""A trajectory's reports: which may follow which, and what repeating one does."""

from __future__ import annotations

import math

import pytest

from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.http.jobs.job_rules import (
    CompleteRolloutRequest,
    JobReport,
    UpdateRewardRequest,
    check_job,
)


def completed(status: str = "ready", token: str | None = "c") -> CompleteRolloutRequest:
    return CompleteRolloutRequest("t", status, token)


def rewarded(*rewards: float, token: str | None = "r") -> UpdateRewardRequest:
    return UpdateRewardRequest("t", list(rewards), token)


def test_a_trajectory_is_completed_and_then_rewarded() -> None:
    report = JobReport().complete(completed("READY")).reward(rewarded(0.0, 1.0))
    assert (report.job_status, report.rewards) == ("ready", [0.0, 1.0])


def test_a_client_token_makes_a_report_repeatable() -> None:
    ready = JobReport().complete(completed())
    assert ready.complete(completed()) == ready
    done = ready.reward(rewarded(1.0))
    assert done.reward(rewarded(0.5)) == done


@pytest.mark.parametrize("status", ["ready", "failed"])
def test_a_second_completion_is_a_conflict(status: str) -> None:
    for token in ("other", None):
        with pytest.raises(GatewayFault, match="Cannot transition trajectory") as refused:
            JobReport().complete(completed(status)).complete(completed(token=token))
        assert refused.value.status == 409


@pytest.mark.parametrize("before", [None, "failed", "rewarded"])
def test_only_a_ready_trajectory_is_rewarded_and_once(before: str | None) -> None:
    report = JobReport()
    if before is not None:
        report = report.complete(completed("failed" if before == "failed" else "ready"))
    if before == "rewarded":
        report = report.reward(rewarded(1.0))
    with pytest.raises(GatewayFault, match="not in valid status"):
        report.reward(rewarded(0.0, token="other"))


@pytest.mark.parametrize("result", [[], {"rewards": 1}, {"job_status": 5}, {"job_status": "ready", "rewards": "a"}])
def test_a_result_that_is_no_report_is_a_conflict(result: object) -> None:
    with pytest.raises(GatewayFault, match="another result") as refused:
        JobReport.read(result)
    assert refused.value.status == 409


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_rewards_are_finite(reward: float) -> None:
    with pytest.raises(GatewayFault, match="finite"):
        JobReport().complete(completed()).reward(rewarded(reward))


def test_another_status_and_another_result_are_refused() -> None:
    with pytest.raises(GatewayFault, match="send ready or failed"):
        JobReport().complete(completed("done"))
    with pytest.raises(GatewayFault, match="another result"):
        JobReport.read({"rewards": 1.0})


@pytest.mark.parametrize("arn", ["", "job", "arn:aws:sagemaker:us-east-1:123456789012:job/AgentRFT/a\n"])
def test_a_job_is_named_by_its_arn(arn: str) -> None:
    with pytest.raises(GatewayFault, match="JobArn"):
        check_job(arn)
