"""Keeping secrets out of what is stored and logged.

Three rules: a value under a secret name (`api_key`, …) is hidden; the key part of a session URL
(`…/sessions/<id>.<key>/…`) is hidden; and a secret seen in a request is hidden wherever its text turns up later,
a traceback or an error message included. Pure, and cheap enough to run on every string of a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"

_SECRET_NAMES = frozenset(
    {"api_key", "apikey", "x_api_key", "authorization", "aws_secret_access_key", "aws_session_token"}
)
_SESSION_URL = re.compile(r"(/sessions/[^/\s.]+\.)([^/\s\"'?#]+)")
# Shorter values, and the placeholders that agents send where no key is needed, turn up in honest text.
_SHORTEST_SECRET = 6
_PLACEHOLDERS = frozenset({"empty", "none", "null", "dummy", "not-needed", "unused"})


class Redactor:
    """Hides the secrets of one request; callable on any string.

    >>> redact = Redactor.of({"_rollout": {"base_url": "http://gw/sessions/s1.k3y/v1", "api_key": "sk-12345678"}})
    >>> redact("401 for sk-12345678 at http://gw/sessions/s1.k3y/v1")
    '401 for *** at http://gw/sessions/s1.***/v1'
    """

    def __init__(self, secrets: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._names = _SECRET_NAMES | {_plain(name) for name in names}
        found = sorted({s for s in secrets if _worth_hiding(s)}, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, found))) if found else None

    @classmethod
    def of(cls, payload: Any, names: Iterable[str] = ()) -> Redactor:
        """The redactor for a request: it knows every secret that the payload carries, under our names or `names`."""
        names = tuple(names)
        return cls(cls(names=names)._secrets_in(payload), names)

    def is_secret(self, name: object) -> bool:
        """Whether a field of this name holds a secret, whatever its value."""
        if not isinstance(name, str):
            return False
        plain = _plain(name)
        return plain in self._names or plain.endswith("_api_key")

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(HIDDEN, text)
        if "/sessions/" in text:
            text = _SESSION_URL.sub(rf"\1{HIDDEN}", text)
        return text

    def _secrets_in(self, value: Any) -> Iterable[str]:
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, Mapping):
                for name, inner in item.items():
                    if self.is_secret(name):
                        yield from _strings(inner)
                    else:
                        stack.append(inner)
            elif isinstance(item, (list, tuple)):
                stack.extend(item)
            elif isinstance(item, str) and "/sessions/" in item:
                yield from (match.group(2) for match in _SESSION_URL.finditer(item))


def _strings(value: Any) -> Iterable[str]:
    """Every string in a secret value, however it is nested; a bearer header also without its scheme."""
    if isinstance(value, str):
        yield value
        scheme, _, credential = value.partition(" ")
        if credential and scheme.lower() in {"bearer", "basic"}:
            yield credential
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _worth_hiding(secret: str) -> bool:
    return len(secret) >= _SHORTEST_SECRET and secret.lower() not in _PLACEHOLDERS
