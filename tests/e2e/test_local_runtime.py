"""The local runtime as a whole: what isolates a session, what it costs others, and what is left of it."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime.local import LocalRuntime, SessionPolicy
from agentcore_rl_toolkit.store import open_store
from support.process import clean_env
from support.runtime import (
    MISSING,
    RuntimeUser,
    control_groups,
    eventually,
    local_runtime,
    needs_limits,
    needs_sandbox,
    new_id,
)

AGENT = """
import random, socket, urllib.request, uuid

IMPORTED = str(uuid.uuid4())

@app.rollout_entrypoint
def invoke_agent(payload, context):
    do = payload.get("do")
    if do == "fetch":
        try:
            return urllib.request.urlopen(payload["url"], timeout=5).read().decode()
        except OSError as error:
            return f"refused: {error}"
    if do == "allocate":
        return len(bytearray(payload["mb"] << 20))
    if do == "vanish":
        time.sleep(1)
        os._exit(9)
    if do == "sleep":
        time.sleep(payload["seconds"])
    if do == "exec":
        scope = {}
        exec(payload["code"], scope)
        return scope["result"]
    return {"imported": IMPORTED, "random": random.random(), "cwd": os.getcwd(), "env": dict(os.environ)}
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    os.environ["SECRET_OF_THE_HOST"] = "hunter2"
    policy = SessionPolicy(memory_mb=256, processes=64)
    folder = tmp_path_factory.mktemp("agent")
    (folder / "data.txt").write_text("from the agent's folder\n")
    (folder / ".env").write_text("SECRET=1\n")
    with local_runtime(folder, AGENT, policy=policy, env={"GIVEN": "yes"}) as user:
        yield user
    del os.environ["SECRET_OF_THE_HOST"]


@pytest.fixture
def web() -> Iterator[str]:
    """Something else of the host that listens on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from the host")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


# --- isolation -----------------------------------------------------------------------------------------------------


@needs_sandbox
def test_writes_are_seen_by_nobody_else(user: RuntimeUser) -> None:
    one, other = new_id(), new_id()
    assert user.ask(one)["cwd"] == "/app"
    user.ask(other)
    assert user.sh(one, "cat data.txt; echo mine > data.txt; echo x > new; echo x > /tmp/x; echo x > /dev/shm/x") == (
        "from the agent's folder\n"
    )
    assert user.sh(one, "cat data.txt") == "mine\n"
    assert user.sh(other, "cat data.txt; ls new /tmp/x /dev/shm/x 2>&1 | grep -c 'No such'") == (
        "from the agent's folder\n3\n"
    )
    assert (user.source.parent / "data.txt").read_text() == "from the agent's folder\n"
    assert not (user.source.parent / "new").exists()


@needs_sandbox
def test_the_hosts_files_are_not_there(user: RuntimeUser, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    session = new_id()
    user.ask(session)
    assert "No such file" in user.sh(session, f"cat {tmp_path}/secret")
    assert "No such file" in user.sh(session, "cat /etc/shadow")
    assert "No such file" in user.sh(session, "cat /app/.env")
    assert "Read-only" in user.sh(session, "echo x > /usr/x")
    assert "Permission denied" in user.sh(session, "echo x > /proc/sys/kernel/hostname") or "Read-only" in user.sh(
        session, "echo x > /proc/sys/kernel/hostname"
    )


def test_the_environment_has_none_of_the_hosts_secrets(user: RuntimeUser) -> None:
    env = user.ask()["env"]
    assert "SECRET_OF_THE_HOST" not in env
    assert env["GIVEN"] == "yes"
    assert env["AWS_ACCESS_KEY_ID"] == "local"


@needs_sandbox
def test_other_processes_are_not_there(user: RuntimeUser) -> None:
    session = new_id()
    user.ask(session)
    pids = user.sh(session, "ls /proc | grep -E '^[0-9]+$'").split()
    assert len(pids) < 8
    assert str(os.getpid()) not in pids
    assert "No such process" in user.sh(session, f"kill -0 {os.getpid()}")


@needs_sandbox
def test_a_session_has_no_privileges(user: RuntimeUser) -> None:
    session = new_id()
    user.ask(session)
    status = dict(line.split(":\t", 1) for line in user.sh(session, "cat /proc/self/status").splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    if os.geteuid() == 0:
        assert set(status["Uid"].split()) == {"65534"}
    calls = "unshare(0x10000000) unshare(0x20000) setns(0,0) mount(0,0,0,0,0) chroot(b'/') personality(0)"
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = {{}}
for call in {calls.split()!r}:
    value = eval("libc." + call)
    result[call] = ctypes.get_errno() if value < 0 else 0
"""
    answers = user.ask(session, do="exec", code=code)
    assert answers.pop("personality(0)") == 0  # an honest call still works
    assert set(answers.values()) == {errno.EPERM}


@needs_sandbox
def test_the_network_is_only_what_the_policy_allows(user: RuntimeUser, web: str) -> None:
    assert user.ask(do="fetch", url=web).startswith("refused")
    port = user.runtime.port
    assert user.ask(do="fetch", url=f"http://127.0.0.1:{port}/sessions").startswith("refused")
    assert user.ask(do="fetch", url="http://10.1.2.3:80/").startswith("refused")


@needs_sandbox
def test_the_models_endpoint_is_reached_by_its_own_url(user: RuntimeUser, web: str, tmp_path: Path) -> None:
    settings = {"exp_id": "e", "input_id": "i", "s3_bucket": str(tmp_path), "base_url": web + "v1"}
    session = new_id()
    answer = user.ask(session, do="exec", code=FETCH.replace("URL", web), _rollout=settings)
    document = json.loads(eventually(lambda: read(tmp_path / answer["result_key"])))
    assert document["said"] == "hello from the host"


FETCH = "import urllib.request; result = {'said': urllib.request.urlopen('URL', timeout=5).read().decode()}"


def read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@needs_sandbox
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "host.example"])
def test_an_allowed_address_is_reached(tmp_path: Path, web: str, name: str) -> None:
    port = web.rstrip("/").rsplit(":", 1)[1]
    policy = SessionPolicy(allow=(f"{name}:{port}",))
    with local_runtime(tmp_path / "agent", AGENT, policy=policy) as user:
        said = user.ask(do="fetch", url=f"http://{name}:{port}/")
        if name == "host.example":  # a name that only the host could resolve: the egress opens, its target does not
            assert "refused: " in said
            assert user.sh(next(iter(user.runtime.sessions)).id, "grep host.example /etc/hosts") != ""
        else:
            assert said == "hello from the host"


@needs_limits
def test_too_much_memory_ends_only_that_session(user: RuntimeUser) -> None:
    neighbour = new_id()
    user.ask(neighbour)
    assert user.ask(do="allocate", mb=100) == 100 << 20
    error = user.fault(do="allocate", mb=1000)
    assert error.status == 424
    assert "ran out of its 256 MB of memory" in str(error)
    user.ask(neighbour)


@needs_limits
def test_a_fork_bomb_stays_small(user: RuntimeUser) -> None:
    session = new_id()
    code = f"""
import subprocess
result = 0
try:
    for _ in range(200):
        subprocess.Popen(["sleep", "97531.{os.getpid()}"])
        result += 1
except BlockingIOError:
    pass
"""
    started = user.ask(session, do="exec", code=code)
    assert 30 < started < 64
    user.ask()  # the others don't notice
    user.stop(session)
    assert processes_running(f"sleep 97531.{os.getpid()}") == 0


@needs_limits
def test_its_share_of_the_cpu_is_limited(tmp_path: Path) -> None:
    """Twice the work in parallel takes no more CPU time per second than the policy gives."""
    with local_runtime(tmp_path / "agent", AGENT, policy=SessionPolicy(cpus=0.2)) as user:
        code = """
import os, time
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 2:
    pass
result = (time.process_time() - used) / (time.monotonic() - start)
"""
        assert user.ask(do="exec", code=code) < 0.4


@needs_limits
def test_its_files_count_as_its_memory_and_end(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", AGENT, policy=SessionPolicy(disk_mb=16)) as user:
        session = new_id()
        user.ask(session)
        assert "No space left" in user.sh(session, "head -c 32M /dev/zero > /tmp/big")


# --- starting ------------------------------------------------------------------------------------------------------


def test_an_agent_with_threads_at_import(tmp_path: Path) -> None:
    source = "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n" + AGENT
    with local_runtime(tmp_path / "agent", source, spares=1) as user:
        session = new_id()
        first = user.ask(session)
        assert user.ask(session)["imported"] == first["imported"]
        assert user.ask()["imported"] != first["imported"]
        assert user.sh(session, "echo ok") == "ok\n"
        user.stop(session)
        assert user.ask(session)["imported"] != first["imported"]


def test_a_changed_file_is_loaded_again(tmp_path: Path) -> None:
    version = "@app.rollout_entrypoint\ndef f(payload):\n    return {n}\n"
    with local_runtime(tmp_path / "agent", version.format(n=1)) as user:
        old = new_id()
        assert user.ask(old) == 1
        user.rewrite(version.format(n=2))
        assert user.ask() == 2
        assert user.ask(old) == 1  # a session keeps the code it started with
        user.rewrite("raise RuntimeError('half an edit')\n")
        error = user.fault()
        assert error.status == 424
        assert "half an edit" in str(error)
        assert 'Traceback (most recent call last):\n  File "/app/rl_app.py", line' in str(error)  # it begins there
        user.rewrite(version.format(n=3))
        assert user.ask() == 3


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("def (:\n", "SyntaxError"),
        ("del app\n", "has no app"),
        ("sys.exit(4)\n", "SystemExit: 4"),
        ("os._exit(4)\n", "could not be imported"),
    ],
)
def test_an_agent_that_cannot_be_imported(tmp_path: Path, source: str, says: str) -> None:
    with local_runtime(tmp_path / "agent", source) as user:
        for _ in range(2):  # and it says so again
            error = user.fault()
            assert (error.code, error.status) == ("RuntimeClientError", 424)
            assert says in str(error)


def test_a_caller_that_gives_up_while_its_session_starts_leaves_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Ctrl-C does: asyncio would print the failure of the start, which nobody waits for any more."""
    with local_runtime(tmp_path / "agent", "time.sleep(60)\n") as user:

        async def give_up() -> None:
            asking = asyncio.create_task(user.agent.invoke(new_id(), b"{}"))
            await asyncio.to_thread(eventually, lambda: user.agent.keeper.templates)
            asking.cancel()
            await asyncio.wait({asking})

        user.threads.run(give_up())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_agent_that_never_finishes_importing(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", "time.sleep(60)\n", policy=SessionPolicy(start_timeout=1)) as user:
        assert "was not imported within 1 s" in str(user.fault())


def test_an_app_that_never_listens(tmp_path: Path) -> None:
    source = """
    import contextlib

    @contextlib.asynccontextmanager
    async def lifespan(app):
        await asyncio.sleep(60)
        yield

    app = AgentCoreRLApp(lifespan=lifespan)
    """
    policy = SessionPolicy(stop_grace=1)

    with local_runtime(tmp_path / "agent", source, policy=policy) as user:
        keeper = user.agent.keeper
        user.threads.run(keeper.template())  # which counts against the same limit
        object.__setattr__(policy, "start_timeout", 1)
        error = user.fault()
        assert error.status == 424
        assert "took no request within 1 s" in str(error)


def test_an_answer_may_take_longer_than_the_start(tmp_path: Path) -> None:
    """Also if the agent blocks its event loop: one of SageMaker's SDK answers when it is done."""
    source = """
    @app.entrypoint
    async def f(payload):
        print("working", flush=True)
        time.sleep(4)
        return "done"
    """
    policy = SessionPolicy()
    with local_runtime(tmp_path / "agent", source, policy=policy) as user, ThreadPoolExecutor(1) as pool:
        logs = user.runtime.machine.state / "logs"
        answer = pool.submit(user.ask)
        eventually(lambda: any("working" in log.read_text() for log in logs.iterdir()), 120)
        object.__setattr__(policy, "start_timeout", 0.5)
        assert answer.result() == "done"


def test_an_app_whose_startup_fails(tmp_path: Path) -> None:
    source = """
    import contextlib

    @contextlib.asynccontextmanager
    async def lifespan(app):
        raise RuntimeError("no database")
        yield

    app = AgentCoreRLApp(lifespan=lifespan)
    """
    with local_runtime(tmp_path / "agent", source) as user:
        assert "no database" in str(user.fault())


# --- limits and ends -----------------------------------------------------------------------------------------------


def test_above_the_cap_callers_are_throttled(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", AGENT, max_sessions=2, spares=1) as user:
        first, second = new_id(), new_id()
        user.ask(first)
        user.ask(second)
        error = user.fault()
        assert (error.code, error.status, error.retry_after) == ("ThrottlingException", 429, 1)
        assert error.full
        user.ask(first)  # those who have a session keep it
        user.stop(second)
        user.ask()


def test_requests_per_second_are_limited(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", AGENT, tps_limit=3) as user:
        session = new_id()
        user.ask(session)

        async def at_once() -> list[Any]:
            calls = (user.agent.invoke(session, b"{}") for _ in range(12))
            return list(await asyncio.gather(*calls, return_exceptions=True))

        faults = [answer for answer in user.threads.run(at_once()) if isinstance(answer, RuntimeFault)]
        assert 9 <= len(faults) < 12
        for fault in faults:
            assert (fault.status, fault.throttled) == (429, True)
            assert fault.retry_after is not None
            assert 0 < fault.retry_after < 1


def test_idle_sessions_end_and_busy_ones_do_not(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with local_runtime(tmp_path / "agent", AGENT, policy=SessionPolicy(idle_timeout=1)) as user:
        idle, busy = new_id(), new_id()
        settings = {"exp_id": "e", "input_id": "i", "s3_bucket": str(results)}
        answer = user.ask(busy, do="sleep", seconds=5, _rollout=settings)
        user.ask(idle)
        eventually(lambda: idle not in {s.id for s in user.runtime.sessions})
        assert busy in {s.id for s in user.runtime.sessions}
        document = json.loads(eventually(lambda: read(results / answer["result_key"])))
        assert document["status_code"] == 200
        eventually(lambda: user.runtime.sessions == [])
        assert "was idle for 1 s" not in str(user.ask(idle))  # it starts afresh


def test_no_session_outlives_its_lifetime(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with local_runtime(tmp_path / "agent", AGENT, policy=SessionPolicy(max_lifetime=2, stop_grace=1)) as user:
        settings = {"exp_id": "e", "input_id": "i", "s3_bucket": str(results)}
        answer = user.ask(do="sleep", seconds=60, _rollout=settings)
        document = json.loads(eventually(lambda: read(results / answer["result_key"])))
        assert document["error"]["kind"] == "session_lost"
        eventually(lambda: user.runtime.sessions == [])


@pytest.mark.parametrize("store", ["directory", "bucket"])
def test_a_crashed_rollout_is_reported_as_lost(user: RuntimeUser, tmp_path: Path, store: str) -> None:
    name = str(tmp_path) if store == "directory" else "lost-and-found"
    settings = {"exp_id": "e", "input_id": "i", "s3_bucket": name, "api_key": "sk-secret-123"}
    answer = user.ask(do="vanish", note="the key is sk-secret-123", _rollout=settings)
    reader = open_store(name, environ=S3 | {"AWS_ENDPOINT_URL_S3": user.runtime.endpoint_url})
    eventually(lambda: reader.exists(answer["result_key"]))
    document = json.loads(reader.get(answer["result_key"]))
    assert (document["status_code"], document["error"]["kind"]) == (500, "session_lost")
    assert "exit code 9" in document["stop_reason"]
    assert document["payload"]["do"] == "vanish"
    assert "sk-secret" not in json.dumps(document)
    if store == "directory":
        assert reader.announcements("e", 5) == [answer["result_key"]]
    reader.close()


S3 = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}


def test_a_finished_rollout_is_not(user: RuntimeUser, tmp_path: Path) -> None:
    session = new_id()
    settings = {"exp_id": "e", "input_id": "i", "s3_bucket": "my-bucket"}
    answer = user.ask(session, do="exec", code="result = {'rewards': 1}", _rollout=settings)
    reader = open_store("my-bucket", environ=S3 | {"AWS_ENDPOINT_URL_S3": user.runtime.endpoint_url})
    eventually(lambda: reader.exists(answer["result_key"]))
    before = user.runtime.counts["lost"]
    user.stop(session)
    assert json.loads(reader.get(answer["result_key"]))["rewards"] == 1
    assert user.runtime.counts["lost"] == before
    reader.close()


@needs_sandbox
def test_a_session_can_only_store_its_own_results(user: RuntimeUser, tmp_path: Path) -> None:
    session, other = new_id(), new_id()
    settings = {"exp_id": "e", "input_id": "i", "s3_bucket": str(tmp_path)}
    user.ask(session, do="sleep", seconds=0, _rollout=settings)
    code = f"""
from agentcore_rl_toolkit.store import open_store
result = []
for name, key in (("{tmp_path}", "e/i/{other}.json"), ("{tmp_path.parent}", "e/i/{session}.json"),
                  ("{tmp_path}", "e/../../{session}.json"), ("a-bucket", "e/i/{other}.json")):
    try:
        result.append(open_store(name).put_if_absent(key, b"forged"))
    except Exception as error:
        result.append(type(error).__name__)
result += [len(list(open_store("{tmp_path}").keys()))]
"""
    refused = "StoreForbidden"
    assert user.ask(session, do="exec", code=code) == [refused, refused, "KeyInvalid", refused, 1]


def traces_of(runtime: LocalRuntime) -> list[str]:
    """Everything on this machine that belongs to a runtime's sessions."""
    found = [entry.name for entry in os.scandir(runtime.machine.state) if entry.name not in ("logs", "buckets")]
    for tree in control_groups(runtime.machine.cgroups.name):
        found += [entry.name for entry in os.scandir(tree) if entry.is_dir()]
    return [name for name in found if not name.startswith(("root-", "template-"))]


@needs_sandbox
def test_nothing_of_a_session_remains(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", AGENT, spares=0) as user:
        sessions, mark = [new_id() for _ in range(5)], f"sleep 86421.{os.getpid()}"
        user.ask(sessions[0])
        before = len(os.listdir("/proc/self/fd"))
        for session in sessions:
            user.ask(session)
            user.sh(session, f"{mark} & disown; setsid {mark} & echo x > /tmp/file")
        assert traces_of(user.runtime) != []
        eventually(lambda: processes_running(mark) == 10)  # a shell's child is the shell until it runs something
        for session in sessions:
            user.stop(session)
        assert traces_of(user.runtime) == []
        assert processes_running(mark) == 0
        assert len(os.listdir("/proc/self/fd")) <= before
        state, name = user.runtime.machine.state, user.runtime.machine.cgroups.name
    assert not state.exists()
    assert control_groups(name) == []


def processes_running(command: str) -> int:
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            count += Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").strip() == command.encode()
        except OSError:
            continue
    return count


@needs_sandbox
@pytest.mark.parametrize("when", ["serving", "importing"])
def test_a_killed_runtime_takes_its_sessions_along(tmp_path: Path, when: str) -> None:
    mark = f"sleep {75319 if when == 'serving' else 75320}.{os.getpid()}"
    sleeper = f"subprocess.Popen({mark.split()!r})"
    (tmp_path / "rl_app.py").write_text(
        "import subprocess, time\nfrom agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        + (f"{sleeper}\ntime.sleep(60)\n" if when == "importing" else "")
        + f"@app.rollout_entrypoint\ndef f(payload):\n    {sleeper}\n    return 1\n"
    )
    code = (
        "import sys, time, uuid\nfrom agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        "with LocalRuntime(sys.argv[1]) as runtime:\n"
        "    runtime.invoke(str(uuid.uuid4()), b'{}')\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "rl_app.py")]
    process = subprocess.Popen(command, env=clean_env())
    eventually(lambda: processes_running(mark) == 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    eventually(lambda: processes_running(mark) == 0)


# --- around it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protections", [[], ["processes", "memory"], ["filesystem", "processes", "network"]])
def test_it_degrades_openly(tmp_path: Path, protections: list[str]) -> None:
    results = tmp_path / "results"
    with local_runtime(tmp_path / "agent", AGENT, protections=protections, spares=1) as user:
        one, other = new_id(), new_id()
        user.ask(one)
        user.ask(other)
        assert user.sh(one, "echo x > made; echo x > $TMPDIR/made; ls made") == "made\n"
        assert "No such" in user.sh(other, "ls made $TMPDIR/made")
        assert not (user.source.parent / "made").exists()
        hold = tuple(name for name in protections if name not in MISSING)
        assert {tuple(s.protections) for s in user.runtime.sessions} == {hold}
        settings = {"exp_id": "e", "input_id": "i", "s3_bucket": str(results)}
        answer = user.ask(one, do="exec", code="result = {'rewards': 1}", _rollout=settings)
        eventually(lambda: read(results / answer["result_key"]))
        user.stop(one)
        assert [s.id for s in user.runtime.sessions] == [other]


def test_without_control_groups_each_process_is_limited(tmp_path: Path) -> None:
    policy = SessionPolicy(memory_mb=256)
    with local_runtime(tmp_path / "agent", AGENT, protections=["processes"], policy=policy) as user:
        session = new_id()
        assert user.ask(session, do="allocate", mb=50) == 50 << 20
        assert user.fault(session, do="allocate", mb=1000).status == 424
        assert user.ask(session, do="allocate", mb=50) == 50 << 20  # it survives


def test_several_agents_in_one_runtime(tmp_path: Path) -> None:
    from agentcore_rl_toolkit.runtime.local import AgentSource
    from support.loop import loop_thread

    sources = []
    for name in ("add", "multiply"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rl_app.py").write_text(
            "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
            f"@app.rollout_entrypoint\ndef f(payload):\n    return '{name}'\n"
        )
        sources.append(AgentSource.parse(folder))
    with loop_thread() as threads:
        runtime = LocalRuntime(sources)
        threads.run(runtime.start())
        session = new_id()

        async def ask(name: str) -> Any:
            return json.loads(await (await runtime.agent(name).invoke(session, b"{}")).read())

        try:
            assert [threads.run(ask(name)) for name in ("add", "multiply")] == ["add", "multiply"]
        finally:
            threads.run(runtime.aclose())


def test_the_blocking_form(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text(
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    return payload['n'] + 1\n"
    )
    with LocalRuntime(tmp_path / "rl_app.py") as runtime:
        session = new_id()
        assert runtime.invoke(session, b'{"n": 1}') == b"2"
        assert runtime.command(session, "echo hi")[0].stdout == "hi\n"
        runtime.stop(session)
        assert runtime.arn.endswith(f"runtime/{tmp_path.name}")
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(runtime.endpoint_url.rsplit(":")[-1])), 1):
        pass
