"""Serve a model to agents in production, over the APIs of OpenAI, Anthropic, Bedrock and Google, until Ctrl-C.

MODEL is a folder that `export` wrote, the output folder of a run, an adapter's folder, a hub id, or `tiny`. It is
loaded in this process; with --engine, a server samples and MODEL is its tokenizer. Agents set BASE_URL to the printed
address. Calls are served whatever model they name, and nothing is recorded.

Each call needs a key: one of --keys, or MODEL_API_KEY, or a new one that is printed once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.private_loop import new_loop
from ...engine.checkpoints import resolve_model, resolve_tokenizer, sampling_defaults
from ...errors import ConfigError
from ..flags import add_listen_flags, say
from ..gateway.serve import check_port, wait_unless
from ..terminal.interrupt import stop_on_signals
from ..terminal.log_lines import log_to_stderr
from ..terminal.parser import count

if TYPE_CHECKING:
    from ...engine import Engine
    from ...gateway.gateway import Server
    from ...gateway.render.tokenizer import Tokenizer

HELP = "serve a model to agents in production"
EXAMPLES = (
    "agentcore-rl serve runs/first",
    "agentcore-rl serve exported/my_agent --host 0.0.0.0 --port 8000 --keys keys.txt",
    "agentcore-rl serve exported/my_agent --engine vllm=http://127.0.0.1:8001",
)
KEY_VARIABLE = "MODEL_API_KEY"
_KEY = re.compile(r"[\x21-\x7e]{16,256}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the model, or its tokenizer with --engine")
    help = "sample with a server, as `gateway serve` does; may be repeated (default: in this process)"
    parser.add_argument("--engine", action="append", metavar="KIND=WHERE", help=help)
    parser.add_argument("--model-id", help="serve the model under this name (default: its folder's, or its hub id)")
    help = "render prompts for this model family, as in training (default: auto, the one that fits the tokenizer)"
    parser.add_argument("--renderer", default="auto", help=help)
    help = "accept the keys in this file, one a line, each of 16 characters or more (default: $MODEL_API_KEY)"
    parser.add_argument("--keys", metavar="FILE", help=help)
    add_listen_flags(parser, 8000, "on loopback, its own names; elsewhere, all")
    parser.add_argument(
        "--context-limit", type=count, help="most tokens of a call, prompt and reply (default: the model's)"
    )
    help = "most calls at a time; others get a 429 (default: 256)"
    parser.add_argument("--max-in-flight", type=count, default=256, help=help)


def run(args: argparse.Namespace) -> int:
    (resolve_tokenizer if args.engine else resolve_model)(args.model)
    keys = read_keys(args.keys)
    check_port(args.host, args.port)
    try:
        from ...gateway.gateway import Server  # noqa: F401 - what the extra is for
    except ImportError as error:
        hint = "pip install 'agentcore-rl-toolkit[transformers]'"
        raise ConfigError(f"serving a model needs {error.name}, which is not installed", hint=hint) from error
    log_to_stderr()
    loop = new_loop()
    try:
        return loop.run_until_complete(_serve(args, keys))
    finally:
        loop.close()


def read_keys(file: str | None) -> list[str]:
    """The keys of a file, else of MODEL_API_KEY, else a new one, which is printed."""
    if file is None:
        keys = [os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)]
        if not os.environ.get(KEY_VARIABLE):
            print(f"export {KEY_VARIABLE}={keys[0]}", flush=True)
    else:
        try:
            lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise ConfigError(f"--keys {file} can't be read: {error}") from None
        keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or not all(_KEY.fullmatch(key) for key in keys):
        where = KEY_VARIABLE if file is None else f"--keys {file}"
        problem = "a key is too short, or has spaces" if keys else "it has no key"
        raise ConfigError(f"{where}: {problem}", hint="write one key a line, each of 16 to 256 characters")
    return keys


async def _serve(args: argparse.Namespace, keys: list[str]) -> int:
    server = _build_server(args, keys)
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        await wait_unless(stop, server.start())
        if not stop.is_set():
            print(f"{server.url}/v1", flush=True)
            say(f"serving {args.model_id or ', '.join(server.core.info.models) or args.model}; Ctrl-C ends it")
        await stop.wait()
        say("ending: calls in flight have 5 seconds")
    finally:
        await server.close()
    return 0


def _build_server(args: argparse.Namespace, keys: list[str]) -> Server:
    from ...gateway.call.core import Core, GatewayLimits
    from ...gateway.gateway import Server
    from ...gateway.http.production_app import ProductionApp
    from ...gateway.record.session import SessionSettings
    from ...gateway.render.renderer import ChatRenderer
    from ...gateway.render.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(args.model)
    renderer = ChatRenderer(tokenizer, renderer=args.renderer)
    limits = GatewayLimits(max_in_flight=args.max_in_flight)
    core = Core(_engine(args, tokenizer), renderer, limits=limits)
    settings = SessionSettings(
        session_id="production",
        sampling=dict(sampling_defaults(resolve_tokenizer(args.model))),
        context_limit=args.context_limit,
        model=args.model_id,
    )
    return Server(
        core,
        admin_key=secrets.token_urlsafe(24),
        host=args.host,
        port=args.port,
        allow_hosts=args.allow_host,
        make_app=partial(ProductionApp, keys=keys, settings=settings),
    )


def _engine(args: argparse.Namespace, tokenizer: Tokenizer) -> Engine:
    from ...engine import open_engine

    if args.engine:
        return open_engine(",".join(args.engine), tokenizer=tokenizer.full)
    try:
        from ...engine.transformers import TransformersEngine
    except ImportError as error:
        raise ConfigError(f"a model in this process needs {error.name}: {error}") from error
    folder = Path(args.model)
    args.model_id = args.model_id or (folder.resolve().name if folder.is_dir() else args.model)
    say(f"loading {resolve_model(args.model)}")
    return TransformersEngine(resolve_model(args.model), name=args.model_id, tokenizer=tokenizer.full)
