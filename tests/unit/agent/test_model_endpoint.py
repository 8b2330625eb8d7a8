"""Where an agent finds its model: by URL, by variables, and whose they are when a process serves several."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import anthropic
import boto3
import openai
import pytest
from google import genai

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.agent.background import BackgroundRun, BackgroundRunner
from agentcore_rl_toolkit.agent.model_endpoint import (
    NOWHERE,
    ModelEnvironment,
    model_variables,
    read_base_url,
    rollout_model,
)
from agentcore_rl_toolkit.agent.result import ResultBuilder
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.config import AgentCoreConfig
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.runtime.hosting.request_checks import model_variables as runtime_variables
from agentcore_rl_toolkit.types import RolloutId

ROOT = "http://gw:9000/sessions/s1.k3yk3yk3y"
OTHER = "http://gw:9000/sessions/s2.0th3r0th3r/v1"
VLLM = "http://vllm:8000/v1"


# --- from a URL to variables -----------------------------------------------------------------------------------------


def test_a_session_of_the_gateway_speaks_every_protocol() -> None:
    variables = model_variables(f"{ROOT}/v1")
    assert variables == {
        "OPENAI_API_KEY": "EMPTY",
        "OPENAI_BASE_URL": f"{ROOT}/v1",
        "OPENAI_API_BASE": f"{ROOT}/v1",
        "OPENAI_CUSTOM_HEADERS": None,
        "ANTHROPIC_API_KEY": "EMPTY",
        "ANTHROPIC_AUTH_TOKEN": None,
        "ANTHROPIC_BASE_URL": ROOT,
        "AWS_BEARER_TOKEN_BEDROCK": None,
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": ROOT,
        "ANTHROPIC_BEDROCK_BASE_URL": ROOT,
        "GEMINI_API_KEY": "EMPTY",
        "GOOGLE_API_KEY": "EMPTY",
        "GOOGLE_GENAI_USE_VERTEXAI": None,
        "GOOGLE_GENAI_USE_ENTERPRISE": None,
        "GOOGLE_GEMINI_BASE_URL": ROOT,
        "GOOGLE_VERTEX_BASE_URL": ROOT,
    }
    assert model_variables(ROOT) == variables  # an agent that takes the URL for Anthropic's client


@pytest.mark.parametrize(
    "url", [VLLM, "http://gw:9000/sessions/v1", "http://gw/sessions/s1.k3y/v1/more", "https://proxy/sessions.x/v1"]
)
def test_of_any_other_address_only_openais_protocol_is_known(url: str) -> None:
    urls = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
    assert model_variables(url) == {"OPENAI_API_KEY": "EMPTY", **urls, "OPENAI_CUSTOM_HEADERS": None}


def test_a_rollout_may_name_a_model_with_a_key_which_production_settings_never_add() -> None:
    production = AgentCoreConfig(base_url="http://prod/v1", model_id="prod", model_api_key="of-production")
    for given, key in (({}, "EMPTY"), ({"model_api_key": "of-the-rollout"}, "of-the-rollout")):
        settings = {"base_url": VLLM, "model_id": "math", **given}
        assert model_variables(rollout_model(settings))["OPENAI_API_KEY"] == key
        endpoint = AgentCoreRLApp(config=production).model_endpoint({"_rollout": settings})
        assert endpoint.client_args == {"base_url": VLLM, "api_key": key}
        assert runtime_variables({"_rollout": settings})["MODEL_API_KEY"] == key


def test_a_session_gets_no_key_and_serves_every_protocol_all_the_same() -> None:
    settings = {"base_url": f"{ROOT}/v1", "model_id": "math", "model_api_key": "of-the-rollout"}
    assert model_variables(rollout_model(settings)) == model_variables(f"{ROOT}/v1")
    assert AgentCoreRLApp().model_endpoint({"_rollout": settings}).api_key == "EMPTY"


def test_no_url_no_variables() -> None:
    assert model_variables(None) == {}


@pytest.mark.parametrize("value", [None, ""])
def test_a_rollout_needs_no_url(value: Any) -> None:
    assert read_base_url(value) is None


@pytest.mark.parametrize("url", [VLLM, "https://h/v1", "http://[::1]:8000/v1", "http://127.0.0.1", f"{ROOT}/v1"])
def test_urls(url: str) -> None:
    assert read_base_url(url) == read_base_url(url + "/") == url


@pytest.mark.parametrize(
    "value",
    [
        "gw:9000/v1", "/v1", "ftp://h/v1", "http://", "http:///v1", "http://h:port/v1", "http://h:99999/v1",
        "http://h:0/v1", "http://[::1/v1", "http://h/v 1", " http://h/v1", "http://h/v1\n", "http://h/\0",
        "http://h/\ud800", 7, True, ["x"], {},
    ],
)  # fmt: skip
def test_what_is_no_url(value: Any) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        read_base_url(value)


def test_a_url_that_is_refused_keeps_its_key() -> None:
    with pytest.raises(ConfigError, match=r"'gw:9000/sessions/s1\.\*\*\*/v1' is not a URL"):
        read_base_url("gw:9000/sessions/s1.k3yk3yk3y/v1")


# --- real clients ----------------------------------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """This process as a rollout finds it, with keys of its own that no client may send."""
    for name in model_variables(f"{ROOT}/v1"):
        monkeypatch.setenv(name, "of-the-process")
    for name in [name for name in os.environ if name.startswith("AWS_") and "BEDROCK" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-roles")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-roles")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    environment = ModelEnvironment(os.environ)
    environment.enter(f"{ROOT}/v1")
    yield
    environment.leave(f"{ROOT}/v1")


@pytest.mark.usefixtures("session")
def test_openais_client_calls_the_session() -> None:
    with openai.OpenAI() as client:
        assert (str(client.base_url), client.api_key) == (f"{ROOT}/v1/", "EMPTY")


@pytest.mark.usefixtures("session")
def test_langchains_client_calls_the_session() -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="m")
    assert str(chat.root_client.base_url) == f"{ROOT}/v1/"
    assert chat.root_client.api_key == "EMPTY"


@pytest.mark.usefixtures("session")
def test_anthropics_client_calls_the_session() -> None:
    with anthropic.Anthropic() as client:
        assert (str(client.base_url).rstrip("/"), client.api_key, client.auth_token) == (ROOT, "EMPTY", None)


@pytest.mark.usefixtures("session")
def test_anthropics_client_for_bedrock_calls_the_session() -> None:
    with anthropic.AnthropicBedrock() as client:
        assert (str(client.base_url).rstrip("/"), client.api_key) == (ROOT, None)


@pytest.mark.usefixtures("session")
def test_googles_client_calls_the_session_whatever_api_it_is_built_for() -> None:
    for settings in ({}, {"vertexai": True}):
        with genai.Client(**settings) as client:
            options = client._api_client._http_options  # the SDK has no public way to ask
            assert (options.base_url, options.headers["x-goog-api-key"]) == (ROOT, "EMPTY")


@pytest.mark.usefixtures("session")
def test_boto3_calls_the_session_and_signs_as_itself() -> None:
    sent: list[Any] = []
    made = boto3.session.Session().client("bedrock-runtime")

    def send(request: Any, **_: Any) -> None:
        sent.append(request)
        raise InterruptedError

    made.meta.events.register("before-send.bedrock-runtime.Converse", send)
    with pytest.raises(InterruptedError):
        made.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hi"}]}])
    assert sent[0].url == f"{ROOT}/model/m/converse"
    assert b"Credential=the-roles/" in sent[0].headers["Authorization"]


@pytest.mark.usefixtures("session")
def test_other_services_of_aws_are_left_alone() -> None:
    made = boto3.session.Session().client("s3")
    assert made.meta.endpoint_url == "https://s3.eu-west-1.amazonaws.com"


# --- whose they are --------------------------------------------------------------------------------------------------


class Environ(dict[str, str]):
    """Keeps what any thread could have seen."""

    def __init__(self, **values: str) -> None:
        super().__init__(values)
        self.states: list[dict[str, str]] = []

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        self.states.append(dict(self))

    def pop(self, name: str, *default: Any) -> Any:  # type: ignore[override]
        value = super().pop(name, *default)
        self.states.append(dict(self))
        return value


def url(environ: MutableMapping[str, str]) -> str | None:
    return environ.get("OPENAI_BASE_URL")


def test_they_are_there_while_a_rollout_is_served() -> None:
    own = {"OPENAI_API_KEY": "own", "ANTHROPIC_AUTH_TOKEN": "own", "OTHER": "own"}
    environ = Environ(**own)
    environment = ModelEnvironment(environ)
    environment.enter(f"{ROOT}/v1")
    assert environ == {k: v for k, v in model_variables(f"{ROOT}/v1").items() if v is not None} | {"OTHER": "own"}
    environment.leave(f"{ROOT}/v1")
    assert environ == own


def test_the_rollouts_of_a_session_share_them(caplog: pytest.LogCaptureFixture) -> None:
    environ = Environ()
    environment = ModelEnvironment(environ)
    for _ in range(3):
        environment.enter(VLLM)
    for _ in range(3):
        assert url(environ) == VLLM
        environment.leave(VLLM)
    assert environ == {}
    assert caplog.records == []


def test_a_key_of_the_process_never_meets_the_url_of_a_rollout(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    environ = Environ(OPENAI_API_KEY="own")
    environment = ModelEnvironment(environ)
    for base_url in (VLLM, f"{ROOT}/v1"):
        environment.enter(base_url)
        environment.leave(base_url)
    assert [state for state in environ.states if state.get("OPENAI_API_KEY") == "own" and url(state)] == []
    (record,) = caplog.records
    assert "set aside while a rollout runs: OPENAI_API_KEY;" in record.getMessage()
    assert "own" not in record.getMessage()


@pytest.mark.parametrize("second", [OTHER, VLLM, None], ids=["session", "vllm", "production"])
def test_of_two_sessions_at_once_they_are_neithers(second: str | None, caplog: pytest.LogCaptureFixture) -> None:
    first = f"{ROOT}/v1"
    environ = Environ(OPENAI_API_KEY="own")
    environment = ModelEnvironment(environ)
    for order in ([first, second], [second, first]):
        for base_url in order:
            environment.enter(base_url)
        environ.states.clear()
        assert str(url(environ)).startswith(NOWHERE)
        for name in model_variables(first):
            value = environ.get(name)
            assert value in (None, "EMPTY") or value.startswith(NOWHERE), name
        environment.enter(second)  # again, and gone again
        environment.leave(second)
        assert environ.states == []
        environment.leave(second)
        assert environ == {k: v for k, v in model_variables(first).items() if v is not None}
        environment.leave(first)
        assert environ == {"OPENAI_API_KEY": "own"}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "serves several sessions at once" in record.getMessage()
    assert "k3yk3yk3y" not in record.getMessage()


def test_what_neither_session_sets_stays() -> None:
    environ = Environ(ANTHROPIC_API_KEY="a judge's")
    environment = ModelEnvironment(environ)
    environment.enter(VLLM)
    environment.enter("http://vllm:8001/v1")
    assert str(url(environ)).startswith(NOWHERE)
    assert environ["ANTHROPIC_API_KEY"] == "a judge's"


def test_between_one_session_and_another_there_is_no_moment_of_the_processs_own() -> None:
    environ = Environ(OPENAI_BASE_URL="own", OPENAI_API_KEY="own")
    environment = ModelEnvironment(environ)
    environment.enter(VLLM)
    environ.states.clear()
    environment.enter(OTHER)
    environment.leave(VLLM)
    assert url(environ) == OTHER
    assert {state["OPENAI_BASE_URL"] for state in environ.states} <= {
        VLLM,
        OTHER,
        model_variables(f"{NOWHERE}/sessions/0.0")["OPENAI_BASE_URL"],
    }


def test_what_an_agent_sets_itself_is_its_own() -> None:
    environ = Environ(OPENAI_BASE_URL="own")
    environment = ModelEnvironment(environ)
    environment.enter(VLLM)
    environ["OPENAI_BASE_URL"] = "http://of-the-agent/v1"
    environment.leave(VLLM)
    assert url(environ) == "http://of-the-agent/v1"
    environment.enter(VLLM)
    assert url(environ) == VLLM


@pytest.mark.parametrize("is_async", [False, True])
def test_a_rollout_has_left_before_its_result_is_stored(is_async: bool) -> None:
    """Whoever reads the result may send the next session's rollout at once."""
    events: list[str] = []
    done = threading.Event()

    class Memory:
        def prepare(self) -> None: ...

        def put_if_absent(self, key: str, data: bytes) -> bool:
            events.append("stored")
            return True

        def announce(self, key: str) -> None: ...

    def call() -> Any:
        async def value() -> dict[str, Any]:
            return {}

        return value() if is_async else {}

    result = ResultBuilder(RolloutId("exp", "row", "s"), "memory", {}, Redactor(), None, time.time())
    run = BackgroundRun(call, result, Memory(), done.set, on_ended=lambda: events.append("left"))  # type: ignore[arg-type]
    BackgroundRunner(AgentCoreConfig()).start(run, is_async=is_async)
    assert done.wait(20)
    assert events == ["left", "stored"]


def test_production_requests_alone_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    environ = Environ(OPENAI_API_KEY="own")
    environment = ModelEnvironment(environ)
    with environment.serving(), environment.serving() as answer:
        assert answer(7) == 7
    with pytest.raises(ZeroDivisionError), environment.serving():
        raise ZeroDivisionError
    assert (environ.states, caplog.records) == ([], [])
    environment.enter(VLLM)
    assert url(environ) == VLLM  # none of them is served any more


def stream() -> Iterator[int]:
    yield from range(3)


async def async_stream() -> Any:
    yield 1


@pytest.mark.parametrize("function", [stream, async_stream])
def test_a_production_request_is_over_when_its_stream_is(function: Any) -> None:
    environ = Environ()
    environment = ModelEnvironment(environ)
    with environment.serving() as answer:
        answered = answer(function())
    environment.enter(VLLM)
    assert str(url(environ)).startswith(NOWHERE)
    del answered  # consumed, or given up before it was ever asked
    assert url(environ) == VLLM


class Interrupting(Environ):
    """Does something in the midst of the next assignment, as the garbage collector may."""

    def __init__(self) -> None:
        super().__init__()
        self.interruption: Callable[[], object] | None = None

    def __setitem__(self, name: str, value: str) -> None:
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            interruption()
        super().__setitem__(name, value)


@pytest.mark.timeout(20)
def test_a_stream_may_be_collected_while_another_request_enters() -> None:
    environ = Interrupting()
    environment = ModelEnvironment(environ)
    held: list[Any] = []
    with environment.serving() as answer:
        held.append(answer(stream()))
    environ.interruption = held.clear
    environment.enter(VLLM)
    assert url(environ) == VLLM


@pytest.mark.timeout(20)
def test_a_request_may_leave_while_another_one_enters() -> None:
    environ = Interrupting()
    environment = ModelEnvironment(environ)
    environ.interruption = lambda: environment.leave(VLLM)
    environment.enter(VLLM)
    assert url(environ) is None
    environment.enter(OTHER)
    assert url(environ) == OTHER


def test_threads_that_come_and_go_leave_nothing() -> None:
    environ = Environ(OPENAI_API_KEY="own")
    environment = ModelEnvironment(environ)
    wrong: list[str | None] = []

    def serve(base_url: str | None) -> None:
        for _ in range(300):
            environment.enter(base_url)
            found = url(environ)
            if found != base_url and not str(found).startswith(NOWHERE):
                wrong.append(found)
            environment.leave(base_url)

    threads = [threading.Thread(target=serve, args=(base_url,)) for base_url in (f"{ROOT}/v1", OTHER, VLLM) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert environ == {"OPENAI_API_KEY": "own"}


# --- endpoints -------------------------------------------------------------------------------------------------------

PRODUCTION = AgentCoreConfig.load(
    environ={"BASE_URL": "http://vllm:8000/v1/", "MODEL_ID": "trained", "MODEL_API_KEY": "k3y"}
)
SESSION = {"base_url": "http://gw:9000/sessions/s1.k3y/v1", "model_id": "policy", "sampling_params": {"top_k": 5}}


def test_a_rollout_finds_its_session_and_never_sees_productions_key() -> None:
    found = AgentCoreRLApp(config=PRODUCTION).model_endpoint({"prompt": "hi", "_rollout": SESSION})
    assert (found.client_args, found.model_id) == ({"base_url": SESSION["base_url"], "api_key": "EMPTY"}, "policy")
    assert found.sampling_params == {"top_k": 5}


@pytest.mark.parametrize("payload", [{"prompt": "hi"}, {"_rollout": None}, {"_rollout": {}}, "hi", None])
def test_any_other_request_finds_the_model_in_production(payload: Any) -> None:
    found = AgentCoreRLApp(config=PRODUCTION).model_endpoint(payload)
    assert found.client_args == {"base_url": "http://vllm:8000/v1", "api_key": "k3y"}
    assert (found.model_id, found.sampling_params) == ("trained", {})
    assert "k3y" not in repr(found)


def test_a_rollout_that_names_no_model_asks_for_the_policy() -> None:
    found = AgentCoreRLApp(config=AgentCoreConfig()).model_endpoint({"_rollout": {"base_url": "http://gw:1/v1"}})
    assert found.model_id == "policy"


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (AgentCoreConfig(), "no BASE_URL and no MODEL_ID"),
        (AgentCoreConfig(base_url="http://vllm:8000/v1"), "the environment has no MODEL_ID"),
    ],
)
def test_an_error_says_what_to_set(config: AgentCoreConfig, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing) as caught:
        AgentCoreRLApp(config=config).model_endpoint({"prompt": "hi"})
    assert "hint: set BASE_URL and MODEL_ID" in str(caught.value)
