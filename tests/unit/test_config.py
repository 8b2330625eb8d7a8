from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.config import AgentCoreConfig
from agentcore_rl_toolkit.errors import ConfigError


def test_explicit_wins_over_environment_over_default() -> None:
    env = {"AGENTCORE_RL_S3_BUCKET": "env", "AGENTCORE_RL_STORE_RETRY_SECONDS": "5", "BASE_URL": "http://env/v1"}
    config = AgentCoreConfig.load(environ=env, s3_bucket="explicit", model_id=None)
    assert (config.s3_bucket, config.store_retry_seconds, config.base_url) == ("explicit", 5.0, "http://env/v1")
    assert config.shutdown_seconds == AgentCoreConfig().shutdown_seconds == 10.0


def test_our_own_variable_wins_over_the_general_one() -> None:
    env = {"AGENTCORE_RL_BASE_URL": "http://ours/v1", "BASE_URL": "http://general/v1"}
    assert AgentCoreConfig.load(environ=env).base_url == "http://ours/v1"


def test_lists_are_written_with_commas() -> None:
    env = {"AGENTCORE_RL_ALLOWED_STORES": "s3://a, /b ,"}
    assert AgentCoreConfig.load(environ=env).allowed_stores == ("s3://a", "/b")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"'s3_buckt'\n.*'s3_bucket'"):
        AgentCoreConfig.load(environ={}, s3_buckt="x")


@pytest.mark.parametrize(
    "values",
    [{"s3_bucket": 7}, {"store_retry_seconds": "soon"}, {"store_retry_seconds": -1}, {"shutdown_seconds": "nan"},
     {"allowed_stores": 7}, {"secret_keys": [1]}],
)  # fmt: skip
def test_bad_values_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        AgentCoreConfig.load(environ={}, **values)


def test_what_is_not_given_is_looked_up() -> None:
    env = {"AGENTCORE_RL_S3_BUCKET": "env", "AGENTCORE_RL_STORE_RETRY_SECONDS": "5"}
    config = AgentCoreConfig.load(environ=env, s3_bucket=None, store_retry_seconds=None)
    assert (config.s3_bucket, config.store_retry_seconds) == ("env", 5.0)


def test_an_empty_variable_is_no_value() -> None:
    env = {"AGENTCORE_RL_STORE_RETRY_SECONDS": "", "AGENTCORE_RL_BASE_URL": "", "BASE_URL": "http://general/v1"}
    config = AgentCoreConfig.load(environ=env, model_id="")
    assert (config.store_retry_seconds, config.base_url, config.model_id) == (120.0, "http://general/v1", None)


@pytest.mark.parametrize("value", [None, [1], object()])
def test_what_is_no_number_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match="shutdown_seconds must be a number of seconds"):
        AgentCoreConfig(shutdown_seconds=value)  # type: ignore[arg-type]
