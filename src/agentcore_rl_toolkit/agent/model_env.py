"""The environment variables that lead a model client built without arguments to its rollout's session.

Beside the app, which has them set while a rollout's function runs, on every runtime alike. The environment is the
whole process's, so it can be right for one session at a time. Where requests of several meet, the variables lead
nowhere: a client whose owner nobody knows must not call as somebody else. AWS credentials and regions are left alone,
because results are stored with them.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError
from .redaction import Redactor

logger = logging.getLogger(__name__)

# No name server knows it, and errors that show it say why.
NOWHERE = "http://several-sessions-share-this-process.invalid"

_SESSION = re.compile(r"(.+/sessions/[^/]+\.[^/]+?)(/v1)?")

Variables = dict[str, "str | None"]
"""Values by name; None for a variable that must not be set."""


def read_base_url(value: object) -> str | None:
    """The `base_url` of a rollout: a URL without a slash at its end, or None if it has none.

    >>> read_base_url("http://gw:9000/sessions/s1.k3y/v1/")
    'http://gw:9000/sessions/s1.k3y/v1'
    >>> read_base_url("gw:9000/v1")
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.ConfigError: base_url 'gw:9000/v1' is not a URL
    hint: send one as in http://host:9000/v1
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ConfigError(f"base_url must be a string, not {type(value).__name__}")
    if not _is_url(value):
        shown = Redactor()(value)[:200]
        raise ConfigError(f"base_url {shown!r} is not a URL", hint="send one as in http://host:9000/v1")
    return value.rstrip("/")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port, or brackets that don't close
        return False
    return whole and text.isprintable() and " " not in text


def model_variables(base_url: str | None) -> Variables:
    """What has to be set for clients built without arguments to call `base_url`.

    A session of the gateway speaks every protocol; of any other address only OpenAI's is known.

    >>> model_variables("http://vllm:8000/v1")
    {'OPENAI_API_KEY': 'EMPTY', 'OPENAI_BASE_URL': 'http://vllm:8000/v1', 'OPENAI_API_BASE': 'http://vllm:8000/v1'}
    >>> model_variables("http://gw:9000/sessions/s1.k3y/v1")["ANTHROPIC_BASE_URL"]
    'http://gw:9000/sessions/s1.k3y'
    """
    if base_url is None:
        return {}
    session = _SESSION.fullmatch(base_url)
    if session is None:
        return _openai(base_url)
    root = session[1]
    return _openai(f"{root}/v1") | {
        "ANTHROPIC_API_KEY": "EMPTY",
        "ANTHROPIC_AUTH_TOKEN": None,
        "ANTHROPIC_BASE_URL": root,
        "AWS_BEARER_TOKEN_BEDROCK": None,  # a key like the others, but boto3 refuses any over plain HTTP
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": root,
        "ANTHROPIC_BEDROCK_BASE_URL": root,
        "GEMINI_API_KEY": "EMPTY",
        "GOOGLE_API_KEY": "EMPTY",
        "GOOGLE_GENAI_USE_VERTEXAI": None,  # which would sign in to Google Cloud first
        "GOOGLE_GENAI_USE_ENTERPRISE": None,
        "GOOGLE_GEMINI_BASE_URL": root,
        "GOOGLE_VERTEX_BASE_URL": root,
    }


def _openai(base_url: str) -> Variables:
    # The key first: the process's own must not meet the rollout's URL, not even between two assignments.
    return {"OPENAI_API_KEY": "EMPTY", "OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url}


_NOWHERE = model_variables(f"{NOWHERE}/sessions/0.0/v1")


class ModelEnvironment:
    """An environment, and the requests that are being served in it.

    Whoever is served enters with its `base_url`, None for a production request, and leaves when it is done.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._served: Counter[str | None] = Counter()
        self._left: deque[str | None] = deque()
        """Who left and is still counted."""
        self._ours: Variables = {}
        self._before: Variables = {}
        """What was there before ours."""
        self._lock = threading.Lock()
        self._told = self._warned = False

    def enter(self, base_url: str | None) -> None:
        """Count a request in; when this returns, the variables are right for it, or lead nowhere."""
        with self._lock:
            self._discount()
            self._served[base_url] += 1
            self._settle(base_url)
        self._see_off()

    def leave(self, base_url: str | None) -> None:
        """Count it out. This never waits: the garbage collector may call it in the midst of `enter`."""
        self._left.append(base_url)
        self._see_off()

    @contextmanager
    def serving(self, base_url: str | None = None) -> Iterator[Callable[[Any], Any]]:
        """While a request is served whose answer is what the function gives; it passes the answer through this.

        If the answer is a stream, the request is over when nobody holds the stream any more.
        """
        answers: list[Any] = []

        def answer(value: Any) -> Any:
            answers.append(value)
            return value

        self.enter(base_url)
        try:
            yield answer
        finally:
            stream = answers.pop() if answers else None
            if inspect.isgenerator(stream) or inspect.isasyncgen(stream):
                weakref.finalize(stream, self.leave, base_url).atexit = False
            else:
                self.leave(base_url)

    def _see_off(self) -> None:
        """Count out who left; if somebody else holds the lock, they will."""
        while self._left and self._lock.acquire(blocking=False):
            try:
                self._discount()
                self._settle(None)
            finally:
                self._lock.release()

    def _discount(self) -> None:
        while self._left:
            base_url = self._left.popleft()
            self._served[base_url] -= 1
            if not self._served[base_url]:
                del self._served[base_url]

    def _settle(self, newcomer: str | None) -> None:
        """Set what those who are served need."""
        if len(self._served) < 2:
            wanted = model_variables(next(iter(self._served), None))
        else:
            wanted = {name: _NOWHERE[name] for name in self._ours | model_variables(newcomer)}
            self._warn()
        if wanted != self._ours:
            self._set(wanted)

    def _set(self, wanted: Variables) -> None:
        """Put `wanted` in place of ours, without a moment at which neither is there."""
        for name, value in wanted.items():
            found = self._environ.get(name)
            if name not in self._ours or found != self._ours[name]:  # not from us
                self._before[name] = found
            self._assign(name, value)
        for name in reversed([name for name in self._ours if name not in wanted]):
            if self._environ.get(name) == self._ours[name]:  # the agent may have set it itself
                self._assign(name, self._before[name])
            del self._before[name]
        self._ours = wanted
        self._tell(sorted(name for name, value in self._before.items() if value is not None))

    def _assign(self, name: str, value: str | None) -> None:
        if value is None:
            self._environ.pop(name, None)
        else:
            self._environ[name] = value

    def _tell(self, aside: list[str]) -> None:
        if aside and not self._told:
            self._told = True
            logger.info(
                "set aside while a rollout runs: %s; clients built without arguments call the rollout's model\n"
                "hint: build the clients of other models, such as a judge, when the agent is imported",
                ", ".join(aside),
            )

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "requests of several sessions are served in this process at once: clients built without a URL are led "
                "to %s\nhint: run one session per process, or give clients the URL from payload['_rollout']",
                NOWHERE,
            )


process_environment = ModelEnvironment(os.environ)
"""This process's. There is one, however many apps there are."""
