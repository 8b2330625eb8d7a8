"""Checks overrides against rLLM's own configuration, as far as rLLM and its trainer are installed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from ..base import is_installed
from .overrides import REMOTE

INSTALL = (
    "rLLM is not on PyPI: git clone https://github.com/rllm-org/rllm, then "
    "pip install ./rllm/rllm-model-gateway './rllm[{trainer}]' 'agentcore-rl-toolkit[rllm]'"
)


def check_overrides(trainer: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Refuse what rLLM would refuse; return a note about what was checked."""
    if not is_installed("rllm"):
        return ("rLLM is not installed here, so its configuration was not checked",)
    if trainer == "verl" and not is_installed("verl"):
        rllms = [text for text in overrides if text.lstrip("+~").startswith("rllm.")]
        _check_adapter(_compose(["rllm/backend=tinker", *rllms]))  # this part is the same with every trainer
        return ("verl is not installed here, so only overrides of rllm.* were checked",)
    _check_adapter(_compose(overrides))
    return (f"{len(overrides)} overrides fit rLLM's configuration",)


def _compose(overrides: Sequence[str]) -> Any:
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl's configuration folder may be missing
        try:
            with initialize_config_module(config_module="rllm.trainer.config", version_base=None):
                return compose("unified", overrides=list(overrides))
        except HydraException as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"rLLM refuses these overrides: {text}", hint="see options") from error


def _check_adapter(config: Any) -> None:
    """Build the adapter's configuration now: rLLM does so only when training starts, and refuses unknown names."""
    from rllm.engine.remote_runtime.protocol import AgentCoreRuntimeConfig

    try:
        AgentCoreRuntimeConfig(**config.rllm.remote_runtime.agentcore)
    except TypeError as error:
        raise ConfigError(f"rLLM refuses {REMOTE}agentcore: {error}", hint="see options") from None
