"""The processes of a local runtime: whose work is whose, and what is left when one of them is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime
from support.agent import PROLOGUE, rollout
from support.loop import LoopThread, loop_thread
from support.process import clean_env
from support.runtime import control_groups, eventually, needs_sandbox, new_id

AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    time.sleep(payload.get("seconds", 0))
    if payload.get("large"):
        return "x" * payload["large"]
    return {"rewards": 1.0, "pid": os.getpid()}
"""


@pytest.fixture(scope="module")
def threads() -> Iterator[LoopThread]:
    with loop_thread() as threads:
        yield threads


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    (tmp_path / "agent").mkdir()
    path = tmp_path / "agent" / "rl_app.py"
    path.write_text(PROLOGUE + AGENT)
    return path


@contextlib.contextmanager
def running(threads: LoopThread, agent: Path | AgentSource, **settings: Any) -> Iterator[LocalRuntime]:
    runtime = LocalRuntime(agent, spares=1, **settings)
    threads.run(runtime.start())
    try:
        yield runtime
    finally:
        threads.run(runtime.aclose())


def ask(threads: LoopThread, runtime: LocalRuntime, session_id: str | None = None, **payload: Any) -> Any:
    async def whole() -> Any:
        answer = await runtime.invoke(session_id or new_id(), json.dumps(payload).encode())
        return json.loads(await answer.read())

    return threads.run(whole())


def below(pid: int) -> set[int]:
    """A process and all below it, sessions included."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text()
            parents.setdefault(int(text.rsplit(")", 1)[1].split()[1]), []).append(int(name))
    found, queue = {pid}, [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found.update(children)
        queue += children
    return found


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def traces_of(pid: int) -> list[str]:
    """The control groups of a supervisor, and the mounts and folders of its state."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "agentcore-rl-" in line]
    return control_groups(f"agentcore-rl-{pid}-*") + mounts


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for the state of runtimes, with a path that is short enough for their sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_sessions_are_the_supervisors_and_not_the_programs(threads: LoopThread, agent: Path) -> None:
    before = below(os.getpid())
    with running(threads, agent) as runtime:
        ask(threads, runtime)
        assert runtime.pid in below(os.getpid())
        assert below(os.getpid()) - before - below(runtime.pid) == set()
        assert len(below(runtime.pid)) > 3  # a template, the session, a spare
        processes = below(runtime.pid)
    assert [pid for pid in processes if is_alive(pid)] == []


def test_what_goes_over_the_link_arrives_whole(threads: LoopThread, agent: Path) -> None:
    with running(threads, agent, max_sessions=2) as runtime:
        session = new_id()
        assert len(ask(threads, runtime, session, large=3_000_000)) == 3_000_000
        events = threads.collect(runtime.command(session, "echo out; echo err >&2; exit 3"))
        assert {event.stdout for event in events} >= {"out\n"}
        assert (events[-1].exit_code, events[-1].status) == (3, "COMPLETED")
        assert threads.run(runtime.printed(session)) is not None
        assert threads.run(runtime.printed(new_id())) is None
        ask(threads, runtime)
        with pytest.raises(RuntimeFault, match="all 2 sessions") as full:
            ask(threads, runtime)
        assert (full.value.code, full.value.reason, full.value.retry_after) == ("ThrottlingException", "full", 1)
        assert len(runtime.sessions) == 2
        assert runtime.counts["refused"] == 1
        threads.run(runtime.stop(session))
        assert [one.id == session for one in runtime.sessions] == [False]


def test_a_request_that_is_given_up_ends_in_the_supervisor(threads: LoopThread, agent: Path) -> None:
    with running(threads, agent) as runtime:
        session = new_id()
        ask(threads, runtime, session)

        async def give_up() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(runtime.invoke(session, b'{"seconds": 60}'), 1)

        threads.run(give_up())
        eventually(lambda: [one.state for one in runtime.sessions] == ["idle"])


def test_the_supervisor_logs_where_the_program_does(
    threads: LoopThread, agent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (agent.parent / ".env").write_text("A=1")
    with caplog.at_level(logging.INFO, "agentcore_rl_toolkit"), running(threads, agent) as runtime:
        ask(threads, runtime)
        wanted = "agent: sessions don't get .env"
        eventually(lambda: [record for record in caplog.records if record.getMessage() == wanted])


@needs_sandbox
def test_a_killed_supervisor_leaves_nothing_and_another_goes_on(
    threads: LoopThread, agent: Path, tmp_path: Path, home: Path
) -> None:
    with running(threads, agent, stores=[tmp_path]) as runtime:
        results = tmp_path / "results"
        done = results / ask(threads, runtime, _rollout=rollout(results))["result_key"]
        eventually(done.exists)
        lost = results / ask(threads, runtime, seconds=60, _rollout=rollout(results))["result_key"]
        before = done.read_bytes()
        killed, port, processes = runtime.pid, runtime.port, below(runtime.pid)
        os.kill(killed, signal.SIGKILL)
        eventually(lost.exists)
        assert json.loads(lost.read_text())["error"]["kind"] == "session_lost"
        assert done.read_bytes() == before
        assert traces_of(killed) == []
        eventually(lambda: not any(is_alive(pid) for pid in processes))
        assert (runtime.pid != killed, runtime.port) == (True, port)
        assert ask(threads, runtime)["rewards"] == 1.0
    assert list(home.iterdir()) == []


# --- workers -------------------------------------------------------------------------------------------------------


def ids_of_both(count: int = 2) -> list[str]:
    """Ids of sessions that two workers share evenly: one's, the other's, and so on."""
    found: dict[int, list[str]] = {0: [], 1: []}
    while min(map(len, found.values())) < count // 2:
        id = new_id()
        found[zlib.crc32(id.encode()) % 2].append(id)
    return [id for pair in zip(*found.values(), strict=False) for id in pair][:count]


def test_workers_are_one_runtime(threads: LoopThread, agent: Path) -> None:
    with running(threads, agent, workers=2, max_sessions=3) as runtime:
        first, *others = ids_of_both(4)[:3]
        for id in (first, *others):
            ask(threads, runtime, id)
        assert {one.id for one in runtime.sessions} == {first, *others}
        assert len([pid for pid in below(runtime.pid) if parent_of(pid) == runtime.pid]) == 2
        with pytest.raises(RuntimeFault, match="all 3 sessions") as full:
            ask(threads, runtime)
        assert full.value.full
        log = threads.run(runtime.log_of(first))
        assert log is not None
        assert log.exists()
        assert threads.run(runtime.printed(first)) is not None
        threads.run(runtime.stop(first))
        ask(threads, runtime)
        assert runtime.counts == {"started": 4, "ended": 1, "refused": 1, "lost": 0}


@needs_sandbox
def test_a_killed_worker_takes_its_own_sessions_only(threads: LoopThread, agent: Path, tmp_path: Path) -> None:
    with running(threads, agent, workers=2, max_sessions=2, stores=[tmp_path]) as runtime:
        cut, kept = ids_of_both()
        settings = {"seconds": 60, "_rollout": rollout(tmp_path / "results")}
        lost = tmp_path / "results" / ask(threads, runtime, cut, **settings)["result_key"]
        ask(threads, runtime, kept)
        workers = sorted(pid for pid in below(runtime.pid) if parent_of(pid) == runtime.pid)
        gone = below(workers[0])
        os.kill(workers[0], signal.SIGKILL)
        eventually(lost.exists)
        assert json.loads(lost.read_text())["error"]["kind"] == "session_lost"
        assert [one.id for one in runtime.sessions] == [kept]
        eventually(lambda: not any(is_alive(pid) for pid in gone))
        assert traces_of(workers[0]) == []
        assert ask(threads, runtime)["rewards"] == 1.0  # its place was given back
        with pytest.raises(RuntimeFault, match="all 2 sessions"):
            ask(threads, runtime)


def test_a_rate_limit_is_the_agents_whatever_the_workers(threads: LoopThread, agent: Path) -> None:
    async def many(runtime: LocalRuntime) -> list[Any]:
        asked = [runtime.stop(new_id()) for _ in range(60)]
        return [getattr(found, "code", None) for found in await asyncio.gather(*asked, return_exceptions=True)]

    with running(threads, AgentSource.parse(agent, tps_limit=1), workers=2) as runtime:
        assert set(threads.run(many(runtime))) == {"ResourceNotFoundException", "ThrottlingException"}


@needs_sandbox
def test_a_killed_program_leaves_nothing(agent: Path, home: Path) -> None:
    code = (
        "import sys, time, uuid\nfrom agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        "local = LocalRuntime(sys.argv[1], spares=1)\n"
        "with local as runtime:\n"
        "    runtime.invoke(str(uuid.uuid4()), b'{}')\n    print(local.pid, flush=True)\n    time.sleep(60)\n"
    )
    command, env = [sys.executable, "-c", code, str(agent)], clean_env() | {"TMPDIR": str(home)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        supervisor = int(process.stdout.readline())
        processes = below(supervisor)
        process.kill()
    eventually(lambda: not any(is_alive(pid) for pid in processes))
    assert traces_of(supervisor) == []
    eventually(lambda: list(home.iterdir()) == [])


@needs_sandbox
@pytest.mark.parametrize("which", ["launcher", "template", "init", "app"])
def test_a_killed_process_takes_only_what_is_below_it(threads: LoopThread, agent: Path, which: str) -> None:
    with running(threads, agent) as runtime:
        session = new_id()
        ask(threads, runtime, session)
        launcher = next(pid for pid in below(runtime.pid) if parent_of(pid) == runtime.pid)
        template = next(pid for pid in below(launcher) if parent_of(pid) == launcher)
        inits = [pid for pid in below(template) if parent_of(pid) == template]
        apps = [pid for pid in below(template) if parent_of(pid) in inits]
        processes = {"launcher": [launcher], "template": [template], "init": inits, "app": apps}[which]
        gone = set().union(*(below(pid) for pid in processes))
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(is_alive(pid) for pid in gone))
        eventually(lambda: runtime.sessions == [])
        eventually(lambda: answers(threads, runtime))
        supervisor = runtime.pid
    assert traces_of(supervisor) == []


def answers(threads: LoopThread, runtime: LocalRuntime) -> bool:
    """Whether a new session works: not if the runtime has yet to notice that a prepared one was killed too."""
    with contextlib.suppress(RuntimeFault):
        return bool(ask(threads, runtime)["rewards"] == 1.0)
    return False


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0
