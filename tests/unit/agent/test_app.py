"""What a request asks for and how the app takes it, in this process."""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import logging
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bedrock_agentcore.runtime import BedrockAgentCoreApp, BedrockAgentCoreContext, RequestContext
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from agentcore_rl_toolkit.agent import app as module
from agentcore_rl_toolkit.agent.app import AgentCoreRLApp
from agentcore_rl_toolkit.agent.background import RolloutRun
from agentcore_rl_toolkit.agent.logs import current_redactor
from agentcore_rl_toolkit.agent.redaction import Redactor
from agentcore_rl_toolkit.config import AgentCoreConfig
from support.agent import SESSION_HEADER, rollout


class Apps:
    """An app whose rollouts are recorded, not run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.started: list[RolloutRun] = []
        self.log_redactors: list[Redactor] = []
        self.app = AgentCoreRLApp(config=AgentCoreConfig(**settings))
        self.app.rollout_entrypoint(lambda payload: payload)
        monkeypatch.setattr(self.app._runner, "start", self._start)

    def _start(self, run: RolloutRun, *, is_async: bool) -> None:
        self.started.append(run)
        self.log_redactors.append(current_redactor.get())

    def invoke(self, payload: Any, session_id: str | None = "s") -> Any:
        def serve() -> Any:
            BedrockAgentCoreContext.set_request_context("request-1", session_id)
            return self.app.handlers["main"](payload, RequestContext(session_id=session_id))

        return contextvars.copy_context().run(serve)

    @property
    def rows(self) -> list[str]:
        return [run.result.id.input_id for run in self.started]


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Apps]]:
    made: list[Apps] = []

    def make(**settings: Any) -> Apps:
        made.append(Apps(monkeypatch, **settings))
        return made[-1]

    yield make
    for run in itertools.chain.from_iterable(agent.started for agent in made):
        run.on_ended()  # the process's environment counts them


def test_the_oldest_answer_is_forgotten_first(
    apps: Callable[..., Apps], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    agent = apps()
    for row in ("a", "b", "b", "c", "c", "b", "a"):  # "c" pushes "a" out, and "a" then "b"
        agent.invoke({"_rollout": rollout(tmp_path, row)})
    assert agent.rows == ["a", "b", "c", "a"]
    agent.invoke({"_rollout": rollout(tmp_path, "b")})
    assert agent.rows == ["a", "b", "c", "a", "b"]


def test_a_repeated_invoke_is_answered_the_same(apps: Callable[..., Apps], tmp_path: Path) -> None:
    agent = apps()
    answers = [agent.invoke({"_rollout": rollout(tmp_path)}) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert len(agent.started) == 1
    agent.invoke({"_rollout": rollout(tmp_path)}, "another session")
    agent.invoke({"_rollout": rollout(tmp_path / "another store")})
    assert len(agent.started) == 3


def test_looking_for_an_answer_and_leaving_one_is_one_step(apps: Callable[..., Apps], tmp_path: Path) -> None:
    """Two invokes at the same moment must not both find none."""
    agent, locked = apps(), []

    class Answers(OrderedDict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            locked.append(agent.app._accepting.locked())
            return super().get(key, default)

        def __setitem__(self, key: Any, value: Any) -> None:
            locked.append(agent.app._accepting.locked())
            super().__setitem__(key, value)

    agent.app._answers = Answers()
    agent.invoke({"_rollout": rollout(tmp_path)})
    assert locked == [True, True]


def test_a_store_that_is_not_allowed_is_refused_every_time(apps: Callable[..., Apps], tmp_path: Path) -> None:
    agent = apps(allowed_stores=(str(tmp_path / "ours"),))
    for _ in range(3):
        with pytest.raises(HTTPException, match="not among the allowed stores") as caught:
            agent.invoke({"_rollout": rollout(tmp_path / "theirs")})
        assert caught.value.status_code == 400
    assert agent.started == []


@pytest.mark.parametrize("value", [True, 1.5, ["row"]])
def test_an_id_is_text_or_a_whole_number(apps: Callable[..., Apps], tmp_path: Path, value: Any) -> None:
    agent = apps()
    for name in ("input_id", "exp_id"):
        with pytest.raises(HTTPException, match=f"{name} must be a string") as caught:
            agent.invoke({"_rollout": rollout(tmp_path) | {name: value}})
        assert caught.value.status_code == 400
    agent.invoke({"_rollout": rollout(tmp_path) | {"input_id": 0, "exp_id": 7}})
    assert agent.started[0].result.id.result_key == "7/0/s.json"


def test_the_session_is_the_headers_then_the_requests_then_new(apps: Callable[..., Apps], tmp_path: Path) -> None:
    agent = apps()
    agent.invoke({"_rollout": rollout(tmp_path, session_id="requests")}, "headers")
    agent.invoke({"_rollout": rollout(tmp_path, session_id="requests")}, None)
    agent.invoke({"_rollout": rollout(tmp_path)}, None)
    sessions = [run.result.id.session_id for run in agent.started]
    assert sessions[:2] == ["headers", "requests"]
    assert uuid.UUID(sessions[2])


def test_the_request_names_the_store_before_the_config_does(
    apps: Callable[..., Apps], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_store(name: str, *, sqs_url: str | None = None) -> object:
        opened.append((name, sqs_url))
        return object()

    monkeypatch.setattr(module, "open_store", open_store)
    agent = apps(s3_bucket="configured", sqs_url="configured-queue")
    agent.invoke({"_rollout": {"exp_id": "e", "input_id": "1"}})
    agent.invoke({"_rollout": {"exp_id": "e", "input_id": "2", "s3_bucket": "asked", "sqs_url": "asked-queue"}})
    assert opened == [("configured", "configured-queue"), ("asked", "asked-queue")]
    assert [run.result.s3_bucket for run in agent.started] == ["configured", "asked"]


@pytest.mark.parametrize("payload", [{"_rollout": None, "x": 1}, {"x": 1}, ["_rollout"], "_rollout", None, 7])
def test_any_other_request_is_a_production_request(apps: Callable[..., Apps], payload: Any) -> None:
    agent = apps()
    assert agent.invoke(payload) == payload
    assert agent.started == []


def test_a_rollout_keeps_secrets_from_its_logs_and_knows_its_request(apps: Callable[..., Apps], tmp_path: Path) -> None:
    agent = apps(secret_keys=("vault",))
    agent.invoke({"_rollout": rollout(tmp_path, api_key="sk-12345678", vault="open-sesame")})
    for redact in (agent.log_redactors[0], agent.started[0].result.redact):
        assert redact("sk-12345678 open-sesame") == "*** ***"
    assert agent.started[0].result.request_id == "request-1"


def test_a_rollout_is_busy_until_it_is_stored(apps: Callable[..., Apps], tmp_path: Path) -> None:
    agent = apps()
    agent.invoke({"_rollout": rollout(tmp_path, "a")})
    agent.invoke({"_rollout": rollout(tmp_path, "b")})
    for run in agent.started:
        assert agent.app.get_current_ping_status().value == "HealthyBusy"
        run.on_stored()
    assert agent.app.get_current_ping_status().value == "Healthy"


def test_a_rollout_that_cannot_be_started_may_be_sent_again(tmp_path: Path) -> None:
    """What was answered once is answered the same for ever: a rollout that never started must not be among it."""
    app, before = AgentCoreRLApp(), threading.stack_size()
    app.rollout_entrypoint(lambda payload: {"rewards": 1.0})
    request = {"_rollout": rollout(tmp_path)}, RequestContext(session_id="s")
    threading.stack_size(1 << 46)  # no thread can be started
    try:
        with pytest.raises(HTTPException, match="could not be started") as caught:
            app.handlers["main"](*request)
    finally:
        threading.stack_size(before)
    assert caught.value.status_code == 503
    assert app.get_current_ping_status().value == "Healthy"
    assert app.handlers["main"](*request)["status"] == "processing"
    while app.get_current_ping_status().value != "Healthy":
        pass
    assert len(list(tmp_path.rglob("*.json"))) == 1


# --- rollouts without a store ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("settings", [{}, {"model_id": "m", "base_url": "http://gw/v1", "sampling_params": {"n": 1}}])
def test_a_rollout_that_names_no_store_is_answered_with_its_result(settings: dict[str, Any], is_async: bool) -> None:
    def told(payload: Any) -> Any:
        return {"rewards": 0.5, "settings": payload["_rollout"], "url": os.environ.get("OPENAI_BASE_URL")}

    async def coroutine(payload: Any) -> Any:
        return told(payload)

    app = AgentCoreRLApp(config=AgentCoreConfig())
    app.rollout_entrypoint(coroutine if is_async else told)
    with TestClient(app) as client:
        answer = client.post("/invocations", json={"prompt": "p", "_rollout": settings})
        assert answer.status_code == 200
        assert answer.json() == {"rewards": 0.5, "settings": settings, "url": settings.get("base_url")}
        assert client.get("/ping").json()["status"] == "Healthy"
    assert "OPENAI_BASE_URL" not in os.environ


def test_a_rollout_that_names_no_store_may_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(payload: Any) -> Any:
        yield os.environ["OPENAI_BASE_URL"]
        yield {"rewards": 1.0}

    app = AgentCoreRLApp(config=AgentCoreConfig())
    app.rollout_entrypoint(stream)
    with TestClient(app) as client:
        answer = client.post("/invocations", json={"_rollout": {"base_url": "http://gw/v1"}})
    assert answer.text == 'data: "http://gw/v1"\n\ndata: {"rewards": 1.0}\n\n'
    del answer
    gc.collect()
    assert "OPENAI_BASE_URL" not in os.environ


def test_a_rollout_that_names_no_store_and_fails_is_an_error_and_tells_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(payload: Any) -> Any:
        redactors.append(current_redactor.get())
        raise ValueError("no")

    redactors: list[Redactor] = []
    app = AgentCoreRLApp(config=AgentCoreConfig())
    app.rollout_entrypoint(fail)
    with TestClient(app) as client:
        assert client.post("/invocations", json={"_rollout": {"api_key": "sk-12345678"}}).status_code == 500
        assert client.post("/invocations", json={"_rollout": {"base_url": "no url"}}).status_code == 400
    assert redactors[0]("sk-12345678") == "***"


@pytest.mark.parametrize(
    ("config", "settings", "missing"),
    [
        ({}, {"s3_bucket": "b"}, "exp_id is missing"),
        ({}, {"s3_bucket": "b", "exp_id": "e"}, "input_id is missing"),
        ({}, {"exp_id": "e", "input_id": "i"}, "s3_bucket is missing"),
        ({}, {"exp_id": "e"}, "input_id is missing"),
        ({"s3_bucket": "b"}, {}, "exp_id is missing"),
        ({"s3_bucket": "b"}, {"model_id": "m"}, "exp_id is missing"),
    ],
)
def test_half_of_what_storing_takes_is_refused_with_a_hint(
    apps: Callable[..., Apps], config: dict[str, Any], settings: dict[str, Any], missing: str
) -> None:
    agent = apps(**config)
    with pytest.raises(HTTPException, match=missing) as caught:
        agent.invoke({"_rollout": settings})
    assert caught.value.status_code == 400
    assert "hint:" in caught.value.detail
    assert agent.started == []


# --- functions of every kind -----------------------------------------------------------------------------------------


def thread() -> str:
    """Where it runs: the base class's loop for async functions, or some worker."""
    name = threading.current_thread().name
    return name if name == "agentcore-worker-loop" else "a worker"


def plain(payload: Any) -> Any:
    return [thread(), payload["x"]]


async def coroutine(payload: Any) -> Any:
    return [thread(), payload["x"]]


def generator(payload: Any) -> Any:
    yield thread()
    yield {"rewards": payload["x"]}


async def async_generator(payload: Any) -> Any:
    yield thread()
    yield {"rewards": payload["x"]}


def with_context(payload: Any, context: Any) -> Any:
    return [context.session_id, payload["x"]]


def with_another(payload: Any, other: Any = "default") -> Any:
    return [other, payload["x"]]


def with_context_later(payload: Any, other: Any = "default", context: Any = "none") -> Any:
    return [other, context, payload["x"]]


class Called:
    async def __call__(self, payload: Any) -> Any:
        return [thread(), payload["x"]]


class Streamed:
    async def __call__(self, payload: Any) -> Any:
        yield thread()
        yield {"rewards": payload["x"]}


def first(nothing: None, payload: Any) -> Any:
    return ["partial", payload["x"]]


async def async_first(nothing: None, payload: Any) -> Any:
    return [thread(), payload["x"]]


KINDS = [
    plain, coroutine, generator, async_generator, with_context, with_another, with_context_later, Called(), Streamed(),
    functools.partial(first, None), functools.partial(async_first, None), functools.partial(Called()),
    functools.partial(async_generator), functools.partial(Streamed()),
]  # fmt: skip


@pytest.mark.parametrize("function", KINDS, ids=lambda f: getattr(f, "__name__", type(f).__name__))
def test_a_production_request_takes_the_path_that_the_base_class_gives_it(function: Callable[..., Any]) -> None:
    ours, theirs = AgentCoreRLApp(), BedrockAgentCoreApp()
    ours.rollout_entrypoint(function)
    theirs.entrypoint(function)
    responses = []
    for app in (ours, theirs):
        with TestClient(app) as client:
            responses.append(client.post("/invocations", json={"x": 1}, headers={SESSION_HEADER: "session-1"}))
    assert responses[0].content == responses[1].content
    assert responses[0].status_code == responses[1].status_code == 200
    assert responses[0].headers["content-type"] == responses[1].headers["content-type"]


@pytest.mark.parametrize("function", [generator, async_generator, Streamed(), functools.partial(async_generator)])
def test_a_stream_is_a_rollout_too(function: Callable[..., Any], tmp_path: Path) -> None:
    app = AgentCoreRLApp()
    app.rollout_entrypoint(function)
    with TestClient(app) as client:
        answer = client.post("/invocations", json={"x": 0.5, "_rollout": rollout(tmp_path)}).json()
        while client.get("/ping").json()["status"] != "Healthy":
            pass
    assert module.open_store(str(tmp_path)).get(answer["result_key"]).startswith(b'{"rewards":0.5,')


# --- the process -----------------------------------------------------------------------------------------------------


def test_how_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[dict[str, Any]] = []
    levels: list[int] = []
    monkeypatch.setattr("uvicorn.run", lambda app, **kwargs: served.append(kwargs))
    monkeypatch.setattr(module, "configure_logging", levels.append)
    AgentCoreRLApp().run(port=7)
    AgentCoreRLApp(debug=True).run(timeout_graceful_shutdown=60, log_config={"version": 1})
    assert (served[0]["port"], served[0]["timeout_graceful_shutdown"], served[0]["log_config"]) == (7, 5, None)
    assert (served[1]["timeout_graceful_shutdown"], served[1]["log_config"]) == (60, {"version": 1})
    assert levels == [logging.INFO, logging.DEBUG]


def test_the_users_lifespan_and_then_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events: list[str] = []

    class Store:
        url = "memory"

        def close(self) -> None:
            events.append("store closed")

    async def shutdown() -> None:
        events.append("runner shut down")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, int]]:
        events.append("up")
        yield {"answer": 42}
        events.append("down")

    app = AgentCoreRLApp(lifespan=lifespan, config=AgentCoreConfig())
    app.rollout_entrypoint(with_state)
    monkeypatch.setattr(module, "open_store", lambda *args, **kwargs: Store())
    monkeypatch.setattr(app._runner, "start", lambda run, is_async: run.on_ended())
    monkeypatch.setattr(app._runner, "shutdown", shutdown)
    with TestClient(app) as client:
        assert client.post("/invocations", json={}).json() == 42
        for row, bucket in itertools.product("ab", "xy"):
            client.post("/invocations", json={"_rollout": rollout(bucket, row)})
    assert events == ["up", "down", "runner shut down", "store closed", "store closed"]


def with_state(payload: Any, context: Any) -> Any:
    return context.request.state.answer
