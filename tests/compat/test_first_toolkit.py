"""Names that users of the first toolkit import are ours, not second implementations."""

from __future__ import annotations

import subprocess
import sys

import agentcore_rl_toolkit
from support.process import clean_env


def test_the_module_reward_function_has_the_one_base_class() -> None:
    from agentcore_rl_toolkit.reward_function import RewardFunction

    assert RewardFunction is agentcore_rl_toolkit.RewardFunction


def test_importing_it_is_as_cheap_as_the_package() -> None:
    code = (
        "import sys; from agentcore_rl_toolkit.reward_function import RewardFunction;"
        "print([m for m in ('boto3', 'starlette', 'bedrock_agentcore') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == "[]"
