"""How a rollout runs and ends, step by step: a store in memory whose every call the test can hold or fail."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.agent.background import BackgroundRun, BackgroundRunner
from agentcore_rl_toolkit.agent.logs import JsonLine
from agentcore_rl_toolkit.agent.result import ResultBuilder
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.config import AgentCoreConfig
from agentcore_rl_toolkit.errors import StoreError, StoreUnavailable
from agentcore_rl_toolkit.types import RolloutId

PATIENCE = 20.0  # only a test that fails waits this long


class HeldStore:
    """A store in memory; `events` has what happened, in order."""

    url, announces = "memory", True

    def prepare(self) -> None:
        pass

    def __init__(self) -> None:
        self.events: list[str] = []
        self.documents: dict[str, dict[str, Any]] = {}
        self.put_errors: list[Exception] = []
        self.announce_errors: list[Exception] = []
        self.put_called, self.may_put = threading.Event(), threading.Event()
        self.may_put.set()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.put_called.set()
        assert self.may_put.wait(PATIENCE)
        self.events.append("put")
        if self.put_errors:
            raise self.put_errors.pop(0)
        return self.documents.setdefault(key, document := json.loads(data)) is document

    def announce(self, key: str) -> None:
        self.events.append("announce")
        if self.announce_errors:
            raise self.announce_errors.pop(0)


class Rollouts:
    """Starts rollouts, and waits for them."""

    def __init__(self, **settings: Any) -> None:
        self.store = HeldStore()
        self.runner = BackgroundRunner(AgentCoreConfig(**settings))
        self.done = threading.Semaphore(0)

    def start(
        self, call: Callable[[], Any], row: str = "row", *, is_async: bool = False, redact: Redactor | None = None
    ) -> BackgroundRun:
        result = ResultBuilder(RolloutId("exp", row, "s"), "memory", {}, redact or Redactor(), None, time.time())
        run = BackgroundRun(call, result, self.store, self.stored)  # type: ignore[arg-type]
        self.runner.start(run, is_async=is_async)
        return run

    def stored(self) -> None:
        self.store.events.append("on_stored")
        self.done.release()

    def wait(self, runs: int = 1) -> None:
        for _ in range(runs):
            assert self.done.acquire(timeout=PATIENCE), "a rollout did not end"

    def document(self, row: str = "row") -> dict[str, Any]:
        return self.store.documents[f"exp/{row}/s.json"]

    def shut_down(self) -> None:
        asyncio.run(self.runner.shutdown())


@pytest.fixture
def rollouts() -> Rollouts:
    return Rollouts()


@pytest.fixture
def unstored(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines about results that could not be stored."""
    with caplog.at_level(logging.INFO):
        yield lambda: [record.msg.fields for record in caplog.records if isinstance(record.msg, JsonLine)]


def both(call: Callable[[], Any], is_async: bool) -> Callable[[], Any]:
    """`call`, or a coroutine function that does the same."""

    async def coroutine() -> Any:
        return call()

    return coroutine if is_async else call


def join_rollout_threads() -> None:
    """Wait for every thread that runs or stores a rollout; that of the event loop never ends."""
    for thread in threading.enumerate():
        if thread.name == "rollout":
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.mark.parametrize("is_async", [False, True])
def test_stored_then_announced_then_no_longer_busy(rollouts: Rollouts, is_async: bool) -> None:
    rollouts.start(both(lambda: {"rewards": 1}, is_async), is_async=is_async)
    rollouts.wait()
    assert rollouts.store.events == ["put", "announce", "on_stored"]


def test_what_cannot_be_stored_is_no_longer_busy_either(rollouts: Rollouts) -> None:
    rollouts.store.put_errors = [StoreError("denied")]
    rollouts.start(lambda: {"rewards": 1})
    rollouts.wait()
    assert rollouts.store.events == ["put", "on_stored"]


def test_sync_functions_wait_for_each_other(rollouts: Rollouts) -> None:
    barrier = threading.Barrier(40)
    for i in range(40):
        rollouts.start(lambda: {"waited": barrier.wait(PATIENCE)}, f"row-{i}")
    rollouts.wait(40)
    assert sorted(rollouts.document(f"row-{i}")["waited"] for i in range(40)) == list(range(40))


def test_async_functions_share_a_loop_that_is_not_the_callers(rollouts: Rollouts) -> None:
    places = []

    async def call() -> dict[str, Any]:
        places.append((asyncio.get_running_loop(), threading.get_ident()))
        return {}

    async def start() -> None:
        rollouts.start(call, "row-1", is_async=True)
        rollouts.start(call, "row-2", is_async=True)
        assert await asyncio.to_thread(rollouts.done.acquire, timeout=PATIENCE)
        assert await asyncio.to_thread(rollouts.done.acquire, timeout=PATIENCE)
        assert places[0] == places[1]
        assert places[0][0] is not asyncio.get_running_loop()

    asyncio.run(start())
    assert places[0][1] != threading.get_ident()


def test_storing_holds_up_no_other_async_rollout(rollouts: Rollouts) -> None:
    rollouts.store.may_put.clear()
    rollouts.start(both(dict, True), "row-1", is_async=True)
    assert rollouts.store.put_called.wait(PATIENCE)
    rollouts.start(both(rollouts.store.may_put.set, True), "row-2", is_async=True)  # lets the first be stored
    rollouts.wait(2)
    assert sorted(rollouts.store.documents) == ["exp/row-1/s.json", "exp/row-2/s.json"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_no_exception_passes_for_an_end(rollouts: Rollouts, error: BaseException, is_async: bool) -> None:
    def call() -> None:
        raise error

    rollouts.start(both(call, is_async), is_async=is_async)
    rollouts.wait()
    assert rollouts.document()["error"]["kind"] == "agent_error"
    assert rollouts.document()["error"]["type"] == type(error).__name__


@pytest.mark.parametrize("is_async", [False, True])
def test_the_first_end_of_a_rollout_is_its_only_one(rollouts: Rollouts, is_async: bool) -> None:
    """The session ends while the function runs; then the function returns."""
    running, go_on = threading.Event(), threading.Event()

    def call() -> dict[str, Any]:
        running.set()
        assert go_on.wait(PATIENCE)
        return {"rewards": 1}

    run = rollouts.start(both(call, is_async), is_async=is_async)
    assert running.wait(PATIENCE)
    rollouts.shut_down()
    rollouts.wait()
    go_on.set()
    while is_async and not (run.task is not None and run.task.done()):
        time.sleep(0.01)
    join_rollout_threads()
    assert rollouts.document()["error"]["kind"] == "session_lost"
    assert rollouts.store.events == ["put", "announce", "on_stored"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_shutdown_waits_for_a_result_on_its_way(rollouts: Rollouts, is_async: bool) -> None:
    class Watched(threading.Event):
        def is_set(self) -> bool:
            rollouts.store.may_put.set()  # somebody waits: now the store answers
            return super().is_set()

    rollouts.store.may_put.clear()
    run = rollouts.start(both(lambda: {"rewards": 0.5}, is_async), is_async=is_async)
    assert rollouts.store.put_called.wait(PATIENCE)
    run.stored = Watched()
    rollouts.shut_down()
    assert rollouts.document()["rewards"] == 0.5
    rollouts.wait()
    assert rollouts.store.events == ["put", "announce", "on_stored"]


def test_a_shutdown_does_not_wait_for_announcements(rollouts: Rollouts, unstored: Any) -> None:
    announcing, go_on = threading.Event(), threading.Event()

    def announce(key: str) -> None:
        announcing.set()
        assert go_on.wait(PATIENCE)

    rollouts.store.announce = announce  # type: ignore[method-assign]
    run = rollouts.start(lambda: {"rewards": 1})
    assert announcing.wait(PATIENCE)
    assert run.stored.is_set()
    rollouts.shut_down()
    go_on.set()
    rollouts.wait()
    assert unstored() == []


def test_a_shutdown_lets_async_functions_clean_up(rollouts: Rollouts) -> None:
    running, cleaned = threading.Event(), threading.Event()

    async def call() -> None:
        running.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.set()

    rollouts.start(call, is_async=True)
    assert running.wait(PATIENCE)
    rollouts.shut_down()
    assert cleaned.wait(PATIENCE)
    assert rollouts.document()["error"]["kind"] == "session_lost"


def test_a_shutdown_gives_the_store_no_more_time_than_it_has(unstored: Any) -> None:
    rollouts, go_on = Rollouts(shutdown_seconds=0), threading.Event()
    rollouts.store.put_errors = [StoreUnavailable("down")] * 1000
    running = threading.Event()

    def call() -> None:
        running.set()
        assert go_on.wait(PATIENCE)

    rollouts.start(call)
    assert running.wait(PATIENCE)
    rollouts.shut_down()
    rollouts.wait()
    go_on.set()
    assert rollouts.store.events == ["put", "on_stored"]
    assert [line["event"] for line in unstored()] == ["result_not_stored"]


def test_a_result_that_is_not_stored_is_logged_once(unstored: Any) -> None:
    """First the shutdown has waited long enough, then the store refuses."""
    rollouts, running, go_on = Rollouts(shutdown_seconds=0), threading.Event(), threading.Event()
    rollouts.store.put_errors = [StoreError("denied")]
    rollouts.store.may_put.clear()

    def call() -> None:
        running.set()
        assert go_on.wait(PATIENCE)

    rollouts.start(call)
    assert running.wait(PATIENCE)
    rollouts.shut_down()
    rollouts.store.may_put.set()
    rollouts.wait()
    go_on.set()
    (line,) = unstored()
    assert line["reason"] == "the session ended before the store answered (0 s)"


def test_what_is_logged_instead_of_stored_is_whole_and_has_no_secrets(rollouts: Rollouts, unstored: Any) -> None:
    rollouts.store.put_errors = [StoreError("denied for sk-12345678")]
    rollouts.start(lambda: {"rewards": 0.5, "said": "sk-12345678"}, redact=Redactor.of({"api_key": "sk-12345678"}))
    rollouts.wait()
    (line,) = unstored()
    assert (line["event"], line["key"], line["reason"]) == ("result_not_stored", "exp/row/s.json", "denied for ***")
    assert (line["document"]["rewards"], line["document"]["said"]) == (0.5, "***")


def test_a_result_that_cannot_be_announced_is_stored(
    rollouts: Rollouts, unstored: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts.store.announce_errors = [StoreError("no such queue")]
    rollouts.start(lambda: {"rewards": 0.5})
    rollouts.wait()
    assert rollouts.document()["rewards"] == 0.5
    assert rollouts.store.events == ["put", "announce", "on_stored"]
    assert unstored() == []
    assert "exp/row/s.json is stored, but could not be announced: no such queue" in caplog.text


def test_storing_and_announcing_are_tried_again(rollouts: Rollouts) -> None:
    rollouts.store.put_errors = [StoreUnavailable("down")] * 2
    rollouts.store.announce_errors = [StoreUnavailable("down")]
    rollouts.start(lambda: {"rewards": 0.5})
    rollouts.wait()
    assert rollouts.store.events == ["put", "put", "put", "announce", "announce", "on_stored"]


def test_a_result_that_was_there_already_is_announced(rollouts: Rollouts) -> None:
    """It may be our own, whose answer got lost; nobody may have heard of it."""
    rollouts.store.documents["exp/row/s.json"] = {"rewards": 1}
    rollouts.start(lambda: {"rewards": 0})
    rollouts.wait()
    assert rollouts.store.events == ["put", "announce", "on_stored"]
    assert rollouts.document() == {"rewards": 1}


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="lost")


@pytest.mark.parametrize("is_async", [False, True])
def test_the_callers_context_comes_along(rollouts: Rollouts, is_async: bool) -> None:
    put, seen = rollouts.store.put_if_absent, []

    def put_if_absent(key: str, data: bytes) -> bool:
        seen.append(variable.get())
        return put(key, data)

    rollouts.store.put_if_absent = put_if_absent  # type: ignore[method-assign]
    token = variable.set("kept")
    try:
        rollouts.start(both(lambda: {"variable": variable.get()}, is_async), is_async=is_async)
    finally:
        variable.reset(token)
    rollouts.wait()
    assert rollouts.document()["variable"] == "kept"
    assert seen == ["kept"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hanging_agent_does_not_keep_the_process(rollouts: Rollouts, is_async: bool) -> None:
    call = both(lambda: {"daemon": threading.current_thread().daemon}, is_async)
    rollouts.start(call, is_async=is_async)
    rollouts.wait()
    assert rollouts.document()["daemon"] is True


def test_what_a_generator_returns_counts_more_than_what_it_yields(rollouts: Rollouts) -> None:
    def generate() -> Any:
        yield {"event": 1}
        return {"rewards": 0.25}

    rollouts.start(generate)
    rollouts.wait()
    assert rollouts.document()["rewards"] == 0.25


def test_nothing_is_kept_of_a_rollout_that_ended(rollouts: Rollouts) -> None:
    rollouts.start(dict)
    rollouts.wait()
    assert rollouts.runner.live == 0


def test_nothing_starts_before_the_first_rollout() -> None:
    before = set(threading.enumerate())
    BackgroundRunner(AgentCoreConfig())
    assert set(threading.enumerate()) <= before


# --- what an agent may do to its process -----------------------------------------------------------------------------


@pytest.fixture
def no_more_threads() -> Iterator[Callable[[], None]]:
    """Makes starting a thread fail, as it does where an agent has left too many behind."""
    before = threading.stack_size()
    yield lambda: threading.stack_size(1 << 46)  # type: ignore[func-returns-value]  # no system has that much for one
    threading.stack_size(before)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_is_stored_though_no_thread_can_be_started(
    rollouts: Rollouts, is_async: bool, no_more_threads: Callable[[], None]
) -> None:
    def call() -> dict[str, Any]:
        no_more_threads()
        return {"rewards": 1}

    rollouts.start(both(call, is_async), is_async=is_async)
    rollouts.wait()
    assert rollouts.document()["rewards"] == 1


def test_a_shutdown_reports_what_runs_though_no_thread_can_be_started(
    rollouts: Rollouts, no_more_threads: Callable[[], None]
) -> None:
    running, go_on = threading.Event(), threading.Event()

    def call() -> None:
        no_more_threads()
        running.set()
        assert go_on.wait(PATIENCE)

    rollouts.start(call)
    assert running.wait(PATIENCE)
    rollouts.shut_down()
    go_on.set()
    assert rollouts.document()["error"]["kind"] == "session_lost"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_rollout_that_cannot_be_started_is_none(
    rollouts: Rollouts, is_async: bool, no_more_threads: Callable[[], None]
) -> None:
    before = threading.stack_size()
    no_more_threads()
    with pytest.raises(RuntimeError, match="start new thread"):
        rollouts.start(both(dict, is_async), is_async=is_async)
    assert rollouts.runner.live == 0
    threading.stack_size(before)
    rollouts.start(both(dict, is_async), is_async=is_async)
    rollouts.wait()


@pytest.mark.parametrize("interrupt", ["exit", "interrupt", "stop"])
def test_an_agent_cannot_end_the_loop_that_it_shares(rollouts: Rollouts, interrupt: str) -> None:
    """A task that it has started exits, or it stops the loop itself."""

    async def away() -> None:
        raise SystemExit if interrupt == "exit" else KeyboardInterrupt

    async def call() -> dict[str, Any]:
        if interrupt == "stop":
            asyncio.get_running_loop().stop()
        else:
            asyncio.create_task(away())  # noqa: RUF006
        await asyncio.sleep(0.01)
        return {"rewards": 1}

    rollouts.start(call, is_async=True)
    rollouts.wait()
    assert rollouts.document()["rewards"] == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_is_stored_though_cleaning_up_fails(rollouts: Rollouts, is_async: bool) -> None:
    def on_ended() -> None:
        raise SystemExit("os.environ is gone")

    result = ResultBuilder(RolloutId("exp", "row", "s"), "memory", {}, Redactor(), None, time.time())
    run = BackgroundRun(both(lambda: {"rewards": 1}, is_async), result, rollouts.store, rollouts.stored, on_ended)  # type: ignore[arg-type]
    rollouts.runner.start(run, is_async=is_async)
    rollouts.wait()
    assert rollouts.document()["rewards"] == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_value_that_never_lets_itself_be_read_is_reported_at_the_end(is_async: bool) -> None:
    rollouts, reading, go_on = Rollouts(shutdown_seconds=0.2), threading.Event(), threading.Event()

    class Hanging(dict[str, Any]):
        def items(self) -> Any:
            reading.set()
            assert go_on.wait(PATIENCE)
            return super().items()

    rollouts.start(both(lambda: {"rewards": 1, "x": Hanging()}, is_async), is_async=is_async)
    assert reading.wait(PATIENCE)
    rollouts.shut_down()
    rollouts.wait()
    assert rollouts.document()["error"]["kind"] == "session_lost"
    go_on.set()
    join_rollout_threads()
    assert rollouts.document()["error"]["kind"] == "session_lost"
