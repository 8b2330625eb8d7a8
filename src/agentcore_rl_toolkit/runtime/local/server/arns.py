"""Which agent a request is for: by the runtime's ARN, an endpoint's, or the agent's name with the account, as on AWS.

The local runtime has one version of each agent and one endpoint for it, `DEFAULT`; any other is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import RuntimeFault

ACCOUNT = "000000000000"
PREFIX = f"arn:aws:bedrock-agentcore:local:{ACCOUNT}:runtime/"
_ENDPOINT = "/runtime-endpoint/"
_DEFAULT = "DEFAULT"


def agent_name(identifier: str, query: Mapping[str, str]) -> str:
    """The name of the agent that a path's `{agentRuntimeArn}` and the query mean.

    >>> agent_name(f"{PREFIX}math/runtime-endpoint/DEFAULT", {})
    'math'
    >>> agent_name("math", {"accountId": "000000000000"})
    'math'
    >>> agent_name(f"{PREFIX}math", {"qualifier": "prod"})
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.RuntimeFault: agent 'math' has no endpoint 'prod'
    hint: the local runtime has one for each agent, DEFAULT
    """
    name, has_endpoint, endpoint = _local_part(identifier, query).partition(_ENDPOINT)
    for qualifier in (endpoint if has_endpoint else _DEFAULT, query.get("qualifier", _DEFAULT)):
        if qualifier != _DEFAULT:
            raise RuntimeFault(
                f"agent {name!r} has no endpoint {qualifier!r}",
                code="ResourceNotFoundException",
                hint=f"the local runtime has one for each agent, {_DEFAULT}",
            )
    return name


def _local_part(identifier: str, query: Mapping[str, str]) -> str:
    """What comes after `…:runtime/`."""
    if identifier.startswith(PREFIX):
        return identifier.removeprefix(PREFIX)
    account = query.get("accountId")
    if identifier and not identifier.startswith("arn:") and account is not None:
        if account == ACCOUNT:
            return identifier
        raise RuntimeFault(f"account {account} is not on this machine", code="ResourceNotFoundException", hint=ACCOUNT)
    if not identifier.startswith("arn:") or len(identifier.split(":", 5)) != 6 or "runtime/" not in identifier:
        hint = f"{PREFIX}<name>, or <name> with ?accountId={ACCOUNT}"
        raise RuntimeFault(f"{identifier!r} is no runtime's ARN", code="ValidationException", hint=hint)
    raise RuntimeFault(f"{identifier} is not on this machine", code="ResourceNotFoundException", hint=f"{PREFIX}…")
