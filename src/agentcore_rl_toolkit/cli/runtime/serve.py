"""`agentcore-rl runtime serve AGENT`: AgentCore Runtime on this machine, until Ctrl-C.

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
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...runtime.base import TOKEN_VARIABLE
from ...runtime.local_agent import session_env
from ..terminal.interrupt import stop_when_asked
from ..terminal.sandbox_arguments import add_sandbox_arguments, variables

if TYPE_CHECKING:
    from ...runtime.local import AgentSource, LocalRuntime

_POLICY = ("cpus", "processes", "disk_mb", "idle_timeout", "max_lifetime")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "serve",
        help="serve agents on AWS's wire",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("agent", help="rl_app.py, module:app, or a config file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8800, help="port to listen on (default: 8800)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="serve requests under this host name too (default: loopback's names and the address that was dialled)",
    )
    parser.add_argument("--name", help="the agent's name in its ARN (default: its folder's)")
    parser.add_argument("--max-sessions", type=int, help="sessions at a time (default: by memory and cores)")
    parser.add_argument("--tps-limit", type=float, help="requests per second, 25 to rehearse AWS (default: no limit)")
    add_sandbox_arguments(parser)
    parser.add_argument(
        "--store",
        action="append",
        metavar="DIR",
        help="folder in which callers may have results stored, with all below it (default: the current one)",
    )
    parser.add_argument("--buckets", help="folder for the buckets of the S3 endpoint (default: temporary)")
    for name in _POLICY:
        kind = float if name == "cpus" or name.startswith(("idle", "max")) else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"a session's {name.replace('_', ' ')}")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from ...runtime.local import LocalRuntime

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    sources, settings = agent_sources(args)
    runtime = LocalRuntime(
        sources,
        host=args.host,
        port=args.port,
        allow_hosts=args.allow_host,
        stores=args.store or settings.get("stores"),
        max_sessions=args.max_sessions or settings.get("max_sessions"),
        buckets=args.buckets or settings.get("buckets"),
    )
    return asyncio.run(_serve(runtime))


async def _serve(runtime: LocalRuntime) -> int:
    stop = asyncio.Event()
    stop_when_asked(stop)
    await runtime.start()
    for agent in runtime.agents.values():
        print(agent.arn)
    print(f"export AWS_ENDPOINT_URL_BEDROCK_AGENTCORE={runtime.endpoint_url}")
    print(f"export AWS_ENDPOINT_URL_S3={runtime.endpoint_url}")
    if os.environ.get(TOKEN_VARIABLE) != runtime.token:
        print(f"export {TOKEN_VARIABLE}={runtime.token}")
    print(f"export AWS_ACCESS_KEY_ID=${TOKEN_VARIABLE}")
    print("export AWS_SECRET_ACCESS_KEY=local", flush=True)
    _say(f"serving up to {runtime.max_sessions} sessions on {runtime.endpoint_url}; Ctrl-C ends it")
    for name, reason in runtime.missing.items():
        _say(f"without protection {name!r}: {reason}")
    await stop.wait()
    cut = [session.describe() for session in runtime.sessions]
    _say(f"stopping {len(cut)} sessions")
    await runtime.aclose()
    for session in cut:
        if session["state"] == "busy":
            _say(f"cut off: {session['session_id']} ({session['agent']}, after {session['seconds']:.0f} s)")
    return 0


def agent_sources(args: argparse.Namespace) -> tuple[list[AgentSource], dict[str, Any]]:
    """The agents of a command line, and the further settings of its config file."""
    from ...runtime.local import AgentSource, SessionPolicy

    common = {name: getattr(args, name) for name in ("memory_mb", *_POLICY) if getattr(args, name) is not None}
    if args.allow:
        common["allow"] = args.allow
    env = variables(args.env)
    if not args.agent.endswith((".toml", ".json")):
        policy = SessionPolicy.load(common)
        source = AgentSource.parse(args.agent, args.name, policy=policy, tps_limit=args.tps_limit)
        source.env.update(session_env(source.folder, env))
        return [source], {}
    settings = _read(Path(args.agent))
    home, sources = Path(args.agent).resolve().parent, []
    for name, table in settings.get("agents", {}).items():
        unknown = set(table) - {"entry", "env", "policy", "tps_limit"}
        if unknown or "entry" not in table:
            raise ConfigError(
                f"agent {name!r}: {'unknown setting ' + sorted(unknown)[0] if unknown else 'entry is missing'}",
                hint="an agent has entry, env, policy and tps_limit",
            )
        entry = table["entry"]
        entry = str(home / entry) if entry.endswith(".py") or os.sep in entry else entry
        policy = SessionPolicy.load(common | table.get("policy", {}))
        limit = table.get("tps_limit", args.tps_limit)
        source = AgentSource.parse(entry, name, policy=policy, tps_limit=limit)
        source.env.update(session_env(source.folder, env | table.get("env", {})))
        sources.append(source)
    if not sources:
        raise ConfigError(f"{args.agent} names no agents", hint="add a table [agents.<name>] with an entry")
    return sources, settings


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".json":
            settings = json.loads(path.read_text())
        else:
            import tomllib  # Python 3.11

            settings = tomllib.loads(path.read_text())
    except ImportError:
        raise ConfigError("reading TOML needs Python 3.11", hint="write the config as JSON") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None
    if not isinstance(settings, dict) or set(settings) - {"agents", "max_sessions", "buckets", "stores"}:
        hint = "see agentcore-rl runtime serve -h"
        raise ConfigError(f"{path} may have agents, max_sessions, buckets and stores", hint=hint)
    return settings


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
