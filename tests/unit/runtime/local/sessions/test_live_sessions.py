"""Which logs of ended sessions stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentcore_rl_toolkit.runtime.local.agent_source import AgentSource
from agentcore_rl_toolkit.runtime.local.sandbox.cgroup import CgroupTree
from agentcore_rl_toolkit.runtime.local.server.local_s3 import LocalS3
from agentcore_rl_toolkit.runtime.local.sessions.live_sessions import LiveSessions
from agentcore_rl_toolkit.runtime.local.sessions.local_session import SessionContext
from agentcore_rl_toolkit.runtime.local.sessions.places import Places
from agentcore_rl_toolkit.runtime.local.sessions.store_proxy import StoreProxy
from agentcore_rl_toolkit.runtime.local.template.template_keeper import Machine


def test_the_logs_of_the_last_thousand_ended_sessions_stay(tmp_path: Path) -> None:
    asyncio.run(end_sessions(tmp_path))


async def end_sessions(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    agent = tmp_path / "rl_app.py"
    agent.touch()
    machine = Machine(tmp_path, [], CgroupTree([]), None)
    context = SessionContext(machine, StoreProxy(LocalS3(tmp_path / "buckets")), "token")
    table = LiveSessions(context, Places.make(2000)[0], 2000, {"started": 0, "ended": 0, "refused": 0, "lost": 0})
    sessions = [table.create(AgentSource.parse(agent)) for _ in range(1004)]
    for number, session in enumerate(sessions):
        session.id = f"id-{number:04d}" if number != 1002 else "id-0001"  # the same session, started again
        table.reserve_place()
        table.record_start(session, session.id)
        session.log.touch()
    await asyncio.gather(*(session.end("it is over") for session in sessions[:1003]))
    assert table.log_of("id-0000") is None
    assert table.log_of("id-0001") == sessions[1002].log
    assert [session.log.exists() for session in sessions[:5]] == [False] * 3 + [True] * 2
    assert table.log_of("id-1003") == sessions[1003].log  # it still runs
