"""An agent's app in its own process, and what callers do with it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.process import clean_env, free_port, server

SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"


@dataclass
class AgentProcess:
    """A running app."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def invoke(self, payload: Any, session_id: str | None = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", SESSION_HEADER: session_id or str(uuid.uuid4())}
        status, body = self.request("POST", "/invocations", json.dumps(payload).encode(), headers)
        return status, json.loads(body)

    def ping(self) -> str:
        return str(json.loads(self.request("GET", "/ping")[1])["status"])

    def wait_healthy(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.ping() != "Healthy":
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.02)

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def run_agent(app: Path | str, tmp_path: Path, **env: str) -> Iterator[AgentProcess]:
    """Run an app file, or app source (everything after its imports), as a container would."""
    port = free_port()
    if isinstance(app, str):
        source = tmp_path / f"rl_app_{port}.py"
        source.write_text(PROLOGUE + textwrap.dedent(app) + EPILOGUE)
        app = source
    log = tmp_path / f"app_{port}.log"
    command = [sys.executable, str(app)]
    with server(command, port=port, log=log, env=clean_env(PORT=str(port), **env), ready="/ping") as process:
        yield AgentProcess(port, process, log)


PROLOGUE = """\
import asyncio, os, sys, threading, time
from agentcore_rl_toolkit import AgentCoreRLApp, AgentCoreConfig, RewardFunction

app = AgentCoreRLApp()
"""

ASKING = (
    PROLOGUE
    + """
import json, urllib.request

def ask(payload):
    settings = payload["_rollout"]
    body = {"model": settings["model_id"], "messages": [{"role": "user", "content": payload["prompt"]}]}
    request = urllib.request.Request(
        settings["base_url"] + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""
"""
)
"""An app, and `ask(payload)`: what the policy says to the row's prompt."""

SCORED = (
    ASKING
    + """
@app.rollout_entrypoint
def invoke_agent(payload):
    ask(payload)
    return {"rewards": 0.5}
"""
)
"""An agent that asks once, and gives every reply the same reward."""

EPILOGUE = """
if __name__ == "__main__":
    app.run(port=int(os.environ["PORT"]))
"""


def rollout(store: str | Path, input_id: str = "row", exp_id: str = "exp", **settings: Any) -> dict[str, Any]:
    """A `_rollout` for a payload."""
    return {"exp_id": exp_id, "input_id": input_id, "s3_bucket": str(store), **settings}
