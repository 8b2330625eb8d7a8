"""Where an agent finds its model."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.config import AgentCoreConfig
from agentcore_rl_toolkit.errors import ConfigError

PRODUCTION = AgentCoreConfig.load(
    environ={"BASE_URL": "http://vllm:8000/v1/", "MODEL_ID": "trained", "MODEL_API_KEY": "k3y"}
)
SESSION = {"base_url": "http://gw:9000/sessions/s1.k3y/v1", "model_id": "policy", "sampling_params": {"top_k": 5}}


def test_a_rollout_finds_its_session_and_never_sees_productions_key() -> None:
    found = AgentCoreRLApp(config=PRODUCTION).model_endpoint({"prompt": "hi", "_rollout": SESSION})
    assert (found.client_args, found.model_id) == ({"base_url": SESSION["base_url"], "api_key": "EMPTY"}, "policy")
    assert found.sampling_params == {"top_k": 5}


@pytest.mark.parametrize("payload", [{"prompt": "hi"}, {"_rollout": None}, {"_rollout": {}}, "hi", None])
def test_any_other_request_finds_the_model_in_production(payload: Any) -> None:
    found = AgentCoreRLApp(config=PRODUCTION).model_endpoint(payload)
    assert found.client_args == {"base_url": "http://vllm:8000/v1", "api_key": "k3y"}
    assert (found.model_id, found.sampling_params) == ("trained", {})
    assert "k3y" not in repr(found)


def test_a_rollout_that_names_no_model_asks_for_the_policy() -> None:
    found = AgentCoreRLApp(config=AgentCoreConfig()).model_endpoint({"_rollout": {"base_url": "http://gw:1/v1"}})
    assert found.model_id == "policy"


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (AgentCoreConfig(), "BASE_URL and MODEL_ID are not set"),
        (AgentCoreConfig(base_url="http://vllm:8000/v1"), "MODEL_ID is not set"),
    ],
)
def test_an_error_says_what_to_set(config: AgentCoreConfig, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing) as caught:
        AgentCoreRLApp(config=config).model_endpoint({"prompt": "hi"})
    assert "hint: set BASE_URL and MODEL_ID" in str(caught.value)
