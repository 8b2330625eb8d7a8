"""Which flag would have helped an agent that failed because its sandbox lacks an address, a variable or a file.

In a sandbox those just don't exist, so only the agent's own error shows it. This module guesses from that error's text;
the guess goes into a `hint:` and decides nothing. It reads the host's variables and looks whether files exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..hosting.agent_files import excluded_paths

if TYPE_CHECKING:
    from . import AgentSource

_NO_ROUTE = re.compile(
    r"connection refused|network is unreachable|no route to host|connect call failed|name or service not known"
    r"|temporary failure in name resolution|no address associated|failed to resolve|all connection attempts failed"
    r"|cannot connect to host|name resolution",
    re.IGNORECASE,
)
_HOST = r"(?P<host>[A-Za-z0-9][\w.-]{0,252}|\[[0-9a-fA-F:]{2,39}\])"
_PORT = r"(?P<port>[0-9]{1,5})\b"
_ADDRESSES = tuple(
    re.compile(form)
    for form in (
        rf"host='{_HOST}', port={_PORT}",  # urllib3
        rf"""\(['"]{_HOST}['"], ?{_PORT}""",  # asyncio, and a socket's address in a line of source
        rf'at "{_HOST}"(?: \([^)]{{1,50}}\))?, port {_PORT}',  # libpq
        rf"(?:connecting to|connect to|connect to host|to host) {_HOST}:{_PORT}",  # redis, aiohttp
        rf"\b(?P<scheme>https?)://(?:[^\s/@\"']{{1,200}}@)?{_HOST}(?::{_PORT})?",
        rf"(?<![\w/.]){_HOST}:{_PORT}: \[Errno",  # pymongo
    )
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b|(?<=KeyError: ')[A-Za-z_]\w*(?=')")
_UNSET = re.compile(r"""\bos(?:\.py"|>"), line \d+, in __getitem__[^'"]{0,200}KeyError: '(\w{1,100})'""")
_FILE = re.compile(r"(?:No such file or directory|Permission denied): '([^'\n]{1,1000})'")
_READ_ONLY = re.compile(r"Read-only file system: '([^'\n]{1,1000})'")
_LONGEST_TEXT = 200_000
_IN_SESSION = "/app"


def refusal_hint(text: str, source: AgentSource, protections: Container[str]) -> str | None:
    """What to do about an agent's error if its sandbox may be the cause; `text` is its traceback and message.

    >>> from agentcore_rl_toolkit.runtime.local import AgentSource
    >>> text = "ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.0.5', 5432)"
    >>> refusal_hint(text, AgentSource("demo", ".", "rl_app.py"), ["network"])
    'the sandbox has no route to 10.0.0.5:5432: --allow 10.0.0.5:5432'
    """
    text = text[-_LONGEST_TEXT:]
    if "network" in protections and _NO_ROUTE.search(text):
        return _network_hint(text, source.policy.allow)
    variable = _variable_hint(text, source.environment())
    return variable or (_file_hint(text, source.folder) if "filesystem" in protections else None)


def app_hint(source: AgentSource) -> str | None:
    """What to do about a rollout that an agent did not accept, if the file that was named is no RL app."""
    file, ours = Path(source.folder, source.entry), Path(source.folder, "rl_app.py")
    try:
        if "AgentCoreRLApp" in file.read_text(encoding="utf-8", errors="replace"):
            return None
    except OSError:  # `module:app`
        return None
    beside = f"name {os.path.relpath(ours)}" if ours.exists() else f"agentcore-rl init {os.path.relpath(source.folder)}"
    return f"{source.entry} has no AgentCoreRLApp, which rollouts need: {beside}"


def _network_hint(text: str, allow: Container[str]) -> str | None:
    found = list(addresses_in(text))
    for address in found:
        if address not in allow:
            return f"the sandbox has no route to {address}: --allow {address}"
    return None if found else "the sandbox has routes to the model and to allowed addresses only: --allow HOST:PORT"


def addresses_in(text: str) -> Iterator[str]:
    """The addresses in the errors of common clients, as `host:port`.

    >>> list(addresses_in("HTTPConnectionPool(host='db.local', port=80): Max retries exceeded with url: /"))
    ['db.local:80']
    """
    for form in _ADDRESSES:
        for match in form.finditer(text):
            parts = match.groupdict()
            port = int(parts["port"] or {"http": 80, "https": 443}[parts["scheme"]])
            if 0 < port < 65536:
                yield f"{parts['host']}:{port}"


def _variable_hint(text: str, env: Mapping[str, str]) -> str | None:
    """For a variable that the error names, the host has, and the session lacks; or that the agent expects to be set."""
    for name in _VARIABLE.findall(_last_lines(text)):
        if name in os.environ and name not in env:
            return f"the sandbox lacks this shell's variable {name}: --env {name}, or a line in .env"
    unset = _UNSET.search(text[-1000:])
    return f"the variable {unset[1]} is not set: --env {unset[1]}=VALUE, or a line in .env" if unset else None


def _file_hint(text: str, folder: str) -> str | None:
    """For a file that the error names, the host has, and the session lacks; or that no session may write."""
    if found := _READ_ONLY.search(_last_lines(text)):
        return f"sessions may write in the agent's folder and in /tmp, not to {found[1]}"
    for name in _FILE.findall(_last_lines(text)):
        inside = os.path.normpath(os.path.relpath(os.path.join(_IN_SESSION, name), _IN_SESSION))
        if not inside.startswith(".."):
            if any(inside == path or inside.startswith(path) for path in excluded_paths(folder)):
                return f"sessions don't get {inside}: rename it, or pass what it holds with --env NAME=VALUE"
        elif os.path.isabs(name) and os.path.exists(name):
            return f"sessions see only the agent's folder, not {name}: copy it into {folder}"
    return None


def _last_lines(text: str) -> str:
    """The message of the last exception; the code further up did not fail."""
    return "\n".join(text.strip().splitlines()[-3:])
