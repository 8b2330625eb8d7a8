"""The container that is trained serves: a production request to every example, and to the README's agent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime
from agentcore_rl_toolkit.runtime.local.agent_source import SessionPolicy
from support.example import EXAMPLES
from support.loop import loop_thread
from support.runtime import RuntimeUser
from support.scripted_model import ScriptedModel

README = EXAMPLES.parent / "README.md"
ONLY_FOR_ROLLOUTS = ("answer", "checks", "references")
REPLY = "That is done."


def readme_agent(folder: Path) -> Path:
    """The README's agent after the change."""
    found = re.search(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    app = folder / "rl_app.py"
    app.write_text("\n".join(line[1:] for line in found[1].splitlines() if not line.startswith("-")))
    return app


def production_row(example: Path) -> dict[str, Any]:
    """An example's first row, without what only a reward needs."""
    row = json.loads((example / "rows.jsonl").read_text().splitlines()[0])
    return {name: value for name, value in row.items() if name not in ONLY_FOR_ROLLOUTS}


@pytest.mark.parametrize("name", ["readme", "math", "officebench", "migration", "appworld"])
def test_a_production_request_is_answered_by_the_model_in_production(name: str, tmp_path: Path) -> None:
    home = EXAMPLES / f"strands_{name}_agent"
    app = readme_agent(tmp_path) if name == "readme" else home / "rl_app.py"
    payload = {"prompt": "What is 6 times 7?"} if name == "readme" else production_row(home)
    with ScriptedModel(lambda body: {"content": REPLY}).serving() as model, loop_thread() as threads:
        env = {"BASE_URL": model.base_url, "MODEL_ID": "trained-policy"}
        policy = SessionPolicy(allow=(model.base_url.split("/")[2],))
        runtime = LocalRuntime(AgentSource.parse(app, env=env, policy=policy))
        threads.run(runtime.start())
        try:
            answer = RuntimeUser(runtime, threads, app).ask(**payload)
        finally:
            threads.run(runtime.aclose())
    text = answer if isinstance(answer, str) else answer["response"]
    assert text.strip() == REPLY
    assert "rewards" not in answer
    assert {request["model"] for request in model.requests} == {"trained-policy"}
