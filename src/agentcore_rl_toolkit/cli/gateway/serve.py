"""`agentcore-rl gateway serve --engine vllm=http://… --tokenizer …`: agents call it as their model, until Ctrl-C.

The admin key that opens sessions is taken from AGENTCORE_RL_ADMIN_KEY, or made and printed once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import sys
from typing import Any

from ...errors import ConfigError


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("serve", help="serve a model to agents", description=__doc__)
    parser.add_argument(
        "--engine",
        action="append",
        required=True,
        metavar="KIND=WHERE",
        help="vllm=URL, vllm-chat=URL (its template does the rendering), sglang=URL, transformers=PATH; "
        "several are replicas",
    )
    parser.add_argument("--tokenizer", required=True, help="the model's tokenizer: a folder or a hub id")
    parser.add_argument("--renderer", default="auto", help="the model's family as `renderers` names it (default: auto)")
    parser.add_argument(
        "--history",
        choices=("exact", "template"),
        default="exact",
        help="exact: keep what was sampled; template: drop old reasoning as the template does, in a row of its own",
    )
    parser.add_argument("--template", type=json.loads, default={}, metavar="JSON", help="chat template settings")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=9000, help="port to listen on (default: 9000)")
    parser.add_argument("--public-url", help="how agents reach it, where that is not host and port")
    parser.add_argument("--log", metavar="DIR", help="keep turns in this folder, to go on after a restart")
    parser.add_argument("--log-gb", type=float, default=8.0, help="bound of that folder (default: 8)")
    parser.add_argument("--max-in-flight", type=int, default=4096, help="calls at a time; more are told to come back")
    parser.add_argument("--workers", type=int, default=1, help="processes to share the sessions, each on a port")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from ...gateway.serve import ADMIN_KEY, new_loop

    if args.workers < 1:
        raise ConfigError(f"--workers {args.workers}: at least one is needed")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    admin_key = os.environ.get(ADMIN_KEY) or secrets.token_urlsafe(24)
    if ADMIN_KEY not in os.environ:
        print(f"export {ADMIN_KEY}={admin_key}", flush=True)
        os.environ[ADMIN_KEY] = admin_key
    loop = new_loop()
    try:
        return loop.run_until_complete(_serve(args, admin_key))
    finally:
        loop.close()


async def _serve(args: argparse.Namespace, admin_key: str) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = _server(args, admin_key)
    await server.start()
    # What is recorded are packed arrays: collecting less often costs little, and pauses nobody.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    print(server.url, flush=True)
    _say(f"serving {', '.join(server.core.info.models) or 'an engine that does not answer yet'}; Ctrl-C ends it")
    await stop.wait()
    _say("ending: calls in flight have 5 seconds")
    await server.close()
    return 0


def _server(args: argparse.Namespace, admin_key: str) -> Any:
    from ...gateway.core import Core, Limits
    from ...gateway.engine import open_engine
    from ...gateway.log import Log
    from ...gateway.render import ChatRenderer
    from ...gateway.serve import Server
    from ...gateway.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer)
    renderer = ChatRenderer(tokenizer, renderer=args.renderer, history=args.history, template=args.template)
    log = Log(args.log, max_bytes=int(args.log_gb * (1 << 30))) if args.log else None
    core = Core(open_engine(",".join(args.engine)), renderer, log=log, limits=Limits(max_in_flight=args.max_in_flight))
    return Server(core, admin_key=admin_key, host=args.host, port=args.port, public_url=args.public_url)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
