"""The gateway in production: plain paths, keys, and nothing recorded."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import boto3
import httpx
import openai
import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.checkpoints import sampling_defaults
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Server
from support.docs import ROOT, blocks
from support.docs_commands import commands
from support.example import EXAMPLES
from support.fake_vllm import MODEL as FAKE
from support.fake_vllm import FakeVllm
from support.gateway import MODEL, WEATHER, call_text, ids, tokenizer
from support.process import clean_env
from support.production import KEYS, production

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
CALL = {"model": "m", "messages": HELLO}


def post(server: Server, path: str, body: Any = CALL, key: str = KEYS[0], **headers: str) -> httpx.Response:
    sent = headers or {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/{path}", json=body, headers=sent, timeout=30)


def test_the_sdks_call_it_like_their_provider_and_any_model_name_is_the_served_one() -> None:
    said = [ids(call_text("get_weather", city="Paris")), *[ids(f"answer {n}") for n in range(3)]]
    engine = ScriptedEngine(said)
    with production(engine) as server:
        chat = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[1], max_retries=0)
        with chat:
            first = chat.chat.completions.create(model="gpt-4.1-mini", messages=HELLO, tools=[WEATHER])  # type: ignore[list-item]
            assert first.model == MODEL
            (call,) = first.choices[0].message.tool_calls or []
            then: list[Any] = [
                *HELLO,
                first.choices[0].message,
                {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
            ]
            second = chat.chat.completions.create(model="gpt-4.1-mini", messages=then, tools=[WEATHER])  # type: ignore[list-item]
            assert second.choices[0].message.content == "answer 0"
            assert [model.id for model in chat.models.list()] == [MODEL]
        with anthropic.Anthropic(base_url=server.url, api_key=KEYS[0], max_retries=0) as messages:
            assert messages.messages.create(model="c", max_tokens=20, messages=HELLO).content[0].text == "answer 1"  # type: ignore[union-attr]
        keys = {"aws_access_key_id": KEYS[0], "aws_secret_access_key": "-", "region_name": "us-west-2"}
        bedrock = boto3.client("bedrock-runtime", endpoint_url=server.url, **keys)
        reply = bedrock.converse(modelId="us.x.y-v1:0", messages=[{"role": "user", "content": [{"text": "hi"}]}])
        bedrock.close()
        assert reply["output"]["message"]["content"] == [{"text": "answer 2"}]
        google = post(
            server,
            "v1beta/models/gemini:generateContent",
            {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
            **{"x-goog-api-key": "wrong"},
        )
        assert (google.status_code, google.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert {request.model for request in engine.requests} == {MODEL}
    assert len(server.core.sessions) == 0  # nothing is left of a call
    assert (
        len({request.session_id for request in engine.requests}) == 4
    )  # or one of several replicas would get them all


@pytest.mark.parametrize(
    ("headers", "path", "shape"),
    [
        ({"X-Nothing": "x"}, "v1/chat/completions", lambda error: error["error"]["code"] == "invalid_api_key"),
        ({"Authorization": "Bearer wrong"}, "v1/completions", lambda error: "error" in error),
        ({"x-api-key": "wrong"}, "v1/messages", lambda error: error["error"]["type"] == "authentication_error"),
        ({"Authorization": "Bearer x y"}, "model/m/converse", lambda error: set(error) == {"message"}),
        ({"Authorization": f"Basic {KEYS[0]}"}, "v1/models", lambda error: "error" in error),
    ],
)
def test_a_call_without_a_key_is_refused_in_the_format_of_its_api(
    headers: dict[str, str], path: str, shape: Any
) -> None:
    engine = ScriptedEngine([ids("never")])
    with production(engine) as server:
        refused = post(server, path, **headers)
        assert refused.status_code in (401, 403)
        assert shape(refused.json())
        assert KEYS[0] not in refused.text
    assert not engine.requests


@pytest.mark.parametrize(
    "path", ["sessions", "sessions/x", "sessions/x.y/v1/models", "pause", "resume", "drain", "weights", "result"]
)
def test_nothing_of_training_is_served(path: str) -> None:
    with production(ScriptedEngine([])) as server:
        for key in (KEYS[0], "the admin key"):
            assert post(server, path, {}, key=key).status_code == (404 if key == KEYS[0] else 401)
        assert httpx.put(f"{server.url}/weights", json={}, timeout=30).status_code == 401
        assert server.core.gate.version is None


def test_health_needs_no_key_and_other_hosts_are_refused() -> None:
    with production(ScriptedEngine([])) as server:
        assert httpx.get(f"{server.url}/health", timeout=30).json()["models"] == [MODEL]
        assert httpx.get(f"{server.url}/health", headers={"Host": "evil.example"}, timeout=30).status_code == 403


def test_the_models_sampling_settings_are_the_default_and_a_call_may_ask_for_others() -> None:
    engine = ScriptedEngine([ids("a"), ids("b")])
    with production(engine, sampling={"temperature": 0.6, "top_p": 0.9}, context_limit=40) as server:
        assert post(server, "v1/chat/completions").status_code == 200
        assert post(server, "v1/chat/completions", CALL | {"temperature": 0.1}).status_code == 200
        long = post(server, "v1/chat/completions", {"messages": [{"role": "user", "content": "far too long " * 40}]})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert [(r.sampling.temperature, r.sampling.top_p) for r in engine.requests] == [(0.6, 0.9), (0.1, 0.9)]


def test_the_defaults_of_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        '{"temperature": 0.7, "top_k": 0, "eos_token_id": 1, "min_p": null}'
    )
    assert sampling_defaults(tmp_path) == {"temperature": 0.7, "top_k": -1}
    (tmp_path / "generation_config.json").write_text("[]")
    assert sampling_defaults(tmp_path) == {}
    assert sampling_defaults(tmp_path / "missing") == {}


@contextmanager
def serving(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(Path(sys.executable).parent / "agentcore-rl"), "serve", *arguments, "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=clean_env(**env), **pipes)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_serve_prints_a_new_key_and_the_address_that_agents_set(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    with (
        FakeVllm().serving() as fake,
        serving(str(tmp_path), "--engine", f"vllm={fake.url}", "--renderer", "qwen3", MODEL_API_KEY="") as process,
    ):
        assert process.stdout is not None
        export, key = process.stdout.readline().strip().split("=", 1)
        assert export == "export MODEL_API_KEY"
        url = process.stdout.readline().strip()
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as chat:
            reply = chat.chat.completions.create(model="whatever", messages=HELLO, max_tokens=4)
        assert (reply.model, reply.usage.completion_tokens if reply.usage else 0) == (FAKE, 4)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert key not in err


def test_the_agent_is_evaluated_with_the_served_model_and_its_key(tmp_path: Path) -> None:
    """The commands of the production guide: before and after, in one store."""
    (block,) = [block for block in blocks(ROOT / "docs/guides/production.md") if "--compare before" in block.code]
    (tmp_path / "examples").symlink_to(EXAMPLES)
    rows = (EXAMPLES / "strands_math_agent" / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "held-out.jsonl").write_text("".join(rows[:2]))
    key = "the-key-of-production"
    with serving("tiny", MODEL_API_KEY=key) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        said, env = "", clean_env(MODEL_API_KEY=key)
        for command in commands(re.sub(r"https?://\S+/v1", url, block.code)):
            command[:1] = [sys.executable, "-m", "agentcore_rl_toolkit.cli"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)
            said += done.stdout + done.stderr
            assert (done.returncode, "failed" in done.stdout) == (0, False), said
            (tmp_path / ".env").write_text(f"MODEL_API_KEY={key}\n")  # the second evaluation has it from here
            env = clean_env()
    assert "against before" in said
    results = [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert len(results) == 4
    assert key not in said + "".join(file.read_text() for file in results)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (None, "--keys {file} can't be read"),
        ("# nothing\n\n", "--keys {file}: it has no key"),
        ("long-enough-to-be-a-key\nshort\n", "--keys {file}: a key is too short, or has spaces"),
        ("sixteen characters and spaces\n", "a key is too short, or has spaces"),
    ],
)
def test_serve_refuses_a_file_of_keys_that_is_no_use(
    tmp_path: Path, keys: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.txt"
    if keys is not None:
        file.write_text(keys)
    assert main(["serve", "tiny", "--keys", str(file)]) == 1
    assert said.format(file=file) in capsys.readouterr().err
