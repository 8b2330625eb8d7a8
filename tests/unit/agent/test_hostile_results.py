"""Whatever an agent raises or returns, one result of bounded size is stored; the app as it is, in this process."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agentcore_rl_toolkit.agent.app import AgentCoreRLApp
from agentcore_rl_toolkit.agent.safe_values.describe import LONGEST_MESSAGE, LONGEST_TRACEBACK
from agentcore_rl_toolkit.types import LARGEST_RESULT
from support.agent import rollout

AWAY = (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit)
"""What code may raise where nobody expects it."""


def run(function: Callable[[], Any], store: Path, *, is_async: bool = False) -> dict[str, Any]:
    """Run `function` as a rollout; gives the one result that is there afterwards."""

    def plain(payload: Any) -> Any:
        return function()

    async def coroutine(payload: Any) -> Any:
        return function()

    app = AgentCoreRLApp()
    app.rollout_entrypoint(coroutine if is_async else plain)
    with TestClient(app) as client:
        answer = client.post("/invocations", json={"prompt": "p", "_rollout": rollout(store)})
        assert answer.status_code == 200, answer.text
        while client.get("/ping").json()["status"] != "Healthy":
            pass
    (path,) = store.rglob("*.json")
    assert path.stat().st_size <= LARGEST_RESULT
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def check_failure(document: dict[str, Any], kind: str = "agent_error") -> None:
    assert (document["status_code"], document["error"]["kind"]) == (500, kind)
    assert len(document["stop_reason"]) <= LONGEST_MESSAGE
    assert len(document["error"]["message"]) <= LONGEST_MESSAGE
    assert len(document["error"]["type"]) <= LONGEST_MESSAGE
    assert len(document["traceback"]) <= LONGEST_TRACEBACK
    assert len(json.dumps(document.get("returned", ""))) <= LARGEST_RESULT // 4
    assert document["payload"]["prompt"] == "p"


# --- exceptions ------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


def say(text: Any) -> BaseException:
    class Said(Exception):
        def __str__(self) -> str:
            if isinstance(text, str):
                return text
            raise text

    return Said()


def chained(length: int) -> BaseException:
    error = ValueError("the first")
    for place in range(length):
        later = ValueError(f"number {place} " + "x" * 8000)
        later.__cause__ = error
        error = later
    return error


class Unfriendly(Exception):
    """Raises when it is asked for its cause or its notes."""

    __notes__ = property(lambda self: sys.exit("no notes"))
    __cause__ = property(lambda self: sys.exit("no cause"))  # type: ignore[assignment]


class Classless:
    __class__ = property(lambda self: sys.exit("no class"))  # type: ignore[assignment]


def with_notes() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [say(SystemExit()), "n" * 3_000_000, *map(str, range(100_000))]  # type: ignore[attr-defined]
    return error


def group(depth: int, width: int) -> BaseException:
    if depth == 0:
        return chained(3)
    members = [group(depth - 1, width)] * width
    error: BaseException = BaseExceptionGroup("g", members)  # type: ignore[name-defined]  # noqa: F821
    error.__cause__ = ValueError("why")
    return error


def recursion() -> Any:
    return recursion()


def source_that_fails() -> Any:
    class Loader:
        def get_source(self, name: str) -> str:
            raise SystemExit("no source")

    exec(
        compile("raise ValueError('from made-up code')", "no_such_file.py", "exec"),
        {"__name__": "m", "__loader__": Loader()},
    )


EXCEPTIONS: dict[str, Callable[[], Any]] = {
    **{f"str raises {kind.__name__}": raising(say(kind("inside"))) for kind in AWAY},
    "str is no string": raising(type("Odd", (Exception,), {"__str__": lambda self: 7})()),
    "str is long": raising(say("x" * 3_000_000)),
    "chained": raising(chained(10_000)),
    "unfriendly": raising(Unfriendly("x")),
    "notes": raising(with_notes()),
    "recursion": recursion,
    "source that fails": source_that_fails,
}
if sys.version_info >= (3, 11):
    EXCEPTIONS |= {
        "a group of groups": raising(group(4, 3)),
    }


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_exception_leaves_one_result(name: str, tmp_path: Path) -> None:
    check_failure(run(EXCEPTIONS[name], tmp_path))


@pytest.mark.parametrize("name", ["str raises SystemExit", "unfriendly", "recursion"])
def test_every_exception_of_an_async_function_leaves_one_result(name: str, tmp_path: Path) -> None:
    check_failure(run(EXCEPTIONS[name], tmp_path, is_async=True))


def test_the_cause_and_the_end_of_a_long_chain_are_told(tmp_path: Path) -> None:
    document = run(raising(chained(10_000)), tmp_path)
    assert document["error"]["message"].startswith("number 9999 ")
    assert "ValueError: the first\n" in document["traceback"]
    assert "ValueError: number 9999 " in document["traceback"]


def test_a_text_that_is_cut_says_so(tmp_path: Path) -> None:
    document = run(raising(ValueError("begin " + "x" * 3_000_000 + " end")), tmp_path)
    for text in (document["stop_reason"], document["error"]["message"]):
        assert "begin xx" in text
        assert "characters left out" in text
        assert text.endswith("xx end")


# --- values ----------------------------------------------------------------------------------------------------------


class Items(Mapping[Any, Any]):
    """A mapping with the items it is told to have."""

    def __init__(self, items: Callable[[], Any]) -> None:
        self._items = items

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def items(self) -> Any:
        return self._items()


def away(error: BaseException) -> Any:
    raise error


def made(**attributes: Any) -> Any:
    return type("Made", (), attributes)()


def mute(kind: type[BaseException]) -> Any:
    return made(__repr__=lambda self: away(kind()))


class EndlessList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat("x" * 100_000)


class Endless:
    """Gives another of its kind whenever it is converted."""

    dtype = "float32"

    def tolist(self) -> Endless:
        return Endless()


def nested(value: Any) -> dict[str, Any]:
    return {"rewards": 1.0, "kept": "this", "nested": [{"deep": value}]}


VALUES: dict[str, Callable[[], Any]] = {
    **{f"repr raises {kind.__name__}": lambda kind=kind: nested(mute(kind)) for kind in AWAY},
    **{f"items raises {kind.__name__}": lambda kind=kind: nested(Items(lambda: away(kind()))) for kind in AWAY},
    "the result's own items raise": lambda: Items(lambda: away(SystemExit())),
    "items are no pairs": lambda: nested(Items(lambda: [1, 2])),
    "class": lambda: nested(Classless()),
    "the result has no class": Classless,
    "dtype": lambda: nested(made(dtype=property(lambda self: away(SystemExit())))),
    "tolist": lambda: nested(made(dtype=1, tolist=lambda self: away(SystemExit()))),
    "tolist of itself": lambda: nested(made(dtype=1, tolist=lambda self: self)),
    "tolist without end": lambda: nested(Endless()),
    "model_dump": lambda: nested(made(model_dump=lambda self: away(SystemExit()))),
    "endless list": lambda: nested(EndlessList()),
    "endless items": lambda: nested(Items(lambda: ((str(i), "x" * 100_000) for i in itertools.count()))),
    "the result's own items never end": lambda: Items(lambda: ((str(i), "x" * 100_000) for i in itertools.count())),
    "a large integer": lambda: nested(10**5000),
    "a large integer as a key": lambda: nested({10**5000: 1}),
    "a set that can't be sorted": lambda: nested({1, mute(SystemExit)}),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_every_value_leaves_one_result(name: str, tmp_path: Path) -> None:
    document = run(VALUES[name], tmp_path)
    check_failure(document)
    if type(VALUES[name]()) is dict:
        assert (document["returned"]["kept"], document["returned"]["rewards"]) == ("this", 1.0)


@pytest.mark.parametrize("name", ["repr raises SystemExit", "items raises SystemExit", "the result has no class"])
def test_every_value_of_an_async_function_leaves_one_result(name: str, tmp_path: Path) -> None:
    check_failure(run(VALUES[name], tmp_path, is_async=True))


REWARDS: dict[str, Callable[[], Any]] = {
    **{f"repr raises {kind.__name__}": lambda kind=kind: mute(kind) for kind in AWAY},
    "endless": EndlessList,
    "class": Classless,
    "ndim": lambda: made(ndim=property(lambda self: away(SystemExit()))),
    "one-dimensional without end": lambda: made(ndim=1, tolist=1, __iter__=lambda self: itertools.repeat(0.0)),
    "long": lambda: "x" * 3_000_000,
}


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_leaves_one_result(name: str, tmp_path: Path) -> None:
    document = run(lambda: {"rewards": REWARDS[name](), "kept": "this"}, tmp_path)
    check_failure(document, "reward_error")
    assert document["returned"]["kept"] == "this"


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "large",
    ["x" * (LARGEST_RESULT + 1), bytes(LARGEST_RESULT), "\0" * (LARGEST_RESULT // 5), {"k" * LARGEST_RESULT: 1}],
    ids=["text", "bytes", "escapes", "key"],
)
def test_a_result_over_the_limit_is_a_failed_one_that_says_so(large: Any, tmp_path: Path) -> None:
    document = run(lambda: {"rewards": 0.5, "log": large, "note": "small"}, tmp_path)
    check_failure(document)
    assert document["error"]["type"] == "ResultTooLarge"
    assert f"{LARGEST_RESULT:,} bytes" in document["error"]["message"]
    assert "hint:" in document["error"]["message"]
    assert document["returned"]["rewards"] == 0.5
    assert document["returned"]["note"] == "small"


def test_a_result_just_below_the_limit_is_stored_whole(tmp_path: Path) -> None:
    text = "x" * (LARGEST_RESULT - 2000)
    document = run(lambda: {"rewards": 0.5, "log": text}, tmp_path)
    assert (document["status_code"], document["log"] == text) == (200, True)


def test_a_long_key_is_not_copied_for_every_value_below_it(tmp_path: Path) -> None:
    document = run(lambda: {"k" * 1_000_000: list(range(200_000))}, tmp_path)
    assert document["status_code"] == 200


def test_a_long_stop_reason_is_cut_and_kept_beside(tmp_path: Path) -> None:
    document = run(lambda: {"status_code": 503, "stop_reason": "r" * 50_000}, tmp_path)
    assert (document["status_code"], document["error"]["kind"]) == (503, "agent_error")
    assert len(document["stop_reason"]) <= LONGEST_MESSAGE
    assert document["error"]["message"] == document["stop_reason"]
    assert document["shadowed"]["stop_reason"] == "r" * 50_000


def test_a_large_request_is_run_and_its_copy_left_out(tmp_path: Path) -> None:
    app = AgentCoreRLApp()
    app.rollout_entrypoint(lambda payload: {"rewards": 1.0, "seen": len(payload["prompt"])})
    settings = rollout(tmp_path, model_id="m", api_key="sk-12345678")
    with TestClient(app) as client:
        client.post("/invocations", json={"prompt": "x" * (LARGEST_RESULT // 4), "_rollout": settings})
        while client.get("/ping").json()["status"] != "Healthy":
            pass
    (path,) = tmp_path.rglob("*.json")
    document = json.loads(path.read_bytes())
    assert (document["status_code"], document["seen"]) == (200, LARGEST_RESULT // 4)
    assert document["payload"]["_rollout"] == settings | {"api_key": "***"}
    assert "left out" in document["payload"]["prompt"]
