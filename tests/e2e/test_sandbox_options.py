"""`--env`, `--allow`, `--memory-mb` and `.env`: what sessions on this machine get, and which flag an error asks for."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.runtime.serve import agent_sources
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.runtime.local import AgentSource, SessionPolicy
from agentcore_rl_toolkit.runtime.local.agent_source import resolve_agent
from support.process import clean_env
from support.runtime import needs_sandbox

CLI = str(Path(sys.executable).parent / "agentcore-rl")
AGENT = """
import os, socket, ssl
from pathlib import Path
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

@app.rollout_entrypoint
def invoke_agent(payload):
    if "authority" in payload:
        folder = os.environ["SSL_CERT_DIR"]
        text = Path(folder, payload["authority"]).read_text()
        ssl.create_default_context(capath=folder).load_verify_locations(cadata=text)
    found = {name: os.environ.get(name) for name in payload.get("names", [])}
    if "variable" in payload:
        os.environ[payload["variable"]]
    if "file" in payload:
        Path(payload["file"]).read_text()
    if "write" in payload:
        Path(payload["write"]).write_text("x")
    if payload.get("tell"):
        raise RuntimeError("401 for " + os.environ["SERVICE_API_KEY"])
    if "port" in payload:
        host, port = "127.0.0.1", payload["port"]
        try:
            with socket.create_connection((host, port), timeout=30) as connection:
                found["said"] = connection.recv(100).decode()
        except OSError as error:
            raise ConnectionError(f"Error {error.errno} connecting to {host}:{port}. {error.strerror}.") from error
    return {"rewards": 1.0, "found": found}
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "rl_app.py").write_text(AGENT)
    (folder / ".env").write_text("SERVICE_API_KEY=sk-from-the-file\nMODE=file\nAWS_ACCESS_KEY_ID=AKIAFROMTHEFILE\n")
    return folder


@pytest.fixture
def greeter() -> Iterator[int]:
    """The port of a server on this machine that says hello to each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello")

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def cli(agent: Path, verb: str, rows: list[dict[str, Any]], *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    data = agent.parent / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [CLI, verb, str(agent), "--data", str(data), *args]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=agent.parent, env=clean_env() | env, timeout=240, check=False
    )


@needs_sandbox
def test_a_rollout_gets_its_variables_and_the_address_it_was_allowed(agent: Path, greeter: int) -> None:
    names = ["SERVICE_API_KEY", "MODE", "OF_THE_SHELL", "NOT_PASSED", "AWS_ACCESS_KEY_ID"]
    flags = ["--env", "MODE=flag", "--env", "OF_THE_SHELL", "--allow", f"127.0.0.1:{greeter}", "--memory-mb", "512"]
    shell = {"OF_THE_SHELL": "shell", "NOT_PASSED": "x"}
    done = cli(agent, "rollout", [{"names": names, "port": greeter}], "--exp-id", "e", *flags, **shell)
    assert done.returncode == 0, done.stdout + done.stderr
    key = json.loads(done.stdout)["result_key"]
    found = json.loads((agent.parent / "runs" / "results" / key).read_bytes())["found"]
    assert found.pop("SERVICE_API_KEY") == "***", "results don't hold secrets"
    assert found.pop("AWS_ACCESS_KEY_ID") != "AKIAFROMTHEFILE", "credentials for AWS are passed by --env alone"
    assert found == {"MODE": "flag", "OF_THE_SHELL": "shell", "NOT_PASSED": None, "said": "hello"}


AUTHORITIES = Path("/etc/ssl/certs")
HASHED = sorted(path.name for path in AUTHORITIES.glob("*.0") if re.fullmatch(r"[0-9a-f]{8}\.0", path.name))


@needs_sandbox
@pytest.mark.skipif(not HASHED, reason=f"{AUTHORITIES} names no certificate by its hash (install ca-certificates)")
def test_sessions_look_certificate_authorities_up_instead_of_loading_them_all(agent: Path, tmp_path: Path) -> None:
    names = ["SSL_CERT_DIR", "SSL_CERT_FILE"]
    store = tmp_path / "results"
    with RolloutClient(agent, str(store), "e") as client:
        found = client.invoke({"authority": HASHED[0], "names": names}).result(timeout=120)["found"]
    assert found == {"SSL_CERT_DIR": str(AUTHORITIES), "SSL_CERT_FILE": None}


@pytest.mark.parametrize("chosen", [{"SSL_CERT_FILE": "/mine.pem"}, {"SSL_CERT_DIR": "/mine"}])
def test_certificate_authorities_that_the_user_chose_stay(chosen: dict[str, str], agent: Path) -> None:
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    found = AgentSource.parse(agent / "rl_app.py", env=chosen).environment()
    assert {name: found[name] for name in names if name in chosen} == chosen


@needs_sandbox
def test_an_error_names_the_flag_that_would_have_helped(agent: Path, greeter: int) -> None:
    rows: list[dict[str, Any]] = [{"port": greeter}, {"variable": "OF_THE_SHELL"}, {"file": ".env"}, {"tell": True}]
    outside = agent.parent / "outside.db"
    outside.write_text("data")
    rows += [{"file": str(outside)}, {"variable": "NOWHERE"}, {"write": "/etc/x"}]
    done = cli(agent, "rollout", rows, OF_THE_SHELL="x")
    errors = {line["index"]: line["error"] for line in map(json.loads, done.stdout.splitlines())}
    hints = {index: error.partition("\nhint: ")[2] for index, error in errors.items()}
    address = f"127.0.0.1:{greeter}"
    assert hints == {
        0: f"the sandbox has no route to {address}: --allow {address}",
        1: "the sandbox lacks this shell's variable OF_THE_SHELL: --env OF_THE_SHELL, or a line in .env",
        2: "sessions don't get .env: rename it, or pass what it holds with --env NAME=VALUE",
        3: "",
        4: f"sessions see only the agent's folder, not {outside}: copy it into {agent}",
        5: "the variable NOWHERE is not set: --env NOWHERE=VALUE, or a line in .env",
        6: "sessions may write in the agent's folder and in /tmp, not to /etc/x",
    }
    assert errors[3] == "RuntimeError: 401 for ***"
    assert "sk-from-the-file" not in done.stdout + done.stderr


@needs_sandbox
def test_a_file_that_is_no_rl_app_is_told_from_one_that_fails(agent: Path) -> None:
    (agent / "main.py").write_text(
        "from bedrock_agentcore import BedrockAgentCoreApp\napp = BedrockAgentCoreApp()\n"
        "@app.entrypoint\ndef answer(payload):\n    raise ValueError('no key')\n"
    )
    said = "hint: main.py has no AgentCoreRLApp, which rollouts need: "
    done = cli(agent / "main.py", "eval", [{}])
    assert f"{said}name rl_app.py\n" in done.stderr
    (agent / "rl_app.py").unlink()
    assert f"{said}agentcore-rl init .\n" in cli(agent / "main.py", "eval", [{}]).stderr


@needs_sandbox
def test_an_agent_that_can_not_be_imported_without_a_variable_says_which_flag_passes_it(agent: Path) -> None:
    (agent / "rl_app.py").write_text("import os\nos.environ['OF_THE_SHELL']\n" + AGENT)
    done = cli(agent, "eval", [{}], OF_THE_SHELL="x")
    assert "hint: the sandbox lacks this shell's variable OF_THE_SHELL: --env OF_THE_SHELL" in done.stderr
    assert cli(agent, "eval", [{}], "--env", "OF_THE_SHELL=y").returncode == 0
    checked = cli(agent, "doctor", [{}], "--only", "agent", OF_THE_SHELL="x")
    assert "lacks this shell's variable OF_THE_SHELL: --env OF_THE_SHELL" in checked.stdout


@needs_sandbox
def test_doctor_runs_the_agent_with_the_flags(agent: Path) -> None:
    flags = ["--only", "agent", "--json"]
    refused = cli(agent, "doctor", [{"variable": "OF_THE_SHELL"}], *flags, OF_THE_SHELL="x")
    assert "--env OF_THE_SHELL" in refused.stdout
    passed = cli(agent, "doctor", [{"variable": "OF_THE_SHELL"}], *flags, "--env", "OF_THE_SHELL=y")
    assert "completed without calling the model" in passed.stdout


@needs_sandbox
def test_a_client_takes_an_agent_with_what_its_sessions_get(agent: Path, tmp_path: Path) -> None:
    source = AgentSource.parse(agent / "rl_app.py", env={"MODE": "python"}, policy=SessionPolicy(memory_mb=256))
    with RolloutClient(source, tmp_path / "results", "e") as client:
        found = client.invoke({"names": ["MODE", "SERVICE_API_KEY"]}).result(timeout=120)["found"]
    assert found == {"MODE": "python", "SERVICE_API_KEY": None}


def test_a_served_agent_gets_the_same(agent: Path) -> None:
    flags = ["--env", "MODE=flag", "--allow", "10.0.0.5:5432", "--memory-mb", "512"]
    args = build_parser().parse_args(["runtime", "serve", str(agent), *flags])
    [source], _ = agent_sources(args)
    assert source.env == {"SERVICE_API_KEY": "sk-from-the-file", "MODE": "flag"}
    assert (source.policy.allow, source.policy.memory_mb) == (("10.0.0.5:5432",), 512)


@pytest.mark.parametrize("given", [{"env": {"A": "b"}}, {"allow": ["a:1"]}, {"memory_mb": 512}])
def test_what_sets_up_a_sandbox_is_refused_for_an_arn(given: dict[str, Any]) -> None:
    arn = "arn:aws:bedrock-agentcore:us-east-1:123456789012:runtime/demo-0123456789"
    assert resolve_agent(arn) == arn
    flag = f"--{next(iter(given)).replace('_', '-')}"
    instead = {"--env": "agentcore-rl deploy --env", "--allow": "deploy --subnet", "--memory-mb": "leave it out"}[flag]
    with pytest.raises(ConfigError, match=f"{flag} sets up sandboxes on this machine, and .*\nhint: .*{instead}"):
        resolve_agent(arn, **given)
    with pytest.raises(ConfigError, match=f"hint: give {flag} to agentcore-rl runtime serve"):
        resolve_agent("arn:aws:bedrock-agentcore:local:000000000000:runtime/demo", **given)
