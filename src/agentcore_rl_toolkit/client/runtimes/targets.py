"""Where a client's sessions run: an agent of this machine, or the ARNs that a command names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...runtime.local.agent_source import resolve_agent

if TYPE_CHECKING:
    from ...runtime.local import AgentSource


def resolve_targets(agent: str, runtimes: Sequence[str], **sandbox: Any) -> str | AgentSource | list[str]:
    """The agent of a command line, with what the sandbox gives its sessions; or the runtimes that run them instead.

    An agent that is an ARN is one of these runtimes; a path only names the agent's files then.

    >>> arn = "arn:aws:bedrock-agentcore:us-east-1:123456789012:runtime/math"
    >>> resolve_targets("my_agent", [f"{arn}-1", f"{arn}-2"]) == [f"{arn}-1", f"{arn}-2"]
    True
    """
    if not runtimes:
        return resolve_agent(agent, **sandbox)
    arns = [agent, *runtimes] if agent.startswith("arn:") else [*runtimes]
    for arn in arns:
        resolve_agent(arn, **sandbox)  # refuses what only a sandbox can give
    check_targets(arns)
    return arns


def check_targets(targets: Sequence[Any]) -> list[Any]:
    """The runtimes to use; several are ARNs or runtimes, each once."""
    if not targets:
        raise ConfigError("no runtime is named", hint="give an ARN, or the path of an agent (rl_app.py)")
    chosen = [os.fspath(target) if isinstance(target, os.PathLike) else target for target in targets]
    for target in chosen if len(chosen) > 1 else ():
        if not hasattr(target, "invoke") and not (isinstance(target, str) and target.startswith("arn:")):
            raise ConfigError(f"{target!r} can't be one of several runtimes", hint="several runtimes are named by ARN")
        if sum(target == other for other in chosen) > 1:
            raise ConfigError(f"the runtime {target!r} is named twice")
    return chosen
