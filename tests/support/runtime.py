"""A local runtime for tests, driven without an event loop."""

from __future__ import annotations

import fnmatch
import json
import os
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime, SessionPolicy
from agentcore_rl_toolkit.runtime.local.agent import LocalAgent
from agentcore_rl_toolkit.runtime.local.sandbox.namespaces import KERNEL_PROTECTIONS
from agentcore_rl_toolkit.runtime.local.sandbox.probe import probe
from agentcore_rl_toolkit.runtime.local.supervisor.runtime_settings import RuntimeSettings
from agentcore_rl_toolkit.runtime.local.supervisor.supervisor import Supervisor
from support.agent import PROLOGUE
from support.loop import LoopThread, loop_thread

MISSING = {name: reason for name, reason in probe().items() if reason is not None}
_UNSAFE = sorted(MISSING.keys() & set(KERNEL_PROTECTIONS))
needs_sandbox = pytest.mark.skipif(bool(_UNSAFE), reason=f"protections missing here: {_UNSAFE}")
needs_limits = pytest.mark.skipif(bool(MISSING), reason=f"protections missing here: {MISSING}")


def control_groups(pattern: str) -> list[str]:
    """The control groups of that name. Those of other runtimes may go away meanwhile."""
    found = os.walk("/sys/fs/cgroup")
    return [f"{place}/{name}" for place, names, _ in found for name in fnmatch.filter(names, pattern)]


class RuntimeUser:
    """A started supervisor with one agent, in this process, so that tests see what it holds."""

    def __init__(self, runtime: Supervisor, threads: LoopThread, source: Path) -> None:
        self.runtime, self.threads, self.source = runtime, threads, source

    @property
    def agent(self) -> LocalAgent:
        (agent,) = self.runtime.agents.values()
        return agent

    def ask(self, session_id: str | None = None, **payload: Any) -> Any:
        async def whole() -> Any:
            answer = await self.agent.invoke(session_id or new_id(), json.dumps(payload).encode())
            return json.loads(await answer.read())

        return self.threads.run(whole())

    def fault(self, session_id: str | None = None, **payload: Any) -> RuntimeFault:
        with pytest.raises(RuntimeFault) as caught:
            self.ask(session_id, **payload)
        return caught.value

    def sh(self, session_id: str, command: str, timeout: int = 30) -> str:
        """Output and errors of a command in a session."""
        events = self.threads.collect(self.agent.command(session_id, command, timeout=timeout))
        return "".join((e.stdout or "") + (e.stderr or "") for e in events)

    def stop(self, session_id: str) -> None:
        self.threads.run(self.agent.stop(session_id))

    def rewrite(self, source: str) -> None:
        """Change the agent's file, in a way that no clock hides."""
        self.source.write_text(PROLOGUE + textwrap.dedent(source))
        stamp = time.time_ns() + 5_000_000_000
        os.utime(self.source, ns=(stamp, stamp))
        time.sleep(0.25)  # the runtime looks at most that often


def new_id() -> str:
    return str(uuid.uuid4())


def eventually(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until `condition` is true; gives its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.03)
    return value


@contextmanager
def local_runtime(
    folder: Path,
    source: str,
    *,
    policy: SessionPolicy | None = None,
    env: dict[str, str] | None = None,
    tps_limit: float | None = None,
    **settings: Any,
) -> Iterator[RuntimeUser]:
    folder.mkdir(exist_ok=True)
    path = folder / "rl_app.py"
    path.write_text(PROLOGUE + textwrap.dedent(source))
    agent = AgentSource.parse(path, policy=policy or SessionPolicy(), env=env or {}, tps_limit=tps_limit)
    with loop_thread() as threads:
        runtime = Supervisor(RuntimeSettings.make(agent, **settings))
        threads.run(runtime.start())
        try:
            yield RuntimeUser(runtime, threads, path)
        finally:
            threads.run(runtime.aclose())


@contextmanager
def shared_runtime(agent: Path, stores: Path) -> Iterator[str]:
    """The ARN of an agent on one runtime for all clients in this process; each would start its own."""
    with pytest.MonkeyPatch.context() as patch, LocalRuntime(agent, stores=[stores]) as runtime:
        patch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", runtime.endpoint_url)
        patch.setenv("AGENTCORE_RL_RUNTIME_TOKEN", runtime.token)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "x")
        yield runtime.arn
