"""Sessions as actors of a real Ray cluster: through the client, captured by a gateway, stopped, lost, refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient, Status
from agentcore_rl_toolkit.errors import ConfigError, RuntimeFault
from agentcore_rl_toolkit.runtime.ray import RayRuntime
from support.agent import PROLOGUE, rollout
from support.gateway import MODEL, Control, gateway, ids
from support.loop import LoopThread, loop_thread
from support.runtime import eventually, new_id

pytestmark = pytest.mark.usefixtures("ray_cluster")

AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    if payload.get("do") == "crash":
        os._exit(7)
    if payload.get("do") == "ask":
        import openai
        with openai.OpenAI(max_retries=0) as client:
            messages = [{"role": "user", "content": "how is the weather?"}]
            said = client.chat.completions.create(model="scripted", messages=messages).choices[0].message.content
        return {"said": said, "key": os.environ["AWS_ACCESS_KEY_ID"], "region": os.environ["AWS_REGION"]}
    if payload.get("do") == "sleep":
        with open(payload["pid_file"], "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)
    return {"rewards": 1.0, "pid": os.getpid(), "folder": os.getcwd(), "n": payload.get("n")}
"""


def agent(folder: Path, source: str = AGENT) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rl_app.py").write_text(PROLOGUE + source)
    return folder / "rl_app.py"


class RayUser:
    """A runtime on Ray, driven without an event loop."""

    def __init__(self, runtime: RayRuntime, threads: LoopThread) -> None:
        self.runtime, self.threads = runtime, threads

    def ask(self, session_id: str | None = None, **payload: Any) -> Any:
        async def whole() -> Any:
            answer = await self.runtime.invoke(session_id or new_id(), json.dumps(payload).encode())
            return json.loads(await answer.read())

        return self.threads.run(whole())

    def fault(self, session_id: str | None = None, **payload: Any) -> RuntimeFault:
        with pytest.raises(RuntimeFault) as caught:
            self.ask(session_id, **payload)
        return caught.value

    def stop(self, session_id: str) -> None:
        self.threads.run(self.runtime.stop(session_id))

    def is_gone(self, session_id: str) -> bool:
        with pytest.raises(RuntimeFault) as caught:
            self.threads.collect(self.runtime.command(session_id, "true"))
        return caught.value.code == "ResourceNotFoundException"


@contextmanager
def on_ray(path: str | Path, **settings: Any) -> Iterator[RayUser]:
    with loop_thread() as threads:
        runtime = RayRuntime(path, **{"env": {"AWS_EC2_METADATA_DISABLED": "true"}} | settings)
        try:
            yield RayUser(runtime, threads)
        finally:
            threads.run(runtime.aclose())


def is_running(pid: int) -> bool:
    """Whether that process does anything still; what only waits to be buried does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def stored(path: Path) -> Any:
    return json.loads(eventually(lambda: path.exists() and path.read_bytes()))


def test_rollouts_through_the_client_and_a_crash_among_them(tmp_path: Path) -> None:
    runtime = RayRuntime(agent(tmp_path / "agent"), env={"AWS_EC2_METADATA_DISABLED": "true"})
    rows = [{"n": 0}, {"n": 1}, {"do": "crash"}]
    with RolloutClient(runtime, tmp_path / "results", "exp") as client:
        items = {item.index: item for item in client.run_batch(rows, timeout=60, max_retries=0)}
    done = [items[index].result for index in (0, 1)]
    assert [document["n"] for document in done if document] == [0, 1]
    assert len({document["pid"] for document in done if document}) == 2
    assert items[2].status == Status.SESSION_LOST
    assert not any(os.path.exists(document["folder"]) for document in done if document)
    assert len(list((tmp_path / "results" / "exp").rglob("*.json"))) == 3


def test_an_agent_that_builds_its_client_without_arguments_is_captured(tmp_path: Path) -> None:
    with gateway([ids("it is sunny")]) as running, on_ray(agent(tmp_path / "agent")) as user:
        session = Control(running)("POST", "/sessions", json={"session_id": new_id()}).json()
        settings = rollout(tmp_path, session["session_id"], base_url=session["base_url"], model_id=MODEL)
        key = user.ask(session["session_id"], do="ask", _rollout=settings)["result_key"]
        document = stored(tmp_path / key)
        assert document["said"] == "it is sunny"
        assert (document["key"], document["region"]) == ("local", "us-east-1")
        assert len(Control(running).turns(session)) == 1


def test_stopping_ends_the_process_its_requests_and_its_rollout(tmp_path: Path) -> None:
    session_id, pid_file, asked_file, child_file = new_id(), tmp_path / "pid", tmp_path / "asked", tmp_path / "child"
    with on_ray(agent(tmp_path / "agent")) as user:
        settings = rollout(tmp_path, session_id)
        key = user.ask(session_id, do="sleep", pid_file=str(pid_file), _rollout=settings)["result_key"]
        command = user.runtime.command(session_id, f"echo $$ > {child_file}; exec sleep 60")
        waiting = user.threads.submit(anext(command))  # type: ignore[call-overload]
        request = json.dumps({"do": "sleep", "pid_file": str(asked_file)}).encode()
        asked = user.threads.submit(user.runtime.invoke(session_id, request))
        files = (pid_file, asked_file, child_file)
        pids = {int(eventually(lambda f=f: f.exists() and f.read_text().strip())) for f in files}
        user.stop(session_id)
        eventually(lambda: not any(is_running(pid) for pid in pids))
        assert stored(tmp_path / key)["error"]["kind"] == "session_lost"
        assert user.is_gone(session_id)
        assert isinstance(waiting.exception(30), RuntimeFault)
        assert isinstance(asked.exception(30), RuntimeFault)


def test_a_process_that_is_killed_leaves_a_result(tmp_path: Path) -> None:
    session_id, pid_file = new_id(), tmp_path / "pid"
    with on_ray(agent(tmp_path / "agent")) as user:
        settings = rollout(tmp_path, session_id)
        key = user.ask(session_id, do="sleep", pid_file=str(pid_file), _rollout=settings)["result_key"]
        os.kill(int(eventually(lambda: pid_file.exists() and pid_file.read_text())), 9)
        error = stored(tmp_path / key)["error"]
        assert error["kind"] == "session_lost"
        assert "the session's process ended" in error["message"]
        eventually(lambda: user.is_gone(session_id))


def test_a_command_that_nobody_listens_to_is_ended(tmp_path: Path) -> None:
    session_id = new_id()
    with on_ray(agent(tmp_path / "agent")) as user:
        user.ask(session_id)

        async def first() -> str:
            command = user.runtime.command(session_id, "echo $$; exec sleep 60")
            event = await anext(command)  # type: ignore[call-overload]
            await command.aclose()  # type: ignore[attr-defined]
            return str(event.stdout)

        pid = int(user.threads.run(first()))
        eventually(lambda: not is_running(pid))
        assert user.ask(session_id)["rewards"] == 1.0


def test_a_session_that_is_idle_ends_and_one_that_works_does_not(tmp_path: Path) -> None:
    idle, busy = new_id(), new_id()
    with on_ray(agent(tmp_path / "agent"), idle_timeout=3) as user:
        user.ask(busy, do="sleep", pid_file=str(tmp_path / "pid"), _rollout=rollout(tmp_path, busy))
        user.ask(idle)
        eventually(lambda: ended(user, idle))
        assert not ended(user, busy)


def ended(user: RayUser, session_id: str) -> bool:
    return session_id not in user.runtime.sessions


def test_a_session_that_is_too_old_ends_whatever_it_does(tmp_path: Path) -> None:
    session_id = new_id()
    with on_ray(agent(tmp_path / "agent"), max_lifetime=3) as user:
        settings = rollout(tmp_path, session_id)
        key = user.ask(session_id, do="sleep", pid_file=str(tmp_path / "pid"), _rollout=settings)["result_key"]
        assert stored(tmp_path / key)["error"]["kind"] == "session_lost"
        eventually(lambda: ended(user, session_id))


def test_an_agent_that_cannot_be_imported_until_it_is_mended(tmp_path: Path) -> None:
    path = agent(tmp_path / "agent", "raise ValueError('half an agent')")
    with on_ray(path) as user:
        error = user.fault()
        assert error.code == "RuntimeClientError"
        assert "half an agent" in str(error)
        agent(tmp_path / "agent")
        assert user.ask()["rewards"] == 1.0


def test_a_cluster_without_room_throttles(tmp_path: Path) -> None:
    with on_ray(agent(tmp_path / "agent"), options={"num_cpus": 100}, start_timeout=0.5) as user:
        error = user.fault()
        assert (error.code, error.full) == ("ThrottlingException", True)


def test_an_agent_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no agent found at"):
        RayRuntime("/nowhere/rl_app.py")
