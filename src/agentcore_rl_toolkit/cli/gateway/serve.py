"""Serve a model to agents, which call it like their model provider, until Ctrl-C.

The admin key that opens sessions comes from AGENTCORE_RL_ADMIN_KEY; without it, a new one is printed once. Inference
servers get the key in AGENTCORE_RL_ENGINE_API_KEY, if they ask for one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import IO, Any

from ...common.http_guard import reachable_host
from ...errors import ConfigError
from ...gateway.workers.worker_process import WorkerProcess, announce_listening, bind_ports
from ..flags import add_listen_flags, read_pairs, say
from ..terminal.interrupt import stop_on_signals
from ..terminal.log_lines import log_to_stderr
from ..terminal.parser import above_zero, count

_ORPHAN_SECONDS = 15.0
"""How long a worker whose supervisor was killed may still hold its log: longer than it gives its calls to end."""

HELP = "serve a model to agents"
EXTRA = "gateway"
EXAMPLES = (
    "agentcore-rl gateway serve --engine transformers=tiny --tokenizer tiny",
    "agentcore-rl gateway serve --engine vllm=http://127.0.0.1:8000 --tokenizer Qwen/Qwen3-8B --log runs/gateway",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        action="append",
        required=True,
        metavar="KIND=WHERE",
        help="sample with vllm=URL, vllm-generate=URL (over its token interface), sglang=URL, transformers=PATH, "
        "tinker=MODEL or tinker=tinker://…, or `trainer`: engines of training runs that connect; several are replicas",
    )
    parser.add_argument("--tokenizer", required=True, help="the model's tokenizer: a folder, a hub id, or `tiny`")
    parser.add_argument(
        "--renderer",
        default="auto",
        help="render prompts for this model family of `renderers`, checked against the chat template; `default` uses "
        "the template itself (default: auto, the family that fits the tokenizer)",
    )
    help = "exact: keep what was sampled; template: drop old reasoning as the template does, and start a new row"
    parser.add_argument("--history", choices=("exact", "template"), default="exact", help=f"{help} (default: exact)")
    parser.add_argument("--template", type=_json_object, default={}, metavar="JSON", help="chat template settings")
    help = "calls not to train on, by model, system, user or tools, for sessions without a rule (default: none)"
    parser.add_argument("--side-calls", action="append", default=[], metavar="NAME=VALUE", help=help)
    add_listen_flags(parser, 9000, "on loopback, its own names and that of --public-url; elsewhere, all")
    parser.add_argument("--public-url", help="tell agents to call this address (default: the host and port)")
    parser.add_argument("--log", metavar="DIR", help="keep turns in this folder across restarts (default: in memory)")
    parser.add_argument("--log-gb", type=above_zero, default=8.0, help="most gigabytes of that folder (default: 8)")
    parser.add_argument(
        "--max-in-flight", type=count, default=4096, help="most calls at a time; others get a 429 (default: 4096)"
    )
    help = "refuse a request whose body stops arriving for this long (default: 60)"
    parser.add_argument("--body-timeout", type=above_zero, default=60.0, metavar="SECONDS", help=help)
    parser.add_argument("--routes", action="store_true", help="ask the engine for expert routes")
    parser.add_argument(
        "--workers", type=count, default=1, help="share the sessions among processes on successive ports (default: 1)"
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="serve from a process that is started again when it dies, on a port that stays open: calls wait meanwhile",
    )
    help = "share sessions with the gateways at these addresses, all of them, this one too; one admin key for all"
    parser.add_argument("--peers", type=_list, default=[], metavar="URL,…", help=help)
    parser.add_argument("--peer-url", default="", help="this gateway's own address among --peers")
    parser.add_argument("--no-images", action="store_true", help="show the model placeholders instead of images")
    parser.add_argument("--tokenizer-name", help=argparse.SUPPRESS)  # what a saved copy was loaded by
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker-url", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)  # bound by the process that started this worker
    parser.add_argument("--state", type=int, help=argparse.SUPPRESS)  # the file with its predecessor's state


def run(args: argparse.Namespace) -> int:
    _check(args)
    if args.socket is None:
        check_port(args.host, args.port + args.worker)
    from ...common.private_loop import new_loop
    from ...gateway.gateway import ADMIN_KEY

    log_to_stderr()
    admin_key = os.environ.get(ADMIN_KEY) or secrets.token_urlsafe(24)
    if not os.environ.get(ADMIN_KEY):
        print(f"export {ADMIN_KEY}={admin_key}", flush=True)
        os.environ[ADMIN_KEY] = admin_key
    loop = new_loop()
    try:
        keeps_serving = args.restart and args.socket is None
        return loop.run_until_complete(_keep_serving(args) if keeps_serving else _serve(args, admin_key))
    finally:
        loop.close()


def _check(args: argparse.Namespace) -> None:
    from ...gateway.workers.members import check_peers

    last = args.port + args.workers - 1
    if not 0 <= args.port <= last <= 65_535:
        raise ConfigError(f"--port {args.port} --workers {args.workers}: the highest port is 65535")
    if args.workers > 1 and not args.port:
        raise ConfigError(f"--workers {args.workers} --port 0: workers need a port to count from")
    args.peers, (args.peer_url, *_) = check_peers(args.peers), [*check_peers([args.peer_url] * bool(args.peer_url)), ""]
    if bool(args.peers) != bool(args.peer_url) or (args.peers and args.peer_url not in args.peers):
        raise ConfigError(f"--peer-url {args.peer_url} must be one of --peers", hint="name this gateway in both")
    if args.public_url is not None and not args.public_url.startswith(("http://", "https://")):
        hint = "write it like http://gateway.internal:9000"
        raise ConfigError(f"--public-url {args.public_url} is not a URL", hint=hint)


def check_port(host: str, port: int) -> None:
    """Refuse a port that is in use now, not after seconds of loading."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections don't count
            probe.bind(address)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error}", hint="choose another port") from error


async def _serve(args: argparse.Namespace, admin_key: str) -> int:
    server = _build_server(args, admin_key)  # takes seconds; Ctrl-C still ends the process at once
    stop = asyncio.Event()
    stop_on_signals(stop)
    has_parent = args.socket is not None
    is_first = not args.worker and not has_parent
    if not is_first:  # ends with the process that started it
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    others: list[WorkerProcess] = []
    try:
        await wait_unless(stop, server.start())
        # Recorded turns are packed arrays: rare collections cost little memory and interrupt no call.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        if is_first and not stop.is_set():
            others = [_start_worker(number, args.port + number) for number in range(1, args.workers)]
            await wait_unless(stop, asyncio.gather(*(other.listening for other in others)))
        if not stop.is_set():
            if is_first:
                _announce(server)
            else:
                announce_listening()
        await stop.wait()
        if is_first:
            say("ending: calls in flight have 5 seconds")
    finally:
        await asyncio.gather(server.close(), *(other.close() for other in others), return_exceptions=True)
        if has_parent and args.log and not args.restart:  # its sessions ended with the run
            shutil.rmtree(_log_folder(args), ignore_errors=True)
    return 0


async def _keep_serving(args: argparse.Namespace) -> int:
    """Run every worker in a process, and start it again when it dies; this one only keeps their ports open."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    sockets = bind_ports(args.host, args.port, args.workers)
    port = sockets[0].getsockname()[1]
    states = [tempfile.TemporaryFile() for _ in sockets]  # noqa: SIM115 - closed below
    workers = [_start_worker(number, port + number, sockets[number], states[number]) for number in range(args.workers)]
    try:
        await wait_unless(stop, asyncio.gather(*(worker.listening for worker in workers)))
        if not stop.is_set():
            print(args.public_url or f"http://{reachable_host(args.host)}:{port}", flush=True)
            say("serving; Ctrl-C ends it")
        await stop.wait()
        say("ending: calls in flight have 5 seconds")
    finally:
        await asyncio.gather(*(worker.close() for worker in workers))
        for one, state in zip(sockets, states, strict=True):
            one.close()
            state.close()
    return 0


def _start_worker(
    number: int, port: int, listens: socket.socket | None = None, state: IO[bytes] | None = None
) -> WorkerProcess:
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", *sys.argv[1:], "--worker", str(number)]
    if listens is None or state is None:
        return WorkerProcess(f"worker {number}", command, port=port)
    kept = [listens.fileno(), state.fileno()]
    command += ["--port", str(port - number), "--socket", str(kept[0]), "--state", str(kept[1])]
    return WorkerProcess(f"worker {number}", command, port=port, keeps=kept)


async def wait_unless(stop: asyncio.Event, work: Awaitable[Any]) -> None:
    """Wait for something, or cancel it once `stop` is set."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        working.cancel()
        await asyncio.wait((working,))
    else:
        working.result()


def _announce(server: Any) -> None:
    print(server.url, flush=True)
    say(f"serving {', '.join(server.core.info.models) or 'an engine that does not answer yet'}; Ctrl-C ends it")
    if server.core.gate.paused:
        say("paused, as before the restart: POST /resume resumes calls")


def _build_server(args: argparse.Namespace, admin_key: str) -> Any:
    from ...engine import open_engine
    from ...gateway.call.core import Core, GatewayLimits
    from ...gateway.gateway import Server
    from ...gateway.render.renderer import ChatRenderer
    from ...gateway.render.tokenizer import load_tokenizer
    from ...gateway.workers.handed_state import HandedState

    tokenizer = load_tokenizer(args.tokenizer)
    tokenizer.name_or_path = args.tokenizer_name or tokenizer.name_or_path
    renderer = ChatRenderer(tokenizer, renderer=args.renderer, history=args.history, template=args.template)
    log = _open_log(args)
    limits = GatewayLimits(max_in_flight=args.max_in_flight, body_seconds=args.body_timeout)
    engine = open_engine(",".join(args.engine), tokenizer=tokenizer.full, changeable=True)
    core = Core(
        engine,
        renderer,
        log=log,
        limits=limits,
        routes=args.routes,
        side_calls=read_pairs("--side-calls", args.side_calls),
        images=not args.no_images,
    )
    core.gate.restore()
    where = {"host": args.host, "port": args.port, "public_url": args.public_url, "allow_hosts": args.allow_host}
    kind = {"make_app": args.make_app} if getattr(args, "make_app", None) else {}
    where |= {"peers": args.peers, "peer_url": args.peer_url}
    where |= {"worker": args.worker, "workers": args.workers, "worker_urls": args.worker_url}
    if args.socket is not None:
        where["listens"] = socket.socket(fileno=args.socket)
    if args.state is not None:
        where["handed"] = HandedState(args.state)
    return Server(core, admin_key=admin_key, **where, **kind)


def _open_log(args: argparse.Namespace) -> Any:
    """This worker's log: the folder itself or, with several workers, the worker's subfolder."""
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
    # A worker whose supervisor was killed gives its calls a few seconds, and the port is free before the log is.
    seconds = _ORPHAN_SECONDS if args.socket is not None else 0.0
    max_bytes = int(args.log_gb * (1 << 30)) // args.workers
    return Log(_log_folder(args), max_bytes=max_bytes, lock_seconds=seconds)


def _log_folder(args: argparse.Namespace) -> Path:
    return Path(args.log) / f"worker-{args.worker}" if args.workers > 1 else Path(args.log)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


_list.__name__ = "list of addresses"
_json_object.__name__ = "JSON object"  # argparse writes `invalid JSON object value`
