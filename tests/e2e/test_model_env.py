"""Agents that build their model client without arguments, captured: on the local runtime and in a plain app."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.agent.model_endpoint import NOWHERE
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.store import open_store
from support.agent import AgentProcess, rollout, run_agent
from support.gateway import MODEL, Control, gateway, ids
from support.runtime import eventually, local_runtime, new_id

SAID = "it is sunny"
WATCHED = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"]

AGENT = (
    f"WATCHED = {WATCHED}"
    + """
import logging, subprocess
import openai

together = threading.Barrier(2)

def look(payload):
    code = f"import os; print({{name: os.environ.get(name) for name in {WATCHED}}})"
    logging.getLogger("agent").warning("clients go to %s", os.environ.get("OPENAI_BASE_URL"))
    return {
        "set": [name for name in WATCHED if name in os.environ],
        "url": os.environ.get("OPENAI_BASE_URL"),
        "child": subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout,
    }

def ask(payload, **given):
    with openai.OpenAI(max_retries=0, **given) as client:
        return client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "how is the weather?"}]
        ).choices[0].message.content
"""
)

SYNC = """
@app.rollout_entrypoint
def invoke_agent(payload):
    if "_rollout" not in payload:
        return look(payload)
    seen = look(payload)
    if payload.get("together"):
        together.wait(30)
    try:
        given = {"base_url": payload["_rollout"]["base_url"], "api_key": "EMPTY"} if payload.get("explicit") else {}
        return {"said": ask(payload, **given), "seen": seen}
    finally:
        if payload.get("together"):
            together.wait(30)
"""

ASYNC = """
@app.rollout_entrypoint
async def invoke_agent(payload):
    if "_rollout" not in payload:
        return look(payload)
    seen = look(payload)
    async with openai.AsyncOpenAI(max_retries=0) as client:
        completion = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "how is the weather?"}]
        )
    return {"said": completion.choices[0].message.content, "seen": seen}
"""

HELD = """
@app.rollout_entrypoint
def invoke_agent(payload):
    if payload.get("stream"):
        return stream()
    if "_rollout" not in payload:
        return look(payload)
    while not os.path.exists(payload["until"]):
        time.sleep(0.01)
    return look(payload)

def stream():
    for _ in range(1000):
        yield look({})["url"]
        time.sleep(0.05)
"""

ASYNC_HELD = """
@app.rollout_entrypoint
async def invoke_agent(payload):
    while not os.path.exists(payload.get("until", "/")):
        await asyncio.sleep(0.01)
    return look(payload)
"""


@pytest.fixture
def running() -> Iterator[Gateway]:
    with gateway([ids(SAID)] * 4) as running:
        yield running


def document(store: Path, key: str) -> dict[str, Any]:
    stored = open_store(str(store))
    found: dict[str, Any] = json.loads(eventually(lambda: stored.exists(key) and stored.get(key)))
    return found


def start(ask: Callable[..., Any], store: Path, session: dict[str, Any], **more: Any) -> str:
    settings = rollout(store, session["session_id"], base_url=session["base_url"], model_id=MODEL)
    return str(ask(_rollout=settings, **more)["result_key"])


def is_captured(running: Gateway, session: dict[str, Any], found: dict[str, Any]) -> None:
    assert found.get("said") == SAID, found
    assert len(Control(running).turns(session)) == 1
    assert found["seen"]["set"] == WATCHED


def keeps(key: str, *texts: str) -> None:
    """The session's key is in none of them, though each shows the URL."""
    for text in texts:
        assert "/sessions/" in text
        assert key not in text


def key_of(session: dict[str, Any]) -> str:
    return str(session["base_url"].removesuffix("/v1").rsplit(".", 1)[1])


def asker(agent: AgentProcess) -> Callable[..., Any]:
    def ask(**payload: Any) -> Any:
        status, answer = agent.invoke(payload)
        assert status == 200, answer
        return answer

    return ask


def test_on_the_local_runtime(running: Gateway, tmp_path: Path) -> None:
    session = running.open_session()
    with local_runtime(tmp_path / "agent", AGENT + SYNC) as user:
        session_id = new_id()

        def ask(**payload: Any) -> Any:
            return user.ask(session_id, **payload)

        found = document(tmp_path / "results", start(ask, tmp_path / "results", session))
        is_captured(running, session, found)
        log = user.threads.run(user.runtime.log_of(session_id))
        assert log is not None
        keeps(key_of(session), json.dumps(found), log.read_text())
        assert ask()["set"] == []


@pytest.mark.parametrize("kind", [SYNC, ASYNC], ids=["sync", "async"])
def test_in_a_plain_app(running: Gateway, tmp_path: Path, kind: str) -> None:
    own = {"OPENAI_API_KEY": "own", "OPENAI_BASE_URL": "https://own.example/v1"}
    with run_agent(AGENT + kind, tmp_path, **own) as agent:
        ask = asker(agent)
        for _ in range(2):  # one session after the other
            before = ask()
            session = running.open_session()
            found = document(tmp_path, start(ask, tmp_path, session))
            is_captured(running, session, found)
            keeps(key_of(session), json.dumps(found), agent.log.read_text())
            assert ask() == before
            assert "'OPENAI_BASE_URL': 'https://own.example/v1'" in before["child"]
            assert "'OPENAI_API_KEY': 'own'" in before["child"]
        assert "several sessions" not in agent.log.read_text()


def test_two_sessions_at_once_in_one_process(running: Gateway, tmp_path: Path) -> None:
    with run_agent(AGENT + SYNC, tmp_path) as agent:
        ask = asker(agent)
        for explicit in (False, True):
            sessions = [running.open_session() for _ in range(2)]
            keys = [start(ask, tmp_path, session, together=True, explicit=explicit) for session in sessions]
            for session, found in zip(sessions, [document(tmp_path, key) for key in keys], strict=True):
                assert found.get("said") == (SAID if explicit else None)
                assert found["status_code"] == 200 if explicit else found["error"]["kind"] == "engine_error"
                assert len(Control(running).turns(session)) == explicit
            agent.wait_healthy()
        assert agent.log.read_text().count("several sessions") == 1
        alone = running.open_session()
        is_captured(running, alone, document(tmp_path, start(ask, tmp_path, alone)))


@pytest.mark.parametrize("kind", [HELD, ASYNC_HELD], ids=["sync", "async"])
def test_a_production_request_beside_a_rollout_is_nobodys(running: Gateway, tmp_path: Path, kind: str) -> None:
    with run_agent(AGENT + kind, tmp_path) as agent:
        ask = asker(agent)
        session, until = running.open_session(), tmp_path / "now"
        key = start(ask, tmp_path, session, until=str(until))
        assert ask()["url"].startswith(NOWHERE)
        until.touch()
        assert document(tmp_path, key)["url"].startswith(running.url)
        assert ask()["url"] is None


def test_a_stream_of_production_beside_a_rollout_is_nobodys(running: Gateway, tmp_path: Path) -> None:
    with run_agent(AGENT + HELD, tmp_path) as agent:
        connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=30)
        connection.request("POST", "/invocations", json.dumps({"stream": True}))
        stream = connection.getresponse()
        assert stream.readline() == b"data: null\n"
        session = running.open_session()
        key = start(asker(agent), tmp_path, session, until=str(tmp_path))
        assert document(tmp_path, key)["url"].startswith(NOWHERE)
        stream.close()
        connection.close()

        def alone() -> bool:
            again = running.open_session()
            key = start(asker(agent), tmp_path, again, until=str(tmp_path))
            return bool(document(tmp_path, key)["url"].startswith(running.url))

        eventually(alone)


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    with run_agent(AGENT + SYNC, tmp_path) as agent:
        status, answer = agent.invoke({"_rollout": rollout(tmp_path, base_url="gw:9000/sessions/s1.k3yk3yk3y/v1")})
        assert status == 400
        assert answer["error"].startswith("_rollout: base_url 'gw:9000/sessions/s1.***/v1' is not a URL")
        assert "k3yk3yk3y" not in agent.log.read_text()
