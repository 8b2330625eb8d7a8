"""`AgentCoreRLApp`: the agent's process, a drop-in for `BedrockAgentCoreApp`.

A request that carries `_rollout` is a rollout: the app answers at once, runs the function in the background and stores
exactly one result. A rollout without a store, in the request or in the config, is answered with what the function
returns, and so is any request without `_rollout` (a production request), as `@app.entrypoint` would.

A rollout of a SageMaker job runs in the background too, and is reported to the job. Its request is answered when the
report is delivered, as with AWS's own decorator; if the request's connection breaks, the rollout continues.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from bedrock_agentcore.runtime import BedrockAgentCoreApp, BedrockAgentCoreContext, RequestContext
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.types import Lifespan, Receive, Scope, Send

from ..common.http_guard import RequestGuard, is_loopback
from ..config import AgentCoreConfig
from ..errors import AgentCoreRLError, ConfigError
from ..store import Store, open_store
from ..types import RolloutId
from .background import BackgroundRun, BackgroundRunner, Destination
from .logs import configure_logging, current_redactor
from .model_endpoint import KeyedModel, Model, ModelEndpoint, find_model, process_environment, rollout_model
from .result import ResultBuilder, copy_request
from .safe_values.redaction import Redactor
from .sagemaker.job_feedback import JobFeedback
from .sagemaker.job_rollout import JobRollout, with_row

F = TypeVar("F", bound=Callable[..., Any])

REMEMBERED_ANSWERS = 10_000
"""Rollouts whose second invoke gets the answer of the first."""
_STORE_FIELDS = ("exp_id", "input_id", "s3_bucket")
"""Storing a result takes all of these; the app doesn't store the result of a rollout with none of them."""


class AgentCoreRLApp(BedrockAgentCoreApp):
    """`BedrockAgentCoreApp` with `@app.rollout_entrypoint`.

    >>> app = AgentCoreRLApp()
    >>> @app.rollout_entrypoint
    ... def invoke_agent(payload: dict):
    ...     return {"rewards": float(payload["prompt"] == "hello")}

    The constructor contacts nothing and doesn't configure logging. `config` (default: `AgentCoreConfig.load()`) is the
    only argument that `BedrockAgentCoreApp` doesn't have.
    """

    def __init__(
        self,
        debug: bool = False,
        lifespan: Lifespan[Any] | None = None,
        middleware: Sequence[Middleware] | None = None,
        *,
        config: AgentCoreConfig | None = None,
    ) -> None:
        self.config = AgentCoreConfig.load() if config is None else config
        self._runner = BackgroundRunner(self.config)
        self._accepted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._jobs: dict[tuple[str, str], BackgroundRun] = {}
        self._job_answers: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()
        self._stores: dict[tuple[str, str | None], Store] = {}
        self._accepting = threading.Lock()
        self._guard: RequestGuard | None = None
        with _without_handler(logging.getLogger("bedrock_agentcore.app")):
            super().__init__(debug=debug, lifespan=self._with_shutdown(lifespan), middleware=middleware)

    def rollout_entrypoint(self, func: F) -> F:
        """Make `func` the entrypoint of rollouts and of production requests; returns it unchanged.

        It may be sync or async, and takes `(payload)` or `(payload, context)`. For a rollout it returns a dict, usually
        `{"rewards": …}` (see `normalize_rewards`); an exception is stored as a failed result.
        """
        takes_context, is_async = _takes_context(func), _is_async(func)

        def call(payload: Any, context: RequestContext) -> Any:
            return func(payload, context) if takes_context else func(payload)

        def begin(payload: Any, context: RequestContext) -> Any:
            """The answer to a rollout that now runs in the background; None for any other request."""
            if self._is_stored(payload):
                return self._accept(call, payload, context, is_async)
            job = _read_job(payload)
            return None if job is None else _JobAnswer(self._accept_job(job, call, payload, context, is_async))

        # The base class treats sync and async handlers differently, so ours is of the same kind as `func`: production
        # requests, streams included, then take exactly the path that `@app.entrypoint` gives them.
        if is_async:

            async def serve_async(payload: Any, context: RequestContext) -> Any:
                if (begun := begin(payload, context)) is not None:
                    return begun
                with process_environment.serving(self._model_of(payload)) as answer:
                    value = call(payload, context)
                    return answer(await value if inspect.isawaitable(value) else value)

            self.entrypoint(serve_async)
        else:

            def serve(payload: Any, context: RequestContext) -> Any:
                if (begun := begin(payload, context)) is not None:
                    return begun
                with process_environment.serving(self._model_of(payload)) as answer:
                    return answer(call(payload, context))

            self.entrypoint(serve)
        return func

    def model_endpoint(self, payload: Any) -> ModelEndpoint:
        """The model's endpoint for this request, so that the container that was trained also serves production.

        For a rollout it is the session that records it (`_rollout.base_url`), for a production request the endpoint
        that `BASE_URL`, `MODEL_ID` and `MODEL_API_KEY` name. For a rollout of a SageMaker job it is the job's, with the
        headers and the token that the job needs.

        >>> app = AgentCoreRLApp(config=AgentCoreConfig(base_url="http://vllm:8000/v1", model_id="math-agent"))
        >>> app.model_endpoint({"prompt": "hi"}).client_args
        {'base_url': 'http://vllm:8000/v1', 'api_key': 'EMPTY'}
        """
        return find_model(payload, self.config)

    def run(self, port: int = 8080, host: str | None = None, **kwargs: Any) -> None:
        """Serve, with JSON logs on stderr unless the program has set up logging itself.

        On loopback it refuses requests that web pages make. In a container it listens on every address; the platform
        decides who can reach it.
        """
        if host is None:  # as the base class decides
            in_container = os.path.exists("/.dockerenv") or os.environ.get("DOCKER_CONTAINER")
            host = "0.0.0.0" if in_container else "127.0.0.1"
        self._guard = RequestGuard([]) if is_loopback(host) else None
        configure_logging(logging.DEBUG if self.debug else logging.INFO)
        kwargs.setdefault("log_config", None)  # uvicorn's lines become JSON too
        kwargs.setdefault("timeout_graceful_shutdown", 5)  # an open stream must not delay storing results
        super().run(port, host, **kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if self._guard is not None and scope["type"] in ("http", "websocket"):
            refusal = self._guard.refusal(Headers(scope=scope))
        if refusal is None:
            await super().__call__(scope, receive, send)
        else:
            await JSONResponse({"error": refusal.message}, status_code=403)(scope, receive, send)

    def _is_stored(self, payload: Any) -> bool:
        """Whether the request is a rollout whose result the app stores, even if a field for that is missing."""
        settings = payload.get("_rollout") if isinstance(payload, dict) else None
        if settings is None:
            return False
        named = not isinstance(settings, dict) or any(settings.get(name) is not None for name in _STORE_FIELDS)
        return named or self.config.s3_bucket is not None

    def _model_of(self, payload: Any) -> Model:
        """The model of a rollout that is not stored; None for a production request."""
        settings = payload.get("_rollout") if isinstance(payload, dict) else None
        if settings is None:
            return None
        current_redactor.set(self._redactor(payload))
        try:
            return rollout_model(settings)
        except AgentCoreRLError as error:
            raise HTTPException(400, f"_rollout: {error}") from error

    def _redactor(self, payload: Any) -> Redactor:
        """Hides the secrets of a request and of this process's environment."""
        return Redactor.of([payload, dict(os.environ)], self.config.secret_keys)

    def _accept(
        self, call: Callable[..., Any], payload: dict[str, Any], context: RequestContext, is_async: bool
    ) -> dict[str, str]:
        """Start the rollout, unless an earlier invoke has started it; the answer is the same either way."""
        try:
            id = _read_id(payload["_rollout"], context.session_id)
            model = rollout_model(payload["_rollout"])
            store_name, store = self._store(payload["_rollout"])
        except AgentCoreRLError as error:
            raise HTTPException(400, f"_rollout: {error}") from error
        answer = {"status": "processing", "s3_bucket": store_name, "result_key": id.result_key}
        run = self._run(id, store_name, store, lambda: call(payload, context), payload)
        rollout = (store_name, id.result_key)
        if self._remember(rollout):
            self._start(run, model, is_async, lambda: self._accepted.pop(rollout, None))
        return answer

    def _accept_job(
        self,
        job: JobRollout,
        call: Callable[..., Any],
        payload: dict[str, Any],
        context: RequestContext,
        is_async: bool,
    ) -> BackgroundRun | dict[str, Any]:
        """Start the job's rollout, unless an earlier invoke has; its run, or its answer if it has ended."""
        payload = with_row(payload)
        try:
            id = job.id(context.session_id)
            store_name, store = self._store({}) if self.config.s3_bucket else (job.endpoint, None)
            model = KeyedModel(job.base_url, job.api_key(), tuple(job.headers.items()))
        except AgentCoreRLError as error:
            raise HTTPException(400, f"metadata: {error}") from error
        run = self._run(id, store_name, JobFeedback(job, store), lambda: call(payload, context), payload)
        run.retry_seconds = math.inf
        trajectory = (job.job_arn, job.trajectory_id)
        with self._accepting:
            self._forget_ended_jobs()
            if trajectory in self._job_answers:
                return self._job_answers[trajectory]
            known = self._jobs.setdefault(trajectory, run)
        if known is run:
            self._start(run, model, is_async, lambda: self._jobs.pop(trajectory, None))
        return known

    def _forget_ended_jobs(self) -> None:
        """Keep only the answers of rollouts that have ended: a run holds its request and its result."""
        for trajectory, run in [(trajectory, run) for trajectory, run in self._jobs.items() if run.stored.is_set()]:
            self._job_answers[trajectory] = run.answer
            del self._jobs[trajectory]
        while len(self._job_answers) > REMEMBERED_ANSWERS:
            self._job_answers.popitem(last=False)

    def _run(
        self, id: RolloutId, store_name: str, store: Destination, call: Callable[[], Any], payload: dict[str, Any]
    ) -> BackgroundRun:
        redact = self._redactor(payload)
        request_id = BedrockAgentCoreContext.get_request_id()
        builder = ResultBuilder(id, store_name, copy_request(payload, redact), redact, request_id, time.time())
        return BackgroundRun(call, builder, store)

    def _start(self, run: BackgroundRun, model: Model, is_async: bool, forget: Callable[[], object]) -> None:
        """Start a run; if that fails, `forget` it, so that the client can send it again."""
        current_redactor.set(run.builder.redact)
        task = self.add_async_task(f"rollout {run.key}")
        run.on_stored = lambda: self.complete_async_task(task)
        run.on_ended = lambda: process_environment.leave(model)
        process_environment.enter(model)
        try:
            self._runner.start(run, is_async=is_async)
        except RuntimeError as error:
            process_environment.leave(model)
            self.complete_async_task(task)
            with self._accepting:
                forget()
            raise HTTPException(503, f"the rollout could not be started: {error}") from error

    def _remember(self, rollout: tuple[str, str]) -> bool:
        """Note that a rollout is accepted; False if it was already."""
        with self._accepting:
            if rollout in self._accepted:
                return False
            self._accepted[rollout] = None
            if len(self._accepted) > REMEMBERED_ANSWERS:
                self._accepted.popitem(last=False)
            return True

    def _store(self, settings: Mapping[str, Any]) -> tuple[str, Store]:
        name = settings.get("s3_bucket") or self.config.s3_bucket
        if not name:
            raise ConfigError("s3_bucket is missing", hint="name a bucket, s3://bucket/prefix or a directory")
        queue = settings.get("sqs_url") or self.config.sqs_url
        for setting, value in (("s3_bucket", name), ("sqs_url", queue)):
            if value is not None and not isinstance(value, str):
                hint = 'send {"s3_bucket": "my-bucket", "sqs_url": "https://…"}'
                raise ConfigError(f"{setting} must be a string, not {type(value).__name__}", hint=hint)
        with self._accepting:
            if (name, queue) not in self._stores:
                store = open_store(name, sqs_url=queue)
                _check_allowed(store, self.config.allowed_stores)
                self._stores[name, queue] = store
            return name, self._stores[name, queue]

    def _with_shutdown(self, lifespan: Lifespan[Any] | None) -> Lifespan[Any]:
        """The user's lifespan, and after it the end of the rollouts that still run."""

        @asynccontextmanager
        async def combined(app: Any) -> AsyncIterator[Any]:
            try:
                if lifespan is None:
                    yield
                else:
                    async with lifespan(app) as state:
                        yield state
            finally:
                await self._runner.shutdown()
                for store in self._stores.values():
                    store.close()

        return combined


class _JobAnswer(Response):
    """The answer to a job's request: waits for the rollout on the server's loop, without holding a thread."""

    def __init__(self, run: BackgroundRun | dict[str, Any]) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._run.ended() if isinstance(self._run, BackgroundRun) else self._run
        await JSONResponse(answer)(scope, receive, send)


def _read_job(payload: Any) -> JobRollout | None:
    try:
        return JobRollout.read(payload)
    except AgentCoreRLError as error:
        raise HTTPException(400, f"metadata: {error}") from error


def _read_id(settings: Any, session_id: str | None) -> RolloutId:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"must be an object, not {type(settings).__name__}")
    ids = {"session_id": session_id or settings.get("session_id") or str(uuid.uuid4())}
    for name in ("exp_id", "input_id"):
        value = settings.get(name)
        if value is None:
            raise ConfigError(f"{name} is missing", hint='send {"exp_id": …, "input_id": …, "s3_bucket": …}')
        ids[name] = str(value) if type(value) is int else value
    return RolloutId(**ids)


def _check_allowed(store: Store, allowed: tuple[str, ...]) -> None:
    homes = [open_store(name).url for name in allowed]
    if homes and not any(store.url == home or store.url.startswith(home + "/") for home in homes):
        raise ConfigError(f"{store.url} is not among the allowed stores", hint=f"allowed: {', '.join(allowed)}")


def _is_async(func: Any) -> bool:
    """Whether calling `func`, which may be a partial or a callable object, gives a coroutine or an async generator."""
    while isinstance(func, functools.partial):
        func = func.func
    targets = (func, type(func).__call__)
    return any(inspect.iscoroutinefunction(t) or inspect.isasyncgenfunction(t) for t in targets)


def _takes_context(func: Callable[..., Any]) -> bool:
    """Whether the second parameter is named `context`, which is the base class's rule."""
    try:
        parameters = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return False
    return len(parameters) >= 2 and parameters[1] == "context"


@contextmanager
def _without_handler(logger: logging.Logger) -> Iterator[None]:
    """Keep the base class's constructor from adding a handler to `logger`: it adds one only to a logger without any."""
    placeholder = logging.NullHandler()
    logger.addHandler(placeholder)
    try:
        yield
    finally:
        logger.removeHandler(placeholder)
