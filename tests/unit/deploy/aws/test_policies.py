"""Policies allow the least that works."""

from __future__ import annotations

from pathlib import Path

from agentcore_rl_toolkit.deploy.aws.policies import Place, build_policy, runtime_policy
from agentcore_rl_toolkit.deploy.deploy_settings import DeploySettings

PLACE = Place("123456789012", "us-west-2")


def settings(**given: str) -> DeploySettings:
    return DeploySettings(folder=Path("x"), name="n", repository="r", **given)


def test_no_policy_allows_everything() -> None:
    policies = [
        runtime_policy(PLACE, settings(queue="q"), "b"),
        build_policy(PLACE, project="p", repository="r", source="b/k"),
    ]
    for policy in policies:
        for statement in policy["Statement"]:
            assert not any("*" in action for action in statement["Action"])
            assert statement["Resource"] != "*" or statement["Action"] == ["ecr:GetAuthorizationToken"]


def test_results_are_below_the_prefix_in_the_partition_of_the_region() -> None:
    china = runtime_policy(Place("1", "cn-north-1"), settings(prefix="p"), "b")["Statement"]
    assert china[-1]["Resource"] == "arn:aws-cn:s3:::b/p/*"
    assert runtime_policy(PLACE, settings(), "b")["Statement"][-1]["Resource"] == "arn:aws:s3:::b/*"
    assert Place("1", "cn-north-1").registry == "1.dkr.ecr.cn-north-1.amazonaws.com.cn"
