"""Several processes as one gateway: any of them serves any session, and one that dies comes back."""

from __future__ import annotations

import contextlib
import hmac
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentcore_rl_toolkit.gateway.record.log import Log
from support.bedrock import ARN, bedrock
from support.fake_server import Handler
from support.fake_vllm import MODEL, FakeVllm
from support.process import clean_env, without_torch
from support.speakers.bedrock_converse import gather
from support.tokenizers import make_tokenizer

KEY = "admin-of-workers"
HEADERS = {"Authorization": f"Bearer {KEY}"}


def two_ports() -> int:
    """A free port with a free one after it; below those that connections are given, which come and go meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two free ports in a row")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(home)
    return home


@contextlib.contextmanager
def serving(folder: Path, port: int, engine: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "gateway", "serve", "--engine", engine]
    line += ["--tokenizer", str(folder), "--renderer", "qwen3", "--port", str(port), "--workers", "2", *more]
    env = clean_env(**without_torch()) | {"AGENTCORE_RL_ADMIN_KEY": KEY, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def workers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, FakeVllm]]:
    """Two workers for all tests: each leaves both of them serving."""
    port = two_ports()
    with FakeVllm().serving() as server:
        log = tmp_path_factory.mktemp("log")
        with serving(folder, port, f"vllm={server.url}", "--log", str(log)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
            yield port, server
        until(lambda: not any(listens(p) for p in (port, port + 1)))


def until(holds: Any) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.1)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def both_there(port: int) -> bool:
    if not (listens(port) and listens(port + 1)):
        return False
    return ask(port, "GET", "/health").get("workers") == 2


def ask(port: int, method: str, path: str, **more: Any) -> Any:
    response = httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=HEADERS, timeout=30, **more)
    response.raise_for_status()
    return response.json()


def turns_total(port: int) -> int:
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return sum(int(count) for count in re.findall(r"^agentcore_rl_gateway_turns_total (\d+)$", metrics, re.MULTILINE))


def say(base_url: str, text: str, **more: Any) -> Any:
    with openai.OpenAI(base_url=base_url, api_key="EMPTY", max_retries=0) as client:
        messages = [{"role": "user", "content": text}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, **more)
        return list(answer) if more.get("stream") else answer


def test_all_workers_are_there_when_the_first_says_so(workers: tuple[int, FakeVllm]) -> None:
    port, _ = workers
    assert ask(port, "GET", "/health")["workers"] == 2
    assert {ask(port, "POST", "/sessions", json={})["base_url"].split("/")[2] for _ in range(2)} == {
        f"127.0.0.1:{port}",
        f"127.0.0.1:{port + 1}",
    }


def test_a_worker_without_a_port_is_the_end_of_all(folder: Path) -> None:
    port = two_ports()
    with socket.create_server(("127.0.0.1", port + 1)), FakeVllm().serving() as server:
        with serving(folder, port, f"vllm={server.url}") as process:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 1
        assert out == ""
        assert f"can't listen on 127.0.0.1:{port + 1}" in err
        assert f"worker 1 ended with 1 before it listened on port {port + 1}" in err
        assert "serving" not in err
        assert not listens(port)


def test_it_starts_again_though_a_worker_of_one_that_was_killed_is_there(folder: Path, tmp_path: Path) -> None:
    port, log = two_ports(), ("--log", str(tmp_path / "log"))
    with FakeVllm(pace=0.2).serving() as server:
        with serving(folder, port, f"vllm={server.url}", *log) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
            sessions = [ask(port, "POST", "/sessions", json={}) for _ in range(2)]
            there = next(s["base_url"] for s in sessions if f":{port + 1}/" in s["base_url"])
            client = openai.OpenAI(base_url=there, api_key="EMPTY", max_retries=0)
            messages = [{"role": "user", "content": "long"}]
            stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=400, stream=True)
            next(iter(stream))  # which the worker waits for, when the first one is gone
            process.kill()
            process.wait()
        with serving(folder, port, f"vllm={server.url}", *log) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
            assert ask(port, "GET", "/health")["workers"] == 2
        stream.close()
        client.close()


def test_it_can_be_ended_while_a_worker_starts(folder: Path) -> None:
    port = two_ports()
    asked = threading.Event()

    class Slow(FakeVllm):
        def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
            if len(self.requests) > 3:  # the second worker asks; the first has been answered
                asked.set()
                handler.wait(3600)
            super().handle(handler, path, body)

    with Slow().serving() as server, serving(folder, port, f"vllm={server.url}") as process:
        assert asked.wait(60)
        process.terminate()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        assert "serving" not in err
    until(lambda: not listens(port))


def test_any_worker_serves_any_session(workers: tuple[int, FakeVllm]) -> None:
    port, _ = workers
    known, turns_before = ask(port, "GET", "/health")["sessions"], turns_total(port)
    sessions = [ask(port, "POST", "/sessions", json={}) for _ in range(4)]
    homes = [int(session["base_url"].split(":")[2].split("/")[0]) for session in sessions]
    assert sorted(homes) == [port, port, port + 1, port + 1]
    for session, home in zip(sessions, homes, strict=True):
        other = port if home == port + 1 else port + 1
        say(session["base_url"], "here")
        say(session["base_url"].replace(str(home), str(other)), "there", stream=True)
        for at in (port, port + 1):
            assert ask(at, "GET", f"/sessions/{session['session_id']}/trajectories")["fidelity"]["turns"] == 2
    named = [ask(port, "POST", "/sessions", json={"session_id": name}) for name in ("one", "two", "mine-0", "four")]
    assert {int(s["base_url"].split(":")[2].split("/")[0]) for s in named} == {port, port + 1}
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        ask(port + 1, "POST", "/sessions", json={"session_id": "mine-0"})
    assert ask(port + 1, "GET", "/health")["sessions"] == known + 8
    listed = {one["session_id"] for one in ask(port + 1, "GET", "/sessions")["sessions"]}
    assert {session["session_id"] for session in sessions} | {"one", "two", "mine-0", "four"} <= listed
    assert turns_total(port) == turns_before + 8
    ask(port, "PUT", "/weights", json={"version": "v2"})
    for session in sessions:
        say(session["base_url"], "again")
        turns = ask(port, "GET", f"/sessions/{session['session_id']}/turns")["turns"]
        assert turns[-1]["weight_versions"] == [["v2", len(turns[-1]["sampled_ids"])]]


def test_a_name_with_slashes_gets_to_another_worker(workers: tuple[int, FakeVllm]) -> None:
    port, _ = workers
    for _ in range(2):
        session = ask(port, "POST", "/sessions", json={"model": MODEL})
        home = int(session["bedrock_endpoint_url"].split(":")[2].split("/")[0])
        at = port if home == port + 1 else port + 1
        client = bedrock({"bedrock_endpoint_url": session["bedrock_endpoint_url"].replace(str(home), str(at))})
        asked = {"modelId": ARN, "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
        short = {"inferenceConfig": {"maxTokens": 4}}
        assert client.converse(**asked, **short)["stopReason"] == "max_tokens"
        assert gather(client.converse_stream(**asked, **short)["stream"])["stopReason"] == "max_tokens"
        client.close()
        assert ask(at, "GET", f"/sessions/{session['session_id']}/trajectories")["fidelity"]["turns"] == 2


def test_a_client_that_asks_whether_to_send_its_body_gets_to_another_worker(workers: tuple[int, FakeVllm]) -> None:
    port, _ = workers
    session = ask(port, "POST", "/sessions", json={"model": MODEL})
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    for at in (port, port + 1):
        url = f"http://127.0.0.1:{at}/{session['base_url'].split('/', 3)[3]}/chat/completions"
        assert httpx.post(url, json=asked, headers={"Expect": "100-continue"}, timeout=30).status_code == 200


def test_a_wrong_key_opens_nothing_anywhere(workers: tuple[int, FakeVllm]) -> None:
    port, server = workers
    session = ask(port, "POST", "/sessions", json={})
    sampled = [path for path, _ in server.requests].count("/v1/completions")
    for at in (port, port + 1):
        url = f"http://127.0.0.1:{at}/sessions/{session['session_id']}.wrong/v1"
        with pytest.raises(openai.AuthenticationError):
            say(url, "hi")
        assert httpx.post(f"http://127.0.0.1:{at}/sessions", json={}).status_code == 401
        assert httpx.get(f"http://127.0.0.1:{at}/sessions/{session['session_id']}/turns").status_code == 401
    assert [path for path, _ in server.requests].count("/v1/completions") == sampled


def test_a_worker_that_dies_comes_back_with_its_sessions(workers: tuple[int, FakeVllm]) -> None:
    port, _ = workers
    sessions = [ask(port, "POST", "/sessions", json={}) for _ in range(2)]
    for session in sessions:
        say(session["base_url"], "before")
    os.kill(worker_on(port + 1), signal.SIGKILL)
    until(lambda: both_there(port))
    for session in sessions:
        say(session["base_url"], "after")
        assert ask(port, "GET", f"/sessions/{session['session_id']}/trajectories")["fidelity"]["turns"] == 2


def test_a_worker_that_was_away_is_paused_as_the_others_are(workers: tuple[int, FakeVllm]) -> None:
    port, _ = workers
    session = next(
        s for s in (ask(port, "POST", "/sessions", json={}) for _ in range(2)) if f":{port + 1}/" in s["base_url"]
    )
    ask(port, "PUT", "/weights", json={"version": "v2"})
    ask(port, "POST", "/pause")
    os.kill(worker_on(port + 1), signal.SIGKILL)
    until(lambda: not listens(port + 1))
    told = httpx.put(f"http://127.0.0.1:{port}/weights", headers=HEADERS, json={"version": "v3"}, timeout=30)
    assert (told.status_code, told.headers["Retry-After"]) == (503, "1")
    until(lambda: both_there(port))
    told = own_health(port + 1)
    assert (told["status"], told["weight_version"]) == ("paused", "v3")
    ask(port, "POST", "/resume")
    say(session["base_url"], "after")
    (turn,) = ask(port, "GET", f"/sessions/{session['session_id']}/turns")["turns"]
    assert turn["weight_versions"] == [["v3", len(turn["sampled_ids"])]]


def test_a_worker_that_was_away_goes_on_if_the_others_do(workers: tuple[int, FakeVllm]) -> None:
    """Its own log says otherwise, but is older."""
    port, _ = workers
    ask(port, "POST", "/pause")
    os.kill(worker_on(port + 1), signal.SIGKILL)
    until(lambda: not listens(port + 1))
    assert httpx.post(f"http://127.0.0.1:{port}/resume", headers=HEADERS, timeout=30).status_code == 503
    until(lambda: both_there(port))
    assert [own_health(at)["status"] for at in (port, port + 1)] == ["ok", "ok"]


def test_a_worker_without_a_log_comes_back_as_the_others_are(folder: Path) -> None:
    port = two_ports()
    with FakeVllm().serving() as server, serving(folder, port, f"vllm={server.url}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
        ask(port, "PUT", "/weights", json={"version": "v2"})
        ask(port, "POST", "/pause")
        os.kill(worker_on(port + 1), signal.SIGKILL)
        until(lambda: not listens(port + 1))
        until(lambda: both_there(port))
        told = own_health(port + 1)
        assert (told["status"], told["weight_version"]) == ("paused", "v2")


def test_a_pause_whose_worker_dies_pauses_nobody(folder: Path) -> None:
    port, told, silent = two_ports(), threading.Semaphore(0), threading.Event()

    class Slow(FakeVllm):
        def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
            if path == "/pause" and not silent.is_set():
                if told.acquire(blocking=False):  # the second
                    silent.set()
                    handler.wait(3600)
                told.release()
            super().handle(handler, path, body)

    def pause_in_vain() -> None:
        with pytest.raises(httpx.HTTPError):
            ask(port + 1, "POST", "/pause")

    with Slow().serving() as server, serving(folder, port, f"vllm={server.url}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
        pausing = threading.Thread(target=pause_in_vain)
        pausing.start()
        assert silent.wait(60)
        os.kill(worker_on(port + 1), signal.SIGKILL)
        pausing.join()
        until(lambda: listens(port + 1) and both_there(port))
        until(lambda: [own_health(at)["status"] for at in (port, port + 1)] == ["ok", "ok"])


def own_health(port: int) -> dict[str, Any]:
    """What a worker says of itself alone, as another worker hears it."""
    mark = hmac.new(KEY.encode(), b"passed on by a worker", "sha256").hexdigest()
    told = httpx.get(f"http://127.0.0.1:{port}/health", headers={"X-Gateway-Worker": mark}, timeout=120)
    return dict(told.json())


def worker_on(port: int) -> int:
    """The process that listens on a port."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inode = next(line.split()[9] for line in lines if line.split()[1] == wanted and line.split()[3] == "0A")
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry) == f"socket:[{inode}]":
                return int(entry.parts[2])
    raise AssertionError(f"nobody listens on {port}")


# --- with --restart ---------------------------------------------------------------------------------------------------


def worker_of(supervisor: subprocess.Popen[str], number: int) -> int | None:
    """The process of a worker; None while it is not running."""
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    for pid in map(int, children):
        with contextlib.suppress(OSError):
            if f"--worker\0{number}\0" in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
    return None


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_worker_comes_back_as_it_was(folder: Path, count: int) -> None:
    """Without a log, and without another worker that could tell."""
    port = two_ports()
    with (
        FakeVllm().serving() as server,
        FakeVllm().serving() as other,
        serving(folder, port, f"vllm={server.url}", "--workers", str(count), "--restart") as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
        engines = [f"vllm={other.url}"]
        ask(port, "PUT", "/engines", json={"engines": engines})
        ask(port, "PUT", "/weights", json={"version": "v2"})
        ask(port, "POST", "/pause")
        killed = worker_of(process, 0)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        until(lambda: worker_of(process, 0) not in (None, killed))
        for at in range(port, port + count):
            told = own_health(at)
            assert (told["status"], told["weight_version"]) == ("paused", "v2")
            assert [one["name"] for one in ask(at, "GET", "/engines")["engines"]] == engines


def test_it_waits_for_a_log_that_a_worker_of_a_killed_supervisor_still_writes(folder: Path, tmp_path: Path) -> None:
    """As that worker does until its calls have ended, when its port is free already."""
    port, log = two_ports(), Log(tmp_path)
    with FakeVllm().serving() as server:
        flags = ("--workers", "1", "--restart", "--log", str(tmp_path))
        with serving(folder, port, f"vllm={server.url}", *flags) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert any("waiting for another gateway" in line for line in process.stderr)
            log.close()
            assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"


def test_a_slash_at_the_end_of_a_peer_is_dropped_in_each_worker(folder: Path) -> None:
    port = two_ports()
    url, flags = f"http://127.0.0.1:{port}", ("--workers", "1", "--restart")
    with FakeVllm().serving() as server:
        peers = ("--peers", f"{url}/", "--peer-url", f"{url}/")
        with serving(folder, port, f"vllm={server.url}", *flags, *peers) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{url}\n"
            assert ask(port, "GET", "/peers")["peers"] == [url]
