"""What a request asks for and how the app takes it, in this process."""

from __future__ import annotations

import contextvars
import functools
import gc
import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bedrock_agentcore.runtime import BedrockAgentCoreApp, BedrockAgentCoreContext, RequestContext
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from agentcore_rl_toolkit import open_store
from agentcore_rl_toolkit.agent import app as module
from agentcore_rl_toolkit.agent.app import AgentCoreRLApp
from agentcore_rl_toolkit.agent.logs import current_redactor
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.config import AgentCoreConfig
from agentcore_rl_toolkit.types import RolloutId
from support.agent import SESSION_HEADER, rollout


class Agent:
    """An app whose function records its calls, and returns `{}` once it may."""

    def __init__(self, **settings: Any) -> None:
        self.calls: list[Any] = []
        self.redactors: list[Redactor] = []
        self.may_return = threading.Event()
        self.may_return.set()
        self.app = AgentCoreRLApp(config=AgentCoreConfig(**settings))
        self.app.rollout_entrypoint(self._record)

    def _record(self, payload: Any) -> Any:
        self.calls.append(payload)
        self.redactors.append(current_redactor.get())
        assert self.may_return.wait(20)
        return {} if isinstance(payload, dict) and payload.get("_rollout") else payload

    def invoke(self, payload: Any, session_id: str | None = "s") -> Any:
        def serve() -> Any:
            BedrockAgentCoreContext.set_request_context("request-1", session_id)
            return self.app.handlers["main"](payload, RequestContext(session_id=session_id))

        return contextvars.copy_context().run(serve)

    @property
    def is_busy(self) -> bool:
        return self.app.get_current_ping_status().value == "HealthyBusy"

    def wait(self) -> None:
        while self.is_busy:
            time.sleep(0.001)

    @property
    def rows(self) -> list[str]:
        self.wait()
        return [payload["_rollout"]["input_id"] for payload in self.calls]


def stored(folder: Path) -> list[str]:
    """Keys of the results in a store."""
    return sorted(open_store(str(folder)).keys())


def test_the_oldest_answer_is_forgotten_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_ANSWERS", 2)
    agent = Agent()
    for row in ("a", "b", "b", "c", "c", "b", "a"):  # "c" pushes "a" out, and "a" then "b"
        agent.invoke({"_rollout": rollout(tmp_path, row)})
        agent.wait()
    assert agent.rows == ["a", "b", "c", "a"]
    agent.invoke({"_rollout": rollout(tmp_path, "b")})
    assert agent.rows == ["a", "b", "c", "a", "b"]


def test_a_repeated_invoke_is_answered_the_same(tmp_path: Path) -> None:
    agent = Agent()
    answers = [agent.invoke({"_rollout": rollout(tmp_path)}) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert agent.rows == ["row"]
    agent.invoke({"_rollout": rollout(tmp_path)}, "another session")
    agent.invoke({"_rollout": rollout(tmp_path / "another store")})
    assert agent.rows == ["row"] * 3


def test_of_two_invokes_at_the_same_moment_one_starts_the_rollout(tmp_path: Path) -> None:
    agent, barrier, before = Agent(), threading.Barrier(8), sys.getswitchinterval()

    def invoke() -> Any:
        barrier.wait(20)
        return agent.invoke({"_rollout": rollout(tmp_path)})

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = [future.result() for future in [pool.submit(invoke) for _ in range(8)]]
    finally:
        sys.setswitchinterval(before)
    assert answers == [answers[0]] * 8
    assert agent.rows == ["row"]


def test_a_store_that_is_not_allowed_is_refused_every_time(tmp_path: Path) -> None:
    agent = Agent(allowed_stores=(str(tmp_path / "ours"),))
    for _ in range(3):
        with pytest.raises(HTTPException, match="not among the allowed stores") as caught:
            agent.invoke({"_rollout": rollout(tmp_path / "theirs")})
        assert caught.value.status_code == 400
    assert agent.calls == []


@pytest.mark.parametrize("value", [True, 1.5, ["row"]])
def test_an_id_is_text_or_a_whole_number(tmp_path: Path, value: Any) -> None:
    agent = Agent()
    for name in ("input_id", "exp_id"):
        with pytest.raises(HTTPException, match=f"{name} must be a string") as caught:
            agent.invoke({"_rollout": rollout(tmp_path) | {name: value}})
        assert caught.value.status_code == 400
    assert agent.invoke({"_rollout": rollout(tmp_path) | {"input_id": 0, "exp_id": 7}})["result_key"] == "7/0/s.json"
    agent.wait()


def test_the_session_is_the_headers_then_the_requests_then_new(tmp_path: Path) -> None:
    agent = Agent()
    requests = [("requests", "headers"), ("requests", None), (None, None)]
    answers = [agent.invoke({"_rollout": rollout(tmp_path, session_id=own)}, header) for own, header in requests]
    agent.wait()
    sessions = [RolloutId.from_key(answer["result_key"]).session_id for answer in answers]
    assert sessions[:2] == ["headers", "requests"]
    assert uuid.UUID(sessions[2])


def test_the_request_names_the_store_before_the_config_does(tmp_path: Path) -> None:
    agent = Agent(s3_bucket=str(tmp_path / "configured"))
    agent.invoke({"_rollout": {"exp_id": "e", "input_id": "1"}})
    agent.invoke({"_rollout": rollout(tmp_path / "asked", "2", "e")})
    agent.wait()
    assert stored(tmp_path / "configured") == ["e/1/s.json"]
    assert stored(tmp_path / "asked") == ["e/2/s.json"]


@pytest.mark.parametrize("payload", [{"_rollout": None, "x": 1}, {"x": 1}, ["_rollout"], "_rollout", None, 7])
def test_any_other_request_is_a_production_request(payload: Any) -> None:
    agent = Agent()
    assert agent.invoke(payload) == payload
    assert not agent.is_busy


def test_a_rollout_keeps_secrets_from_its_logs_and_knows_its_request(tmp_path: Path) -> None:
    agent = Agent(secret_keys=("vault",))
    answer = agent.invoke({"_rollout": rollout(tmp_path, api_key="sk-12345678", vault="open-sesame")})
    agent.wait()
    assert agent.redactors[0]("sk-12345678 open-sesame") == "*** ***"
    document = json.loads(open_store(str(tmp_path)).get(answer["result_key"]))
    assert document["_rollout"]["request_id"] == "request-1"
    assert document["payload"]["_rollout"]["vault"] == "***"


def test_a_rollout_is_busy_until_it_is_stored(tmp_path: Path) -> None:
    agent = Agent()
    agent.may_return.clear()
    agent.invoke({"_rollout": rollout(tmp_path, "a")})
    agent.invoke({"_rollout": rollout(tmp_path, "b")})
    assert agent.is_busy
    agent.may_return.set()
    agent.wait()
    assert stored(tmp_path) == ["exp/a/s.json", "exp/b/s.json"]


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
        ({}, {"exp_id": "e", "input_id": "i", "s3_bucket": ["b"]}, "s3_bucket must be a string, not list"),
        ({}, {"exp_id": "e"}, "input_id is missing"),
        ({"s3_bucket": "b"}, {}, "exp_id is missing"),
        ({"s3_bucket": "b"}, {"model_id": "m"}, "exp_id is missing"),
    ],
)
def test_half_of_what_storing_takes_is_refused_with_a_hint(
    config: dict[str, Any], settings: dict[str, Any], missing: str
) -> None:
    agent = Agent(**config)
    with pytest.raises(HTTPException, match=missing) as caught:
        agent.invoke({"_rollout": settings})
    assert caught.value.status_code == 400
    assert "hint:" in caught.value.detail
    assert agent.calls == []


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
    assert open_store(str(tmp_path)).get(answer["result_key"]).startswith(b'{"rewards":0.5,')


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


def test_the_users_lifespan_ends_before_rollouts_that_still_run_do(tmp_path: Path) -> None:
    events: list[Any] = []
    running, may_return = threading.Event(), threading.Event()

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, int]]:
        events.append("up")
        yield {"answer": 42}
        events.append(stored(tmp_path))

    def function(payload: Any, context: Any) -> Any:
        if "_rollout" not in payload:
            return context.request.state.answer
        running.set()
        return {"returned": may_return.wait(20)}

    app = AgentCoreRLApp(lifespan=lifespan, config=AgentCoreConfig())
    app.rollout_entrypoint(function)
    with TestClient(app) as client:
        assert client.post("/invocations", json={}).json() == 42
        answer = client.post("/invocations", json={"_rollout": rollout(tmp_path)}).json()
        assert running.wait(20)
    may_return.set()
    assert events == ["up", []]
    assert json.loads(open_store(str(tmp_path)).get(answer["result_key"]))["error"]["kind"] == "session_lost"
