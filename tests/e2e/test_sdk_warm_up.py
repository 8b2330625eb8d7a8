"""Sessions start with the modules that a model call imports."""

from __future__ import annotations

from pathlib import Path

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


def test_a_loaded_sdk_is_warmed_up(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", AGENT) as user:
        answers = [user.ask(new_id()) for _ in range(2)]
        assert len(user.agent.keeper.templates) == 1  # both sessions came from one template
    for answer in answers:  # importing the SDK alone doesn't load these
        assert answer["before"] == [
            "openai.resources.chat.completions",
            "openai._streaming",
            "anyio._backends._asyncio",
        ]
        assert answer["there"] == answer["before"]


def test_sdks_that_the_agent_does_not_import_stay_unloaded(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", QUIET) as user:
        assert user.ask(new_id()) == []
