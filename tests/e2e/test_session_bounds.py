"""What a session may send and store: every byte of it is bounded where it enters, and no result is anybody else's."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentcore_rl_toolkit.runtime.local import SessionPolicy
from agentcore_rl_toolkit.types import LARGEST_RESULT
from support.process import clean_env, free_port
from support.runtime import RuntimeUser, eventually, local_runtime, needs_sandbox, new_id

pytestmark = needs_sandbox

AGENT = """
import http.client, json, os, select, socket, urllib.request
from urllib.parse import quote, urlsplit
from starlette.responses import StreamingResponse

def ask(method, url, body=None, headers={}):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        connection.request(method, parts.path + ("?" + parts.query if parts.query else ""), body, headers)
        response = connection.getresponse()
        return response.status, response.read()[:200].decode(errors="replace")
    except OSError as error:
        return 0, type(error).__name__
    finally:
        connection.close()

def store(method, place, key, body=None):
    url = f"{os.environ['AGENTCORE_RL_STORE_PROXY']}/store/{quote(key)}?store={quote(place, safe='')}"
    return ask(method, url, body)

def s3(method, bucket, key, body=None, **headers):
    return ask(method, f"{os.environ['AWS_ENDPOINT_URL_S3']}/{bucket}/{quote(key)}", body, headers)

@app.rollout_entrypoint
def invoke_agent(payload, context):
    if "seconds" in payload:
        time.sleep(payload["seconds"])
        return {"rewards": 1}
    scope = dict(globals())
    exec(payload["code"], scope)
    return scope["result"]

async def flood(scope, receive, send):
    path, chunk = scope.get("path"), b"x" * (1 << 20)
    if path == "/invocations" and os.path.exists("/tmp/redirect"):
        with open("/tmp/redirect", "a") as file:
            file.write("x")
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", b"/invocations")]})
        await send({"type": "http.response.body", "body": b""})
        return
    if scope["type"] == "http" and path in ("/ping", "/invocations") and os.path.exists("/tmp/flood"):
        start = {"type": "http.response.start", "status": 500 if path == "/invocations" else 200}
        await send(start | {"headers": [(b"content-type", b"application/json")]})
        for _ in range(2048):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    else:
        await inner(scope, receive, send)

inner, app.middleware_stack = app.build_middleware_stack(), flood
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    policy = SessionPolicy(memory_mb=512, disk_mb=16)
    with local_runtime(tmp_path_factory.mktemp("agent"), AGENT, policy=policy) as user:
        yield user


def run(user: RuntimeUser, code: str, session: str | None = None, **payload: Any) -> Any:
    return user.ask(session, code=code, **payload)


def rollout(store: str | Path, **settings: Any) -> dict[str, Any]:
    return {"exp_id": "e", "input_id": "i", "s3_bucket": str(store)} | settings


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_session_stores_its_own_rollouts_result_and_no_other(user: RuntimeUser, tmp_path: Path) -> None:
    session, other = new_id(), new_id()
    user.ask(session, seconds=0.5, _rollout=rollout(tmp_path))  # it is running, so there is no result yet
    tries = [f"other/i/{session}.json", f"e/other/{session}.json", f"e/i/{other}.json", f"e/i/x/{session}.json"]
    found = run(user, f"result = [store('PUT', {str(tmp_path)!r}, key, b'{{}}')[0] for key in {tries}]", session)
    assert found == [403] * 4
    places = [str(tmp_path.parent), f"{tmp_path}/..", f"{tmp_path}/e", "", "relative", "file:///"]
    key = f"e/i/{session}.json"
    assert run(user, f"result = [store('PUT', place, {key!r}, b'{{}}')[0] for place in {places}]", session) == [403] * 6
    eventually(lambda: (tmp_path / key).exists())
    assert json.loads((tmp_path / key).read_text())["rewards"] == 1
    assert sorted(p.name for p in tmp_path.rglob("*.json")) == [f"{session}.json"]


def test_a_session_stores_nothing_elsewhere_by_another_name_of_its_store(user: RuntimeUser, tmp_path: Path) -> None:
    """The runtime would store where the session's words lead from its own working directory."""
    up = "/.." * len(Path.cwd().parts)
    for place, names in {
        str(tmp_path): [f"file://{tmp_path}", f"/proc/self/cwd{up}/..{tmp_path}", f"{tmp_path}/../{tmp_path.name}"],
        "some-bucket": ["some-bucket", "s3://some-bucket"],
    }.items():
        session = new_id()
        key = f"e/i/{session}.json"
        user.ask(session, seconds=60, _rollout=rollout(place))
        statuses = run(user, f"result = [store('PUT', name, {key!r}, b'{{}}')[0] for name in {names!r}]", session)
        assert set(statuses) <= {201, 409, 403}
        assert (201 in statuses) is (tmp_path / key).exists()
        assert not any(Path(name, key).exists() for name in ("some-bucket", "s3:/some-bucket", f"file:{tmp_path}"))
        user.stop(session)


@pytest.mark.parametrize("kind", ["directory", "bucket", "prefix"])
def test_a_result_is_stored_once(user: RuntimeUser, tmp_path: Path, kind: str) -> None:
    session = new_id()
    place = {"directory": str(tmp_path), "bucket": "my-bucket", "prefix": "s3://my-bucket/some/prefix"}[kind]
    key = f"e/i/{session}.json"
    user.ask(session, seconds=0.5, _rollout=rollout(place))
    first, second = '{"rewards": 7}', '{"rewards": 9}'
    if kind == "directory":
        code = f"result = [store('PUT', {place!r}, {key!r}, body)[0] for body in ({first!r}, {second!r})]"
        taken, read, delete = [201, 409], f"store('GET', {place!r}, {key!r})", f"store('DELETE', {place!r}, {key!r})"
    else:
        name = key if kind == "bucket" else f"some/prefix/{key}"
        code = f"result = [s3('PUT', 'my-bucket', {name!r}, body)[0] for body in ({first!r}, {second!r})]"
        taken, read, delete = [200, 412], f"s3('GET', 'my-bucket', {name!r})", f"s3('DELETE', 'my-bucket', {name!r})"
    assert run(user, code, session) == taken
    assert run(user, f"result = [{delete}[0], {read}]", session) == [405, [200, first]]
    lost = user.runtime.counts["lost"]
    user.stop(session)
    assert user.runtime.counts["lost"] == lost


def test_a_session_announces_only_what_is_there_and_once(user: RuntimeUser, tmp_path: Path) -> None:
    session = new_id()
    key = f"e/i/{session}.json"
    user.ask(session, seconds=1, _rollout=rollout(tmp_path))
    announce = f"result = [store('POST', {str(tmp_path)!r}, {key!r})[0] for _ in range(5)]"
    assert run(user, announce, session) == [204] * 5
    assert list((tmp_path / ".announced").rglob("*-*")) == []
    run(user, f"result = store('PUT', {str(tmp_path)!r}, {key!r}, b'{{}}')", session)
    run(user, announce, session)
    eventually(lambda: len(list((tmp_path / ".announced").rglob("*-*"))) == 1)
    time.sleep(1.5)  # the rollout's own announcement, at its end
    assert len(list((tmp_path / ".announced").rglob("*-*"))) == 1


def test_no_web_page_stores_a_result(user: RuntimeUser, tmp_path: Path) -> None:
    session = new_id()
    key = f"e/i/{session}.json"
    user.ask(session, seconds=60, _rollout=rollout(tmp_path))
    url = "os.environ['AGENTCORE_RL_STORE_PROXY'] + " + repr(f"/store/{key}?store={tmp_path}")
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert run(user, f"result = ask('PUT', {url}, b'{{}}', {headers!r})[0]", session) == 403
    assert run(user, f"result = ask('PUT', {url}, b'{{}}')[0]", session) == 201


@pytest.mark.parametrize(
    ("place", "body"),
    [("directory", "(b'x' * 65536 for _ in range(1 << 30))"), ("my-bucket", f"b'x' * {LARGEST_RESULT + 1}")],
    ids=["endless", "too long"],
)
def test_results_are_bounded(user: RuntimeUser, tmp_path: Path, place: str, body: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session = new_id()
    key = f"e/i/{session}.json"
    user.ask(session, seconds=60, _rollout=rollout(tmp_path if place == "directory" else place))
    put = f"store('PUT', {str(tmp_path)!r}" if place == "directory" else "s3('PUT', 'my-bucket'"
    status, _ = run(user, f"result = {put}, {key!r}, {body})", session)
    assert status in (0, 413)  # cut off, or refused
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3 * LARGEST_RESULT / 1024
    assert list(tmp_path.rglob("*.json")) == []


def test_a_result_in_a_million_pieces_is_refused(user: RuntimeUser) -> None:
    """Putting them together would keep the runtime from everything else."""
    session = new_id()
    user.ask(session, seconds=60, _rollout=rollout("my-bucket"))
    body = "b'1\\r\\nx\\r\\n' * 1_000_000 + b'0\\r\\n\\r\\n'"
    put = f"s3('PUT', 'my-bucket', 'e/i/{session}.json', {body}, **{{'Content-Encoding': 'aws-chunked'}})"
    status, said = run(user, f"result = {put}", session)
    assert (status, "InvalidChunkSizeError" in said) == (403, True)
    user.stop(session)


def test_a_store_that_takes_no_result_is_told_once(
    user: RuntimeUser, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would hear of it: the rollout looks as if it still ran."""
    session = new_id()
    (tmp_path / "e").write_text("where the results' folder would be")
    user.ask(session, seconds=60, _rollout=rollout(tmp_path))
    put = f"result = [store('PUT', {str(tmp_path)!r}, 'e/i/{session}.json', b'{{}}')[0] for _ in range(3)]"
    assert run(user, put, session) == [400] * 3
    (told,) = [record.getMessage() for record in caplog.records if "could not be stored" in record.getMessage()]
    assert str(tmp_path) in told
    user.stop(session)


@pytest.mark.parametrize("place", ["directory", "my-bucket"])
def test_a_result_that_nobody_reads_is_held_once(user: RuntimeUser, tmp_path: Path, place: str) -> None:
    """However many connections ask for it; one that is cut off is no error, and the next one gets it."""
    session, megabytes = new_id(), 40
    key = f"e/i/{session}.json"
    user.ask(session, seconds=60, _rollout=rollout(tmp_path if place == "directory" else place))
    put = f"store('PUT', {str(tmp_path)!r}" if place == "directory" else "s3('PUT', 'my-bucket'"
    assert run(user, f"result = {put}, {key!r}, b'x' * {megabytes << 20})[0]", session) in (200, 201)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    url = "AGENTCORE_RL_STORE_PROXY" if place == "directory" else "AWS_ENDPOINT_URL_S3"
    path = f"/store/{key}?store={tmp_path}" if place == "directory" else f"/my-bucket/{key}"
    code = f"""
parts = urlsplit(os.environ[{url!r}])
asking = [socket.create_connection((parts.hostname, parts.port), 20) for _ in range(12)]
for s in asking:
    s.sendall(f"GET {{parts.path}}{path} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n".encode())
began = []
while len(began) < 12:  # each answer begins once the one before it was given up
    (s,), _, _ = select.select(asking, [], [])
    began.append(s.recv(12))
    s.close()
    asking.remove(s)
result = [said.decode() for said in began]
"""
    assert run(user, code, session) == ["HTTP/1.1 200"] * 12
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3 * megabytes << 10
    user.stop(session)


def test_requests_for_results_are_bounded(user: RuntimeUser, tmp_path: Path) -> None:
    session = new_id()
    user.ask(session, seconds=20, _rollout=rollout(tmp_path))
    code = f"result = [store('GET', {str(tmp_path)!r}, 'e/i/{session}.json')[0] for _ in range(400)]"
    statuses = run(user, code, session)
    assert set(statuses) == {404, 503}
    assert statuses.count(404) < 350
    user.stop(session)


# --- answers, output and files -----------------------------------------------------------------------------------


def test_a_session_fills_no_log_of_the_runtimes(
    user: RuntimeUser, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither with requests that can't be read or break off, nor with connections that lead nowhere."""
    nowhere = free_port()
    place, key = quote(str(tmp_path), safe=""), "e/i/SESSION.json"
    code = f"""
parts = urlsplit(os.environ["AGENTCORE_RL_STORE_PROXY"])
for port in (parts.port, {nowhere}):
    for _ in range(20):
        try:
            with socket.create_connection((parts.hostname, port), 30) as s:
                s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
                s.recv(1000)
        except ConnectionError:
            pass  # cut off before it was read
put = f"PUT {{parts.path}}/store/{key}?store={place} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n"
for _ in range(5):
    with socket.create_connection((parts.hostname, parts.port), 30) as s:
        s.sendall(f"{{put}}Expect: 100-continue\\r\\nContent-Length: 1000000\\r\\n\\r\\n".encode())
        s.recv(1000)  # it waits for the body
result = {{"rewards": 1}}
"""
    session = new_id()
    answer = user.ask(
        session,
        code=code.replace("SESSION", session),
        _rollout=rollout(tmp_path, base_url=f"http://127.0.0.1:{nowhere}"),
    )
    eventually(lambda: (tmp_path / answer["result_key"]).exists())
    assert json.loads((tmp_path / answer["result_key"]).read_text())["rewards"] == 1
    ours = [record for record in caplog.records if record.name.startswith(("agentcore_rl_toolkit.runtime", "aiohttp"))]
    assert len(ours) <= 2


def test_a_redirect_is_an_answer(user: RuntimeUser) -> None:
    """Following it would invoke the app once more."""
    session = new_id()
    user.ask(session, seconds=0)
    user.sh(session, "touch /tmp/redirect")
    assert "Received error (307)" in str(user.fault(session, seconds=0))
    assert user.sh(session, "wc -c < /tmp/redirect").strip() == "1"
    user.stop(session)


def test_an_endless_error_is_cut(user: RuntimeUser) -> None:
    session = new_id()
    user.ask(session, seconds=0)
    user.sh(session, "touch /tmp/flood")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = user.fault(session, seconds=0)
    assert "Received error (500)" in str(error)
    assert len(str(error)) < 5000
    ping = next(s for s in user.runtime.sessions if s.id == session).app.ping
    assert user.threads.run(ping()) == "Unhealthy"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    user.stop(session)


def test_a_session_that_does_not_answer_pings_delays_no_other(tmp_path: Path) -> None:
    source = """
    @app.rollout_entrypoint
    def f(payload):
        open("/tmp/slow", "w") if payload else None
        return 1

    async def slow(scope, receive, send):
        if scope["type"] == "http" and scope["path"] == "/ping" and os.path.exists("/tmp/slow"):
            await asyncio.sleep(60)
        await inner(scope, receive, send)

    inner, app.middleware_stack = app.build_middleware_stack(), slow
    """
    with local_runtime(tmp_path / "agent", source, policy=SessionPolicy(idle_timeout=1)) as user:
        silent, idle = new_id(), new_id()
        user.ask(silent, slow=True)
        user.ask(idle)
        eventually(lambda: idle not in {session.id for session in user.runtime.sessions})
        assert [(session.id, session.stopping) for session in user.runtime.sessions] == [(silent, False)]


def test_output_is_bounded(user: RuntimeUser) -> None:
    session = new_id()
    code = """
try:
    os.posix_fallocate(1, 0, 6 << 30)
    result = "fallocated"
except OSError as error:
    result = type(error).__name__
for _ in range(20 << 4):
    os.write(1, b"x" * 65535 + b"\\n")
os.write(1, b"the end\\n")
"""
    assert run(user, code, session) == "OSError"
    live = next(s for s in user.runtime.sessions if s.id == session)
    eventually(lambda: "the end" in live.log.read_text())
    assert live.log.stat().st_blocks * 512 <= 5 << 20
    user.stop(session)
    assert live.log.stat().st_size <= 300_000
    assert live.log.read_text().rstrip().splitlines()[-1] != ""


def test_files_are_bounded_in_number(user: RuntimeUser) -> None:
    session = new_id()
    user.ask(session, seconds=0)
    made = "i=0; while : > /tmp/f$i; do i=$((i+1)); [ $i -gt 5000 ] && break; done 2>&1; echo $i"
    assert "No space left" in user.sh(session, made)
    user.stop(session)


def test_connections_are_bounded(user: RuntimeUser) -> None:
    session = new_id()
    code = """
parts = urlsplit(os.environ["AGENTCORE_RL_STORE_PROXY"])
held, refused = [], 0
for _ in range(500):
    s = socket.create_connection((parts.hostname, parts.port), 5)
    held.append(s)
time.sleep(1)
for s in held:
    s.setblocking(False)
    try:
        refused += s.recv(1) == b""
    except BlockingIOError:
        pass
result = refused
"""
    assert 200 <= run(user, code, session) <= 300
    user.stop(session)


def test_descriptors_on_their_way_of_one_session_leave_room_for_those_of_others(
    user: RuntimeUser, tmp_path: Path
) -> None:
    """The kernel counts them for all processes of a user, and sessions share one."""
    before, hoarder = new_id(), new_id()
    user.ask(before, seconds=0)
    code = """
import array, resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
here, kept, refused = os.open("/dev/null", os.O_RDONLY), [], None
try:
    while len(kept) * 2000 < 1 << 20:
        kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        for _ in range(8):
            rights = array.array("i", [here] * 250)
            kept[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
except OSError as error:
    refused = error.errno
os.kept = kept
result = refused
"""
    assert run(user, code, hoarder) == errno.ETOOMANYREFS
    for _ in range(3):  # as many as wait prepared, and one that is not
        user.ask(seconds=0)
    nowhere = f"http://127.0.0.1:{free_port()}"  # an address that this session hasn't got yet
    answer = user.ask(before, seconds=0, _rollout=rollout(tmp_path, base_url=nowhere))
    eventually(lambda: (tmp_path / answer["result_key"]).exists())
    user.stop(hoarder)


# --- addresses -----------------------------------------------------------------------------------------------------


def test_a_later_rollout_reaches_its_own_endpoint(user: RuntimeUser, tmp_path: Path) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.server_address[1].__str__().encode())

        def log_message(self, *args: object) -> None:
            pass

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    session = new_id()
    try:
        for number, server in enumerate(servers):
            url = f"http://127.0.0.1:{server.server_port}"
            settings = rollout(tmp_path, input_id=f"row-{number}", base_url=f"{url}/v1")
            answer = user.ask(session, code=f"result = {{'said': ask('GET', '{url}/')[1]}}", _rollout=settings)
            document = json.loads(
                eventually(lambda path=tmp_path / answer["result_key"]: path.exists() and path.read_text())
            )
            assert document["said"] == str(server.server_port)
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def test_a_slow_name_server_keeps_no_other_session_waiting(
    user: RuntimeUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it get a question for every connection."""
    asked, answers, look_up = [], threading.Event(), socket.getaddrinfo

    def slow(host: Any, *more: Any, **settings: Any) -> Any:
        if host != "slow.example":
            return look_up(host, *more, **settings)
        asked.append(host)
        answers.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "the name server didn't answer")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    session = new_id()
    code = """
os.kept = [socket.create_connection(("slow.example", 81), 20) for _ in range(60)]
result = {"rewards": 1}
"""
    try:
        settings = rollout(tmp_path, base_url="http://slow.example:81", input_id="slow")
        for answer in (
            user.ask(session, code=code, _rollout=settings),
            user.ask(seconds=0, _rollout=rollout(tmp_path)),
        ):
            eventually(lambda path=tmp_path / answer["result_key"]: path.exists())
        assert len(asked) == 1
    finally:
        answers.set()
    user.stop(session)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "::1"])
def test_no_session_reaches_the_runtimes_own_port(user: RuntimeUser, tmp_path: Path, name: str) -> None:
    host = f"[{name}]" if ":" in name else name
    url = f"http://{host}:{user.runtime.port}"
    answer = user.ask(
        code=f"result = {{'said': ask('GET', '{url}/sessions')}}", _rollout=rollout(tmp_path, base_url=url)
    )
    document = json.loads(
        eventually(lambda: (tmp_path / answer["result_key"]).exists() and (tmp_path / answer["result_key"]).read_text())
    )
    assert document["said"][0] == 0, document["said"]


# --- files and code ------------------------------------------------------------------------------------------------


def test_what_sessions_see_of_the_callers_folders(tmp_path: Path) -> None:
    """A script in a home directory, above the agent, with a PYTHONPATH."""
    home, lib = tmp_path / "home", tmp_path / "lib"
    for path in (
        "home/.aws/credentials", "home/.ssh/id_rsa", "home/notes.txt", "home/agent/.env", "home/agent/.env.local",
        "home/agent/.env.example", "home/agent/runs/1/x.json", "home/agent/results/.new/x",
        "home/agent/results/e/i/s.json", "home/agent/tools/pyvenv.cfg", "home/agent/server.key", "home/agent/data.txt",
        "home/agent/.git/config", "lib/helper_lib/__init__.py", "lib/helper_lib/.env", "lib/notes.txt", "lib/.env",
        "lib/docs/readme.txt",
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"# {path}")
    (home / "agent" / "rl_app.py").write_text(
        "import os\nimport helper_lib\nfrom agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n"
        "    walks = [walk for top in payload['tops'] for walk in os.walk(top)]\n"
        "    found = [os.path.join(base, name) for base, _, names in walks for name in names]\n"
        "    return sorted(path for path in found if '__pycache__' not in path and open(path).read())\n"
    )
    (home / "train.py").write_text(
        "import json, logging, sys, uuid\nlogging.basicConfig(level=logging.INFO)\n"
        "from agentcore_rl_toolkit.runtime.local import LocalRuntime\n"
        f"tops = {['/app', str(home), str(lib)]!r}\n"
        "with LocalRuntime('agent/rl_app.py') as runtime:\n"
        "    print(runtime.invoke(str(uuid.uuid4()), json.dumps({'tops': tops}).encode()).decode())\n"
    )
    env = clean_env(HOME=str(home), PYTHONPATH=str(lib))
    done = subprocess.run([sys.executable, "train.py"], cwd=home, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        "/app/.env.example", "/app/data.txt", "/app/rl_app.py", f"{lib}/helper_lib/__init__.py",
    ]  # fmt: skip
    said = next(line for line in done.stderr.splitlines() if "sessions don't get" in line)
    for name in (".env,", ".env.local", "runs/", "results/", "tools/", "server.key", ".git/"):
        assert name in said


@pytest.mark.parametrize(
    "weights", [["weights.bin"], [f"data/{n}.bin" for n in range(330)]], ids=["one file", "many files"]
)
def test_a_large_folder_hides_the_same_and_what_comes_later(tmp_path: Path, weights: list[str]) -> None:
    agent = tmp_path / "agent"
    hidden = (".env", "data/.env", "data/deep/.env.production", "runs/1.json", "venv/pyvenv.cfg", ".git/config")
    for path in (*hidden, *weights, "data.txt", "data/rows.csv"):
        (agent / path).parent.mkdir(parents=True, exist_ok=True)
        (agent / path).write_text(path)
    for path in weights:
        os.truncate(agent / path, (350 << 20) // len(weights))  # a hole: it has the size, and takes no room
    source = """
    @app.rollout_entrypoint
    def f(payload):
        found = []
        for top in ("/app", "/.agent", "/.large"):
            for base, _, names in os.walk(top):
                found += [os.path.join(base, name) for name in names if open(os.path.join(base, name), "rb").read(1)]
        for path in ("new", "data/new"):
            open(path, "w").close()
        return sorted(path for path in found if "__pycache__" not in path)
    """
    with local_runtime(agent, source) as user:
        session = new_id()
        before = user.ask(session)
        (agent / ".env.late").write_text("SECRET=1")
        answer = user.ask(_rollout=rollout(agent / "results"))
        eventually(lambda: (agent / "results" / answer["result_key"]).exists())
        assert user.ask(session) == before
    app = {path.removeprefix("/app/") for path in before if path.startswith("/app/")}
    assert app == {"data.txt", "data/rows.csv", "rl_app.py", *weights}
    assert not [path for path in before if path.endswith(hidden)]
    assert not list(agent.rglob("new"))


def test_results_beside_the_agent_are_no_change_of_its_code(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    source = "import uuid\n@app.rollout_entrypoint\ndef f(payload):\n    return {'rewards': 1}\n"
    with local_runtime(agent, source) as user:
        for number in range(8):
            settings = rollout(agent / "results", input_id=f"row-{number}")
            answer = user.ask(_rollout=settings)
            eventually(lambda path=agent / "results" / answer["result_key"]: path.exists())
            (agent / "outcomes.jsonl").write_text("x" * number)
            (agent / f"report-{number}.json").write_text("{}")
            time.sleep(0.25)  # it looks at most that often
        assert user.agent.keeper.generation == 1


def test_a_template_that_is_replaced_while_it_loads_keeps_nobody_waiting(tmp_path: Path) -> None:
    source = "time.sleep(3)\n@app.rollout_entrypoint\ndef f(payload):\n    return {n}\n"
    with local_runtime(tmp_path / "agent", source.format(n=1), policy=SessionPolicy(start_timeout=60)) as user:
        import asyncio

        async def both() -> list[Any]:
            first = asyncio.ensure_future(user.agent.invoke(new_id(), b"{}"))
            await asyncio.sleep(1)
            user.source.write_text(
                user.source.read_text().replace("return 1", "return 2").replace("sleep(3)", "sleep(0)")
            )
            second = asyncio.ensure_future(user.agent.invoke(new_id(), b"{}"))
            return [await (await answer).read() for answer in (first, second)]

        assert user.threads.run(asyncio.wait_for(both(), 30)) == [b"2", b"2"]
