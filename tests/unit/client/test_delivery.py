"""Delivery while a store fails in ways that no store should: nothing is lost, nobody waits forever."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from agentcore_rl_toolkit.client import delivery
from agentcore_rl_toolkit.client.delivery import Delivery
from agentcore_rl_toolkit.errors import (
    KeyNotFound,
    ResultUnreadable,
    StoreError,
    StoreForbidden,
    StoreMisconfigured,
    StoreUnavailable,
)
from support.loop import LoopThread, loop_thread
from support.runtime import eventually


class OddStore:
    """Documents in memory; whatever is in `raises`, by the name of the call, is raised instead of an answer."""

    url = "memory"

    def __init__(self, *, announces: bool = False) -> None:
        self.announces = announces
        self.documents: dict[str, bytes] = {}
        self.said: list[str] = []
        self.raises: dict[str, BaseException | Callable[[], BaseException | None]] = {}
        self.calls: list[str] = []

    def _do(self, name: str) -> None:
        self.calls.append(name)
        error = self.raises.get(name)
        error = error() if callable(error) else error
        if error is not None:
            raise error

    def prepare(self) -> None: ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.documents.setdefault(key, data) is data

    def get(self, key: str, *, limit: int | None = None) -> bytes:
        self._do(f"get {key}")
        self._do("get")
        if key not in self.documents:
            raise KeyNotFound(key)
        return self.documents[key]

    def exists(self, key: str) -> bool:
        return key in self.documents

    def keys(self, prefix: str = "") -> Iterator[str]:
        self._do("keys")
        yield from [key for key in self.documents if key.startswith(prefix)]

    def find(self, keys: Sequence[str]) -> tuple[set[str], list[str]]:
        self._do("keys")
        return self.documents.keys() & set(keys), []

    def announce(self, key: str) -> None:
        self.said.append(key)

    def announcements(self, exp_id: str, wait_seconds: float, wanted: Callable[[str], bool] | None = None) -> list[str]:
        threading.Event().wait(0.02)
        self._do("announcements")
        mine = [key for key in self.said if wanted is None or wanted(key)]
        for key in mine:
            self.said.remove(key)
        return mine

    def stop_waiting(self) -> None:
        self._do("stop_waiting")

    def close(self) -> None:
        self._do("close")


class Inbox:
    def __init__(self, threads: LoopThread, store: OddStore, patience: float = 0.3) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, Exception] = {}
        self.threads, self.store = threads, store
        self.delivery: Delivery = threads.run(self._make(patience))

    async def _make(self, patience: float) -> Delivery:
        return Delivery(self.store, "exp", patience=patience)  # type: ignore[arg-type]

    def expect(self, *names: str) -> None:
        async def all_of_them() -> None:
            for name in names:
                self.delivery.expect(name, self._receiver(name))

        self.threads.run(all_of_them())

    def _receiver(self, name: str) -> Callable[[dict[str, Any] | None, Exception | None], None]:
        def receive(document: dict[str, Any] | None, error: Exception | None) -> None:
            assert name not in self.documents.keys() | self.errors.keys()
            if document is not None:
                self.documents[name] = document
            elif error is not None:
                self.errors[name] = error

        return receive


@pytest.fixture
def store() -> OddStore:
    return OddStore()


@pytest.fixture
def inbox(store: OddStore) -> Iterator[Inbox]:
    with loop_thread() as threads:
        made = Inbox(threads, store)
        yield made
        threads.run(made.delivery.close())


KEYS = [f"exp/row-{n}/s.json" for n in range(4)]
DOCUMENT = json.dumps({"status_code": 200}).encode()


def put(store: OddStore, *keys: str) -> None:
    for key in keys:
        store.put_if_absent(key, DOCUMENT)


@pytest.mark.parametrize("call", ["keys", "get"])
@pytest.mark.parametrize(
    "error",
    [RuntimeError("a defect"), RecursionError("deep"), MemoryError(), KeyError("x"), StoreError("no"), OSError("no")],
    ids=repr,
)
def test_whatever_a_store_raises_costs_a_look(store: OddStore, inbox: Inbox, call: str, error: Exception) -> None:
    put(store, *KEYS)
    failures = iter([error] * 2)
    store.raises[call] = lambda: next(failures, None)
    inbox.expect(*KEYS)
    eventually(lambda: len(inbox.documents) == 4)
    assert inbox.errors == {}


@pytest.mark.parametrize("call", ["keys", "get"])
@pytest.mark.parametrize("error", [RuntimeError("a defect"), StoreError("a refusal"), StoreMisconfigured("gone")])
def test_what_a_store_raises_again_and_again_is_delivered(
    store: OddStore, inbox: Inbox, call: str, error: Exception
) -> None:
    put(store, *KEYS)
    store.raises[call] = error
    inbox.expect(*KEYS)
    eventually(lambda: len(inbox.errors) == 4)
    assert all(isinstance(delivered, StoreError) for delivered in inbox.errors.values())
    assert all(str(error) in str(delivered) for delivered in inbox.errors.values())


def test_a_store_that_does_not_answer_is_waited_for(store: OddStore, inbox: Inbox) -> None:
    put(store, *KEYS)
    store.raises["keys"] = StoreUnavailable("down")
    inbox.expect(*KEYS)
    eventually(lambda: store.calls.count("keys") >= 5)  # longer than a refusal is believed
    assert (inbox.errors, inbox.documents) == ({}, {})
    del store.raises["keys"]
    eventually(lambda: len(inbox.documents) == 4)


def test_what_is_no_result_is_an_error_at_once(store: OddStore) -> None:
    with loop_thread() as threads:
        inbox = Inbox(threads, store, patience=float("inf"))
        put(store, *KEYS[1:])
        store.put_if_absent(KEYS[0], b"[" * 200_000)
        inbox.expect(*KEYS)
        eventually(lambda: len(inbox.documents) == 3 and len(inbox.errors) == 1)
        assert isinstance(inbox.errors[KEYS[0]], ResultUnreadable)
        threads.run(inbox.delivery.close())


def test_readers_stop_waiting_before_the_store_is_closed() -> None:
    store = OddStore(announces=True)
    with loop_thread() as threads:
        inbox = Inbox(threads, store)
        inbox.expect(*KEYS)
        threads.run(inbox.delivery.close())
    assert store.calls[-1] == "close"
    assert "stop_waiting" in store.calls


def test_one_result_that_is_refused_keeps_no_other_waiting(store: OddStore, inbox: Inbox) -> None:
    put(store, *KEYS)
    store.raises[f"get {KEYS[0]}"] = StoreForbidden("you may not")
    inbox.expect(*KEYS)
    eventually(lambda: len(inbox.documents) == 3 and len(inbox.errors) == 1)
    assert "you may not" in str(inbox.errors[KEYS[0]])


def test_without_permission_to_list_results_are_read_one_by_one(
    store: OddStore, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    """S3 then says "forbidden" of what isn't there yet."""
    store.raises["keys"] = StoreForbidden("not authorized to perform: s3:ListBucket")
    for key in KEYS:
        store.raises[f"get {key}"] = lambda key=key: (  # type: ignore[misc]
            None if key in store.documents else StoreForbidden("not authorized")
        )
    inbox.threads.run(inbox.delivery.open())
    inbox.expect(*KEYS)
    eventually(lambda: store.calls.count("get " + KEYS[3]) >= 4)
    assert (inbox.errors, inbox.documents) == ({}, {})
    put(store, *KEYS)
    eventually(lambda: len(inbox.documents) == 4)
    assert store.calls.count("keys") == 1
    (said,) = [record for record in caplog.records if record.name == delivery.__name__]
    assert "hint: allow s3:ListBucket" in said.getMessage()


def test_an_announced_result_that_may_not_be_read_is_an_error(store: OddStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delivery, "announced_interval", 0.2)
    store.announces = True
    store.raises |= {"keys": StoreForbidden("list"), "get": StoreForbidden("you may not read")}
    with loop_thread() as threads:
        inbox = Inbox(threads, store, patience=0.1)
        threads.run(inbox.delivery.open())
        inbox.expect(KEYS[0])
        store.announce(KEYS[0])
        eventually(lambda: inbox.errors, 30)
        assert "you may not read" in str(inbox.errors[KEYS[0]])
        threads.run(inbox.delivery.close())


def test_a_look_asks_for_what_is_missing_and_reads_what_only_a_read_can_tell(store: OddStore, inbox: Inbox) -> None:
    asked: list[list[str]] = []

    def find(keys: Sequence[str]) -> tuple[set[str], list[str]]:
        asked.append(list(keys))
        return {KEYS[0]}, KEYS[2:]

    store.find = find  # type: ignore[method-assign]
    put(store, *KEYS)
    inbox.expect(*reversed(KEYS))
    inbox.threads.run(inbox.delivery.look())
    assert asked[0] == KEYS
    assert inbox.documents.keys() == {KEYS[0], KEYS[2], KEYS[3]}


def test_what_others_expect_is_left_to_them() -> None:
    store = OddStore(announces=True)
    with loop_thread() as threads:
        inbox = Inbox(threads, store)
        inbox.expect(KEYS[0])
        put(store, *KEYS)
        for key in KEYS:
            store.announce(key)
        eventually(lambda: inbox.documents)
        assert store.said == KEYS[1:]
        threads.run(inbox.delivery.close())


@pytest.mark.parametrize("error", [StoreMisconfigured("no such bucket"), StoreError("refused"), RuntimeError("defect")])
def test_opening_finds_out_what_is_wrong(store: OddStore, inbox: Inbox, error: Exception) -> None:
    store.raises["keys"] = error
    with pytest.raises(type(error), match=str(error)):
        inbox.threads.run(inbox.delivery.open())


def test_opening_does_not_mind_a_store_that_is_down(store: OddStore, inbox: Inbox) -> None:
    store.raises["keys"] = StoreUnavailable("down")
    inbox.threads.run(inbox.delivery.open())


def test_a_listener_outlives_whatever_it_hears(caplog: pytest.LogCaptureFixture) -> None:
    store = OddStore(announces=True)
    failures = iter([UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), StoreError("no")])
    store.raises["announcements"] = lambda: next(failures, None)
    with loop_thread() as threads:
        inbox = Inbox(threads, store)
        inbox.expect(*KEYS)
        put(store, *KEYS)
        for key in KEYS:
            store.announce(key)
        eventually(lambda: len(inbox.documents) == 4)
        assert "keys" not in store.calls  # it was heard, not looked for
        threads.run(inbox.delivery.close())
    (said,) = [record for record in caplog.records if "could not be heard" in record.getMessage()]
    assert said.exc_info


def test_announcements_that_never_come_are_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delivery, "announced_interval", 0.6)
    store = OddStore(announces=True)
    with loop_thread() as threads:
        inbox = Inbox(threads, store)
        assert inbox.delivery.interval() == 0.6
        put(store, *KEYS[:3])
        inbox.expect(*KEYS)
        eventually(lambda: len(inbox.documents) == 3)
        assert inbox.delivery.interval() < 0.6
        store.announce(KEYS[3])
        eventually(lambda: inbox.delivery.heard)
        assert inbox.delivery.interval() == 0.6
        threads.run(inbox.delivery.close())


class HoursLater(asyncio.SelectorEventLoop):
    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_looks_are_rare_while_all_that_comes_is_announced() -> None:
    store, loop = OddStore(announces=True), HoursLater()

    async def intervals() -> list[float]:
        inbox = Delivery(store, "exp")  # type: ignore[arg-type]
        delivered: list[Any] = []
        for key in KEYS:
            inbox.expect(key, lambda document, error: delivered.append(document))
        loop.ahead = 3600.0
        seen = [inbox.interval()]
        put(store, KEYS[0])
        await inbox.look()
        seen.append(inbox.interval())
        store.find = lambda keys: (set(), [])  # type: ignore[method-assign]
        put(store, KEYS[1])
        store.announce(KEYS[1])
        while len(delivered) < 2:  # noqa: ASYNC110 - announcements are heard on another thread
            await asyncio.sleep(0.01)
        seen.append(inbox.interval())
        store.announce(KEYS[2])  # and there is nothing to read
        while inbox.interval() == 60.0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        seen.append(inbox.interval())
        await inbox.close()
        return seen

    try:
        assert loop.run_until_complete(intervals()) == [60.0, 10.0, 60.0, 10.0]
    finally:
        loop.close()


class Untold(OddStore):
    """A store that at some point no longer says whether it announces."""

    broken = False

    @property
    def announces(self) -> bool:  # type: ignore[override]
        if self.broken:
            raise ArithmeticError("does it?")
        return False

    @announces.setter
    def announces(self, value: bool) -> None: ...


def test_looking_that_breaks_says_so_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """The last resort, for a defect of ours."""
    store = Untold()
    with loop_thread() as threads:
        inbox = Inbox(threads, store)
        inbox.expect(*KEYS)
        store.broken = True
        eventually(lambda: len(inbox.errors) == 4)
        threads.run(inbox.delivery.close())
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.exc_info


def test_odd_times_do_not_change_how_often_it_looks(store: OddStore, inbox: Inbox) -> None:
    times = {"started_at": "0001-01-01T00:00:00", "finished_at": "9999-01-01T00:00:00"}
    store.put_if_absent(KEYS[0], json.dumps({"_rollout": times}).encode())
    inbox.expect(KEYS[0])
    eventually(lambda: inbox.documents)
    assert inbox.delivery.interval() < 2
