"""What a model call imports is there before the first session calls, and the template can still be forked."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_env
from support.runtime import local_runtime, new_id

AGENT = """
import openai
LAZY = ["openai.resources.chat.completions", "openai._streaming", "anyio._backends._asyncio"]
before = [name for name in LAZY if name in sys.modules]

@app.entrypoint
def invoke_agent(payload):
    return {"before": before, "there": [name for name in LAZY + ["anthropic"] if name in sys.modules]}
"""
QUIET = """
@app.entrypoint
def invoke_agent(payload):
    return [name for name in ("openai", "anthropic", "httpx") if name in sys.modules]
"""


def test_a_loaded_sdk_has_been_rehearsed_and_the_template_is_forked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ready(template: Any) -> Any:
        return await template.ready

    caplog.set_level(logging.INFO, "agentcore_rl_toolkit")
    with local_runtime(tmp_path / "agent", AGENT) as user:
        answers = [user.ask(new_id()) for _ in range(2)]
        keeper = user.runtime._only().keeper
        message = user.threads.run(ready(keeper._current))
        assert len(keeper._all) == 1  # both sessions came from one template
    for answer in answers:
        assert "openai.resources.chat.completions" not in answer["before"]  # importing the SDK alone doesn't load it
        assert answer["there"] == ["openai.resources.chat.completions", "openai._streaming", "anyio._backends._asyncio"]
    assert (message["forkable"], message["why"]) == (True, [])
    assert "can't be forked" not in caplog.text


def test_what_the_agent_has_not_imported_is_left_alone(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", QUIET) as user:
        assert user.ask(new_id()) == []


WARMED_UP = """
import json, sys, threading
import openai, anthropic
from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.runtime.local.serve import warm_up
from agentcore_rl_toolkit.runtime.local.template import _open_things
app = AgentCoreRLApp()
app.entrypoint(lambda payload: None)
before, loaded = _open_things(), set(sys.modules)
warm_up(app)
print(json.dumps({
    "left": sorted(_open_things() - before),
    "new": sorted(set(sys.modules) - loaded),
    "threads": threading.active_count(),
}))
"""


def test_warming_up_leaves_no_thread_and_no_socket() -> None:
    command = [sys.executable, "-c", WARMED_UP]
    out = subprocess.run(command, capture_output=True, text=True, env=clean_env(), check=True)
    known = json.loads(out.stdout.splitlines()[-1])
    assert (known["left"], known["threads"]) == ([], 1)
    assert {"openai.resources.chat.completions", "anyio._backends._asyncio", "uvicorn.protocols"} <= set(known["new"])
