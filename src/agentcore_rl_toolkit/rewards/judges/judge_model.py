"""`JudgeModel`: asks a model for one structured answer, through OpenAI's, Anthropic's or Bedrock's Converse API.

Answers are cached on disk, calls are bounded in number, time and size, and their tokens are counted. It knows nothing
of rewards, and sends nothing but what it is given.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import tempfile
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...common.env_file import aws_region
from ...errors import ConfigError, JudgeFault

_LARGEST_ANSWER = 1 << 20
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""HTTP statuses after which another try may help."""
_TOOL = "verdict"
_WIRES: Mapping[str, tuple[str, str]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "converse": ("", ""),
}
"""The address and the variable with the key, by API; boto3 finds its own."""

Answer = dict[str, Any]


@dataclass
class JudgeUsage:
    """What a judge's calls have cost so far."""

    calls: int = 0
    """Answers of the model, usable or not: each is billed."""
    cached: int = 0
    """Answers from the cache, which cost nothing."""
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    """By the given price; 0 without one."""


@dataclass(kw_only=True)
class JudgeModel:
    """A model that judges. `ask` may be called from several threads."""

    name: str
    """The API and the model: `openai:NAME`, `anthropic:NAME` or `converse:ID`."""
    base_url: str | None = None
    """The server, if it isn't the API's own: any that speaks the same API."""
    api_key: str | None = field(default=None, repr=False)
    """The key; by default OPENAI_API_KEY or ANTHROPIC_API_KEY, or the AWS credentials."""
    cache: str | Path | None = None
    """A folder for answers: the same question is asked once."""
    max_concurrent: int = 8
    timeout: float = 60.0
    retries: int = 3
    max_tokens: int = 2048
    """The most tokens of an answer."""
    price: tuple[float, float] = (0.0, 0.0)
    """Dollars per million input and output tokens."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, such as `temperature`."""

    def __post_init__(self) -> None:
        self.api, colon, self.model = self.name.partition(":")
        if self.api not in _WIRES or not colon or not self.model:
            hint = "write openai:NAME, anthropic:NAME or converse:ID"
            raise ConfigError(f"not a judge's model: {self.name!r}", hint=hint)
        if self.max_concurrent < 1:
            raise ConfigError(f"max_concurrent must be at least 1, not {self.max_concurrent}")
        self.usage = JudgeUsage()
        self._slots, self._lock = threading.BoundedSemaphore(self.max_concurrent), threading.Lock()
        self._asking: weakref.WeakValueDictionary[Path | None, threading.Lock] = weakref.WeakValueDictionary()

    def ask(self, system: str, text: str, schema: Mapping[str, Any]) -> Answer:
        """The model's answer, an object as `schema` says; callers check its values. Raises `JudgeFault`."""
        place = self._place(system, text, schema)
        with self._one_at_a_time(place):
            known = _read(place)
            if known is not None:
                with self._lock:
                    self.usage.cached += 1
                return known
            with self._slots:
                answer = self._ask_until_answered(system, text, schema)
            _write(place, answer)
            return answer

    def forget(self, system: str, text: str, schema: Mapping[str, Any]) -> None:
        """Remove an invalid answer from the cache."""
        place = self._place(system, text, schema)
        if place is not None:
            place.unlink(missing_ok=True)

    def _one_at_a_time(self, place: Path | None) -> contextlib.AbstractContextManager[Any]:
        """Held while a question is asked whose answer the cache will have: rollouts of a group often say the same."""
        if place is None:
            return contextlib.nullcontext()
        with self._lock:
            return self._asking.setdefault(place, threading.Lock())

    def _place(self, system: str, text: str, schema: Mapping[str, Any]) -> Path | None:
        if self.cache is None:
            return None
        asked = {"judge": self.name, "url": self.base_url, "system": system, "text": text, "schema": schema}
        asked["options"] = dict(self.options)
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode(errors="surrogatepass")).hexdigest()
        return Path(self.cache) / digest[:2] / f"{digest}.json"

    def _ask_until_answered(self, system: str, text: str, schema: Mapping[str, Any]) -> Answer:
        call = {"openai": self._openai, "anthropic": self._anthropic, "converse": self._converse}[self.api]
        for attempt in range(self.retries + 1):
            try:
                return call(system, text, schema)
            except JudgeFault as fault:
                if not fault.passing or attempt == self.retries:
                    raise
                time.sleep(random.uniform(0, 0.5 * 2**attempt))
        raise AssertionError("unreachable")

    def _count(self, reply: Mapping[str, Any], *names: str) -> None:
        """Count a reply; `names` are those of its input and output tokens."""
        known = reply.get("usage")
        given, made = (read_count(known, name) for name in names)
        with self._lock:
            self.usage.calls += 1
            self.usage.input_tokens += given
            self.usage.output_tokens += made
            self.usage.dollars += (given * self.price[0] + made * self.price[1]) / 1e6

    # --- the three APIs ----------------------------------------------------------------------------------------------

    def _openai(self, system: str, text: str, schema: Mapping[str, Any]) -> Answer:
        reply = self._post(
            "chat/completions",
            {"Authorization": f"Bearer {self._key() or 'EMPTY'}"},
            {
                "model": self.model,
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": _TOOL, "strict": True, "schema": schema},
                },
                "max_completion_tokens": self.max_tokens,
            },
        )
        self._count(reply, "prompt_tokens", "completion_tokens")
        with self._reading(reply):
            return _object(json.loads(reply["choices"][0]["message"]["content"]))

    def _anthropic(self, system: str, text: str, schema: Mapping[str, Any]) -> Answer:
        reply = self._post(
            "messages",
            {"x-api-key": self._key() or "EMPTY", "anthropic-version": "2023-06-01"},
            {
                "model": self.model,
                "system": system,
                "messages": [{"role": "user", "content": text}],
                "tools": [{"name": _TOOL, "description": "Give the verdict.", "input_schema": schema}],
                "tool_choice": {"type": "tool", "name": _TOOL},
                "max_tokens": self.max_tokens,
            },
        )
        self._count(reply, "input_tokens", "output_tokens")
        with self._reading(reply):
            return _object(next(block["input"] for block in reply["content"] if block["type"] == "tool_use"))

    def _converse(self, system: str, text: str, schema: Mapping[str, Any]) -> Answer:
        from botocore.exceptions import BotoCoreError, ClientError

        tool = {"toolSpec": {"name": _TOOL, "description": "Give the verdict.", "inputSchema": {"json": schema}}}
        try:
            reply = self._bedrock().converse(
                modelId=self.model,
                system=[{"text": system}],
                messages=[{"role": "user", "content": [{"text": text}]}],
                toolConfig={"tools": [tool], "toolChoice": {"tool": {"name": _TOOL}}},
                inferenceConfig={"maxTokens": self.max_tokens, **self.options},
            )
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise self._fault(str(error), passing=status in _PASSING) from error
        except BotoCoreError as error:
            raise self._fault(str(error), passing=True) from error
        self._count(reply, "inputTokens", "outputTokens")
        with self._reading(reply):
            blocks = reply["output"]["message"]["content"]
            return _object(next(block["toolUse"]["input"] for block in blocks if "toolUse" in block))

    def _bedrock(self) -> Any:
        import boto3
        from botocore.config import Config

        with self._lock:
            if "_client" not in self.__dict__:
                config = Config(read_timeout=self.timeout, connect_timeout=10, retries={"total_max_attempts": 1})
                where = {"endpoint_url": self.base_url, "region_name": aws_region()}
                self._client = boto3.client("bedrock-runtime", config=config, **where)
            return self._client

    # --- HTTP --------------------------------------------------------------------------------------------------------

    def _key(self) -> str | None:
        return self.api_key or os.environ.get(_WIRES[self.api][1])

    def _post(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{(self.base_url or _WIRES[self.api][0]).rstrip('/')}/{path}"
        data = json.dumps({**body, **self.options}).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method="POST")
        deadline = time.monotonic() + self.timeout
        try:
            with _OPENER.open(request, timeout=self.timeout) as reply:
                read = _read_body(reply, deadline)
        except urllib.error.HTTPError as error:
            text = b""
            with contextlib.suppress(OSError, http.client.HTTPException):
                text = error.read(1000)
            problem = f"HTTP {error.code}: {text.decode(errors='replace')}"
            raise self._fault(problem, passing=error.code in _PASSING) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._fault(f"{url}: {error or type(error).__name__}", passing=True) from error
        if len(read) > _LARGEST_ANSWER:
            raise self._fault(f"an answer of more than {_LARGEST_ANSWER:,} bytes")
        try:
            found = json.loads(read)
        except (ValueError, RecursionError) as error:
            raise self._fault(f"an answer that is not JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def _reading(self, reply: Any) -> Any:
        """Turn a reply of another shape into a fault. A model may fail to give the form that it was asked for."""
        try:
            yield
        except (LookupError, StopIteration, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise self._fault(f"no verdict in {str(reply)[:300]}", passing=True) from error

    def _fault(self, problem: str, *, passing: bool = False) -> JudgeFault:
        return JudgeFault(f"the judge {self.name}: {problem}", passing=passing)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: following it would send the key to another place."""

    def redirect_request(self, *args: Any, **others: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _read_body(reply: http.client.HTTPResponse, deadline: float) -> bytes:
    """A whole body, unless it is too large. Servers may send spaces to keep a connection alive for hours."""
    read = bytearray()
    while len(read) <= _LARGEST_ANSWER and (piece := reply.read1(1 << 16)):
        read += piece
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    if reply.length:
        raise http.client.IncompleteRead(bytes(read[:100]), reply.length)
    return bytes(read)


def read_count(usage: Any, name: str) -> int:
    """A number of tokens in a reply's usage; 0 where it says none.

    >>> read_count({"input_tokens": 7}, "input_tokens"), read_count(None, "input_tokens")
    (7, 0)
    """
    count = usage.get(name) if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else 0


def _object(answer: Any) -> Answer:
    if not isinstance(answer, dict):
        raise TypeError(f"a {type(answer).__name__}")
    return answer


def _read(place: Path | None) -> Answer | None:
    """A cached answer; None if it is missing or can't be read."""
    try:
        return _object(json.loads(place.read_text())) if place is not None else None
    except (OSError, ValueError, TypeError):
        return None


def _write(place: Path | None, answer: Answer) -> None:
    """Cache an answer; a full disk costs the next run a call, and this one nothing."""
    if place is None:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, suffix=".unfinished", delete=False) as file:
            try:
                file.write(json.dumps(answer))
                file.close()
                os.replace(file.name, place)
            except BaseException:
                os.unlink(file.name)
                raise
