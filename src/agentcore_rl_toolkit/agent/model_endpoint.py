"""Where an agent finds its model: the rollout's session while it is trained, the user's own endpoint in production.

In a rollout of a SageMaker job, it is the job's endpoint.

`find_model` reads the request, for agents that take a URL (`AgentCoreRLApp.model_endpoint`). `ModelEnvironment` sets
environment variables while a rollout's function runs, for clients that are built without arguments. The environment
belongs to the whole process, so it can suit one session at a time. While a process serves several, the variables point
to `NOWHERE`: a client must fail rather than call as another session. AWS credentials and regions stay as they are,
because the app stores results with them. Nothing here contacts a model.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..config import AgentCoreConfig
from ..errors import ConfigError
from .safe_values.redaction import Redactor
from .sagemaker.job_rollout import JobRollout, endpoint_key

logger = logging.getLogger(__name__)

NOWHERE = "http://several-sessions-share-this-process.invalid"
"""A URL that no name server resolves; its name explains the error that a client then shows."""

_SESSION = re.compile(r"(.+/sessions/[^/]+\.[^/]+?)(/v1)?")

Variables = dict[str, "str | None"]
"""Values by name; None for a variable that must not be set."""


class KeyedModel(NamedTuple):
    """A model that wants a key: a SageMaker job's, or one outside of the gateway that a rollout names."""

    base_url: str
    api_key: str
    headers: tuple[tuple[str, str], ...] = ()


Model = str | KeyedModel | None
"""The model of a served request: a rollout's URL, one with a key, or None in production."""


@dataclass(frozen=True)
class ModelEndpoint:
    """An OpenAI-compatible endpoint, and the model to request there."""

    base_url: str
    model_id: str
    api_key: str = field(default="EMPTY", repr=False)
    sampling_params: dict[str, Any] = field(default_factory=dict)
    """Sampling settings of the trainer, under OpenAI's names; empty in production."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each call; a SageMaker job needs two."""

    @property
    def client_args(self) -> dict[str, Any]:
        """Keyword arguments of `openai.OpenAI` and LangChain's `ChatOpenAI`, and Strands' `client_args`."""
        arguments = {"base_url": self.base_url, "api_key": self.api_key}
        return arguments | ({"default_headers": self.headers} if self.headers else {})

    @property
    def anthropic_args(self) -> dict[str, Any]:
        """Keyword arguments of `anthropic.Anthropic`, for an endpoint that serves Messages too, as our gateway and vLLM
        do.

        >>> ModelEndpoint("http://vllm:8000/v1", "math").anthropic_args["base_url"]
        'http://vllm:8000'
        """
        return self.client_args | {"base_url": self.base_url.removesuffix("/v1")}


def find_model(payload: Any, config: AgentCoreConfig) -> ModelEndpoint:
    """The endpoint for a request: the one in its `_rollout`, its job's, else the configured one.

    >>> rollout = {"base_url": "http://gw:9000/sessions/s1.k3y/v1", "model_id": "policy"}
    >>> find_model({"prompt": "hi", "_rollout": rollout}, AgentCoreConfig(base_url="http://vllm:8000/v1", model_id="m"))
    ModelEndpoint(base_url='http://gw:9000/sessions/s1.k3y/v1', model_id='policy', sampling_params={}, headers={})
    >>> find_model({"prompt": "hi"}, AgentCoreConfig(base_url="http://vllm:8000/v1", model_id="m"))
    ModelEndpoint(base_url='http://vllm:8000/v1', model_id='m', sampling_params={}, headers={})
    """
    asked = payload.get("_rollout") if isinstance(payload, Mapping) else None
    rollout = asked if isinstance(asked, Mapping) else {}
    model = rollout_model(rollout)
    if model is not None:
        base_url, key = (model.base_url, model.api_key) if isinstance(model, KeyedModel) else (model, "EMPTY")
        model_id = rollout.get("model_id") or config.model_id or "policy"
        return ModelEndpoint(base_url, str(model_id), key, dict(rollout.get("sampling_params") or {}))
    if (job := JobRollout.read(payload)) is not None:
        model_id = job.model_id or config.model_id or "policy"
        return ModelEndpoint(job.base_url, model_id, job.api_key(), job.sampling_params, job.headers)
    missing = [name.upper() for name in ("base_url", "model_id") if getattr(config, name) is None]
    if missing:
        raise ConfigError(
            f"the model's endpoint is unknown: the request has no _rollout.base_url, and the environment has no "
            f"{' and no '.join(missing)}",
            hint="set BASE_URL and MODEL_ID (and MODEL_API_KEY) in the container to serve production requests",
        )
    key = config.model_api_key or endpoint_key(config.base_url) or "EMPTY"
    return ModelEndpoint(str(read_base_url(config.base_url)), str(config.model_id), key)


def rollout_model(settings: Mapping[str, Any]) -> Model:
    """The model that a rollout's settings name. A session of the gateway takes no key but the one in its URL."""
    base_url, key = read_base_url(settings.get("base_url")), settings.get("model_api_key")
    if base_url is None or not key or _SESSION.fullmatch(base_url):
        return base_url
    return KeyedModel(base_url, str(key))


def read_base_url(value: object) -> str | None:
    """The `base_url` of a rollout without a trailing slash, None if it has none.

    >>> read_base_url("http://gw:9000/sessions/s1.k3y/v1/")
    'http://gw:9000/sessions/s1.k3y/v1'
    >>> read_base_url("gw:9000/v1")
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.ConfigError: base_url 'gw:9000/v1' is not a URL
    hint: send a URL such as http://host:9000/v1
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ConfigError(f"base_url must be a string, not {type(value).__name__}")
    if not _is_url(value):
        shown = Redactor()(value)[:200]
        raise ConfigError(f"base_url {shown!r} is not a URL", hint="send a URL such as http://host:9000/v1")
    return value.rstrip("/")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port, or an unclosed bracket
        return False
    return whole and text.isprintable() and " " not in text


def model_variables(model: Model) -> Variables:
    """The variables with which clients built without arguments call a model.

    A session of the gateway serves every protocol; any other address is assumed to serve OpenAI's only.

    >>> model_variables("http://vllm:8000/v1")["OPENAI_BASE_URL"]
    'http://vllm:8000/v1'
    >>> model_variables("http://gw:9000/sessions/s1.k3y/v1")["ANTHROPIC_BASE_URL"]
    'http://gw:9000/sessions/s1.k3y'
    """
    if model is None:
        return {}
    if isinstance(model, KeyedModel):
        headers = "\n".join(f"{name}: {value}" for name, value in model.headers)
        return _openai_variables(model.base_url, model.api_key, headers or None)
    session = _SESSION.fullmatch(model)
    if session is None:
        return _openai_variables(model)
    root = session[1]
    return _openai_variables(f"{root}/v1") | {
        "ANTHROPIC_API_KEY": "EMPTY",
        "ANTHROPIC_AUTH_TOKEN": None,
        "ANTHROPIC_BASE_URL": root,
        "AWS_BEARER_TOKEN_BEDROCK": None,  # boto3 refuses to send one over plain HTTP, even a placeholder
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": root,
        "ANTHROPIC_BEDROCK_BASE_URL": root,
        "GEMINI_API_KEY": "EMPTY",
        "GOOGLE_API_KEY": "EMPTY",
        "GOOGLE_GENAI_USE_VERTEXAI": None,  # it makes the client sign in to Google Cloud first
        "GOOGLE_GENAI_USE_ENTERPRISE": None,
        "GOOGLE_GEMINI_BASE_URL": root,
        "GOOGLE_VERTEX_BASE_URL": root,
    }


def _openai_variables(base_url: str, api_key: str = "EMPTY", headers: str | None = None) -> Variables:
    # The key first: the process's own key must never be set together with the rollout's URL.
    urls = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url}
    return {"OPENAI_API_KEY": api_key, **urls, "OPENAI_CUSTOM_HEADERS": headers}


_NOWHERE = model_variables(f"{NOWHERE}/sessions/0.0/v1")


class ModelEnvironment:
    """An environment, and the requests that are served in it.

    Each request enters with its model (None for a production request), and leaves when it is done.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._served: Counter[Model] = Counter()
        self._leaving: deque[Model] = deque()
        self._set: Variables = {}
        self._before: Variables = {}
        """The values that the variables in `_set` had before."""
        self._lock = threading.Lock()
        self._logged_aside = self._logged_several = False

    def enter(self, model: Model) -> None:
        """Count a request in; afterwards the variables suit it, or point to `NOWHERE`."""
        with self._lock:
            self._count_out()
            self._served[model] += 1
            self._update(model)
        self._process_leaving()

    def leave(self, model: Model) -> None:
        """Count a request out. It never waits, because the garbage collector may call it in the middle of `enter`."""
        self._leaving.append(model)
        self._process_leaving()

    @contextmanager
    def serving(self, model: Model = None) -> Iterator[Callable[[Any], Any]]:
        """Enter, and leave afterwards. Pass the request's answer through the function that this yields: if it is a
        stream, the request leaves when the stream is garbage, whether or not it was read.
        """
        answers: list[Any] = []

        def answer(value: Any) -> Any:
            answers.append(value)
            return value

        self.enter(model)
        try:
            yield answer
        finally:
            stream = answers.pop() if answers else None
            if inspect.isgenerator(stream) or inspect.isasyncgen(stream):
                weakref.finalize(stream, self.leave, model).atexit = False
            else:
                self.leave(model)

    def _process_leaving(self) -> None:
        """Count out the requests that left. A thread that holds the lock does so itself after releasing it."""
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                self._count_out()
                self._update(None)
            finally:
                self._lock.release()

    def _count_out(self) -> None:
        while self._leaving:
            model = self._leaving.popleft()
            self._served[model] -= 1
            if not self._served[model]:
                del self._served[model]

    def _update(self, entered: Model) -> None:
        """Set the variables that the served requests need."""
        if len(self._served) < 2:
            wanted = model_variables(next(iter(self._served), None))
        else:
            wanted = {name: _NOWHERE[name] for name in self._set | model_variables(entered)}
            self._warn_of_several()
        if wanted != self._set:
            self._replace(wanted)

    def _replace(self, wanted: Variables) -> None:
        """Set `wanted` instead of what is set, without a moment in between at which neither is set."""
        for name, value in wanted.items():
            self._before.setdefault(name, self._environ.get(name))
            self._assign(name, value)
        for name in reversed([name for name in self._set if name not in wanted]):
            before = self._before.pop(name)
            if self._environ.get(name) == self._set[name]:  # else the agent has set it
                self._assign(name, before)
        self._set = wanted
        self._log_aside(sorted(name for name, value in self._before.items() if value is not None))

    def _assign(self, name: str, value: str | None) -> None:
        if value is None:
            self._environ.pop(name, None)
        else:
            self._environ[name] = value

    def _log_aside(self, aside: list[str]) -> None:
        if aside and not self._logged_aside:
            self._logged_aside = True
            logger.info(
                "set aside while a rollout runs: %s; clients built without arguments call the rollout's model\n"
                "hint: build the clients of other models, such as a judge, when the agent is imported",
                ", ".join(aside),
            )

    def _warn_of_several(self) -> None:
        if not self._logged_several:
            self._logged_several = True
            logger.warning(
                "this process serves several sessions at once: clients built without a URL call %s, and fail\n"
                "hint: run one session per process, or give clients the URL from payload['_rollout']",
                NOWHERE,
            )


process_environment = ModelEnvironment(os.environ)
"""The one of this process, shared by all of its apps."""
