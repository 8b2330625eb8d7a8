"""A gateway in processes beside the one that has the engine: they end with it, and a killed one costs nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.channel.channel_engine import ChannelEngine
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.remote.gateway_client import GatewayClient
from agentcore_rl_toolkit.gateway.remote.gateway_processes import GatewayProcesses
from agentcore_rl_toolkit.rollout import run_rollouts
from support.agent import PROLOGUE
from support.gateway import gateway, gateway_tokenizer, ids, until
from support.process import clean_env, free_port, http_server

TURNS = 6
AGENT = (
    PROLOGUE
    + f"""
import openai

@app.rollout_entrypoint
def invoke_agent(payload):
    settings, messages = payload["_rollout"], []
    with openai.OpenAI(base_url=settings["base_url"], api_key="EMPTY") as model:
        for number in range({TURNS}):
            messages.append({{"role": "user", "content": f"{{payload['prompt']}}, turn {{number}}"}})
            reply = model.chat.completions.create(model=settings["model_id"], messages=messages)
            messages.append({{"role": "assistant", "content": reply.choices[0].message.content}})
    return {{"rewards": 1.0}}
"""
)


@pytest.mark.timeout(300)
def test_a_run_survives_the_death_of_every_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rl_app.py").write_text(AGENT)
    asked = threading.Semaphore(0)

    def answer(request: SampleRequest) -> list[int]:
        asked.release()
        return ids("Yes.")

    def kill() -> None:
        for _ in range(8):  # some rollouts are in the middle
            asked.acquire()
        for pid in running.pids:
            os.kill(pid, signal.SIGKILL)

    engine, rows = ScriptedEngine(answer, weight_version="3"), [{"prompt": name} for name in ("one", "two", "three")]
    with (
        caplog.at_level(logging.WARNING),
        GatewayProcesses(engine, gateway_tokenizer(), workers=2, folder=tmp_path) as running,
        RolloutClient(tmp_path / "rl_app.py", tmp_path / "results", "exp") as client,
    ):
        before = set(running.pids)
        killer = threading.Thread(target=kill)
        killer.start()
        groups = list(run_rollouts(rows, 2, client=client, gateway=running, keep_dropped=True))
        killer.join()
        assert before.isdisjoint(running.pids)
        left = running.metrics()["sessions_open"]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert [len(group.rollouts) for group in groups] == [2, 2, 2]
    assert all(not group.others for group in groups), "a rollout ran again"
    for rollout in rollouts:
        (row,) = rollout.rows
        assert rollout.trained
        assert rollout.fidelity is not None
        assert row.trained == TURNS * len(ids("Yes.")), rollout.fidelity
        assert {version for version, _, _ in row.versions} == {"3"}
    assert left == 0
    assert sum("ended with -9; starting it again" in record.message for record in caplog.records) == 2
    assert not list(tmp_path.glob("gateway-*"))


@pytest.mark.timeout(300)
def test_a_run_survives_the_death_of_a_gateway_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its agents' clients are told to try for longer: nobody keeps its port open."""
    (tmp_path / "rl_app.py").write_text(AGENT.replace('api_key="EMPTY"', 'api_key="EMPTY", max_retries=20'))
    gateway_tokenizer().full.save_pretrained(tmp_path / "tokenizer")
    asked, port = threading.Semaphore(0), free_port()

    def answer(request: SampleRequest) -> list[int]:
        asked.release()
        return ids("Yes.")

    def serve() -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "gateway", "serve", "--engine", "trainer"]
        line += ["--tokenizer", str(tmp_path / "tokenizer"), "--renderer", "qwen3", "--port", str(port)]
        line += ["--log", str(tmp_path / "log")]
        return subprocess.Popen(line, env=clean_env(AGENTCORE_RL_ADMIN_KEY="admin"), stdout=subprocess.DEVNULL)

    def kill() -> None:
        for _ in range(8):
            asked.acquire()
        serving[0].kill()
        serving[0].wait()
        serving.append(serve())

    serving = [serve()]
    engine, rows = ScriptedEngine(answer, weight_version="3"), [{"prompt": name} for name in ("one", "two", "three")]
    try:
        with (
            caplog.at_level(logging.WARNING),
            GatewayClient(f"http://127.0.0.1:{port}", admin_key="admin", engine=engine) as reached,
            RolloutClient(tmp_path / "rl_app.py", tmp_path / "results", "exp") as client,
        ):
            killer = threading.Thread(target=kill)
            killer.start()
            groups = list(run_rollouts(rows, 2, client=client, gateway=reached, keep_dropped=True))
            killer.join()
            left = reached.metrics()["sessions_open"]
    finally:
        for process in serving:
            process.kill()
            process.wait()
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert [rollout.rows[0].trained for rollout in rollouts] == [TURNS * len(ids("Yes."))] * 6
    assert all(not group.others for group in groups), "a rollout ran again"
    assert left == 0
    assert any("sessions continue" in record.message for record in caplog.records), "the run says so"


TRAINER = """
import json, sys, time
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.remote.gateway_processes import GatewayProcesses
sys.path.insert(0, "tests")
from support.gateway import gateway_tokenizer

with GatewayProcesses(ScriptedEngine([]), gateway_tokenizer(), workers=2, folder=sys.argv[1]) as running:
    print(json.dumps(running.pids), flush=True)
    time.sleep(600)
"""


@pytest.mark.timeout(300)
def test_workers_end_with_a_killed_trainer(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINER, str(tmp_path)]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_env())
    try:
        assert trainer.stdout is not None
        pids = json.loads(trainer.stdout.readline())
        assert len(pids) == 2
    finally:
        trainer.kill()
        trainer.communicate()
    until(lambda: not any(is_running(pid) for pid in pids))
    assert not list(tmp_path.glob("gateway-*/log/*")), "their logs hold session keys that nobody needs"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_command_line_tells_of_a_rollout_whose_session_is_lost_every_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rl_app.py").write_text(
        "import os\nfrom agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    return {'rewards': payload['n'] or os._exit(9)}\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"n": 0}\n{"n": 1}\n')
    asked = [str(tmp_path), "--store", str(tmp_path / "results"), "--retries", "0"]
    with gateway(ScriptedEngine(lambda request: ids("Yes."))) as served:
        monkeypatch.setenv("AGENTCORE_RL_ADMIN_KEY", served.admin_key)
        assert main(["rollout", *asked, "--gateway-url", served.url]) == 1
    said = capsys.readouterr()
    told = {one["index"]: one for one in map(json.loads, said.out.splitlines())}
    assert [told[n]["status"] for n in range(2)] == ["session_lost", "completed"]
    assert "2 of 2 rollouts, 1 failed" in said.err


def test_the_command_line_uses_a_gateway_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rl_app.py").write_text(AGENT)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    asked = ["rollout", str(tmp_path), "--store", str(tmp_path / "results"), "--quiet"]
    with gateway(ScriptedEngine(lambda request: ids("Yes."))) as served:
        monkeypatch.setenv("AGENTCORE_RL_ADMIN_KEY", served.admin_key)
        assert main([*asked, "--gateway-url", served.url]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(one["status"], one["rewards"]) for one in told] == [("completed", 1.0)] * 2
        assert served.metrics()["turns_total"] == 2 * TURNS
        assert main([*asked, "--gateway-url", served.url, "--resume"]) == 1
        assert "--resume can't be combined with --gateway-url" in capsys.readouterr().err
        assert main([*asked, "--gateway", "workers=2"]) == 1
        assert "--gateway has no effect without --model" in capsys.readouterr().err


def test_a_paused_gateway_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with gateway(ScriptedEngine([])) as served:
        for paused in (False, True):
            served.pause() if paused else None
            with caplog.at_level(logging.WARNING), GatewayClient(served.url, admin_key=served.admin_key):
                assert any("is paused" in record.message for record in caplog.records) is paused


def test_an_engine_of_this_process_needs_a_gateway_that_waits_for_one() -> None:
    with gateway(ScriptedEngine([])) as served:
        reached = GatewayClient(served.url, admin_key=served.admin_key, engine=ScriptedEngine([]))
        with pytest.raises(ConfigError, match="start it with --engine trainer"), reached:
            pass
        with (
            pytest.raises(ConfigError, match="can't be used: this operation needs"),
            GatewayClient(served.url, admin_key="another"),
        ):
            pass


def test_engines_of_two_runs_are_not_mixed() -> None:
    """They have other weights; one that takes the place of a killed run's, or that is of the same run, is welcome."""

    def reached(run: str = "", patience: float = 20) -> GatewayClient:
        engine = ScriptedEngine([], weight_version=run)
        return GatewayClient(served.url, admin_key=served.admin_key, engine=engine, patience=patience, run=run)

    with gateway(ChannelEngine()) as served:
        with reached("a"), reached("a"):
            with pytest.raises(ConfigError, match="can't be connected"), reached("b", patience=1):
                pass
            with pytest.raises(ConfigError, match="can't be connected"), reached(patience=1):
                pass
        with reached("b") as other:
            assert other.model


def test_a_gateway_that_never_answers_is_given_up() -> None:
    with (
        pytest.raises(ConfigError, match="did not answer"),
        GatewayClient("http://127.0.0.1:9", admin_key="x", patience=0.3),
    ):
        pass


@pytest.mark.parametrize("answer", [b"<html>Hello</html>", b"", b"[]", b"{}", b"null", b'{"line": 3}'])
def test_an_address_that_is_no_gateways_says_so(answer: bytes) -> None:
    class Else(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with (
        http_server(Else) as url,
        pytest.raises(ConfigError, match="is not a gateway of this version"),
        GatewayClient(url, admin_key="x"),
    ):
        pass
