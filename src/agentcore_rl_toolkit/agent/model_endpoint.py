"""Where an agent finds its model: at the rollout's session while it is trained, at your own endpoint in production.

Beside the app, which gives agents one (`AgentCoreRLApp.model_endpoint`). It contacts nothing and builds no client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import AgentCoreConfig
from ..errors import ConfigError
from .model_env import read_base_url


@dataclass(frozen=True)
class ModelEndpoint:
    """An OpenAI-compatible endpoint, and the model to ask for there."""

    base_url: str
    model_id: str
    api_key: str = field(default="EMPTY", repr=False)
    sampling_params: dict[str, Any] = field(default_factory=dict)
    """Sampling settings the trainer asks for, as OpenAI names them; empty in production."""

    @property
    def client_args(self) -> dict[str, str]:
        """Keyword arguments of `openai.OpenAI`, and Strands' `client_args`."""
        return {"base_url": self.base_url, "api_key": self.api_key}


def find_model(payload: Any, config: AgentCoreConfig) -> ModelEndpoint:
    """The endpoint for a request: what its `_rollout` names, else what the environment says.

    >>> rollout = {"base_url": "http://gw:9000/sessions/s1.k3y/v1", "model_id": "policy"}
    >>> find_model({"prompt": "hi", "_rollout": rollout}, AgentCoreConfig(base_url="http://vllm:8000/v1", model_id="m"))
    ModelEndpoint(base_url='http://gw:9000/sessions/s1.k3y/v1', model_id='policy', sampling_params={})
    >>> find_model({"prompt": "hi"}, AgentCoreConfig(base_url="http://vllm:8000/v1", model_id="m"))
    ModelEndpoint(base_url='http://vllm:8000/v1', model_id='m', sampling_params={})
    """
    asked = payload.get("_rollout") if isinstance(payload, Mapping) else None
    rollout = asked if isinstance(asked, Mapping) else {}
    base_url = read_base_url(rollout.get("base_url"))
    if base_url is not None:
        model_id = rollout.get("model_id") or config.model_id or "policy"
        return ModelEndpoint(base_url, str(model_id), sampling_params=dict(rollout.get("sampling_params") or {}))
    missing = [name for name in ("base_url", "model_id") if getattr(config, name) is None]
    if missing:
        raise ConfigError(
            f"nothing says where the model is: the request has no _rollout.base_url, and {_variables(missing)} not set",
            hint="set BASE_URL and MODEL_ID (and MODEL_API_KEY) in the container to serve production requests",
        )
    return ModelEndpoint(str(read_base_url(config.base_url)), str(config.model_id), config.model_api_key or "EMPTY")


def _variables(names: list[str]) -> str:
    variables = " and ".join(name.upper() for name in names)
    return f"{variables} {'is' if len(names) == 1 else 'are'}"
