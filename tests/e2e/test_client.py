"""The client against a real local runtime: results once, sessions gone, failures kept apart."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.agent.result import Result
from agentcore_rl_toolkit.errors import ConfigError, RolloutCancelled, RolloutFailed, RuntimeFault, StoreMisconfigured
from agentcore_rl_toolkit.runtime.local import LocalRuntime
from agentcore_rl_toolkit.store import open_store
from agentcore_rl_toolkit.types import Status
from support.agent import PROLOGUE
from support.runtime import eventually, new_id

AGENT = (
    PROLOGUE
    + """
@app.rollout_entrypoint
def invoke_agent(payload):
    time.sleep(payload.get("seconds", 0))
    if payload.get("do") == "raise":
        raise ValueError("broken on purpose")
    if payload.get("do") == "vanish":
        os._exit(9)
    return {"rewards": 1.0, "n": payload.get("n"), "settings": payload["_rollout"]}
"""
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client_agent") / "rl_app.py"
    path.write_text(AGENT)
    return path


@pytest.fixture(scope="module")
def client(agent: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    with RolloutClient(agent, tmp_path_factory.mktemp("results"), "exp", model_id="m", temperature=0.5) as client:
        yield client


def sessions(client: RolloutClient) -> list[str]:
    assert isinstance(client.runtime, LocalRuntime)
    return [session.id for session in client.runtime.sessions]


def test_one_rollout(client: RolloutClient) -> None:
    future = client.invoke({"n": 1, "seconds": 0.2}, input_id="row-1", base_url="http://127.0.0.1:1/v1")
    assert not future.done()
    result = future.result(timeout=30)
    assert (result["n"], result["status_code"], result["rewards"]) == (1, 200, 1.0)
    settings = result["settings"]
    assert (settings["model_id"], settings["temperature"], settings["input_id"]) == ("m", 0.5, "row-1")
    assert settings["base_url"] == "http://127.0.0.1:1/v1"
    assert future.done()
    assert asyncio.run(future.done_async()) is True
    assert not future.cancelled
    assert not future.cancelled()
    assert 0.2 <= future.elapsed() < 30
    assert future.raise_for_status() is future
    eventually(lambda: future.session_id not in sessions(client))


def test_a_failed_rollout_is_a_result(client: RolloutClient) -> None:
    future = client.invoke({"do": "raise"})
    result = future.result(timeout=30)
    assert (result["status_code"], result["error"]["kind"]) == (500, "agent_error")
    with pytest.raises(RolloutFailed, match="broken on purpose"):
        future.raise_for_status()


def test_a_lost_session_is_a_result_too(client: RolloutClient) -> None:
    future = client.invoke({"do": "vanish", "seconds": 1})
    assert future.result(timeout=30)["error"]["kind"] == "session_lost"


def test_a_timeout_stops_the_session(client: RolloutClient) -> None:
    future = client.invoke({"seconds": 60})
    assert asyncio.run(future.done_async()) is False
    with pytest.raises(TimeoutError, match=r"no result after 0\.3 s"):
        future.result(timeout=0.3)
    assert future.cancelled
    assert future.cancelled() is True
    assert (future.cancelled == True, repr(future.cancelled)) == (True, "True")  # noqa: E712
    eventually(lambda: future.session_id not in sessions(client))
    with pytest.raises(RolloutCancelled):
        future.result()


def test_cancelling(client: RolloutClient) -> None:
    future = client.invoke({"seconds": 60})
    assert future.cancel() is True
    assert future.cancel() is False
    assert future.cancelled()
    eventually(lambda: future.session_id not in sessions(client))


def test_as_rllm_calls_it(client: RolloutClient) -> None:
    """The calls of rLLM's adapter: submit, await with a time limit, read status, rewards and elapsed."""

    async def run_one(seconds: float, timeout: float) -> Any:
        session_id = new_id()
        future = await client.invoke_async(
            payload={"n": 7, "seconds": seconds},
            session_id=session_id,
            input_id="task-1",
            base_url="http://127.0.0.1:1/v1",
            model_id="policy",
            api_key="secret-of-the-gateway",
        )
        try:
            result = await future.result_async(timeout=timeout)
        except asyncio.TimeoutError:
            return "timeout", future.elapsed(), session_id
        assert result.get("status_code") == 200
        return result.get("rewards"), future.elapsed(), session_id

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*(run_one(0.1, 30) for _ in range(5)), run_one(60, 1)))

    outcomes = asyncio.run(all_of_them())
    assert [reward for reward, _, _ in outcomes] == [1.0] * 5 + ["timeout"]
    assert all(elapsed > 0 for _, elapsed, _ in outcomes)
    eventually(lambda: not {session for _, _, session in outcomes} & set(sessions(client)))


def test_awaiting_a_future(client: RolloutClient) -> None:
    async def run() -> Any:
        return await (await client.invoke_async({"n": 3}))

    assert asyncio.run(run())["n"] == 3


def test_many_threads_and_a_running_loop(client: RolloutClient) -> None:
    found: list[int] = []

    def use(n: int) -> None:
        found.append(client.invoke({"n": n}).result(timeout=60)["n"])

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()

    async def in_a_notebook() -> Any:
        return client.invoke({"n": 99}).result(timeout=60)["n"]  # blocking, inside a running loop

    assert asyncio.run(in_a_notebook()) == 99
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(8))


def test_a_batch(client: RolloutClient) -> None:
    payloads = [{"n": n, "do": "raise" if n % 5 == 4 else None, "seconds": 0.3 if n == 0 else 0} for n in range(20)]
    seen: list[tuple[int, int]] = []
    batch = client.run_batch(
        payloads, max_concurrent_sessions=8, timeout=60, progress=lambda _, d, t: seen.append((d, t))
    )
    items = list(batch)
    assert len(batch) == 20
    assert sorted(item.index for item in items) == list(range(20))
    for item in items:
        assert item.result is not None
        if item.index % 5 == 4:
            assert (item.success, item.status, item.attempts) == (False, Status.AGENT_ERROR, 1)
            assert "broken on purpose" in str(item.error)
        else:
            assert (item.success, item.error, item.result["n"]) == (True, None, item.index)
    assert items[0].index != 0  # in order of completion: the slow one is not first
    assert seen == [(n, 20) for n in range(1, 21)]
    assert sessions(client) == []


def test_the_number_of_sessions_is_bounded(client: RolloutClient) -> None:
    client.invoke({}).result(timeout=30)  # so that there is a runtime
    runtime, most = client.runtime, 0
    assert isinstance(runtime, LocalRuntime)
    stop = threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, sum(not s.stopping for s in runtime.sessions))
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    items = list(client.run_batch([{"seconds": 0.3} for _ in range(9)], max_concurrent_sessions=3, timeout=60))
    stop.set()
    thread.join()
    assert len(items) == 9
    assert 2 <= most <= 4  # a session that has stored its result may overlap with its successor


def test_leaving_a_batch_stops_its_sessions(client: RolloutClient) -> None:
    for item in client.run_batch([{"seconds": 0 if n == 0 else 60} for n in range(6)], max_concurrent_sessions=6):
        assert item.index == 0
        assert len(sessions(client)) >= 5
        break
    assert sessions(client) == []

    async def leave() -> None:
        async with client.run_batch_async([{"seconds": 0 if n == 0 else 60} for n in range(6)], 6) as batch:
            async for item in batch:
                assert item.index == 0
                return

    asyncio.run(leave())
    assert sessions(client) == []


def test_an_error_in_the_loop_stops_its_sessions(client: RolloutClient) -> None:
    def use() -> None:
        for _ in client.run_batch([{"seconds": 0 if n == 0 else 60} for n in range(4)], max_concurrent_sessions=4):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    eventually(lambda: sessions(client) == [])


def test_time_limits_of_a_batch(client: RolloutClient) -> None:
    items = list(client.run_batch([{"seconds": 60}, {"seconds": 0}], max_concurrent_sessions=2, timeout=1.5))
    by_index = {item.index: item for item in items}
    assert by_index[1].success
    assert (by_index[0].success, by_index[0].status, by_index[0].attempts) == (False, Status.TIMEOUT, 1)
    assert "no result after 1.5 s" in str(by_index[0].error)
    assert sessions(client) == []


def test_lost_sessions_are_tried_again_and_then_given_up(client: RolloutClient) -> None:
    rows = [{"do": "vanish", "seconds": seconds} for seconds in (0, 0.3)]  # before the invoke is answered, and after
    items = list(client.run_batch(rows, timeout=60, max_retries=2))
    assert [(item.success, item.status, item.attempts) for item in items] == [(False, Status.SESSION_LOST, 3)] * 2


def test_groups_are_complete(client: RolloutClient) -> None:
    groups = list(client.run_batch([{"n": n} for n in range(3)], max_concurrent_sessions=4, timeout=60, n=4).groups())
    assert len(groups) == 3
    for group in groups:
        assert [item.sample for item in group] == [0, 1, 2, 3]
        assert len({item.input_id for item in group}) == 1
        assert len({item.session_id for item in group}) == 4


def test_a_straggler_is_hedged(tmp_path: Path) -> None:
    """Half of all sessions hang, by their ids. Of a rollout and its duplicate, the first to finish counts."""
    folder = tmp_path / "hedged"
    folder.mkdir()
    (folder / "rl_app.py").write_text(
        PROLOGUE + "@app.rollout_entrypoint\ndef f(payload, context):\n"
        "    slow = int(context.session_id[0], 16) < 8\n"
        "    time.sleep(60 if slow else 0)\n    return {'rewards': 1, 'slow': slow}\n"
    )
    with RolloutClient(folder / "rl_app.py", tmp_path / "results", "exp") as client:
        items = list(client.run_batch([{} for _ in range(6)], 6, timeout=10, hedge_after=0.3))
        assert sessions(client) == []
    assert len(items) == 6
    for item in items:
        assert item.success or item.status is Status.TIMEOUT  # both of its two sessions hung
        if item.success:
            assert item.result is not None
            assert item.result["slow"] is False
    started = len(list(open_store(str(tmp_path / "results")).keys("exp/")))
    assert started >= 6 + sum(not item.success for item in items)  # each one given up has its result too


def test_resuming(agent: Path, tmp_path: Path) -> None:
    def rows(seconds: float) -> list[dict[str, Any]]:
        """Row 2 fails by its own fault; rows 0 and 1 take so long that the first run is left before they end."""
        return [
            {"input_id": f"r{n}", "do": "raise" if n == 2 else None, "seconds": seconds if n < 2 else 0}
            for n in range(10)
        ]

    store = open_store(str(tmp_path / "results"))
    with RolloutClient(agent, tmp_path / "results", "exp") as client:
        for count, _ in enumerate(client.run_batch(rows(60), max_concurrent_sessions=4, timeout=90), 1):
            if count == 5:
                break
    kinds = Counter(Result.from_bytes(store.get(key)).status for key in store.keys("exp/"))
    assert kinds[Status.SESSION_LOST] >= 2  # the two that were stopped have said so
    assert kinds[Status.COMPLETED] + kinds[Status.AGENT_ERROR] >= 5
    with RolloutClient(agent, tmp_path / "results", "exp") as client:
        items = {item.index: item for item in client.run_batch(rows(0), timeout=60, resume=True)}
        assert sorted(items) == list(range(10))
        assert sum(item.resumed for item in items.values()) >= 5
        assert not items[0].resumed  # a lost session's result is not the agent's
        assert not items[1].resumed
        assert [index for index in sorted(items) if not items[index].success] == [2]
        completed = Counter(Result.from_bytes(store.get(key)).status for key in store.keys("exp/"))
        assert completed[Status.COMPLETED] == 9  # each missing one ran once
        again = list(client.run_batch(rows(0), timeout=60, resume=True))
        assert all(item.resumed for item in again)
        rerun = list(client.run_batch(rows(0), timeout=60, resume=True, rerun_failures=True))
        assert [item.index for item in rerun if not item.resumed] == [2]


@pytest.mark.parametrize("store", ["my-bucket", "s3://my-bucket/team/one"])
def test_a_bucket_needs_nothing_set_up_and_stays(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    rows = [{"input_id": f"r{n}", "n": n} for n in range(2)]
    with RolloutClient(agent, store, "exp") as client:
        future = client.invoke(rows[0], input_id="r0")
        assert future.result(timeout=30)["n"] == 0
    folder = tmp_path / "data" / "agentcore-rl" / "buckets" / store.removeprefix("s3://")
    assert client.store_url == str(folder)
    assert Result.from_bytes(open_store(client.store_url).get(future.result_key)).document["n"] == 0
    assert caplog.text.count(f"what it stores in {store} is in {folder}") == 1
    with RolloutClient(agent, store, "exp") as client:
        assert [item.resumed for item in client.run_batch(rows, timeout=60, resume=True)] == [True, False]


@pytest.mark.parametrize("is_bucket", [True, False])
def test_a_folder_that_can_not_be_written_ends_a_batch_at_once(
    agent: Path, tmp_path: Path, is_bucket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with (
        RolloutClient(agent, "my-bucket" if is_bucket else tmp_path / "file" / "results", "exp") as client,
        pytest.raises(StoreMisconfigured, match=r"can't be written to .*: Not a directory\nhint: name another folder"),
    ):
        list(client.run_batch([{}, {}]))


def messages(aws_env: Any, queue: str) -> int:
    """How many messages are in a queue, those that were read and not deleted included."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = aws_env.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(int(count) for count in found.values())


def test_a_queue_is_the_users_own(agent: Path, tmp_path: Path, aws_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket is one of this machine, with keys that are good for nothing else; the queue is not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("AWS_ENDPOINT_URL_SQS")  # the URL says where it is
    queue = aws_env.new_queue()
    with RolloutClient(agent, "my-bucket", "exp", sqs_url=queue) as client:
        future = client.invoke({"n": 5})
        open_store("my-bucket", sqs_url=queue).announce(future.result_key)
        assert future.result(timeout=30)["n"] == 5
        eventually(lambda: messages(aws_env, queue) == 0)  # the client heard the announcement


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"s3_bucket": "Not_A_Bucket"}, "is not the name of a store"),
        ({"exp_id": ""}, "exp_id is empty"),
        ({"exp_id": "../up"}, "starts with a dot"),
    ],
)
def test_bad_arguments(agent: Path, arguments: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RolloutClient(**({"agent_runtime_arn": str(agent), "s3_bucket": "/tmp/x", "exp_id": "e"} | arguments))


def test_bad_payloads(client: RolloutClient) -> None:
    with pytest.raises(ConfigError, match="can't be sent as JSON"):
        client.invoke({"x": object()})
    with pytest.raises(ConfigError, match="a payload must be a dict, not a list"):
        client.invoke([1])  # type: ignore[arg-type]
    items = {i.index: i for i in client.run_batch([{"x": object()}, {"n": 1}], timeout=60)}
    assert (items[0].success, items[1].success) == (False, True)
    assert "can't be sent as JSON" in str(items[0].error)
    for options in ({"n": 0}, {"max_concurrent_sessions": 0}, {"timeout": 0}, {"hedge_after": -1}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            client.run_batch([{}], **options)  # type: ignore[arg-type]


def test_an_agent_that_takes_no_rollouts(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text(
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.entrypoint\ndef f(payload):\n    return 'hello'\n"
    )
    with RolloutClient(tmp_path / "rl_app.py", tmp_path / "r", "e") as client:
        with pytest.raises(RuntimeFault, match="rollout_entrypoint"):
            client.invoke({})
        eventually(lambda: sessions(client) == [])
