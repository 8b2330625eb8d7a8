"""A new agent's image, built by the container engines of this machine and run by them: `make test-image`.

Needs Docker or Podman, the base image or a registry to pull it from, and PyPI; an engine that lacks one is skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.deploy.image import ENGINES, choose_engine
from agentcore_rl_toolkit.errors import ConfigError
from support.agent import AgentProcess, rollout
from support.process import free_port, server

TESTS = Path(__file__).parents[1]
MODEL = """
import time
from support.scripted_model import ScriptedModel
def say(body):
    last = body["messages"][-1]
    if last["role"] == "tool":
        return {"content": f"The answer is {last['content']}."}
    return {"tool_calls": [("calculator", {"expression": "6*7"})]}
with ScriptedModel(say).serving() as model:
    print(model.base_url, flush=True)
    time.sleep(600)
"""
READ = """
import sys
from agentcore_rl_toolkit.store import open_store
print(open_store("/tmp/store").get(sys.argv[1]).decode())
"""


def skip_unless_ready(name: str, base: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    try:
        engine = choose_engine(name)
    except ConfigError as error:
        pytest.skip(str(error).partition("\n")[0])
    assert engine is not None
    if engine.platform(base) is None:
        pulled = subprocess.run([name, "pull", base], capture_output=True, text=True, check=False)
        if pulled.returncode:
            pytest.skip(f"{name} has no {base}, and can't pull it: {pulled.stderr.strip().splitlines()[-1]}")


@contextmanager
def container(engine: str, image: str, log: Path) -> Iterator[tuple[AgentProcess, list[str]]]:
    """Run it as a user would, its port published on loopback; gives the start of a command that runs in it, too."""
    port = free_port()
    name = f"real-image-{port}"
    command = [engine, "run", "--rm", "--name", name, "--publish", f"127.0.0.1:{port}:8080"]
    tests = ["--volume", f"{TESTS}:/tests:ro", "--env", "PYTHONPATH=/tests"]
    with server([*command, *tests, image], port=port, log=log, ready="/ping") as process:
        yield AgentProcess(port, process, log), [engine, "exec", name, "python", "-c"]


@pytest.mark.parametrize("name", ENGINES)
def test_a_new_agents_image(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my_agent"
    assert main(["init", str(folder), "--framework", "openai"]) == 0
    base = next(line.split()[1] for line in (folder / "Dockerfile").read_text().splitlines() if line[:4] == "FROM")
    skip_unless_ready(name, base)
    capfd.readouterr()
    assert main(["build", str(folder), "--local", "--builder", name]) == 0
    image = capfd.readouterr().out.strip()
    try:
        with container(name, image, tmp_path / "log") as (agent, inside):
            model = subprocess.Popen([*inside, MODEL], stdout=subprocess.PIPE, text=True)
            assert model.stdout is not None
            given = rollout("/tmp/store", base_url=model.stdout.readline().strip(), model_id="m")
            status, answer = agent.invoke({"prompt": "6 times 7?", "answer": "42", "_rollout": given})
            assert (status, answer["status"]) == (200, "processing")
            agent.wait_healthy()
            stored = json.loads(subprocess.check_output([*inside, READ, answer["result_key"]]))
            assert (stored["rewards"], stored["response"]) == (1.0, "The answer is 42.")
            assert agent.invoke({"prompt": "x", "_rollout": {"exp_id": "e"}})[0] == 400
        model.communicate()
    finally:
        subprocess.run([name, "rmi", "--force", image], capture_output=True, check=False)
