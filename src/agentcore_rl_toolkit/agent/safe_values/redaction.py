"""Keeps secrets out of what is stored and logged, by five rules.

1. A value under a secret name is hidden: `api_key`, `*_token`, `*_secret`, `password`, `credentials`, … and the names
   that a user adds.
2. The key part of a session URL (`…/sessions/<id>.<key>/…`) is hidden.
3. The user and password of any URL, and the secret parameters of its query, are hidden.
4. A secret seen in a request is hidden wherever its text turns up later, in a traceback for instance.
5. The bearer tokens that AWS's SDKs make for SageMaker and Bedrock are hidden.
"""

from __future__ import annotations

import functools
import numbers
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The last words of a name decide, so `max_tokens`, `token_ids` and `password_length` stay visible.
_SECRET_ENDINGS = _words(
    "secret secrets password passwords passwd pwd passphrase credential credentials authorization "
    "cookie cookies apikey apikeys authtoken accesstoken secretkey accesskey privatekey"
)
_SECRET_KEYS = _words("api secret private access signing encryption ssh")
"""`*_key` is secret after these words only: a `result_key` is not."""
_SECRET_TOKENS = _words("api access auth refresh bearer security secret")
"""`*_tokens` are secret after these words only: `prompt_tokens` are not."""
_VISIBLE_TOKENS = _words(
    "eos bos pad unk mask sep cls stop start begin end first last next previous per each special "
    "image audio video vision prompt completion input output new added sampled generated"
)
"""`*_token` is secret except after these words: an `eos_token` is not."""
_QUERY_NAMES = frozenset({"key", "sig", "signature", "auth"})
"""Names that are secret only in a URL's query, such as Google's `?key=` and Azure's `&sig=`."""

_SESSION_URL = re.compile(r"(/sessions/[^/\s.]+\.)([^/\s\"'?#]+)")
_USER_INFO = re.compile(r"(?<=://)([^/?#\s\"'<>]+)@")
_PARAMETER = re.compile(r"([?&;])([^?&;=\s\"'#<>\\]{1,100})=([^&;\s\"'#<>\\]+)")
_AWS_TOKEN = re.compile(r"\b((?:sagemaker|bedrock)-api-key-)[A-Za-z0-9+/=_-]+")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# Shorter values, and the placeholders that agents send where a server needs no key, occur in ordinary text.
_SHORTEST_SECRET = 6
_SHORTEST_TOKEN = 16
_PLACEHOLDERS = frozenset({"empty", "none", "null", "dummy", "not-needed", "unused"})
_LARGEST_COUNT = 10 ** (_SHORTEST_SECRET - 1)
_LARGEST_NUMBER = 10**1000  # Python refuses to print integers of more than 4300 digits


class Redactor:
    """Hides the secrets of one request; callable on any string.

    >>> redact = Redactor.of({"_rollout": {"base_url": "http://gw/sessions/s1.k3y/v1", "api_key": "sk-12345678"}})
    >>> redact("401 for sk-12345678 at http://gw/sessions/s1.k3y/v1?api_key=other")
    '401 for *** at http://gw/sessions/s1.***/v1?api_key=***'
    """

    def __init__(self, secrets: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._names = frozenset(map(_plain, names))
        found = {s for s in secrets if len(s) >= _SHORTEST_SECRET and s.lower() not in _PLACEHOLDERS}
        longest_first = sorted(map(re.escape, found), key=len, reverse=True)
        self._values = re.compile("|".join(longest_first)) if found else None

    @classmethod
    def of(cls, payload: Any, names: Iterable[str] = ()) -> Redactor:
        """The redactor for a request: it hides every secret that the payload carries, under our names or `names`."""
        names = tuple(names)
        return cls(cls(names=names)._secrets_in(payload), names)

    def is_secret(self, name: object) -> bool:
        """Whether a field of this name holds secrets."""
        return isinstance(name, str) and (_plain(name) in self._names or _is_secret_name(name[-100:]))

    def hides(self, name: object, value: Any, beside: Container[Any] = ()) -> bool:
        """Whether `value` must be hidden under `name`, given the names `beside` it.

        Under the user's own names every value is hidden. Under ours, flags, floats and short integers stay visible,
        because they are metrics (`found_secret`); so does the `token` beside a `logprob`, which was sampled.
        """
        if value is None or not self.is_secret(name):
            return False
        if _plain(str(name)) in self._names:
            return True
        if isinstance(value, numbers.Real) and (not isinstance(value, numbers.Integral) or abs(value) < _LARGEST_COUNT):
            return False
        return not (name == "token" and "logprob" in beside)

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(HIDDEN, text)
        if "-api-key-" in text:
            text = _AWS_TOKEN.sub(rf"\1{HIDDEN}", text)
        if "/sessions/" in text:
            text = _SESSION_URL.sub(rf"\1{HIDDEN}", text)
        if "://" in text and "@" in text:
            text = _USER_INFO.sub(f"{HIDDEN}@", text)
        if "=" in text:
            text = _PARAMETER.sub(self._parameter, text)
        return text

    def cut(self, text: str, limit: int) -> str:
        """`text` without its secrets, and without its middle where it is longer than `limit`."""
        text = self(text)
        if len(text) <= limit:
            return text
        note = f"… {len(text) - limit:,} characters left out …"
        head = (limit - len(note)) // 2
        return text[:head] + note + text[len(text) - (limit - len(note) - head) :]

    def _parameter(self, match: re.Match[str]) -> str:
        before, name, _ = match.groups()
        return f"{before}{name}={HIDDEN}" if self._is_secret_parameter(name) else match[0]

    def _is_secret_parameter(self, name: str) -> bool:
        return self.is_secret(name) or name.lower() in _QUERY_NAMES

    def _secrets_in(self, value: Any) -> Iterable[str]:
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, Mapping):
                for name, inner in item.items():
                    if self.hides(name, inner, item):
                        yield from _strings(inner)
                    else:
                        stack.append(inner)
            elif isinstance(item, (list, tuple)):
                stack.extend(item)
            elif isinstance(item, str):
                for secret in self._secrets_of_urls(item):
                    yield from {secret, unquote(secret)}

    def _secrets_of_urls(self, text: str) -> Iterable[str]:
        if "/sessions/" in text:
            yield from (match[2] for match in _SESSION_URL.finditer(text))
        if "://" in text and "@" in text:
            for match in _USER_INFO.finditer(text):
                user, _, password = match[1].partition(":")
                if password or len(user) >= _SHORTEST_TOKEN:  # a plain user name occurs in ordinary text
                    yield password or user
        if "=" in text:
            yield from (match[3] for match in _PARAMETER.finditer(text) if self._is_secret_parameter(match[2]))


@functools.lru_cache(maxsize=4096)
def _is_secret_name(name: str) -> bool:
    """Whether a name's last words mark a secret, however they are joined: `apiKeys`, `X-API-Key`, `db_password2`.

    >>> [name for name in ("apiKeys", "DB_PASSWORD", "max_tokens", "hf_token", "eos_token") if _is_secret_name(name)]
    ['apiKeys', 'DB_PASSWORD', 'hf_token']
    """
    words = [word.rstrip("0123456789") for word in re.split(r"[\W_]+", _WORD_START.sub("_", name).lower())]
    before, last = ["", "", *filter(None, words)][-2:]
    if last in ("key", "keys"):
        return before in _SECRET_KEYS
    if last == "tokens":
        return before in _SECRET_TOKENS
    if last == "token":
        return before not in _VISIBLE_TOKENS
    return last in _SECRET_ENDINGS


def _strings(value: Any) -> Iterable[str]:
    """Every text in a secret value, at any depth; an authorization header also without its scheme."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
            scheme, _, credential = item.partition(" ")
            if credential and scheme.lower() in {"bearer", "basic"}:
                yield credential
        elif isinstance(item, int) and _LARGEST_COUNT <= abs(item) < _LARGEST_NUMBER:
            yield str(item)
        elif isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)


def _plain(name: str) -> str:
    return re.sub(r"[-_.\s]", "", name).lower()
