"""Refuses requests that a web page made, by their headers, before a body is read.

A page can make its visitor's browser send requests to a port of the visitor's machine, in two ways:

- DNS rebinding: the page's own name resolves to 127.0.0.1, and the browser sends that name in `Host`. So a port serves
  requests under its own names only.
- Cross-site requests: a form, a script or a link leads to the port. Browsers send `Sec-Fetch-Site` and `Origin` then.

Other programs can send any headers; `socket_owner.py` and secrets decide about those.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\s]+)(?::(\d{0,5}))?")
_ORIGIN = re.compile(r"(https?)://(.+)", re.IGNORECASE)
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_EVERYWHERE = ("", "0.0.0.0", "::")
"""Hosts that stand for all addresses of a machine."""


class GuardRefusal(NamedTuple):
    """Why a request is not served, and what to do about it."""

    message: str
    hint: str


class RequestGuard:
    """The rules of one port.

    >>> guard = RequestGuard(["gateway.internal"])
    >>> guard.refusal({"Host": "gateway.internal:9000"}), guard.refusal({"Host": "localhost:9000"})
    (None, None)
    >>> guard.refusal({"Host": "evil.example"}).message
    "the Host header is 'evil.example', which is not a name of this server"
    >>> guard.refusal({"Host": "localhost", "Origin": "https://evil.example"}).message
    "a web page of 'https://evil.example' made this request"
    """

    def __init__(self, hosts: Iterable[str] | None) -> None:
        """`hosts` are the port's names besides those of loopback; None serves requests under any name."""
        self._hosts = None if hosts is None else frozenset(map(_configured, hosts))
        self._is_ours = functools.lru_cache(256)(self._names_us)  # saves 7 us, a hundredth of a model call

    @classmethod
    def listening(cls, host: str, allow_hosts: Iterable[str]) -> RequestGuard:
        """The rules of a port that listens on `host`, and may have other names."""
        return cls([*allow_hosts] if host in _EVERYWHERE else [host, *allow_hosts])

    def refusal(self, headers: Mapping[str, str], arrived_at: str | None = None) -> GuardRefusal | None:
        """Why a request with these headers is refused, None if it is not; `arrived_at` is the port's own address."""
        host = headers.get("Host")
        if self._hosts is not None and host is not None and not self._is_ours(host, arrived_at):
            return GuardRefusal(
                f"the Host header is {host!r}, which is not a name of this server",
                "start it with --allow-host NAME to serve it under another name",
            )
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        if site is None and origin is None:
            return None
        if site not in (None, "none", "same-origin") or (origin is not None and not _same_origin(origin, host or "")):
            return GuardRefusal(
                f"a web page of {origin or 'another site'!r} made this request",
                "pages of other sites may not use this server; call it from a program, not from a browser",
            )
        return None

    def _names_us(self, host: str, arrived_at: str | None) -> bool:
        name = host_name(host)
        return bool(name) and (is_loopback(name) or name in (self._hosts or ()) or name == arrived_at)


def host_name(authority: str) -> str:
    """The host of `host:port`, in lower case and without brackets; empty for a malformed one.

    >>> host_name("LocalHost:8800"), host_name("[::1]:8800"), host_name("gateway.internal."), host_name("a:b")
    ('localhost', '::1', 'gateway.internal', '')
    """
    match = _AUTHORITY.fullmatch(authority)
    return match[1].strip("[]").lower().removesuffix(".") if match else ""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a port that listens on `host`.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_this_machine(host: str) -> bool:
    """Whether the host of a URL leads every machine to itself.

    >>> names_this_machine("127.0.0.1"), names_this_machine("0.0.0.0"), names_this_machine("10.0.0.5")
    (True, True, False)
    """
    return host in _EVERYWHERE or is_loopback(host)


def local_address(transport: Any) -> str | None:
    """The address of this machine at which a connection arrived."""
    name = transport.get_extra_info("sockname") if transport is not None else None
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else None


def reachable_host(host: str) -> str:
    """The URL's host with which programs on this machine reach a server that listens on `host`.

    >>> reachable_host("0.0.0.0"), reachable_host("::1"), reachable_host("gateway.internal")
    ('127.0.0.1', '[::1]', 'gateway.internal')
    """
    host = "127.0.0.1" if host in _EVERYWHERE else host
    return f"[{host}]" if ":" in host else host


def _configured(host: str) -> str:
    name = host_name(f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host)
    if not name:
        raise ConfigError(f"{host!r} is not the name of a host", hint="write it like gateway.internal or 10.0.0.5")
    return name


def _same_origin(origin: str, host: str) -> bool:
    """Whether `origin` is a page of the server named `host`."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return False
    port = f":{_DEFAULT_PORTS[match[1].lower()]}"
    return match[2].lower().removesuffix(port) == host.lower().removesuffix(port)
