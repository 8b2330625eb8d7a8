"""Overrides against rLLM's configuration: the real one where it is, and a stand-in where it is not."""

from __future__ import annotations

import importlib.util

import pytest

from agentcore_rl_toolkit.backends.rllm import RllmSettings
from agentcore_rl_toolkit.backends.rllm.check_overrides import check_overrides
from agentcore_rl_toolkit.backends.rllm.overrides import run_overrides
from agentcore_rl_toolkit.errors import ConfigError
from support.rllm import IS_REAL, rllm_here

__all__ = ["rllm_here"]

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/your-agent"
REMOTE = "rllm.remote_runtime."


def written(trainer: str, **options: object) -> list[str]:
    settings = RllmSettings(agent=ARN, model="Qwen/Qwen3-4B", output="runs/it's 1", trainer=trainer, options=options)
    return run_overrides(settings, ARN, "your-s3-bucket", "exp 1", 100)


@pytest.mark.usefixtures("rllm_here")
def test_what_we_write_fits() -> None:
    texts = written("tinker")
    assert check_overrides("tinker", texts) == (f"{len(texts)} overrides fit rLLM's configuration",)
    (note,) = check_overrides("verl", written("verl"))
    assert note.endswith("fit rLLM's configuration" if importlib.util.find_spec("verl") else "rllm.* were checked")


@pytest.mark.usefixtures("rllm_here")
@pytest.mark.parametrize("trainer", ["verl", "tinker"])
def test_a_name_that_rllm_does_not_have(trainer: str) -> None:
    with pytest.raises(ConfigError, match=r"rLLM refuses these overrides: Could not override 'rllm.trainer.logers'"):
        check_overrides(trainer, written(trainer, **{"rllm.trainer.logers": "[console]"}))


@pytest.mark.usefixtures("rllm_here")
@pytest.mark.parametrize("trainer", ["verl", "tinker"])
def test_a_name_that_its_adapter_does_not_take(trainer: str) -> None:
    """The adapter would fail only after the model was loaded."""
    with pytest.raises(ConfigError, match=r"rLLM refuses rllm.remote_runtime.agentcore: .*unexpected.*'region'"):
        check_overrides(trainer, written(trainer, **{f"+{REMOTE}agentcore.region": "us-west-2"}))


@pytest.mark.skipif(IS_REAL, reason="rLLM is here")
def test_without_rllm_it_says_what_was_not_checked() -> None:
    assert check_overrides("tinker", ["nonsense"]) == (
        "rLLM is not installed here, so its configuration was not checked",
    )
