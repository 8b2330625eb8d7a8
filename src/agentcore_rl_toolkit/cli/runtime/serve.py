"""Serve agents like AgentCore Runtime, on this machine, until Ctrl-C.

AGENT is a Python file with an app in it (`rl_app.py`), `module:app`, or a TOML or JSON file that names several:

    max_sessions = 100
    [agents.math]
    entry = "examples/math/rl_app.py"
    tps_limit = 25
    env = { TOKEN = "…" }
    policy = { memory_mb = 1024, allow = ["10.0.0.5:9000"] }
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...runtime.base import TOKEN_VARIABLE
from ...runtime.local.agent_source import session_env
from ..flags import add_listen_flags, add_sandbox_flags, read_variables, say
from ..settings_file import read_settings_file
from ..terminal.interrupt import stop_on_signals
from ..terminal.log_lines import log_to_stderr
from ..terminal.parser import above_zero, count

if TYPE_CHECKING:
    from ...runtime.local import AgentSource, LocalRuntime

HELP = "serve agents like AgentCore Runtime"
EXTRA = "local"
EXAMPLES = (
    "agentcore-rl runtime serve rl_app.py",
    "agentcore-rl runtime serve agents.toml --port 8800 --env API_KEY --allow db.internal:5432",
)
_LIMITS = {
    "cpus": (above_zero, "CPU cores of a session"),
    "processes": (count, "most processes of a session"),
    "disk_mb": (count, "disk space of a session, in megabytes"),
    "idle_timeout": (count, "end a session after this many idle seconds"),
    "max_lifetime": (count, "end a session after this many seconds"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", help="rl_app.py, module:app, or a config file")
    add_listen_flags(parser, 8800, "loopback's names and the address that was dialled")
    parser.add_argument("--name", help="call the agent this in its ARN (default: its folder's name)")
    parser.add_argument("--max-sessions", type=count, help="most sessions at a time (default: by memory and cores)")
    parser.add_argument("--workers", type=count, help="processes that supervise sessions (default: one for four cores)")
    parser.add_argument("--tps-limit", type=above_zero, help="most requests a second; AWS has 25 (default: no limit)")
    add_sandbox_flags(parser)
    help = "let callers store results in this folder and below; may be repeated (default: the current one)"
    parser.add_argument("--allow-store", action="append", metavar="DIR", help=help)
    parser.add_argument("--buckets", help="keep the buckets of the S3 endpoint in this folder (default: temporary)")
    for name, (kind, help) in _LIMITS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=help)


def run(args: argparse.Namespace) -> int:
    from ...runtime.local import LocalRuntime

    log_to_stderr()
    sources, settings = agent_sources(args)
    runtime = LocalRuntime(
        sources,
        host=args.host,
        port=args.port,
        allow_hosts=args.allow_host,
        stores=args.allow_store or settings.get("stores"),
        max_sessions=args.max_sessions or settings.get("max_sessions"),
        workers=args.workers,
        buckets=args.buckets or settings.get("buckets"),
    )
    return asyncio.run(_serve(runtime))


async def _serve(runtime: LocalRuntime) -> int:
    stop = asyncio.Event()
    stop_on_signals(stop)
    await runtime.start()
    for agent in runtime.agents.values():
        print(agent.arn)
    print(f"export AWS_ENDPOINT_URL_BEDROCK_AGENTCORE={runtime.endpoint_url}")
    print(f"export AWS_ENDPOINT_URL_S3={runtime.endpoint_url}")
    if os.environ.get(TOKEN_VARIABLE) != runtime.token:
        print(f"export {TOKEN_VARIABLE}={runtime.token}")
    print(f"export AWS_ACCESS_KEY_ID=${TOKEN_VARIABLE}")
    print("export AWS_SECRET_ACCESS_KEY=local", flush=True)
    say(f"serving up to {runtime.max_sessions} sessions on {runtime.endpoint_url}; Ctrl-C ends it")
    for name, reason in runtime.missing.items():
        say(f"without protection {name!r}: {reason}")
    await stop.wait()
    cut = runtime.sessions
    say(f"stopping {len(cut)} sessions")
    await runtime.aclose()
    for session in cut:
        if session.state == "busy":
            say(f"cut off: {session.id} ({session.agent}, after {session.seconds:.0f} s)")
    return 0


def agent_sources(args: argparse.Namespace) -> tuple[list[AgentSource], dict[str, Any]]:
    """The agents of a command line, and the other settings of its config file."""
    if not args.agent.endswith((".toml", ".json")):
        return [_agent_source(args, args.agent, args.name, {})], {}
    settings = read_settings_file(Path(args.agent))
    if unknown := sorted(set(settings) - {"agents", "max_sessions", "buckets", "stores"}):
        hint = "it may have agents, max_sessions, buckets and stores"
        raise ConfigError(f"{args.agent}: unknown setting {unknown[0]!r}", hint=hint)
    home, sources = Path(args.agent).resolve().parent, []
    for name, table in settings.get("agents", {}).items():
        unknown = sorted(set(table) - {"entry", "env", "policy", "tps_limit"})
        if unknown or "entry" not in table:
            problem = f"unknown setting {unknown[0]!r}" if unknown else "entry is missing"
            raise ConfigError(f"agent {name!r}: {problem}", hint="an agent has entry, env, policy and tps_limit")
        entry = table["entry"]
        entry = str(home / entry) if entry.endswith(".py") or os.sep in entry else entry
        sources.append(_agent_source(args, entry, name, table))
    if not sources:
        raise ConfigError(f"{args.agent} names no agents", hint="add a table [agents.<name>] with an entry")
    return sources, settings


def _agent_source(args: argparse.Namespace, entry: str, name: str | None, table: dict[str, Any]) -> AgentSource:
    """One agent, by the flags and by its table in the config file, which wins."""
    from ...runtime.local import AgentSource, SessionPolicy

    limits = {name: getattr(args, name) for name in ("memory_mb", *_LIMITS) if getattr(args, name) is not None}
    allow = {"allow": args.allow} if args.allow else {}
    policy = SessionPolicy.load(limits | allow | table.get("policy", {}))
    source = AgentSource.parse(entry, name, policy=policy, tps_limit=table.get("tps_limit", args.tps_limit))
    source.env.update(session_env(source.folder, read_variables(args.env) | table.get("env", {})))
    return source
