"""Batches over a runtime that runs no agent: what one row, one duplicate or one runtime does reaches no other row."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.client.batch import BatchItem, input_id_of
from agentcore_rl_toolkit.client.scheduler import Outage
from agentcore_rl_toolkit.errors import ConfigError, RuntimeFault
from agentcore_rl_toolkit.runtime import Invocation
from agentcore_rl_toolkit.types import Status
from support.own_runtime import OwnRuntime, completed
from support.runtime import eventually


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outage, "first_wait", 0.01)


def run(runtime: Any, folder: Path, rows: list[Any], **options: Any) -> list[BatchItem]:
    """The items of a batch, by index."""
    with RolloutClient(runtime, folder, "exp", max_retry_attempts=options.pop("attempts", 5)) as client:
        items = list(client.run_batch(rows, **{"timeout": 60} | options))
    assert Counter(item.index for item in items) == dict.fromkeys(range(len(rows)), 1)
    return sorted(items, key=lambda item: item.index)


class Hostile(dict[str, Any]):
    """A row that can't even be looked at."""

    def get(self, *args: Any) -> Any:
        raise ZeroDivisionError("no")

    def items(self) -> Any:
        raise ZeroDivisionError("no")


class Exiting(dict[str, Any]):
    """A row that ends the program of whoever looks at it."""

    def items(self) -> Any:
        raise SystemExit(3)


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError("no")


def circle() -> dict[str, Any]:
    row: dict[str, Any] = {}
    row["self"] = row
    return row


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


BAD_ROWS: dict[str, Callable[[], Any]] = {
    "a set": lambda: {"x": {1, 2}},
    "bytes": lambda: {"x": b"bytes"},
    "not a number": lambda: {"x": math.nan},
    "infinity": lambda: {"x": [math.inf]},
    "a tuple as a key": lambda: {(1, 2): "x"},
    "keys of two kinds": lambda: {(1,): 1, "a": 2},
    "a list": lambda: [1],
    "a text": lambda: "row",
    "nothing": lambda: None,
    "an object": lambda: object(),
    "one that can't be shown": lambda: {"x": Unshowable()},
    "a circle": circle,
    "too deep": lambda: {"x": deep()},
    "an id that leaves the store": lambda: {"input_id": "../../up"},
    "an endless id": lambda: {"input_id": "x" * 5000},
    "a hostile one": lambda: Hostile(a=1),
    "one that exits": lambda: {"x": Exiting(a=1)},
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_row_that_can_not_be_sent_is_one_failed_item(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"n": 0}, BAD_ROWS[kind](), {"n": 2}]
    items = run(OwnRuntime(), tmp_path, rows)
    assert [item.success for item in items] == [True, False, True]
    assert (items[1].status, items[1].attempts) == (Status.AGENT_ERROR, 1)
    assert items[1].error
    assert caplog.records == []  # it was expected


def test_numbers_as_keys_are_sent_as_json_has_them(tmp_path: Path) -> None:
    assert run(OwnRuntime(), tmp_path, [{1: "a", "b": 2}])[0].success


def test_what_identifies_a_row_that_can_not_be_sent() -> None:
    assert [input_id_of(BAD_ROWS[kind](), 7)[:6] for kind in BAD_ROWS if "id" not in kind.split()] == ["000007"] * 15


@pytest.mark.parametrize(
    "kind", [ZeroDivisionError, KeyError, SystemExit, KeyboardInterrupt, RecursionError, asyncio.CancelledError]
)
def test_whatever_a_runtime_raises_is_one_failed_rollout(tmp_path: Path, kind: type[BaseException]) -> None:
    class Odd(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            if json.loads(payload).get("odd"):
                raise kind("what now?")
            return await super().invoke(session_id, payload)

        async def stop(self, session_id: str) -> None:
            raise kind("not that either")

    items = run(Odd(), tmp_path, [{"n": 0}, {"odd": True}, {"n": 2}])
    assert [item.success for item in items] == [True, False, True]
    assert (items[1].status, items[1].attempts) == (Status.SESSION_LOST, 3)
    assert kind.__name__ in str(items[1].error)


def test_closing_a_batch_ends_a_loop_on_another_thread(tmp_path: Path) -> None:
    runtime = OwnRuntime(lambda payload: None)
    with RolloutClient(runtime, tmp_path, "exp") as client:
        running = client.run_batch([{}] * 3)
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            items = other.submit(list, running)
            eventually(lambda: len(runtime.invoked) == 3)
            running.close()
            assert items.result(60) == []


@pytest.mark.parametrize("answer", [None, "text", 7, Invocation("a", 200, "", None)], ids=repr)  # type: ignore[arg-type]
def test_what_is_no_answer_is_one_failed_rollout(tmp_path: Path, answer: Any) -> None:
    class Odd(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            return answer if json.loads(payload).get("odd") else await super().invoke(session_id, payload)

    items = run(Odd(), tmp_path, [{"odd": True}, {"n": 1}])
    assert [item.success for item in items] == [False, True]


@pytest.mark.parametrize("answer", [b"[" * 100_000, b"\xff", b"{}", b"[]", b"", b"{" * 1000])
def test_an_answer_that_makes_no_sense_is_the_agents_own_fault(tmp_path: Path, answer: bytes) -> None:
    async def said() -> Any:
        yield answer

    class Odd(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            if json.loads(payload).get("odd"):
                return Invocation(session_id, 200, "", said())
            return await super().invoke(session_id, payload)

    items = run(Odd(), tmp_path, [{"odd": True}, {"n": 1}])
    assert [item.success for item in items] == [False, True]
    assert (items[0].status, items[0].attempts) == (Status.AGENT_ERROR, 1)
    assert "rollout_entrypoint" in str(items[0].error)


# Duplicates


def sessions_that(*documents: dict[str, Any], once_invoked: int = 2) -> OwnRuntime:
    """A runtime whose sessions have these results, in the order of their invokes, once so many have been invoked."""
    left = iter(documents)

    async def result(payload: dict[str, Any]) -> bytes | None:
        document = next(left, {})
        await asyncio.to_thread(eventually, lambda: len(runtime.invoked) >= once_invoked)
        await asyncio.sleep(document.pop("after", 0))
        return json.dumps({"status_code": 200} | document).encode()

    runtime = OwnRuntime(result)
    return runtime


LOST = {"status_code": 500, "error": {"kind": "session_lost"}, "stop_reason": "gone"}


def refusing_the_second(runtime: OwnRuntime, error: Exception) -> OwnRuntime:
    """The same runtime, which refuses every session after the first."""
    invoke = runtime.invoke

    class Refusing(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            if runtime.invoked:
                runtime.invoked.append(session_id)
                raise error
            return await invoke(session_id, payload)

    refusing = Refusing()
    refusing.invoked, refusing.stopped = runtime.invoked, runtime.stopped
    return refusing


@pytest.mark.parametrize(
    "error",
    [
        RuntimeFault("no", code="ValidationException"),
        RuntimeFault("no", code="RuntimeClientError"),
        ZeroDivisionError("no"),
    ],
    ids=repr,
)
def test_a_duplicate_that_can_not_be_started_leaves_the_original_alone(tmp_path: Path, error: Exception) -> None:
    runtime = refusing_the_second(sessions_that({"who": "original", "after": 0.2}), error)
    (item,) = run(runtime, tmp_path, [{}], hedge_after=0.1)
    assert len(runtime.invoked) == 2
    assert (item.success, item.attempts, item.result and item.result["who"]) == (True, 1, "original")
    assert item.session_id == runtime.invoked[0]


def test_a_duplicate_that_waits_for_a_session_holds_nobody_up(tmp_path: Path) -> None:
    full = RuntimeFault("no", code="ThrottlingException", reason="full")
    runtime = refusing_the_second(sessions_that({"who": "original", "after": 0.2}), full)
    (item,) = run(runtime, tmp_path, [{}], hedge_after=0.1)
    assert (item.success, item.session_id) == (True, runtime.invoked[0])
    assert runtime.stopped == [runtime.invoked[0]]  # the duplicate never ran


@pytest.mark.parametrize("lost", ["original", "duplicate"])
def test_of_two_the_one_that_is_lost_does_not_count(tmp_path: Path, lost: str) -> None:
    documents = [{"who": who, "after": 0.3} if who != lost else dict(LOST) for who in ("original", "duplicate")]
    (item,) = run(sessions_that(*documents), tmp_path, [{}], hedge_after=0.1)
    assert (item.success, item.attempts) == (True, 1)
    assert item.result is not None
    assert {item.result["who"], lost} == {"original", "duplicate"}


def test_if_both_are_lost_another_try_is_made(tmp_path: Path) -> None:
    runtime = sessions_that(dict(LOST), dict(LOST), {"who": "third"})
    (item,) = run(runtime, tmp_path, [{}], hedge_after=0.1)
    assert (item.success, item.attempts, item.result and item.result["who"]) == (True, 2, "third")
    assert sorted(runtime.stopped) == sorted(runtime.invoked)


# The rest


def test_waiting_for_a_session_uses_up_no_time(tmp_path: Path) -> None:
    """The runtime is full for longer than a rollout may take."""

    class Full(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked <= 2:
                raise RuntimeFault("full", code="ThrottlingException", reason="full")
            return await super().invoke(session_id, payload)

    (item,) = run(Full(), tmp_path, [{}], timeout=1.9)
    assert (item.success, item.error) == (True, None)
    assert item.elapsed > 1.9


def test_a_batch_that_is_over_can_be_asked_again(tmp_path: Path) -> None:
    with RolloutClient(OwnRuntime(), tmp_path, "exp") as client:
        items = client.run_batch([{}, {}])
        assert len(list(items)) == 2
        assert list(items) == []
        items = client.run_batch([{}, {}])
        items.close()
        assert list(items) == []


def test_what_can_not_be_read_is_run_again_when_resuming(tmp_path: Path) -> None:
    hostile = {"a": b"[" * 200_000, "b": b"{half", "c": b'{"status_code": 200, "rewards": NaN}'}
    for name, data in hostile.items():
        path = tmp_path / "exp" / name / "earlier.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    rows = [{"input_id": name} for name in hostile]
    items = run(OwnRuntime(), tmp_path, rows, resume=True)
    assert [(item.success, item.resumed) for item in items] == [(True, False)] * 3


FORMER = {"initial_interval": 0.5, "max_interval": 30.0, "backoff_factor": 1.5, "log_interval": 30.0}


def test_settings_of_the_first_toolkit_are_taken(tmp_path: Path) -> None:
    assert run(OwnRuntime(), tmp_path, [{}], max_concurrent_sessions=10, **FORMER)[0].success

    async def awaited() -> int:
        async with RolloutClient(OwnRuntime(), tmp_path, "exp") as client:
            return len([item async for item in client.run_batch_async([{}], 10, 60.0, **FORMER)])

    assert asyncio.run(awaited()) == 1
    with RolloutClient(OwnRuntime(), tmp_path, "exp") as client, pytest.raises(TypeError, match="'interval'"):
        client.run_batch([{}], interval=1.0)


def test_an_endless_progress_of_rows_is_read_once(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"n": n} for n in range(3))

    with RolloutClient(OwnRuntime(completed), tmp_path, "exp") as client:
        assert len(list(client.run_batch(rows()))) == 3


def test_an_outage_costs_each_rollout_one_retry(tmp_path: Path) -> None:
    """Every invoke fails for a while, more often than a rollout may be retried."""
    failures = iter(range(60))

    class Down(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            if next(failures, None) is not None:
                raise RuntimeFault("down")
            return await super().invoke(session_id, payload)

    items = run(Down(), tmp_path, [{"n": n} for n in range(10)], max_retries=1, attempts=1)
    assert [item.success for item in items] == [True] * 10
    assert sum(item.attempts for item in items) == 70


def test_sessions_that_end_at_once_are_no_outage(tmp_path: Path) -> None:
    lost = json.dumps({"status_code": 500, "error": {"kind": "session_lost"}}).encode()
    items = run(OwnRuntime(lambda _: lost), tmp_path, [{"n": n} for n in range(5)], max_retries=1)
    assert [(item.status, item.attempts) for item in items] == [(Status.SESSION_LOST, 2)] * 5


def test_an_outage_longer_than_its_budget_ends_the_batch(tmp_path: Path) -> None:
    class Down(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Invocation:
            raise RuntimeFault("down")

    items = run(Down(), tmp_path, [{"n": n} for n in range(10)], max_retries=1, outage_seconds=0.2, attempts=1)
    assert {item.status for item in items} == {Status.SESSION_LOST}


def test_rollouts_are_shared_by_several_runtimes(tmp_path: Path) -> None:
    runtimes = [OwnRuntime(arn="arn:of:a"), OwnRuntime(arn="arn:of:b")]
    with RolloutClient(runtimes, tmp_path, "exp") as client:
        assert all(item.success for item in client.run_batch([{"n": n} for n in range(40)]))
        usage = client.usage
    assert (usage.sessions, usage.invokes, usage.stops, usage.failures) == (40, 40, 40, 0)
    assert usage.runtimes == {"arn:of:a": len(runtimes[0].invoked), "arn:of:b": len(runtimes[1].invoked)}
    assert min(usage.runtimes.values()) > 10
    assert usage.bytes_read == 40 * len(completed({}))
    assert client.usage == usage  # what was used before close() counts
    with RolloutClient(runtimes[0], tmp_path, "exp") as client:
        assert client.invoke({}).result(60)["status_code"] == 200


@pytest.mark.parametrize(
    ("runtimes", "says"),
    [
        ([], "no runtime is named"),
        (["rl_app.py", "arn:aws:bedrock-agentcore:us-east-1:123456789012:runtime/a"], "can't be one of several"),
        (["arn:aws:bedrock-agentcore:us-east-1:123456789012:runtime/a"] * 2, "named twice"),
    ],
)
def test_several_runtimes_are_several_arns(tmp_path: Path, runtimes: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RolloutClient(runtimes, tmp_path, "exp")
