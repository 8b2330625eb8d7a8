"""Serve a page that shows runs, even while they train, until Ctrl-C. It reads their files and changes nothing.

On this machine, programs of your user need no key; others need the address that is printed, with its key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.http_guard import reachable_host
from ...errors import ConfigError
from ..flags import add_listen_flags, say
from ..terminal.interrupt import stop_on_signals

if TYPE_CHECKING:
    from ...studio.server.run_catalog import RunCatalog

HELP = "show runs in the browser"
EXTRA = "gateway"
EXAMPLES = (
    "agentcore-rl ui",
    "agentcore-rl ui runs/first runs/second --port 8080",
    "agentcore-rl ui runs/first --export report.html",
)
_DEFAULT = "runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUNS", help=f"runs, or folders of runs (default: {_DEFAULT}, or this folder)"
    )
    add_listen_flags(parser, 8830, "on loopback, its own names; elsewhere, all")
    parser.add_argument("--tokenizer", help="show the text of tokens with this model's tokenizer (default: as numbers)")
    parser.add_argument(
        "--export", metavar="FILE", help="write the page with a selection of rollouts to one file, and serve nothing"
    )
    parser.add_argument(
        "--runtime-url", help="list the sessions of the local runtime at this address, with their output"
    )
    parser.add_argument("--gateway-url", help="show the state of a gateway at this address")


def run(args: argparse.Namespace) -> int:
    from ...studio.server.run_catalog import RunCatalog

    catalog = RunCatalog(args.runs or [_DEFAULT if os.path.isdir(_DEFAULT) else "."])
    return _export(args, catalog) if args.export else asyncio.run(_serve(args, catalog))


def _export(args: argparse.Namespace, catalog: RunCatalog) -> int:
    from ...studio.server.page_access import PageAccess
    from ...studio.server.report_file import write_report
    from ...studio.server.studio_app import StudioApp

    path = Path(args.export)
    app = StudioApp(catalog, PageAccess(host=args.host, port=args.port), tokenizer=args.tokenizer)
    try:
        rollouts, runs, every = write_report(app, path)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error}") from None
    print(path)
    say(f"{path.stat().st_size / 1e6:.1f} MB, with {rollouts} rollouts")
    if runs < every:
        say(f"it has the latest {runs} of {every} runs; name runs to choose others")
    return 0


async def _serve(args: argparse.Namespace, catalog: RunCatalog) -> int:
    from aiohttp import web

    from ...studio.server.page_access import PageAccess
    from ...studio.server.session_watch import SessionWatch
    from ...studio.server.studio_app import StudioApp

    stop = asyncio.Event()
    stop_on_signals(stop)
    access = PageAccess(host=args.host, port=args.port, allow_hosts=args.allow_host)
    live = SessionWatch(args.runtime_url, args.gateway_url)
    app = StudioApp(catalog, access, tokenizer=args.tokenizer, live=live)
    runner = web.AppRunner(app.application(), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, args.host, args.port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"can't listen on {args.host}:{args.port}: {error}", hint="choose another --port"
            ) from None
        port = runner.addresses[0][1]
        print(f"http://{reachable_host(args.host)}:{port}/?key={access.key}", flush=True)
        count = len(catalog.runs())
        say(f"showing {count} run{'' if count == 1 else 's'}; Ctrl-C ends it")
        await stop.wait()
    finally:
        await runner.cleanup()
    return 0
