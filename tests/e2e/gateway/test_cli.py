"""`agentcore-rl gateway serve`, and `show` of a gateway's log, as people use them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.scripted import ScriptedLine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.gateway import ADMIN_KEY
from agentcore_rl_toolkit.gateway.record.segments import PLACE_BITS, SegmentIndex, pack_record
from support.fake_vllm import MODEL as FAKE
from support.fake_vllm import FakeVllm
from support.gateway import MODEL, WEATHER, Control, call_text, client, gateway, ids, tokenizer
from support.log import add_turn, new_session, opened
from support.process import clean_env


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer().save_pretrained(path)
    return path


@contextmanager
def serving(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(Path(sys.executable).parent / "agentcore-rl"), "gateway", "serve", *arguments]
    process = subprocess.Popen(
        command, env=clean_env(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_serve_says_where_and_with_which_key_and_ends_in_peace(folder: Path):
    with FakeVllm().serving() as fake:
        options = ("--engine", f"vllm={fake.url}", "--tokenizer", str(folder), "--renderer", "qwen3", "--port", "0")
        with serving(*options, **{ADMIN_KEY: ""}) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            export, key = process.stdout.readline().strip().rsplit("=", 1)
            assert export == f"export {ADMIN_KEY}"
            url = process.stdout.readline().strip()
            assert "renderer qwen3: " in process.stderr.readline()
            assert FAKE in process.stderr.readline()
            opened = httpx.post(f"{url}/sessions", headers={"Authorization": f"Bearer {key}"}, timeout=30)
            assert opened.status_code == 201
            session = opened.json()
            asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
            answer = httpx.post(f"{session['base_url']}/chat/completions", json=asked, timeout=30).json()
            assert answer["usage"]["completion_tokens"] == 5
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
            assert process.returncode == 0
            assert out == ""
            assert key not in err
            assert session["base_url"].split("/")[4].partition(".")[2] not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "gpt=4"], "not an engine"),
        (["--tokenizer", "/nowhere"], "no tokenizer could be loaded from '/nowhere': the folder does not exist"),
        (["--renderer", "nothing"], "unknown renderer 'nothing'"),
        (["--renderer", "auto"], "has no chat template and no renderer"),
        (["--workers", "2"], "workers need a port to count from"),
        (["--port", "65535", "--workers", "2"], "the highest port is 65535"),
        (["--public-url", "foo"], "--public-url foo is not a URL"),
        (["--port", "{taken}", "--tokenizer", "/nowhere"], "can't listen"),  # it says so before it loads anything
        (["--log", "{file}"], "can't be used"),
    ],
)
def test_what_can_not_be_served_is_said(
    folder: Path, tmp_path: Path, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    import socket

    monkeypatch.setenv(ADMIN_KEY, "x")
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        port = str(taken.getsockname()[1])
        known = {
            "--engine": "vllm=http://127.0.0.1:9",
            "--tokenizer": str(folder),
            "--renderer": "qwen3",
            "--port": "0",
        }
        values = [part.format(taken=port, file=tmp_path / "file") for pair in (known | given).items() for part in pair]
        assert main(["gateway", "serve", *values]) != 0
    err = capfd.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("template", ["[1]", "{", "5"])
def test_template_settings_are_an_object(template: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["gateway", "serve", "--engine", "vllm=http://x", "--tokenizer", "x", "--template", template])
    assert "--template" in capsys.readouterr().err


# show


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sessions: one with a tool and a result, one whose engine died, one that is empty."""
    log = tmp_path_factory.mktemp("log")
    script: list[Any] = [
        ids("<think>\nParis first\n</think>\n\n" + call_text("get_weather", city="Paris")),
        ids("it is sunny"),
        ScriptedLine(ids("half of", end=False), fails=EngineError("died", sampled_any=True)),
    ]
    with gateway(script, log=log) as running:
        control = Control(running)
        session = running.open_session(session_id="weather")
        history: list[dict[str, Any]] = [{"role": "user", "content": "how is Paris?"}]
        asker = client(session)
        call = asker.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER]).choices[0].message
        history += [call.model_dump(exclude_none=True), {"role": "tool", "content": "sunny", "tool_call_id": "x"}]
        asker.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER])
        control("PUT", "/sessions/weather/result", json={"reward": 1}).raise_for_status()
        control("POST", "/sessions/weather/close").raise_for_status()
        died = running.open_session(session_id="died")
        asked = {"messages": [{"role": "user", "content": "well?"}]}
        assert httpx.post(f"{died['base_url']}/chat/completions", json=asked).status_code == 502
        running.open_session(session_id="empty")
    return log


def test_show_lists_sessions(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(recorded)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["session", "state", "turns", "rows", "sampled", "trained", "unbridged"]
    known = {line[0]: line[1:] for line in lines[1:] if line[0] in ("weather", "died", "empty")}
    sampled = str(sum(len(said) for said in (
        ids("<think>\nParis first\n</think>\n\n" + call_text("get_weather", city="Paris")), ids("it is sunny")
    )))  # fmt: skip
    assert known["weather"] == ["closed", "2", "1", sampled, sampled, "0"]
    assert known["died"] == ["open", "1", "0", str(len(ids("half of", end=False))), "0", "0"]
    assert known["empty"] == ["open", "0", "0", "0", "0", "0"]


def test_show_messages(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(recorded), "--rollout", "weather"]) == 0
    out, err = capsys.readouterr()
    for said in (
        "user  how is Paris?", "thinks  Paris first", 'calls  get_weather({"city": "Paris"})', "tool  sunny",
        "assistant  it is sunny", "turn 0: first, from the start", "turn 1: bridge, after turn 0",
        "result  {'reward': 1}",
    ):  # fmt: skip
        assert said in out
    assert out.count("how is Paris?") == 1  # each message once
    assert "2 turns, 1 row" in err
    assert "\x1b" not in out  # nobody is looking


def test_show_what_others_wrote(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    history: list[Any] = [{"role": "user", "content": "\x1b[2Jhow is\n\tRome?\r"}]
    history += [{"role": "assistant", "content": None, "tool_calls": [call]}]
    history += [{"role": "tool", "content": "rain\x07", "tool_call_id": "c"}]
    with gateway([ids("wet"), ids(" four")], log=tmp_path) as running:
        asker = client(running.open_session(session_id="one"))
        asker.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER])
        asker.completions.create(model=MODEL, prompt="two plus two\x1b[0m is")
    for more in ([], ["--tokens", "--tokenizer", str(folder)]):
        assert main(["show", str(tmp_path), "--rollout", "one", *more]) == 0
        out = capsys.readouterr().out
        assert "\\x1b[2Jhow is\n\tRome?\\r" in out
        assert not {"\x1b", "\x07", "\r"} & set(out)
        if not more:
            assert 'calls  get_weather({"city": "Rome"})\ntool  rain\\x07\nassistant  wet' in out
            assert "text  a raw prompt; --tokens shows it\nassistant   four" in out


def test_show_says_what_is_masked(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(recorded), "--rollout", "died"]) == 0
    out, err = capsys.readouterr()
    assert "masked: engine_error" in out
    assert "engine_error" in err


def test_show_tokens(recorded: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(recorded), "--rollout", "weather", "--tokens", "--tokenizer", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "row 0:" in out
    assert "weight 1.000" in out
    assert "<|im_start|>user\nhow is Paris?<|im_end|>" in out
    assert "it is sunny<|im_end|>" in out


def test_show_while_the_gateway_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with gateway([ids("four")], log=tmp_path) as running:
        session = running.open_session(session_id="one")
        client(session).chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
        assert main(["show", str(tmp_path), "--rollout", "one"]) == 0
        assert "assistant  four" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{log}", "--rollout", "nothing"], "has no session 'nothing'"),
        (["{log}", "--rollout", "../x"], "has no session '../x'"),
        (["{log}/nowhere"], "does not exist"),
        (["{log}", "--rollout", "weather", "--tokens"], "needs the tokenizer"),
    ],
)
def test_show_refuses(recorded: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["show", *[part.format(log=recorded) for part in arguments]]) != 0
    err = capsys.readouterr().err
    assert said in err
    assert "hint:" in err


def test_show_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(tmp_path)]) == 1
    assert "has no results" in capsys.readouterr().err


def test_show_of_a_damaged_log(tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]):
    with opened(tmp_path) as log:
        for name in ("one", "two", "three"):
            session = new_session(log, name)
            for _ in range(3):
                add_turn(log, session)
    segment = tmp_path / "00000001.turns"
    segment.write_bytes(segment.read_bytes() + pack_record("two", b"\x81\xa4kind"))
    place = SegmentIndex(tmp_path).places["one"][0]
    data = bytearray(segment.read_bytes())
    data[(place & (1 << PLACE_BITS) - 1) + 60] ^= 1
    segment.write_bytes(data + bytes(4096))
    (tmp_path / "00000002.turns").mkdir()
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert [line.split("  ")[0] for line in shown.out.splitlines()[-2:]] == ["two", "three"]
    assert "open, damaged" in shown.out
    assert "can't be read from byte" in caplog.text
    assert "is not a file" in caplog.text
    assert main(["show", str(tmp_path), "--rollout", "two"]) == 0
    assert "later turns could not be read" in capsys.readouterr().err
    assert main(["show", str(tmp_path), "--rollout", "one"]) != 0
