"""Whether sessions can reach the gateway: tried from a session if the agent is deployed, else from here."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import urllib.request
import uuid
from urllib.parse import urlsplit

from ...common.http_guard import names_this_machine
from ...errors import AgentCoreRLError, RuntimeFault
from ...runtime.aws import AgentCoreRuntime
from .finding import Check, failed, ok, skipped


def check_gateway(url: str | None, arn: str | None, vpc: bool) -> Check:
    """Call the gateway's `/health`."""
    if not url:
        return skipped("gateway", "no address is known; give --gateway-url URL")
    parts, health = urlsplit(url), f"{url.rstrip('/')}/health"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return failed("gateway", f"{url!r} is not a URL", "write it like https://gateway.example.com")
    if arn is not None:
        return _check_from_session(arn, health)
    if names_this_machine(parts.hostname) and not vpc:
        return failed("gateway", f"sessions on AWS can't reach {url}", "serve it at an address that they can reach")
    try:
        urllib.request.urlopen(health, timeout=10).close()
    except OSError as error:
        return failed("gateway", f"{health}: {error}", "start it: agentcore-rl gateway serve --host 0.0.0.0 …")
    return ok("gateway", f"{url} answers from here; deploy the agent to try it from a session")


def _check_from_session(arn: str, health: str) -> Check:
    code = shlex.quote(f"import urllib.request as r; r.urlopen({health!r}, timeout=20)")
    try:
        status, output = asyncio.run(_run_command(arn, f"python3 -c {code} || python -c {code}"))
    except AgentCoreRLError as error:
        return failed("gateway", f"no session could try it: {error}", "deploy the agent, or leave --gateway-url out")
    if status == 0:
        return ok("gateway", f"a session of the runtime reached {health}")
    reason = (output.strip().splitlines() or ["no output"])[-1]
    fix = "open its port to the sessions' network; in a VPC, check subnets and security groups"
    return failed("gateway", f"a session of the runtime can't reach {health}: {reason[:200]}", fix)


async def _run_command(arn: str, command: str) -> tuple[int | None, str]:
    """Run a command in a new session; returns its exit status and its output."""
    runtime, session = AgentCoreRuntime(arn), str(uuid.uuid4())
    output, status = "", None
    try:
        with contextlib.suppress(RuntimeFault):  # a request that the app refuses starts a session for the command
            await runtime.invoke(session, b'{"_rollout": {}}')
        async for event in runtime.command(session, command, timeout=60):
            output += (event.stdout or "") + (event.stderr or "")
            status = event.exit_code if event.exit_code is not None else status
    finally:
        with contextlib.suppress(RuntimeFault):
            await runtime.stop(session)
        await runtime.aclose()
    return status, output
