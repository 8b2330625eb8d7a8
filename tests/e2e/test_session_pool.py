"""Sessions that are prepared ahead: in place of those that were taken, and after they have started."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from agentcore_rl_toolkit.runtime.local.supervisor.runtime_settings import RuntimeSettings
from agentcore_rl_toolkit.runtime.local.supervisor.supervisor import Supervisor
from support.runtime import needs_sandbox, new_id

AGENT = """
import os, time

from agentcore_rl_toolkit import AgentCoreRLApp

if os.environ["MODEL_ID"] == "slow":
    time.sleep(2)
app = AgentCoreRLApp()

@app.entrypoint
def invoke_agent(payload):
    return {}
"""


@needs_sandbox
def test_another_session_is_prepared_once_the_one_that_was_taken_has_started(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    source = tmp_path / "agent" / "rl_app.py"
    source.write_text(AGENT)

    async def run() -> None:
        async with Supervisor(RuntimeSettings.make(source, spares=1)) as supervisor:
            agent = supervisor.agent("agent")

            def count() -> int:
                return len(list(supervisor.machine.state.glob("*.sock")))

            async def invoke(model: str) -> None:
                rollout = {"base_url": "http://127.0.0.1:9/v1", "model_id": model}
                answer = await agent.invoke(new_id(), json.dumps({"_rollout": rollout}).encode())
                await answer.read()

            async def until(sessions: int) -> None:
                while count() != sessions:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            await invoke("fast")
            await asyncio.wait_for(until(2), 60)
            started = asyncio.create_task(invoke("slow"))
            while len(supervisor.sessions) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert started.done() or count() == 2
            await started
            await asyncio.wait_for(until(3), 60)

    asyncio.run(run())
