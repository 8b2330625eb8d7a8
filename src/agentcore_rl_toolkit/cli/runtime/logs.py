"""Show what a session printed, even after it has ended."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import quote

from ...common.text_table import escape
from ...errors import ConfigError
from ...runtime.base import TOKEN_VARIABLE

HELP = "show what a session printed"
EXAMPLES = ("agentcore-rl runtime logs 5f0c", "agentcore-rl runtime logs 5f0c --follow")
_DEFAULT_URL = "http://127.0.0.1:8800"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="session id, or the start of one")
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more output, until Ctrl-C")
    add_url_flag(parser)


def add_url_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default=_DEFAULT_URL, help=f"ask the runtime at this address (default: {_DEFAULT_URL})"
    )


def run(args: argparse.Namespace) -> int:
    offset, decode = 0, codecs.getincrementaldecoder("utf-8")("replace").decode
    while True:
        body, headers = fetch(args.url, f"/logs/{quote(args.session, safe='')}?offset={offset}")
        if sys.stdout.isatty():
            sys.stdout.write(escape(decode(body)))
        else:
            sys.stdout.buffer.write(body)
        sys.stdout.flush()
        offset = int(headers["X-Next-Offset"])
        if not body:
            if not args.follow:
                return 0
            time.sleep(0.3)


def fetch(url: str, path: str) -> tuple[bytes, Mapping[str, str]]:
    """GET a path of a running runtime, with the token of the environment; returns body and headers."""
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url.rstrip("/") + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{url}: {_message(error)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"no runtime answers at {url}: {error}", hint="start one, or name it with --url") from None


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text or str(error)
