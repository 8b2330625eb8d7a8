"""What can be told of a run before it starts, whatever the trainer. Nothing is contacted."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..rows import read_rows
from .settings import RolloutSettings, TrainSettings

_LOCAL = ("arn:aws:bedrock-agentcore:local:", "arn:aws:bedrock-agentcore:ray:")
_ENDPOINT = "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE"


def check(settings: TrainSettings) -> tuple[str, ...]:
    """Refuse what can't work; gives what was found, for people."""
    found = [*_check_agent(settings), *_check_rows("data", settings.data, settings.rows_per_step)]
    if settings.eval_data:
        found += _check_rows("eval_data", settings.eval_data, 1)
    return tuple(found)


def on_aws(agent: str) -> bool:
    """Whether the agent's sessions run on AWS, and not on this machine or a cluster of one's own."""
    return agent.startswith("arn:") and not agent.startswith(_LOCAL) and not os.environ.get(_ENDPOINT)


def _check_agent(settings: TrainSettings) -> list[str]:
    agent = settings.agent
    if not agent.startswith("arn:"):
        if not Path(agent).exists():
            hint = "give an ARN, or the path of an agent (rl_app.py)"
            raise ConfigError(f"there is no agent at {agent!r}", hint=hint)
        return [f"agent: {agent}, on this machine"]
    if not on_aws(agent):
        return [f"agent: {agent}, not on AWS"]
    if settings.store is None or settings.store.startswith((".", "/")):
        hint = "give store (s3_bucket): a bucket that the agent's role may write to"
        raise ConfigError(f"sessions on AWS can't store results in {settings.store or 'a folder'}", hint=hint)
    if isinstance(settings, RolloutSettings) and not _public(settings):
        hint = "give gateway_url, and gateway_host=0.0.0.0 with a gateway_port that is open to them"
        raise ConfigError("sessions on AWS can't reach a gateway on this machine's own address", hint=hint)
    return [f"agent: {agent}, on AWS"]


def _public(settings: RolloutSettings) -> bool:
    host = urlsplit(settings.gateway_url or "").hostname
    return host is not None and host not in ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def _check_rows(name: str, path: str, least: int) -> list[str]:
    if path == "-":
        return [f"{name}: standard input, not read yet"]
    rows, problems = read_rows(path)
    if len(rows) < least:
        raise ConfigError(f"{path} has {len(rows)} rows, and a step takes {least}", hint="lower rows_per_step")
    return [f"{name}: {len(rows)} rows in {path}", *(f"{name}: {problem}; left out" for problem in problems)]
