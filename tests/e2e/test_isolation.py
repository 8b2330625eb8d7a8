"""A hostile agent in the local runtime: what its code gets at, when it is imported and when it runs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime.local import SessionPolicy
from support.process import clean_env
from support.runtime import RuntimeUser, local_runtime, needs_limits, needs_sandbox, new_id

pytestmark = needs_sandbox

HOSTILE = """
import ctypes, json, os, resource, socket, subprocess

def about_me():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    return {
        "uids": sorted(set(status["Uid"].split())),
        "capabilities": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
        "filter": status["Seccomp"].strip(),
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "groups": open("/proc/self/cgroup").read(),
        "descriptors": descriptors(),
    }

def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    return found

AT_IMPORT = about_me()

@app.rollout_entrypoint
def invoke_agent(payload, context):
    scope = dict(globals())
    exec(payload["code"], scope)
    return scope["result"]
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    with local_runtime(tmp_path_factory.mktemp("agent"), HOSTILE, policy=SessionPolicy(memory_mb=256)) as user:
        yield user


def run(user: RuntimeUser, code: str, session: str | None = None, **payload: Any) -> Any:
    return user.ask(session, code=code, **payload)


# --- descriptors and other processes ---------------------------------------------------------------------------------


LIST_DESCRIPTORS = (
    "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
)


def test_a_session_holds_no_descriptor_but_its_own(hostile: RuntimeUser) -> None:
    session = new_id()
    in_app = run(hostile, "result = descriptors()", session)
    at_import = run(hostile, "result = AT_IMPORT['descriptors']", session)
    # Its standard ones, the socket it serves on and what serving takes; nothing of the runtime's or of control groups.
    for name, target in (in_app | at_import).items():
        assert target.startswith(("/dev/null", "pipe:", "socket:", "anon_inode:", "/proc/")), (name, target)
        assert "cgroup" not in target
        assert "pid:[" not in target
    assert sum(target.startswith("socket:") for target in at_import.values()) == 1  # the one it will serve on
    in_command = hostile.sh(session, f'{sys.executable} -c "{LIST_DESCRIPTORS}"')
    in_child = run(
        hostile,
        f"result = subprocess.check_output([{sys.executable!r}, '-c', {LIST_DESCRIPTORS!r}], text=True)",
        session,
    )
    for said in (in_command, in_child):
        assert "socket:" not in said
        assert "cgroup" not in said
    assert json.loads(in_command.replace("'", '"')) == ["/dev/null", *json.loads(in_command.replace("'", '"'))[1:]]


def test_sessions_cannot_reach_into_other_processes(hostile: RuntimeUser) -> None:
    code = """
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    return ctypes.get_errno() if libc.syscall(number, *args) < 0 else 0
child = subprocess.Popen(["sleep", "60"])
pidfd = os.pidfd_open(child.pid)
machine = os.uname().machine
numbers = {"x86_64": (101, 310, 311, 312), "aarch64": (117, 270, 271, 272)}[machine]
result = {"pidfd_getfd": call(438, pidfd, 1, 0)}
for name, number in zip(("ptrace", "process_vm_readv", "process_vm_writev", "kcmp"), numbers):
    result[name] = call(number, 16 if name == "ptrace" else child.pid, child.pid, 0, 0, 0, 0)
child.kill()
for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd"):
    try:
        result[path] = os.listdir(path) if path.endswith("fd") else len(open(path, "rb").read(1))
    except OSError as error:
        result[path] = error.errno
"""
    found = run(hostile, code)
    assert {found.pop(path) for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd")} == {errno.EACCES}
    assert set(found.values()) == {errno.EPERM}


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_ALG"])
def test_rare_socket_families_are_refused(hostile: RuntimeUser, family: str) -> None:
    code = f"""
try:
    socket.socket(socket.{family}, socket.SOCK_STREAM)
    result = 0
except OSError as error:
    result = error.errno
"""
    assert run(hostile, code) == errno.EAFNOSUPPORT


def test_a_session_is_told_nothing_of_the_host(hostile: RuntimeUser) -> None:
    """Neither by its command line nor by its arguments."""
    code = "result = open('/proc/self/cmdline').read() + str(sys.argv) + str(sorted(os.environ.values()))"
    found = run(hostile, code)
    assert str(hostile.source.parent) not in found
    assert str(hostile.runtime.machine.state) not in found
    assert run(hostile, "result = sys.argv") == ["rl_app.py"]


# --- import ------------------------------------------------------------------------------------------------------


def test_importing_has_no_more_rights_than_running(hostile: RuntimeUser) -> None:
    at_import, running = run(hostile, "result = [AT_IMPORT, about_me()]")
    for name in ("uids", "capabilities", "filter", "no_new_privileges", "groups"):
        assert at_import[name] == running[name], name
    assert (running["capabilities"], running["filter"], running["no_new_privileges"]) == ([0] * 5, "2", "1")
    if os.geteuid() == 0:
        assert running["uids"] == ["65534"]


AT_IMPORT = """
import ctypes, os, subprocess
found = {{}}
libc = ctypes.CDLL(None, use_errno=True)
calls = {{
    "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    "unshare": lambda: libc.unshare(0x20000),
    "chroot": lambda: libc.chroot(b"/"),
    "setuid": lambda: libc.setuid(0) if os.getuid() else -1,
}}
for name, call in calls.items():
    found[name] = call() < 0
for path in ({secret!r}, "/etc/shadow", "/root/.bashrc"):
    try:
        found[path] = bool(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError:
        found[path] = False
children = []
try:
    for _ in range(300):
        children.append(subprocess.Popen(["sleep", "60"]))
except OSError:
    pass
found["children"] = len(children)
for child in children:
    child.kill()
    child.wait()

@app.rollout_entrypoint
def invoke_agent(payload):
    return found
"""


@needs_limits
def test_hostile_code_at_import_is_confined(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    policy = SessionPolicy(processes=64, memory_mb=256)
    with local_runtime(tmp_path / "agent", AT_IMPORT.format(secret=str(secret)), policy=policy, spares=0) as user:
        found = user.ask()
    assert 20 < found.pop("children") < 64
    assert [found.pop(name) for name in ("mount", "unshare", "chroot")] == [True] * 3
    assert found.pop("setuid")
    assert set(found.values()) == {False}, found


@needs_limits
def test_memory_at_import_is_limited(tmp_path: Path) -> None:
    with local_runtime(tmp_path / "agent", "x = bytearray(1 << 30)\n", policy=SessionPolicy(memory_mb=256)) as user:
        assert "it ran out of its 256 MB of memory" in str(user.fault())


def test_no_file_of_the_agent_is_imported_before_the_sandbox(tmp_path: Path) -> None:
    """A module of the agent with the name of one that the template imports, where the runtime is started.

    The folder is also in `PYTHONPATH`, which a session's Python gets, and the template's must not.
    """
    agent = tmp_path / "agent"
    agent.mkdir()
    ran = tmp_path / "ran"
    for name in ("dataclasses", "msgspec", "uvicorn", "agentcore_rl_toolkit_x"):
        (agent / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write(__name__)\n")
    (agent / "rl_app.py").write_text(
        f"import sys\nsys.path = [p for p in sys.path if p not in ('/app', {str(agent)!r})]\n"
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    return 1\n"
    )
    code = (
        f"import sys; sys.path.remove(''); sys.path.remove({str(agent)!r}); import uuid\n"
        "from agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        "with LocalRuntime('rl_app.py') as runtime:\n    print(runtime.invoke(str(uuid.uuid4()), b'{}'))\n"
    )
    command, env = [sys.executable, "-c", code], clean_env(PYTHONPATH=str(agent))
    done = subprocess.run(command, cwd=agent, capture_output=True, text=True, env=env, timeout=60)
    assert "b'1'" in done.stdout, done.stderr
    assert not ran.exists(), ran.read_text()


def new_venv(folder: Path, *paths: Path) -> tuple[str, Path]:
    """A Python that has what this one has and the `paths`, as an editable install would add them; its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, env=clean_env())
    packages = next((folder / "lib").glob("python*/site-packages"))
    ours = [p for p in sys.path if p.endswith(("site-packages", "src"))]
    (packages / "ours.pth").write_text("".join(f"{p}\n" for p in (*ours, *paths)))
    return str(folder / "bin" / "python"), packages


def test_no_file_of_an_editable_project_is_imported_before_the_sandbox(tmp_path: Path) -> None:
    """An installed package tries to import an optional one, and the agent's project has a module of that name."""
    project = tmp_path / "project"
    project.mkdir()
    python, packages = new_venv(tmp_path / "venv", project)
    (packages / "installed.py").write_text("try:\n    import optional\nexcept ImportError:\n    pass\n")
    (packages / "other_installed.py").write_text("")
    (project / "optional.py").write_text("RIGHTS = open('/proc/self/status').read()\n")
    (project / "rl_app.py").write_text(
        "import sys\nbefore = {'optional', 'other_installed'} & set(sys.modules)\nimport installed, other_installed\n"
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n"
        "    import optional\n    return [sorted(before), 'Seccomp:\\t2' in optional.RIGHTS]\n"
    )
    code = (
        "import uuid\nfrom agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        f"with LocalRuntime({str(project)!r}) as runtime:\n"
        "    print(runtime.invoke(str(uuid.uuid4()), b'{}').decode())\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=clean_env(), timeout=120)
    assert done.stdout.strip() == '[["other_installed"], true]', done.stderr


def test_packages_are_loaded_once_and_the_agent_in_each_session(tmp_path: Path) -> None:
    source = """
    import random, uuid
    import strands  # takes most of a second
    import helper

    IMPORTED = str(uuid.uuid4())

    @app.rollout_entrypoint
    def invoke_agent(payload):
        return {"imported": IMPORTED, "package": id(strands), "helper": helper.__file__, "random": random.random()}
    """
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "helper.py").write_text("")
    with local_runtime(agent, source) as user:
        answers = [user.ask() for _ in range(3)]
    assert len({answer["imported"] for answer in answers}) == 3
    assert len({answer["random"] for answer in answers}) == 3
    assert len({answer["package"] for answer in answers}) == 1  # at the same address: it came with the fork
    assert {answer["helper"] for answer in answers} == {"/app/helper.py"}


@pytest.mark.parametrize(
    ("source", "preloaded"),
    [
        ("import colorsys", True),
        ("os.environ['X'] = '1'; import colorsys", False),  # it might look at X
        ("import decimal; os.environ['X'] = '1'; import colorsys", False),
        ("import helper; import colorsys", False),  # the helper has a package's name, below
    ],
)
def test_what_depends_on_the_agent_is_not_preloaded(tmp_path: Path, source: str, preloaded: bool) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "helper.py").write_text("import chunk_shadow\n")
    (agent / "chunk_shadow.py").write_text("import yaml\n")
    (agent / "yaml.py").write_text("")
    source = (
        f"before = 'colorsys' in sys.modules\n{source}\n@app.rollout_entrypoint\ndef f(payload):\n    return before\n"
    )
    with local_runtime(agent, source) as user:
        assert user.ask() is preloaded


def test_a_module_in_the_python_path_takes_the_place_of_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = "import colorsys\n@app.rollout_entrypoint\ndef f(payload):\n    return colorsys.__file__\n"
    with local_runtime(tmp_path / "agent", source) as user:
        assert user.ask() == str(tmp_path / "colorsys.py")


def test_an_environment_below_the_python_path_serves_sessions(tmp_path: Path) -> None:
    """`PYTHONPATH=~/work`: the project with the environment could be imported from there, too."""
    python, packages = new_venv(tmp_path / "work/project/.venv")
    (packages / "installed").mkdir()
    (packages / "installed/__init__.py").write_text("")
    (packages / "installed/later.py").write_text("found = True\n")
    agent = tmp_path / "work/project/agent"
    agent.mkdir()
    (agent / "rl_app.py").write_text(
        "import sys\npreloaded = 'installed' in sys.modules\nimport installed\n"
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    import installed.later\n"
        "    return [preloaded, installed.later.found]\n"
    )
    code = (
        "import uuid\nfrom agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        f"with LocalRuntime({str(agent)!r}) as runtime:\n"
        "    print(runtime.invoke(str(uuid.uuid4()), b'{}'))\n"
    )
    env = clean_env(PYTHONPATH=str(tmp_path / "work"))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.stdout == "b'[true, true]'\n", done.stderr


def test_packages_that_start_threads_are_imported_in_each_session(tmp_path: Path) -> None:
    """Then the template must not be forked, so another one is started that doesn't import them."""
    agent = tmp_path / "agent"
    python, packages = new_venv(tmp_path / "venv")
    (packages / "hidden_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    (packages / "innocent.py").write_text("import hidden_thread\n")
    agent.mkdir()
    (agent / "rl_app.py").write_text(
        "import hidden_thread, innocent, threading\nfrom agentcore_rl_toolkit import AgentCoreRLApp\n"
        "app, alive = AgentCoreRLApp(), threading.active_count()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    return alive\n"
    )
    code = (
        "import logging, uuid\nlogging.basicConfig(level=logging.INFO)\n"
        "from agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        f"with LocalRuntime({str(agent)!r}) as runtime:\n"
        "    print([runtime.invoke(str(uuid.uuid4()), b'{}') for _ in range(2)])\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=clean_env(), timeout=120)
    assert "[b'2', b'2']" in done.stdout, done.stderr
    assert "packages can't be preloaded (thread" in done.stderr


def test_a_session_cannot_be_ended_or_spoken_for_by_another(hostile: RuntimeUser) -> None:
    """Whatever it writes into every descriptor it has."""
    victim, attacker = new_id(), new_id()
    run(hostile, "os.environ['MARK'] = 'here'; result = 1", victim)
    code = """
for name in list(descriptors()):
    try:
        s = socket.socket(fileno=os.dup(int(name)))
        for n in range(1, 60):
            s.send(json.dumps({"op": "exited", "n": n, "status": 0}).encode())
            s.send(json.dumps({"op": "signal", "n": n, "signal": 9}).encode())
    except OSError:
        pass
result = 1
"""
    with contextlib.suppress(RuntimeFault):  # it broke its own connection
        run(hostile, code, attacker)
    assert run(hostile, "result = os.environ.get('MARK')", victim) == "here"  # the same session, still
