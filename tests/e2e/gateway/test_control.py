"""The control API: sessions and their keys, settings, weight updates, and what is read back."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest

from agentcore_rl_toolkit.engine import open_engine
from agentcore_rl_toolkit.engine.base import EngineInfo, SampleRequest
from agentcore_rl_toolkit.engine.replicas import Replicas
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.fake_vllm import FakeVllm
from support.gateway import MODEL, Control, Gated, client, gateway, ids, in_thread, until

HELLO = [{"role": "user", "content": "what is two plus two?"}]


def chat(session: dict[str, Any], **more: Any) -> Any:
    return client(session).chat.completions.create(**{"model": MODEL, "messages": HELLO} | more)


def code(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"]


# Keys


CONTROLLED = [
    ("POST", "/sessions"),
    ("GET", "/sessions"),
    ("GET", "/sessions/one"),
    ("DELETE", "/sessions/one"),
    ("POST", "/sessions/one/close"),
    ("GET", "/sessions/one/turns"),
    ("GET", "/sessions/one/trajectories"),
    ("PUT", "/sessions/one/result"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/drain"),
    ("PUT", "/weights"),
]


@pytest.fixture(scope="module")
def shared() -> Any:
    """One gateway for tests that change nothing."""
    with gateway(ScriptedEngine(lambda request: ids("four"))) as running:
        running.open_session(session_id="one")
        yield running


@pytest.mark.parametrize(("method", "path"), CONTROLLED)
@pytest.mark.parametrize("header", [None, "", "Bearer wrong", "Basic {key}", "{key}", "Bearer \u00e9"])
def test_control_needs_the_admin_key(shared: Gateway, method: str, path: str, header: str | None):
    headers = {} if header is None else {"Authorization": header.format(key=shared.admin_key).encode()}
    refused = httpx.request(method, shared.url + path, headers=headers, content=b"{}")
    assert code(refused) == (401, "invalid_admin_key")
    assert shared.admin_key not in refused.text
    assert not shared.core.gate.paused


@pytest.mark.parametrize("scheme", ["bearer ", "BEARER  "])
def test_the_word_before_a_key_has_no_case(shared: Gateway, scheme: str):
    headers = {"Authorization": scheme + shared.admin_key}
    assert httpx.get(f"{shared.url}/sessions/one", headers=headers).status_code == 200


def test_a_sessions_key_is_no_admin_key(shared: Gateway):
    session = shared.open_session()
    key = session["base_url"].split("/")[4].partition(".")[2]
    assert Control(shared, key)("GET", f"/sessions/{session['session_id']}").status_code == 401


@pytest.mark.parametrize("wrong", ["", "x", "{key}x", "{short}", "{KEY}", "%00", "\u00e9"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "v1/chat/completions"),
        ("POST", "v1/completions"),
        ("GET", "v1/models"),
        ("PUT", "result"),
        ("GET", "x"),
    ],
)
def test_the_right_session_with_the_wrong_key_can_do_nothing(shared: Gateway, method: str, path: str, wrong: str):
    session = shared.open_session()
    key = session["base_url"].split("/")[4].partition(".")[2]
    tried = wrong.format(key=key, short=key[:-1], KEY=key.swapcase())
    url = f"{shared.url}/sessions/{session['session_id']}.{tried}/{path}"
    refused = httpx.request(method, url, json={"messages": HELLO, "prompt": "x"}, headers={"Authorization": "Bearer x"})
    assert code(refused) == (401, "invalid_key")
    assert key not in refused.text
    known = Control(shared)("GET", f"/sessions/{session['session_id']}").json()
    assert (known["turns"], known["result"]) == (0, None)


def test_health_and_metrics_and_the_description_are_open(shared: Gateway):
    health = httpx.get(f"{shared.url}/health").json()
    assert health["status"] == "ok"
    assert health["models"] == [MODEL]
    metrics = httpx.get(f"{shared.url}/metrics").text
    assert re.search(r"^agentcore_rl_gateway_sessions_open \d+$", metrics, re.MULTILINE)
    assert httpx.get(f"{shared.url}/openapi.json").json()["openapi"] == "3.1.0"


@pytest.mark.parametrize(
    ("there", "status"), [([False], "degraded"), ([True, False], "ok"), ([False, False], "degraded")]
)
def test_health_says_how_many_engines_are_well(there: list[bool], status: str):
    class Engine(ScriptedEngine):
        async def info(self) -> EngineInfo:
            raise EngineError("nobody there", status=503)

    engines = [(ScriptedEngine if one else Engine)([ids("four")]) for one in there]
    with gateway(Replicas(engines) if len(engines) > 1 else engines[0]) as running:
        health = httpx.get(f"{running.url}/health").json()
        assert (health["status"], health["replicas_well"], health["replicas"]) == (status, sum(there), len(there))


def test_wrong_ways_are_told_the_right_ones(shared: Gateway):
    control = Control(shared)
    wrong = control("PUT", "/sessions")
    assert code(wrong) == (405, "method_not_allowed")
    assert wrong.headers["Allow"] == "GET, POST"
    assert code(control("GET", "/nothing")) == (404, "not_found")
    assert code(control("GET", "/sessions/one/nothing")) == (404, "not_found")
    assert code(control("PATCH", "/sessions/one/result")) == (405, "method_not_allowed")


def test_keys_appear_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with gateway([ids("four")]) as running:
        session = running.open_session()
        key = session["base_url"].split("/")[4].partition(".")[2]
        assert len(key) >= 32
        chat(session)
        texts = [
            httpx.request(method, f"{session['base_url']}/{path}", content=body).text
            for method, path, body in [
                ("POST", "nothing", b"{}"),
                ("GET", "chat/completions", b""),
                ("POST", "chat/completions", b"{"),
                ("POST", "chat/completions", json.dumps({"messages": HELLO}).encode()),  # the script has ended
            ]
        ]
        running.core.sessions.delete(session["session_id"])
        texts.append(httpx.get(f"{session['base_url']}/models").text)
        ours = "".join(r.getMessage() for r in caplog.records if r.name.startswith("agentcore_rl_toolkit"))
        for said in (*texts, ours):
            assert key not in said
            assert running.admin_key not in said


# Sessions


def test_what_a_session_was_opened_with_comes_back():
    settings = {
        "session_id": "a-b_c~d:e@f=1",
        "group_id": "group",
        "input_id": "input",
        "metadata": {"a": [1, {"b": "é\u2028"}], "n": None},
        "sampling": {"temperature": 0.5},
        "enforced": {"max_tokens": 7},
        "context_limit": 100,
        "ttl_seconds": 60,
        "mask_truncated": True,
        "model": "scripted",
    }
    with gateway([ids("four")]) as running:
        control = Control(running)
        opened = control("POST", "/sessions", json=settings)
        assert opened.status_code == 201
        session = opened.json()
        assert session["base_url"].startswith(f"{running.url}/sessions/a-b_c~d:e@f=1.")
        for name in ("base_url", "anthropic_base_url", "bedrock_endpoint_url", "result_url"):
            assert session[name].startswith(running.url)
        known = control("GET", f"/sessions/{session['session_id']}").json()
        assert {name: known[name] for name in settings} == settings
        assert (known["closed"], known["turns"], known["in_flight"], known["result"]) == (False, 0, 0, None)
        (listed,) = control("GET", "/sessions").json()["sessions"]
        assert (listed["session_id"], listed["input_id"], listed["closed"]) == (settings["session_id"], "input", False)
        assert session["base_url"].split(".")[-1].split("/")[0] not in str(listed)
        chat(session)
        rows = control("GET", f"/sessions/{session['session_id']}/trajectories").json()
        assert (rows["group_id"], rows["input_id"], rows["metadata"]) == ("group", "input", settings["metadata"])
        assert control("GET", f"/sessions/{session['session_id']}").json()["turns"] == 1


def test_the_same_id_twice_is_a_conflict():
    with gateway([]) as running:
        control = Control(running)
        first = control("POST", "/sessions", json={"session_id": "one"})
        assert first.status_code == 201
        assert code(control("POST", "/sessions", json={"session_id": "one"})) == (409, "session_exists")
        control("POST", "/sessions/one/close")
        assert code(control("POST", "/sessions", json={"session_id": "one"})) == (409, "session_exists")
        control("DELETE", "/sessions/one").raise_for_status()
        again = control("POST", "/sessions", json={"session_id": "one"})
        assert again.status_code == 201
        assert again.json()["base_url"] != first.json()["base_url"]


def test_unknown_closed_deleted_and_expired_are_told_apart():
    with gateway([]) as running:
        control = Control(running)
        sessions = {name: running.open_session(session_id=name) for name in ("closed", "deleted", "expired")}
        control("POST", "/sessions/closed/close").raise_for_status()
        control("DELETE", "/sessions/deleted").raise_for_status()
        running.core.sessions.get("expired").used -= 90_000
        expected = {
            "closed": (410, "session_closed"),
            "deleted": (410, "session_closed"),
            "expired": (410, "session_expired"),
        }
        for name, session in sessions.items():
            asked = httpx.get(f"{session['base_url']}/models")
            assert code(asked) == expected[name], name
            with pytest.raises(openai.APIStatusError) as raised:
                chat(session)
            assert raised.value.status_code == 410
        assert code(httpx.get(f"{running.url}/sessions/other.key/v1/models")) == (404, "session_unknown")
        assert control("GET", "/sessions/closed/turns").status_code == 200  # closed, but readable
        assert code(control("GET", "/sessions/deleted/turns")) == (410, "session_closed")
        assert code(control("GET", "/sessions/expired/turns")) == (410, "session_expired")
        assert code(control("DELETE", "/sessions/other")) == (404, "session_unknown")


def test_a_session_expires_when_it_has_not_been_used():
    with gateway(ScriptedEngine(lambda request: ids("four"))) as running:
        session = running.open_session(session_id="one", ttl_seconds=100)
        for use in (lambda: list(client(session).models.list()), lambda: chat(session)):
            running.core.sessions.get("one").used -= 99
            use()
            assert running.core.sessions.get("one").idle_until_expired > 99
        running.core.sessions.get("one").used -= 101
        running.core.sessions.sweep()
        assert len(running.core.sessions) == 0
        assert code(Control(running)("GET", "/sessions/one")) == (410, "session_expired")


def test_a_session_does_not_expire_during_a_call():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine) as running:
        session = running.open_session(session_id="one", ttl_seconds=100)
        asking = in_thread(lambda: chat(session))
        engine.wait(engine.asked)
        running.core.sessions.get("one").used -= 101
        running.core.sessions.sweep()
        assert len(running.core.sessions) == 1
        engine.let()
        asking()
        assert len(Control(running).turns(session)) == 1


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"sesion_id": "x"}, "sesion_id"),
        ({"session_id": "a/b"}, "session_id"),
        ({"session_id": "a.b"}, "session_id"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "x" * 129}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"ttl_seconds": True}, "ttl_seconds"),
        ({"ttl_seconds": 1e300}, "ttl_seconds"),
        ({"context_limit": 0}, "context_limit"),
        ({"context_limit": 1.5}, "context_limit"),
        ({"metadata": [1]}, "metadata"),
        ({"group_id": 5}, "group_id"),
        ({"mask_truncated": 1}, "mask_truncated"),
        ({"enforced": {"max_tokens": 0}}, "enforced.max_tokens"),
        ({"enforced": {"max_token": 5}}, "enforced"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
        ({"sampling": {"stop": 5}}, "sampling.stop"),
    ],
)
def test_bad_settings_are_named(shared: Gateway, settings: dict[str, Any], param: str):
    refused = Control(shared)("POST", "/sessions", json=settings)
    assert code(refused) == (400, "invalid_value")
    assert refused.json()["error"]["param"] == param
    assert param.split(".")[-1] in refused.json()["error"]["message"]


def test_settings_that_no_log_could_take(tmp_path: Any):
    """Lone surrogates, numbers of any size, deep nesting: taken or refused, but never a 500."""
    with gateway([], log=tmp_path) as running:
        control = Control(running)
        taken = control("POST", "/sessions", content=b'{"session_id": "one", "metadata": {"a": "x\\ud800y"}}')
        assert taken.status_code == 201
        assert control("GET", "/sessions/one").json()["metadata"] == {"a": "x\ufffdy"}
        assert control("PUT", "/sessions/one/result", content=b'{"a": "\\udfff", "b": 1e400}').status_code in (200, 400)
        huge = control("POST", "/sessions", content=b'{"metadata": {"a": %s}}' % (b"9" * 400))
        assert huge.status_code in (201, 400)
        for depth in (90, 300, 1000, 100_000):
            deep = b'{"metadata": {"a": ' + b"[" * depth + b"]" * depth + b"}}"
            assert control("POST", "/sessions", content=deep).status_code == (201 if depth < 100 else 400)
            assert control("PUT", "/sessions/one/result", content=deep).status_code == (200 if depth < 100 else 400)
        assert control("POST", "/sessions", content=b'{"ttl_seconds": NaN}').status_code == 400
        assert running.core.log is not None
        assert running.core.log.failures == 0


def test_enforced_beats_asked_beats_default():
    engine = ScriptedEngine(lambda request: ids("four"))
    with gateway(engine) as running:
        session = running.open_session(
            sampling={"temperature": 0.3, "top_p": 0.5, "stop": ["x"]}, enforced={"max_tokens": 5, "seed": 1}
        )
        chat(session, temperature=0.9, max_completion_tokens=100, seed=2)
        chat(session, max_tokens=100, stop="y")
        first, second = (request.sampling for request in engine.requests)
        assert (first.temperature, first.top_p, first.max_tokens, first.seed, first.stop) == (0.9, 0.5, 5, 1, ("x",))
        assert (second.temperature, second.max_tokens, second.stop) == (0.3, 5, ("y",))


def test_a_sessions_seed_replaces_those_of_calls_and_choices_get_their_own():
    engine = ScriptedEngine(lambda request: ids("four"))
    with gateway(engine) as running:
        chat(running.open_session(seed=5), seed=1, n=2)
        chat(running.open_session(seed=5), seed=2, n=2)
        chat(running.open_session(), seed=1, n=2)
    seeds = [request.sampling.seed for request in engine.requests]
    assert sorted(seeds[:2]) == sorted(seeds[2:4])
    assert len(set(seeds)) == 4
    assert 1 in seeds[4:]


def test_zero_is_a_setting():
    engine = ScriptedEngine(lambda request: ids("four"))
    with gateway(engine) as running:
        chat(running.open_session(enforced={"temperature": 0}), temperature=1)
        chat(running.open_session(sampling={"temperature": 1}), temperature=0)
        assert [request.sampling.temperature for request in engine.requests] == [0, 0]


def test_a_sessions_context_limit():
    engine = ScriptedEngine(lambda request: ids("four " * 50, end=False), context_length=4096)
    with gateway(engine) as running:
        session = running.open_session(context_limit=60)
        assert chat(session).usage.total_tokens == 60
        with pytest.raises(openai.BadRequestError, match="60 tokens") as raised:
            chat(session, messages=[{"role": "user", "content": "what is two plus two? " * 30}])
        assert raised.value.code == "context_length_exceeded"


def test_results_by_the_admin_and_by_the_agent():
    with gateway([]) as running:
        control = Control(running)
        session = running.open_session(session_id="one")
        control("PUT", "/sessions/one/result", json={"reward": 1}).raise_for_status()
        assert control("GET", "/sessions/one").json()["result"] == {"reward": 1}
        httpx.put(session["result_url"], json={"reward": 0.5, "text": "é"}).raise_for_status()
        assert control("GET", "/sessions/one/trajectories").json()["result"] == {"reward": 0.5, "text": "é"}
        assert code(control("PUT", "/sessions/one/result", content=b"[1]")) == (400, "invalid_json")
        control("POST", "/sessions/one/close").raise_for_status()
        assert code(httpx.put(session["result_url"], json={})) == (410, "session_closed")
        control("PUT", "/sessions/one/result", json={"reward": 2}).raise_for_status()  # the trainer still may
        assert control("GET", "/sessions/one").json()["result"] == {"reward": 2}


# Weight updates


def test_a_paused_gateway_holds_calls_and_then_serves_them():
    engine = ScriptedEngine(lambda request: ids("four"), weight_version=None)
    with gateway(engine) as running:
        control = Control(running)
        session = running.open_session()
        assert control("PUT", "/weights", json={"version": 1}).json()["weight_version"] == "1"
        chat(session)
        assert control("POST", "/pause").json()["status"] == "paused"
        asking = in_thread(lambda: chat(session, messages=[{"role": "user", "content": "and three?"}]))
        until(lambda: control("GET", "/health").json()["in_flight"] == 1)
        assert control("POST", "/drain").status_code == 200  # what is held back is not being sampled
        assert len(engine.requests) == 1
        control("PUT", "/weights", json={"version": "two"}).raise_for_status()
        assert control("POST", "/resume").json()["status"] == "ok"
        assert asking().choices[0].message.content == "four"
        turns = control.turns(session)
        count = len(ids("four"))
        assert [turn["weight_versions"] for turn in turns] == [[["1", count]], [["two", count]]]


def test_drain_waits_for_what_is_being_sampled():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine) as running:
        control = Control(running)
        session = running.open_session()
        asking = in_thread(lambda: chat(session))
        engine.wait(engine.asked)
        control("POST", "/pause").raise_for_status()
        order: list[str] = []
        draining = in_thread(lambda: (control("POST", "/drain"), order.append("drained")))
        assert httpx.get(f"{running.url}/health").json()["in_flight"] == 1  # served while the other waits
        order.append("let")
        control("POST", "/resume").raise_for_status()  # the scripted engine waits, too
        engine.let()
        asking()
        draining()
        assert order == ["let", "drained"]


def test_the_engines_own_version_comes_first():
    with gateway(ScriptedEngine(lambda request: ids("four"), weight_version="engine")) as running:
        session = running.open_session()
        Control(running)("PUT", "/weights", json={"version": "gateway"}).raise_for_status()
        chat(session)
        assert Control(running).turns(session)[0]["weight_versions"][0][0] == "engine"


@pytest.mark.parametrize("body", [{}, {"version": None}, {"version": True}, {"version": []}, {"version": 1.5}])
def test_a_version_is_a_text_or_a_number(shared: Gateway, body: dict[str, Any]):
    refused = Control(shared)("PUT", "/weights", json=body)
    assert code(refused) == (400, "invalid_value")
    assert refused.json()["error"]["param"] == "version"


def test_an_engine_that_can_not_pause():
    class Stubborn(ScriptedEngine):
        async def pause(self) -> None:
            raise EngineError("it can't be reached", status=503, retry_after=3)

    with gateway(Stubborn([ids("four")])) as running:
        refused = Control(running)("POST", "/pause")
        assert code(refused) == (503, "engine_unavailable")
        assert refused.headers["Retry-After"] == "3"
        assert not running.core.gate.paused  # and nobody is held back for an update that does not come
        chat(running.open_session())


def test_a_second_pause_that_fails_leaves_the_first():
    class Once(ScriptedEngine):
        async def pause(self) -> None:
            if self.paused:
                raise EngineError("it can't be reached", status=503)
            await super().pause()

    engine = Once([ids("four")])
    with gateway(engine) as running:
        control = Control(running)
        control("POST", "/pause").raise_for_status()
        assert code(control("POST", "/pause")) == (503, "engine_unavailable")
        assert control("GET", "/health").json()["status"] == "paused"
        control("POST", "/resume").raise_for_status()
        chat(running.open_session())


# Reading


def read(running: Gateway, session: dict[str, Any], what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    path = f"/sessions/{session['session_id']}/{what}"
    plain = Control(running)("GET", path)
    packed = Control(running)("GET", path, headers={"Accept": "application/msgpack"})
    assert packed.headers["Content-Type"] == "application/msgpack"
    return plain.json(), msgspec.msgpack.decode(packed.content)


def test_packed_reads_equal_the_plain_ones():
    engine = ScriptedEngine(lambda request: ids("the answer is four"), weight_version="7", routes_width=3)
    with gateway(engine) as running:
        session = running.open_session(metadata={"a": 1})
        history: list[dict[str, Any]] = list(HELLO)
        for _ in range(3):
            answer = chat(session, messages=history)
            history += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "more"}]
        chat(session, messages=[{"role": "user", "content": "something else"}], n=2)
        plain, packed = read(running, session, "trajectories")
        kinds = {"token_ids": "<u4", "loss_mask": "u1", "logprobs": "<f4", "routes": "<i4", "routes_known": "u1"}
        assert len(plain["rows"]) == 3
        for mine, theirs in zip(plain.pop("rows"), packed.pop("rows"), strict=True):
            assert mine.keys() == theirs.keys()
            for name, kind in kinds.items():
                numbers = np.array(mine.pop(name), dtype=np.dtype(kind)).ravel()
                np.testing.assert_array_equal(numbers, np.frombuffer(theirs.pop(name), kind), name)
            assert mine == theirs
        assert plain == packed
        assert plain["fidelity"]["trained"] == plain["fidelity"]["sampled"]
        plain, packed = read(running, session, "turns")
        kinds = {"new_prompt_ids": "<u4", "sampled_ids": "<u4", "logprobs": "<f4"}
        assert len(plain["turns"]) == 5
        for mine, theirs in zip(plain.pop("turns"), packed.pop("turns"), strict=True):
            for name, kind in kinds.items():
                numbers = np.array(mine.pop(name), dtype=np.dtype(kind))
                np.testing.assert_array_equal(numbers, np.frombuffer(theirs.pop(name), kind), name)
            assert mine == theirs
        assert plain == packed == {}


def test_a_session_without_turns_can_be_read(shared: Gateway):
    session = shared.open_session()
    plain, packed = read(shared, session, "trajectories")
    assert plain == packed
    assert (plain["rows"], plain["fidelity"]["sampled"]) == ([], 0)
    assert read(shared, session, "turns") == ({"turns": []}, {"turns": []})


class Watched:
    """A turn that knows when it was read."""

    def __init__(self, turn: Any, seen: Callable[[], None]) -> None:
        self._turn, self._seen = turn, seen

    def __getattr__(self, name: str) -> Any:
        if name == "sampled":
            self._seen()
        return getattr(self._turn, name)


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_large_read_lets_others_in(accept: str):
    """The loop comes round between any two items: whoever waits is served."""
    loops: set[asyncio.AbstractEventLoop] = set()

    def say(request: SampleRequest) -> list[int]:
        loops.add(asyncio.get_running_loop())
        return ids("four")

    with gateway(ScriptedEngine(say)) as running:
        session = running.open_session()
        for number in range(20):
            chat(session, messages=[{"role": "user", "content": f"number {number}"}])
        (loop,), rounds, seen = loops, [0], []

        def count() -> None:
            rounds[0] += 1
            if len(seen) < 20:
                loop.call_soon(count)

        turns = running.core.sessions.get(session["session_id"]).tree.turns
        turns[:] = [Watched(turn, lambda: seen.append(rounds[0])) for turn in turns]  # type: ignore[misc]
        loop.call_soon_threadsafe(count)
        Control(running)("GET", f"/sessions/{session['session_id']}/turns", headers={"Accept": accept})
        assert len(set(seen)) == 20


def test_engine_replicas_are_changed_while_running():
    with FakeVllm().serving() as one, FakeVllm().serving() as other:
        one.kv_used = other.kv_used = 0.25
        with gateway(open_engine(f"vllm={one.url}", changeable=True)) as running:
            control = Control(running)
            names = [f"vllm={one.url}", f"vllm={other.url}"]
            first = control("GET", "/engines").json()["engines"][0]
            assert (first["name"], first["healthy"], first["kv_used"]) == (names[0], True, 0.25)
            assert asyncio.run(running.engine_loads_async())[names[0]].kv_used == 0.25
            changed = control("PUT", "/engines", json={"engines": names}).json()["engines"]
            assert [engine["name"] for engine in changed] == names
            assert control("GET", "/health").json()["replicas_well"] == 2
            control("PUT", "/engines", json={"engines": names[1:]}).raise_for_status()
            session = running.open_session()
            client(session).chat.completions.create(model=session["model"], messages=HELLO, max_tokens=2)
            assert "/v1/completions" in {path for path, _ in other.requests}
            assert "/v1/completions" not in {path for path, _ in one.requests}
            for wrong in ([], ["transformers=tiny"], ["nonsense"]):
                assert control("PUT", "/engines", json={"engines": wrong}).status_code == 400
            assert httpx.put(f"{running.url}/engines", json={"engines": names}).status_code == 401


def test_an_engine_in_this_process_has_no_replicas():
    with gateway([]) as running:
        refused = Control(running)("PUT", "/engines", json={"engines": ["vllm=http://127.0.0.1:9"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "engine_not_changeable")
