"""`agentcore-rl gateway serve --engine vllm=http://… --tokenizer …`: agents call it as their model, until Ctrl-C.

The admin key that opens sessions is taken from AGENTCORE_RL_ADMIN_KEY, or made and printed once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..terminal.interrupt import stop_when_asked

_LISTENS = b"!"
"""What a worker says to the first one, over its standard input."""
_PATIENCE = 10.0
"""Seconds for which a worker is tried that never listened: that of a gateway that was killed may be there still."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("serve", help="serve a model to agents", description=__doc__)
    parser.add_argument(
        "--engine",
        action="append",
        required=True,
        metavar="KIND=WHERE",
        help="vllm=URL, vllm-generate=URL (over its token interface), sglang=URL, transformers=PATH, "
        "tinker=MODEL or tinker=tinker://…; several are replicas",
    )
    parser.add_argument("--tokenizer", required=True, help="the model's tokenizer: a folder, a hub id, or `tiny`")
    parser.add_argument(
        "--renderer",
        default="auto",
        help="the model's family as `renderers` names it, checked against the chat template; `default` is the "
        "template itself (default: auto, the one that fits the tokenizer)",
    )
    parser.add_argument(
        "--history",
        choices=("exact", "template"),
        default="exact",
        help="exact: keep what was sampled; template: drop old reasoning as the template does, in a row of its own",
    )
    parser.add_argument("--template", type=_settings, default={}, metavar="JSON", help="chat template settings")
    parser.add_argument(
        "--side-calls",
        type=_settings,
        default={},
        metavar="JSON",
        help="calls not to train on, by model, system, user or tools, where a session doesn't say (default: none)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=9000, help="port to listen on (default: 9000)")
    parser.add_argument("--public-url", help="how agents reach it, where that is not host and port")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="on loopback, serve requests under this host name too (default: loopback's names and --public-url's)",
    )
    parser.add_argument("--log", metavar="DIR", help="keep turns in this folder, to go on after a restart")
    parser.add_argument("--log-gb", type=float, default=8.0, help="bound of that folder (default: 8)")
    parser.add_argument("--max-in-flight", type=int, default=4096, help="calls at a time; more are told to come back")
    parser.add_argument(
        "--body-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="refuse a request when no byte of its body has arrived for so long (default: 60)",
    )
    parser.add_argument("--routes", action="store_true", help="ask the engine for expert routes")
    parser.add_argument("--workers", type=int, default=1, help="processes to share the sessions, each on a port")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    _check(args)
    _check_port(args.host, args.port + args.worker)
    from ...gateway.gateway import ADMIN_KEY, new_loop

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    admin_key = os.environ.get(ADMIN_KEY) or secrets.token_urlsafe(24)
    if not os.environ.get(ADMIN_KEY):
        print(f"export {ADMIN_KEY}={admin_key}", flush=True)
        os.environ[ADMIN_KEY] = admin_key
    loop = new_loop()
    try:
        return loop.run_until_complete(_serve(args, admin_key))
    finally:
        loop.close()


def _check(args: argparse.Namespace) -> None:
    last = args.port + args.workers - 1
    if args.workers < 1:
        raise ConfigError(f"--workers {args.workers}: there is at least one")
    if not 0 <= args.port <= last <= 65_535:
        raise ConfigError(f"--port {args.port} --workers {args.workers}: ports are up to 65535")
    if args.workers > 1 and not args.port:
        raise ConfigError(f"--workers {args.workers} --port 0: workers need a port to count from")
    if not 0 < args.log_gb < math.inf:
        raise ConfigError(f"--log-gb {args.log_gb} is no size")
    if args.max_in_flight < 1:
        raise ConfigError(f"--max-in-flight {args.max_in_flight} would refuse every call")
    if not 0 < args.body_timeout < math.inf:
        raise ConfigError(f"--body-timeout {args.body_timeout} is not a number of seconds above 0")
    if args.public_url is not None and not args.public_url.startswith(("http://", "https://")):
        raise ConfigError(
            f"--public-url {args.public_url} is no URL", hint="write it like http://gateway.internal:9000"
        )


def _check_port(host: str, port: int) -> None:
    """Refuse a port that is taken now, rather than after seconds of loading."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections don't count
            probe.bind(address)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error}") from error


async def _serve(args: argparse.Namespace, admin_key: str) -> int:
    server = _server(args, admin_key)  # takes seconds, in which Ctrl-C still ends the process at once
    stop = asyncio.Event()
    stop_when_asked(stop)
    if args.worker:  # ends with the first worker, however that ends
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    others: list[_Worker] = []
    try:
        await _unless(stop, server.start())
        # What is recorded are packed arrays: collecting less often costs little, and pauses nobody.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        if not args.worker and not stop.is_set():
            others = [_Worker(number, args.port + number) for number in range(1, args.workers)]
            await _unless(stop, asyncio.gather(*(other.up for other in others)))
        if not stop.is_set():
            _announce(server, args.worker)
        await stop.wait()
        if not args.worker:
            _say("ending: calls in flight have 5 seconds")
    finally:
        await asyncio.gather(server.close(), *(other.close() for other in others), return_exceptions=True)
    return 0


async def _unless(stop: asyncio.Event, work: Awaitable[Any]) -> None:
    """Wait for something, unless the end comes first."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if stop.is_set():
        working.cancel()
        await asyncio.wait((working,))
    else:
        working.result()


def _announce(server: Any, worker: int) -> None:
    """Say that it listens: a worker to the first one, the first to everybody."""
    if worker:
        os.write(sys.stdin.fileno(), _LISTENS)
        return
    print(server.url, flush=True)
    _say(f"serving {', '.join(server.core.info.models) or 'an engine that does not answer yet'}; Ctrl-C ends it")
    if server.core.paused:
        _say("paused, as it was when it ended: POST /resume lets calls go on")


class _Worker:
    """Another worker, as a process; one that dies is started again, and goes on from its log."""

    def __init__(self, number: int, port: int) -> None:
        self._number, self._port = number, port
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it listens; fails with a `ConfigError` if it ends before it ever did."""
        self._line: socket.socket | None = None  # its standard input
        self._process: asyncio.subprocess.Process | None = None
        self._keeping = asyncio.create_task(self._keep_running())

    async def close(self) -> None:
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            await self._process.wait()

    async def _keep_running(self) -> None:
        command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", *sys.argv[1:], "--worker", str(self._number)]
        began = time.monotonic()
        while True:
            try:
                code = await self._run_once(command)
            except Exception as error:  # no process or no descriptor is to be had
                code = f"{type(error).__name__}: {error}"
            if not self.up.done() and time.monotonic() - began > _PATIENCE:
                said = f"worker {self._number} ended with {code} before it listened on port {self._port}"
                self.up.set_exception(ConfigError(said, hint="what it said is above"))
                return
            _say(f"worker {self._number} ended with {code}; starting it again")
            await asyncio.sleep(1)

    async def _run_once(self, command: list[str]) -> int | str:
        """Start it, and wait for its end."""
        self._line, its = socket.socketpair()
        self._line.setblocking(False)
        try:
            with its:
                self._process = await asyncio.create_subprocess_exec(*command, stdin=its.fileno())
            if await asyncio.get_running_loop().sock_recv(self._line, 1) and not self.up.done():
                self.up.set_result(None)
            return await self._process.wait()
        finally:
            self._line.close()


def _server(args: argparse.Namespace, admin_key: str) -> Any:
    from ...engine import open_engine
    from ...gateway.call.core import Core, Limits
    from ...gateway.gateway import Server
    from ...gateway.render.renderer import ChatRenderer
    from ...gateway.render.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer)
    renderer = ChatRenderer(tokenizer, renderer=args.renderer, history=args.history, template=args.template)
    log = _log(args)
    limits = Limits(max_in_flight=args.max_in_flight, body_seconds=args.body_timeout)
    engine = open_engine(",".join(args.engine), tokenizer=tokenizer.full)
    core = Core(engine, renderer, log=log, limits=limits, routes=args.routes, side_calls=args.side_calls)
    core.recall_weights()
    where = {"host": args.host, "port": args.port, "public_url": args.public_url, "allow_hosts": args.allow_host}
    return Server(core, admin_key=admin_key, **where, worker=args.worker, workers=args.workers)


def _log(args: argparse.Namespace) -> Any:
    """The log of this worker: the folder itself or, of several, one in it for each."""
    from ...gateway.record.log import Log

    if not args.log:
        return None
    folder = Path(args.log)
    parts = len(list(folder.glob("worker-*")))
    if parts and parts != args.workers and not args.worker:
        raise ConfigError(f"{folder} is the log of {parts} workers, not {args.workers}", hint=f"--workers {parts}")
    if args.workers > 1:
        for number in range(args.workers):
            (folder / f"worker-{number}").mkdir(parents=True, exist_ok=True, mode=0o700)
        folder /= f"worker-{args.worker}"
    return Log(folder, max_bytes=int(args.log_gb * (1 << 30)) // args.workers)


def _settings(text: str) -> dict[str, Any]:
    settings = json.loads(text)
    if not isinstance(settings, dict):
        raise ValueError(text)
    return settings


_settings.__name__ = "JSON object"  # what argparse calls it, in `invalid … value`


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
