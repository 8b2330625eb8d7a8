"""What every runtime must do: the local one called directly, the AWS one (boto3) pointed at it, and Ray's.

The local one has one worker when it is called directly, and two behind its port (`workers`).
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime import CommandEvent, Runtime
from agentcore_rl_toolkit.runtime.aws import AgentCoreRuntime
from agentcore_rl_toolkit.runtime.local import LocalRuntime
from agentcore_rl_toolkit.runtime.ray import RayRuntime
from support.agent import PROLOGUE
from support.loop import LoopThread, loop_thread

AGENT = (
    PROLOGUE
    + """
import json

count = 0

@app.rollout_entrypoint
def invoke_agent(payload, context):
    global count
    count += 1
    do = payload.get("do")
    if do == "stream":
        return slowly()
    if do == "go":
        go.set()
    if do == "raise":
        raise ValueError("broken on purpose")
    if do == "exit":
        print("these are my last words", flush=True)
        os._exit(7)
    if do == "sleep":
        time.sleep(payload["seconds"])
    if do == "big":
        return "x" * payload["size"]
    return {"count": count, "session": context.session_id, "pid": os.getpid()}

go = threading.Event()

def slowly():
    yield {"n": 1}
    yield {"n": 2 if go.wait(30) else -1}
"""
)


@pytest.fixture(scope="module")
def threads() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


@pytest.fixture(scope="module")
def local(threads: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuntime]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "rl_app.py").write_text(AGENT)
    runtime = LocalRuntime(folder / "rl_app.py", stores=[folder.parent])
    threads.run(runtime.start())
    yield runtime
    threads.run(runtime.aclose())


@pytest.fixture(scope="module")
def spread(threads: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuntime]:
    folder = tmp_path_factory.mktemp("spread")
    (folder / "rl_app.py").write_text(AGENT)
    runtime = LocalRuntime(folder / "rl_app.py", stores=[folder.parent], workers=2, spares=1)
    threads.run(runtime.start())
    yield runtime
    threads.run(runtime.aclose())


@pytest.fixture(params=["direct", "boto3", "workers", "ray"])
def runtime(request: pytest.FixtureRequest, threads: LoopThread, tmp_path: Path) -> Iterator[Runtime]:
    if request.param == "ray":
        yield from on_ray(request, threads, tmp_path / "agent")
        return
    local: LocalRuntime = request.getfixturevalue("spread" if request.param == "workers" else "local")
    if request.param == "direct":
        yield local
        return
    remote = AgentCoreRuntime(local.arn, endpoint_url=local.endpoint_url, max_attempts=1)
    yield remote
    threads.run(remote.aclose())


def on_ray(request: pytest.FixtureRequest, threads: LoopThread, folder: Path) -> Iterator[Runtime]:
    request.getfixturevalue("ray_cluster")
    folder.mkdir()
    (folder / "rl_app.py").write_text(AGENT)
    runtime = RayRuntime(folder / "rl_app.py", env={"AWS_EC2_METADATA_DISABLED": "true"})
    yield runtime
    threads.run(runtime.aclose())


def new_id() -> str:
    return str(uuid.uuid4())


def ask(threads: LoopThread, runtime: Runtime, session_id: str, **payload: Any) -> Any:
    async def whole() -> Any:
        answer = await runtime.invoke(session_id, json.dumps(payload).encode())
        assert answer.session_id == session_id
        assert answer.status == 200
        return json.loads(await answer.read())

    return threads.run(whole())


def fault(threads: LoopThread, runtime: Runtime, session_id: str, **payload: Any) -> RuntimeFault:
    with pytest.raises(RuntimeFault) as caught:
        ask(threads, runtime, session_id, **payload)
    return caught.value


def test_a_session_id_has_one_process(threads: LoopThread, runtime: Runtime) -> None:
    one, other = new_id(), new_id()
    answers = [ask(threads, runtime, one), ask(threads, runtime, other), ask(threads, runtime, one)]
    assert [answer["count"] for answer in answers] == [1, 1, 2]
    assert [answer["session"] for answer in answers] == [one, other, one]


def test_first_requests_at_once_share_a_session(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()

    async def both() -> list[bytes]:
        answers = await asyncio.gather(*(runtime.invoke(session_id, b"{}") for _ in range(5)))
        return [await answer.read() for answer in answers]

    counts = sorted(json.loads(body)["count"] for body in threads.run(both()))
    assert counts == [1, 2, 3, 4, 5]


def test_a_stopped_session_starts_afresh(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()
    assert ask(threads, runtime, session_id)["count"] == 1
    assert ask(threads, runtime, session_id)["count"] == 2
    threads.run(runtime.stop(session_id))
    assert ask(threads, runtime, session_id)["count"] == 1


def test_stopping_what_is_not_there(threads: LoopThread, runtime: Runtime) -> None:
    with pytest.raises(RuntimeFault) as caught:
        threads.run(runtime.stop(new_id()))
    assert (caught.value.code, caught.value.status) == ("ResourceNotFoundException", 404)


def test_a_stream_arrives_as_it_is_made(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()

    async def stream() -> tuple[list[bytes], str]:
        answer = await runtime.invoke(session_id, b'{"do": "stream"}')
        chunks = []
        async for chunk in answer.body:
            if not chunks:  # the app waits for this before it goes on
                await (await runtime.invoke(session_id, b'{"do": "go"}')).read()
            chunks.append(chunk)
        return chunks, answer.content_type

    chunks, kind = threads.run(stream())
    assert b"".join(chunks) == b'data: {"n": 1}\n\ndata: {"n": 2}\n\n'
    assert kind.startswith("text/event-stream")


def test_an_apps_error_is_a_424_with_what_it_said(threads: LoopThread, runtime: Runtime) -> None:
    error = fault(threads, runtime, new_id(), do="raise")
    assert (error.code, error.status) == ("RuntimeClientError", 424)
    assert "Received error (500) from runtime" in str(error)
    assert "broken on purpose" in str(error)


def test_a_crash_is_a_424_and_the_session_starts_afresh(threads: LoopThread, runtime: Runtime) -> None:
    session_id, neighbour = new_id(), new_id()
    ask(threads, runtime, neighbour)
    error = fault(threads, runtime, session_id, do="exit")
    assert error.status == 424
    if isinstance(runtime, RayRuntime):  # exit codes and output are in Ray's logs
        assert "the session's process ended" in str(error)
    else:
        assert "exit code 7" in str(error)
        assert "these are my last words" in str(error)
    assert ask(threads, runtime, session_id)["count"] == 1
    assert ask(threads, runtime, neighbour)["count"] == 2


def test_a_big_answer_is_whole(threads: LoopThread, runtime: Runtime) -> None:
    assert len(ask(threads, runtime, new_id(), do="big", size=5_000_000)) == 5_000_000


@pytest.mark.parametrize("session_id", ["short", "x" * 32, "x" * 257])
def test_bad_session_ids(threads: LoopThread, runtime: Runtime, session_id: str) -> None:
    assert fault(threads, runtime, session_id).code == "ValidationException"


def run_command(
    threads: LoopThread, runtime: Runtime, session_id: str, command: str, **kwargs: Any
) -> tuple[str, str, CommandEvent]:
    events = threads.collect(runtime.command(session_id, command, **kwargs))
    return "".join(e.stdout or "" for e in events), "".join(e.stderr or "" for e in events), events[-1]


def test_commands_run_inside_the_session(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()
    ask(threads, runtime, session_id)
    out, err, end = run_command(threads, runtime, session_id, "echo out; echo grün >&2; echo 1 > made; exit 3")
    assert (out, err) == ("out\n", "grün\n")
    assert (end.exit_code, end.status) == (3, "COMPLETED")
    assert run_command(threads, runtime, session_id, "cat made")[0] == "1\n"


def test_a_command_that_takes_too_long(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()
    ask(threads, runtime, session_id)
    seconds = f"60.{uuid.uuid4().int}"  # sessions on Ray see all processes of this machine, other tests' too
    out, _, end = run_command(threads, runtime, session_id, f"echo before; sleep {seconds}; echo after", timeout=1)
    assert out == "before\n"
    assert end.status == "TIMED_OUT"
    gone = f"while pgrep -f '[s]leep {seconds}'; do sleep 0.02; done"  # a killed process takes a moment
    assert run_command(threads, runtime, session_id, gone, timeout=20)[2].status == "COMPLETED"


def test_output_of_a_command_arrives_as_it_is_made(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()
    ask(threads, runtime, session_id)

    async def outputs() -> list[str]:
        found = []
        async for event in runtime.command(
            session_id, "echo a; until [ -e go ]; do sleep 0.02; done; echo b", timeout=30
        ):
            if event.stdout == "a\n":  # the command waits for this before it goes on
                async for _ in runtime.command(session_id, "touch go"):
                    pass
            found += [event.stdout] if event.stdout else [str(event.status)]
        return found

    assert threads.run(outputs()) == ["a\n", "b\n", "COMPLETED"]


def test_bad_commands(threads: LoopThread, runtime: Runtime) -> None:
    session_id = new_id()
    ask(threads, runtime, session_id)
    for command, timeout in [("", 10), ("x" * 65537, 10), ("true", 0), ("true", 3601)]:
        with pytest.raises(RuntimeFault) as caught:
            run_command(threads, runtime, session_id, command, timeout=timeout)
        assert caught.value.code == "ValidationException"


def test_a_command_needs_a_live_session(threads: LoopThread, runtime: Runtime) -> None:
    with pytest.raises(RuntimeFault) as caught:
        run_command(threads, runtime, new_id(), "true")
    assert caught.value.code == "ResourceNotFoundException"


def test_a_result_is_stored_outside(threads: LoopThread, runtime: Runtime, tmp_path: Path) -> None:
    session_id = new_id()
    settings = {"exp_id": "exp", "input_id": "row", "s3_bucket": str(tmp_path)}
    answer = ask(threads, runtime, session_id, _rollout=settings)
    assert answer["status"] == "processing"
    path = tmp_path / answer["result_key"]
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert json.loads(path.read_bytes())["session"] == session_id
