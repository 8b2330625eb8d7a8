"""What goes wrong between an agent, the gateway and an engine: each time an honest turn, and nothing else harmed."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import math
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import hypothesis
import openai
import pytest
from aiohttp import web
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import Sampled, SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine, logprob_of
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.http.stream_sender import WriteProgress
from agentcore_rl_toolkit.gateway.record.segments import SegmentIndex
from support.fault_proxy import FaultProxy
from support.gateway import MODEL, WEATHER, Control, Gated, call_text, client, gateway, ids, in_thread, text_of, until

HELLO = [{"role": "user", "content": "what is two plus two?"}]
SAID = "the weather in Paris is sunny and warm"


def chat(session: dict[str, Any], **more: Any) -> Any:
    settings = more.pop("client", {})
    return client(session, **settings).chat.completions.create(**{"model": MODEL, "messages": HELLO} | more)


def text(answer: Any) -> str:
    if hasattr(answer, "choices"):
        return str(answer.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


def fidelity(running: Gateway, session: dict[str, Any]) -> Any:
    return running.trajectories(session["session_id"]).fidelity


# Requests that are sent again


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["cut after", "error", "cut before"])
def test_the_sdks_retry_gets_the_recorded_turn(fault: str, stream: bool):
    """`cut after`: the answer is lost on its way; `error`: a proxy in between fails; `cut before`: it never arrives."""
    engine = ScriptedEngine([ids("four"), ids("five")])
    with gateway(engine) as running, FaultProxy(running.url, rate=1.0, faults=(fault,)).serving() as proxy:
        session = running.open_session()
        base_url = session["base_url"].replace(running.url, proxy.url)
        asking = in_thread(lambda: text(chat(session, client={"base_url": base_url, "max_retries": 8}, stream=stream)))
        until(lambda: proxy.counts[fault] >= 2)
        proxy.rate = 0.0
        assert asking() == "four"
        assert len(engine.requests) == 1
        known = fidelity(running, session)
        assert (known.turns, known.rows, known.trained) == (1, 1, len(ids("four")))


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdks_retry_after_a_timeout(stream: bool):
    """The first generation does not run on, and one turn is trained."""
    engine = Gated(ScriptedEngine(lambda request: ids("four")))
    with gateway(engine) as running:
        session = running.open_session()
        asking = in_thread(lambda: text(chat(session, client={"timeout": 0.5, "max_retries": 5}, stream=stream)))
        engine.wait(engine.asked)
        engine.wait(engine.ended)  # nobody listens any more
        assert len(engine.inner.aborted) == 1
        engine.let(100)
        assert asking() == "four"
        known = fidelity(running, session)
        assert (known.rows, known.trained) == (1, len(ids("four")))


def raw(session: dict[str, Any], *, retry: int | None = None, stream: bool = False, **headers: str) -> httpx.Response:
    if retry is not None:
        headers["x-stainless-retry-count"] = str(retry)
    body = {"model": MODEL, "messages": HELLO, "stream": stream}
    return httpx.post(f"{session['base_url']}/chat/completions", json=body, headers=headers, timeout=30)


def test_a_retry_is_known_by_its_mark_and_the_same_answer_again():
    engine = ScriptedEngine([ids("four"), ids("five")])
    with gateway(engine) as running:
        session = running.open_session()
        first = raw(session, retry=0)
        assert raw(session, retry=1).json() == first.json()
        assert raw(session, retry=2).json() == first.json()
        assert len(engine.requests) == 1
        assert running.core.totals["replayed"] == 2


def test_a_streamed_retry_of_an_answer_with_tools_and_logprobs():
    engine = ScriptedEngine([ids("<think>\nhm\n</think>\n\nlet me see\n" + call_text("get_weather", city="Paris"))])
    with gateway(engine) as running:
        session = running.open_session()
        body = {"model": MODEL, "messages": HELLO, "tools": [WEATHER], "logprobs": True, "top_logprobs": 1}

        def deltas(retry: int) -> dict[str, Any]:
            response = httpx.post(
                f"{session['base_url']}/chat/completions",
                json=body | {"stream": True},
                headers={"x-stainless-retry-count": str(retry)},
            )
            events = [json.loads(line[6:]) for line in response.text.split("\n") if line.startswith("data: {")]
            merged: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "logprobs": [], "finish": ""}
            for event in events:
                (choice,) = event["choices"]
                merged["content"] += choice["delta"].get("content") or ""
                merged["reasoning_content"] += choice["delta"].get("reasoning_content") or ""
                merged["calls"] += choice["delta"].get("tool_calls") or []
                merged["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
                merged["finish"] = choice["finish_reason"] or merged["finish"]
                merged["id"] = event["id"]
            return merged

        first = deltas(0)
        assert first["content"] == "let me see"
        assert first["finish"] == "tool_calls"
        assert deltas(1) == first
        assert len(engine.requests) == 1


def test_the_same_request_without_a_mark_is_sampled_again():
    """Agents that ask several times to choose the best answer."""
    engine = ScriptedEngine([ids("four"), ids("five")])
    with gateway(engine) as running:
        session = running.open_session()
        assert [text(chat(session)), text(chat(session))] == ["four", "five"]
        known = fidelity(running, session)
        assert (known.turns, known.rows, known.trained) == (2, 2, known.sampled)


def test_the_same_requests_at_the_same_time_are_sampled_each():
    engine = Gated(ScriptedEngine([ids("four"), ids("five")]))
    with gateway(engine) as running:
        session = running.open_session()
        asking = [in_thread(lambda: text(chat(session))) for _ in range(2)]
        engine.wait(engine.asked, 2)
        engine.let(2)
        assert sorted(join() for join in asking) == ["five", "four"]


def test_a_retry_joins_the_call_in_flight():
    engine = Gated(ScriptedEngine([ids("four"), ids("five")]))
    with gateway(engine) as running:
        session = running.open_session()
        first = in_thread(lambda: raw(session, retry=0).json())
        engine.wait(engine.asked)
        second = in_thread(lambda: raw(session, retry=1).json())
        third = in_thread(lambda: raw(session, retry=1, Connection="close").json())
        control = Control(running)
        until(lambda: control("GET", "/health").json()["in_flight"] == 1)
        engine.let()
        assert first() == second() == third()
        assert len(engine.inner.requests) == 1


def test_a_retry_of_a_call_that_failed_is_a_new_call():
    engine = ScriptedEngine([ScriptedLine([], fails=EngineError("no", status=500)), ids("four")])
    with gateway(engine) as running:
        session = running.open_session()
        assert raw(session, retry=0).status_code == 500
        assert raw(session, retry=1).json()["choices"][0]["message"]["content"] == "four"


def test_an_idempotency_key_tells_requests_apart():
    engine = ScriptedEngine([ids("four"), ids("five")])
    with gateway(engine) as running:
        session = running.open_session()
        first = raw(session, **{"Idempotency-Key": "a"})
        second = raw(session, **{"Idempotency-Key": "b"})
        assert raw(session, **{"Idempotency-Key": "a"}).json() == first.json()
        assert second.json() != first.json()
        assert len(engine.requests) == 2


# Clients that go away


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_while_waiting(stream: bool):
    engine = Gated(ScriptedEngine([ids("four"), ids("five")]))
    with gateway(engine) as running:
        session = running.open_session()
        with pytest.raises(openai.APITimeoutError):
            chat(session, client={"timeout": 2}, stream=stream)
        engine.wait(engine.asked)
        engine.wait(engine.ended)
        assert len(engine.inner.aborted) == 1
        (turn,) = Control(running).turns(session)
        assert (turn["finish"], turn["masked"], turn["sampled_ids"]) == ("abort", "aborted", [])
        engine.let()
        assert text(chat(session)) == "five"
        assert fidelity(running, session).rows == 1


def test_a_client_that_goes_away_in_the_middle_of_a_stream():
    engine = Gated(ScriptedEngine([ids(SAID), ids("four")]))
    with gateway(engine) as running:
        session = running.open_session()
        engine.let(4)
        stream = chat(session, stream=True)
        while not (next(stream).choices[0].delta.content):
            pass
        engine.wait(engine.taken, 4)
        stream.close()
        engine.wait(engine.ended)
        assert len(engine.inner.aborted) == 1
        (turn,) = Control(running).turns(session)
        assert (turn["finish"], turn["masked"], turn["sampled_ids"]) == ("abort", "aborted", ids(SAID)[:4])
        assert turn["logprobs"] == pytest.approx([logprob_of(i) for i in ids(SAID)[:4]])
        known = fidelity(running, session)
        assert (known.rows, known.trained, known.masked) == (0, 0, {"aborted": 4})
        engine.let(len(ids("four")))
        assert text(chat(session)) == "four"
        known = fidelity(running, session)
        assert (known.rows, known.trained) == (1, len(ids("four")))


def test_the_write_that_finds_the_client_gone_is_no_error(caplog: pytest.LogCaptureFixture, connections: Any):
    engine = Cutting([ids(SAID), ids("four")])
    engine.at_the_end = False
    with gateway(engine) as running:
        session = running.open_session()
        engine.connections = connections
        with pytest.raises((openai.APIConnectionError, httpx.HTTPError)):
            text(chat(session, stream=True))
        until(lambda: running.core.in_flight == 0)
        (turn,) = Control(running).turns(session)
        assert (turn["finish"], turn["masked"]) == ("abort", "aborted")
        assert turn["sampled_ids"] == ids(SAID)[: len(turn["sampled_ids"])]
        assert text(chat(session)) == "four"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class Cutting(ScriptedEngine):
    """Cuts all connections to the gateway while it gives its last tokens, or others, the first time."""

    connections: Sequence[asyncio.WriteTransport] = ()
    at_the_end = True

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        async for sampled in super().sample(request):
            if bool(sampled.finish) == self.at_the_end:
                for connection in self.connections:
                    connection.abort()
                self.connections = ()
            yield sampled


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.WriteTransport]:
    """The gateway's ends of all connections to it."""
    made: list[asyncio.WriteTransport] = []
    connection_made = web.Server.connection_made

    def keep(server: web.Server, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        made.append(transport)
        connection_made(server, handler, transport)

    monkeypatch.setattr(web.Server, "connection_made", keep)
    return made


def send(session: dict[str, Any], **more: Any) -> socket.socket:
    """A connection with a request on it, whose answer is not read."""
    url, body = urlsplit(session["base_url"]), json.dumps({"model": MODEL, "messages": HELLO} | more).encode()
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((url.hostname, url.port))
    connection.sendall(head.encode() + body)
    return connection


def cut(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_never_received_is_given_to_whoever_asks_again(stream: bool, connections: Any):
    """It was sampled whole when the client went away: kept, masked, and trained once somebody has it."""
    engine = Cutting([ids("four"), ids("five")])
    with gateway(engine) as running:
        session = running.open_session()
        engine.connections = connections
        with pytest.raises((openai.APIConnectionError, httpx.HTTPError)):
            text(chat(session, stream=stream))
        until(lambda: running.core.in_flight == 0)
        assert Control(running).turns(session)[0]["masked"] == "undelivered"
        assert fidelity(running, session).trained == 0
        assert text(chat(session, stream=stream)) == "four"
        assert len(engine.requests) == 1
        known = fidelity(running, session)
        assert (known.rows, known.turns, known.trained) == (1, 1, known.sampled)
        assert text(chat(session, stream=stream)) == "five"  # it counts as received now


@pytest.mark.parametrize("stream", [False, True])
def test_choices_that_were_sampled_for_a_client_that_is_gone_are_not_trained(stream: bool):
    engine = Gated(ScriptedEngine(lambda request: ids("four" if request.choice == 0 else SAID)))
    with gateway(engine) as running:
        session = running.open_session()
        connection = send(session, n=2, stream=stream)
        engine.wait(engine.asked, 2)
        engine.let(2 * len(ids("four")) if stream else 1)
        engine.wait(engine.ended)  # the first is recorded
        cut(connection)
        until(lambda: running.core.in_flight == 0)
        known = fidelity(running, session)
        assert (known.turns, known.trained) == (2, 0)
        assert known.masked["undelivered"] == len(ids("four"))


class Endless(ScriptedEngine):
    """Says more than any buffer holds."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        self.requests.append(request)
        said = ids("word " * 500, end=False)
        try:
            while True:
                yield Sampled(said, [-0.5] * len(said))
                await asyncio.sleep(0)
        finally:
            self.aborted.append(request)


@pytest.mark.parametrize("keep_alive", [0.0, 3600.0])
def test_a_client_that_stops_reading_holds_up_no_weight_update(keep_alive: float, caplog: pytest.LogCaptureFixture):
    engine = Endless([])
    with gateway(engine, limits=GatewayLimits(keep_alive_seconds=keep_alive, stalled_seconds=0.3)) as running:
        session = running.open_session()
        with send(session, stream=True):
            until(lambda: bool(engine.requests))
            control = Control(running)
            control("POST", "/pause").raise_for_status()
            control("POST", "/drain").raise_for_status()
            assert engine.aborted == engine.requests
        until(lambda: running.core.in_flight == 0)
        (turn,) = control.turns(session)
        assert (turn["finish"], turn["masked"]) == ("abort", "aborted")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_client_that_reads_slowly_is_waited_for():
    progress = WriteProgress()
    assert progress.waited(0.0, written=100, left=90) == 0
    assert progress.waited(50.0, written=150, left=140) == 50  # more was written, nothing has gone out
    assert progress.waited(59.0, written=150, left=139) == 0
    assert progress.waited(69.0, written=150, left=139) == 10
    assert progress.waited(100.0, written=150, left=0) == 0
    assert progress.waited(900.0, written=150, left=0) == 0  # it has read all there is


def test_one_choice_that_fails_fails_the_call():
    def say(request: SampleRequest) -> ScriptedLine:
        return (
            ScriptedLine(ids("four"))
            if request.choice == 0
            else ScriptedLine(ids("x", end=False), fails=EngineError("died"))
        )

    with gateway(ScriptedEngine(say)) as running:
        session = running.open_session()
        with pytest.raises(openai.InternalServerError, match="died"):
            chat(session, n=2)
        known = fidelity(running, session)
        assert (known.trained, set(known.masked)) == (0, {"undelivered", "engine_error"})


# Engines


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("given", [[-0.5], [-0.5, None, -0.25, None], [-0.5, math.nan, -0.25], [], [-0.5] * 40])
def test_missing_logprobs_are_masked_where_they_are_missing(given: list[float | None], stream: bool):
    said = ids("the answer is four")
    with gateway(ScriptedEngine([ScriptedLine(said, logprobs=given)], chunk=len(said))) as running:
        session = running.open_session()
        answer = chat(session, stream=stream, logprobs=True)
        assert text(answer) == "the answer is four"
        (turn,) = Control(running).turns(session)
        known = [value if value is not None and not math.isnan(value) else None for value in given]
        assert turn["sampled_ids"] == said
        assert turn["logprobs"] == (known + [None] * len(said))[: len(said)]
        there = sum(value is not None for value in turn["logprobs"])
        figures = fidelity(running, session)
        assert figures.trained == there
        assert figures.masked == ({"no_logprob": len(said) - there} if there < len(said) else {})


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_gives_up_is_asked_to_go_on(stream: bool):
    """A weight update in the middle of a call: the agent notices nothing, the turn has both versions."""
    said = ids(SAID)

    class Updated(ScriptedEngine):
        def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
            self.weight_version = str(len(self.requests) + 1)
            return super().sample(request)

    script = [ScriptedLine(said[:5], finish="abort"), ScriptedLine(said[5:7], finish="abort"), ScriptedLine(said[7:])]
    engine = Updated(script)
    with gateway(engine) as running:
        session = running.open_session()
        assert text(chat(session, stream=stream, max_tokens=len(said))) == SAID
        (turn,) = Control(running).turns(session)
        assert turn["sampled_ids"] == said
        assert turn["weight_versions"] == [["1", 5], ["2", 2], ["3", len(said) - 7]]
        assert [len(request.prompt) for request in engine.requests] == [
            turn["prompt_length"] + done for done in (0, 5, 7)
        ]
        assert [request.sampling.max_tokens for request in engine.requests] == [len(said) - done for done in (0, 5, 7)]
        row = running.trajectories(session["session_id"]).rows[0]
        assert [(version, end - start) for version, start, end in row.versions] == [
            ("1", 5), ("2", 2), ("3", len(said) - 7)
        ]  # fmt: skip


def test_an_engine_that_gives_up_at_the_limit_has_reached_it():
    said = ids(SAID)
    with gateway([ScriptedLine(said[:5], finish="abort")]) as running:
        answer = chat(running.open_session(), max_tokens=5)
        assert answer.choices[0].finish_reason == "length"


def test_an_engine_that_tells_versions_at_the_end():
    class Telling(ScriptedEngine):
        async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
            async for sampled in super().sample(request):
                if sampled.finish:
                    sampled.versions = (("a", 2), ("b", len(ids(SAID)) - 2))
                yield sampled

    with gateway(Telling([ids(SAID)])) as running:
        session = running.open_session()
        list(chat(session, stream=True))
        assert Control(running).turns(session)[0]["weight_versions"] == [["a", 2], ["b", len(ids(SAID)) - 2]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", [-1, 2**32, "7"])
def test_what_is_no_token_id_is_the_engines_fault(wrong: Any, stream: bool):
    class Odd(ScriptedEngine):
        async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
            yield Sampled(ids("four", end=False), [-0.5] * len(ids("four", end=False)))
            yield Sampled([5, wrong], [-0.5, -0.5], "stop")

    with gateway(Odd([])) as running:
        session = running.open_session()
        with pytest.raises(openai.APIError, match="an invalid token id"):
            text(chat(session, stream=stream))
        (turn,) = Control(running).turns(session)
        assert turn["sampled_ids"] == ids("four", end=False)
        assert (turn["masked"], len(turn["logprobs"])) == ("engine_error", len(turn["sampled_ids"]))


class Broken(ScriptedEngine):
    """Raises what no engine should."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        self.requests.append(request)
        for token in ids(SAID)[: self.chunk - 1]:
            yield Sampled([token], [-1.0])
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 4])
def test_a_bug_in_an_engine_is_an_error_to_its_caller_only(stream: bool, after: int, caplog: pytest.LogCaptureFixture):
    with gateway(Broken([], chunk=after + 1)) as running:
        session = running.open_session()
        with pytest.raises(openai.APIError) as raised:
            text(chat(session, stream=stream))
        assert "the gateway failed on this request" in str(raised.value)
        known = fidelity(running, session)
        assert (known.sampled, known.trained) == (after, 0)
        assert running.core.in_flight == 0
        assert session["base_url"].split("/")[4].partition(".")[2] not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        "<tool_call>\n{not json}\n</tool_call>",
        '<tool_call>\n{"name": 5, "arguments": []}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": "x"}',
        '<tool_call>\n["get_weather"]\n</tool_call>',
        "<tool_call>\n" + "[" * 1200,
        '<tool_call>\n{"name": "get_weather", "arguments": {"a": ' + "[" * 1100 + "]" * 1100 + "}}\n</tool_call>",
        '<tool_call>\n{"name": "get_weather", "arguments": {"a": 1e999, "b": NaN, "c": '
        + "9" * 400
        + "}}\n</tool_call>",
        "</think></tool_call><tool_response>",
        "",
    ],
)
def test_whatever_the_model_says_is_a_reply(said: str, stream: bool):
    """And whatever the agent makes of it can be sent back."""
    with gateway([ids(said), ids("four")]) as running:
        session = running.open_session()
        answer = chat(session, tools=[WEATHER])
        message = answer.choices[0].message
        if message.tool_calls:
            assert isinstance(message.tool_calls[0].function.arguments, str)
        history = [*HELLO, message.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]
        assert text(chat(session, messages=history, tools=[WEATHER], stream=stream)) == "four"
        known = fidelity(running, session)
        assert (known.turns, known.rows, known.trained) == (2, 1, known.sampled)


def test_an_invalid_call_is_text_and_counted():
    with gateway([ids("<tool_call>\n{not json}\n</tool_call>")]) as running:
        session = running.open_session()
        answer = chat(session, tools=[WEATHER])
        assert "{not json}" in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
        assert fidelity(running, session).parse_failures == 1


def test_line_ends_of_other_worlds_stay_inside_their_event():
    said = "a\u2028b\u2029c\x85d"
    with gateway([ids(said), ids(said)]) as running:
        session = running.open_session()
        assert text(chat(session, stream=True)) == said
        events = raw(session, stream=True).text
        assert all(line.startswith("data: ") for line in events.splitlines() if line)
        assert "\\u2028" in events


# Sessions that end while a call is in flight


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_deleted_during_a_call_is_not_resurrected(tmp_path: Any, stream: bool):
    engine = Gated(ScriptedEngine([ids("four"), ids("five")]))
    with gateway(engine, log=tmp_path) as running:
        session = running.open_session(session_id="one")
        control = Control(running)
        asking = in_thread(lambda: text(chat(session, stream=stream)))
        engine.wait(engine.asked)
        control("DELETE", "/sessions/one").raise_for_status()
        engine.let(len(ids("four")))
        assert asking() == "four"  # it ends as it would
        gone = control("GET", "/sessions/one/turns")
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "session_closed")
        assert SegmentIndex(tmp_path).places == {}
        running.open_session(session_id="one")
        assert control("GET", "/sessions/one/turns").json()["turns"] == []


def test_a_result_that_comes_after_the_end_is_refused(tmp_path: Any):
    with gateway([], log=tmp_path) as running:
        session = running.open_session(session_id="one")
        pushing = Control(running)

        def slowly() -> Any:
            yield b'{"reward":'
            pushing("DELETE", "/sessions/one").raise_for_status()
            yield b"1}"

        response = httpx.put(session["result_url"], content=slowly(), timeout=30)
        assert response.status_code == 410
        assert SegmentIndex(tmp_path).places == {}


def test_a_session_read_during_a_call_says_so_and_has_it_afterwards(tmp_path: Any):
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, log=tmp_path) as running:
        session = running.open_session()
        control = Control(running)
        asking = in_thread(lambda: text(chat(session)))
        engine.wait(engine.asked)
        path = f"/sessions/{session['session_id']}/trajectories"
        during = control("GET", path).json()
        assert (during["rows"], during["in_flight"]) == ([], 1)
        control("POST", f"/sessions/{session['session_id']}/close").raise_for_status()
        engine.let()
        asking()
        afterwards = control("GET", path).json()
        assert (len(afterwards["rows"]), afterwards["in_flight"]) == (1, 0)
    with gateway([], log=tmp_path) as restarted:  # the turn of a call that ended after the close is kept, too
        assert Control(restarted)("GET", path).json()["rows"] == afterwards["rows"]


def test_asking_for_models_and_refused_requests_are_no_turns():
    with gateway([ids("four")]) as running:
        session = running.open_session()
        list(client(session).models.list())
        for wrong in ({"messages": []}, {"messages": HELLO, "n": 0}, {"messages": HELLO, "model": "other"}):
            assert httpx.post(f"{session['base_url']}/chat/completions", json=wrong).status_code in (400, 404)
        assert fidelity(running, session).turns == 0


# Limits


def test_a_body_that_is_too_large():
    with gateway([ids("four")], limits=GatewayLimits(max_body_bytes=1000)) as running:
        session = running.open_session()
        with pytest.raises(openai.APIStatusError) as raised:
            chat(session, messages=[{"role": "user", "content": "x" * 2000}])
        assert (raised.value.status_code, raised.value.code) == (413, "body_too_large")
        pieces = (b" " * 100 for _ in range(50))  # nobody has said how long it will be
        response = httpx.post(f"{session['base_url']}/chat/completions", content=pieces)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert text(chat(session)) == "four"


@pytest.mark.parametrize("body", [b"xx", gzip.compress(b'{"messages": []}', mtime=0)[:-12] + b"x" * 12])
def test_a_body_that_is_not_packed_as_it_says(body: bytes, caplog: pytest.LogCaptureFixture):
    with gateway([ids("four")]) as running:
        session = running.open_session()
        headers = {"Content-Encoding": "gzip"}
        response = httpx.post(f"{session['base_url']}/chat/completions", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
        assert "can't be read" in response.json()["error"]["message"]
        assert text(chat(session)) == "four"
    assert "Traceback" not in caplog.text


def test_too_many_sessions():
    with gateway([], limits=GatewayLimits(max_sessions=2)) as running:
        control = Control(running)
        first = control("POST", "/sessions").json()
        control("POST", "/sessions").raise_for_status()
        refused = control("POST", "/sessions")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_sessions")
        assert int(refused.headers["Retry-After"]) > 0
        control("DELETE", f"/sessions/{first['session_id']}").raise_for_status()
        assert control("POST", "/sessions").status_code == 201


def test_many_at_once_with_clients_that_leave():
    """Under load with every fifth client going away, each turn is whole or masked, and nothing stays in flight."""
    short, endless = ids(SAID), ids(SAID, end=False) * 10_000

    def say(request: SampleRequest) -> list[int]:
        number = int(text_of(request.prompt).partition("number ")[2].partition("<")[0])
        return short if number % 5 else endless

    engine = ScriptedEngine(say, delay=0.001, context_length=None)

    async def one(session: dict[str, Any], asker: httpx.AsyncClient, number: int) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"number {number}"}], "stream": True}
        async with asker.stream("POST", f"{session['base_url']}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if number % 5 == 0 and "content" in line:
                    return
                if line == "data: [DONE]":
                    return

    async def run(session: dict[str, Any]) -> None:
        async with httpx.AsyncClient(timeout=60) as asker:
            await asyncio.gather(*(one(session, asker, number) for number in range(50)))

    with gateway(engine) as running:
        session = running.open_session()
        asyncio.run(run(session))
        until(lambda: running.core.in_flight == 0)
        known = fidelity(running, session)
        assert known.turns == 50
        assert known.trained == 40 * len(ids(SAID))
        assert set(known.masked) == {"aborted"}
        assert len(engine.aborted) == 10


# Bad input


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, dict[str, Any], httpx.Client]]:
    """A gateway for all the requests that are wrong, with a log, and whose model calls the tools it is given."""
    said = ids(call_text("get_weather", city="Paris"))
    with (
        gateway(ScriptedEngine(lambda request: said), log=tmp_path_factory.mktemp("log")) as running,
        httpx.Client(timeout=30) as asker,
    ):
        yield running, running.open_session(), asker


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "auto", "user", "\ud800", "\0\u2028", "get_weather", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "function", "name", "arguments", "properties", "\udfff"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = [
    "messages", "messages.0", "messages.0.role", "messages.0.content", "messages.1.tool_calls", "messages.1.content",
    "messages.1.reasoning_content", "messages.1.tool_calls.0.function.arguments", "messages.1.tool_calls.0.id",
    "messages.2.tool_call_id", "messages.2.content", "tools", "tools.0", "tools.0.function.description",
    "tools.0.function.parameters", "tools.0.function.parameters.properties", "tool_choice", "n", "model", "logprobs",
    "top_logprobs", "stop", "stop_token_ids", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p",
    "seed", "max_tokens", "max_completion_tokens", "logit_bias", "ignore_eos", "response_format",
    "chat_template_kwargs",
]  # fmt: skip
GOOD: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "user", "content": "how is Paris?"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
        {"role": "user", "content": "and now?"},
    ],
    "tools": [WEATHER],
    "max_tokens": 50,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    body: Any = copy.deepcopy(GOOD)
    inner = body
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in outer:
        inner = inner[part]
    inner[last] = value
    return dict(body)


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_of_any_field_is_too_much(patient: Any, field: str):
    """Whatever it is, the answer is 200 or a refusal in OpenAI's shape."""
    running, session, asker = patient

    @hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @hypothesis.given(JSON)
    def check(value: Any) -> None:
        body = json.dumps(changed(field, value)).encode()
        response = asker.post(f"{session['base_url']}/chat/completions", content=body)
        assert response.status_code in (200, 400, 404), (value, response.text)
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    check()
    assert running.core.in_flight == 0
    assert running.core.log.failures == 0


DEEP = [50, 200, 900, 5_000, 100_000]


@pytest.mark.parametrize("depth", DEEP)
@pytest.mark.parametrize("field", ["tools.0.function.parameters", "messages.1.tool_calls", "chat_template_kwargs", "x"])
def test_deep_json(patient: Any, field: str, depth: int):
    _, session, asker = patient
    body = json.dumps(changed(field, "HERE")).replace('"HERE"', '{"a":' * depth + "1" + "}" * depth)
    response = asker.post(f"{session['base_url']}/chat/completions", content=body.encode())
    assert response.status_code in ((200, 400) if depth < 100 else (400,))


@pytest.mark.parametrize("depth", DEEP)
def test_deep_json_within_a_text(patient: Any, depth: int):
    """Tool arguments are JSON inside of JSON."""
    _, session, asker = patient
    deep = changed("messages.1.tool_calls.0.function.arguments", '{"a":' + "[" * depth + "]" * depth + "}")
    for body in (deep, deep | {"messages": deep["messages"][:3]}):
        response = asker.post(f"{session['base_url']}/chat/completions", json=body)
        assert response.status_code in (200, 400), response.text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"messages": NaN}', "not valid JSON"),
        (b"{}", "messages"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', "no user turn"),
        (b'{"messages": [{"role": "user", "content": [{"type": "picture"}]}]}', "without a text"),
        (b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}', "does not exist"),
    ],
)
def test_what_is_wrong_is_said(patient: Any, body: bytes, said: str):
    _, session, asker = patient
    response = asker.post(f"{session['base_url']}/chat/completions", content=body)
    assert response.status_code in (400, 404)
    assert said in response.json()["error"]["message"]
    assert response.headers["Content-Type"].startswith("application/json")


@pytest.mark.parametrize(
    "text", ["\u2028\u2029\x85", "\0", "\ufffe\uffff", "🎈" * 10, "e\u0301", "<|im_end|>", "\ud800"]
)
def test_any_text_is_a_prompt(patient: Any, text: str):
    _, session, asker = patient
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("completions", {"prompt": text}),
    ):
        response = asker.post(f"{session['base_url']}/{path}", content=json.dumps(body).encode())
        assert response.status_code == 200, response.text


def test_a_prompt_of_a_megabyte(patient: Any):
    _, session, asker = patient
    body = {"messages": [{"role": "user", "content": "the weather in Paris " * 50_000}]}
    response = asker.post(f"{session['base_url']}/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    with gateway(ScriptedEngine([ids("four")], context_length=None)) as roomy:
        session = roomy.open_session()
        response = asker.post(f"{session['base_url']}/chat/completions", json=body)
        assert response.json()["choices"][0]["message"]["content"] == "four"
        assert roomy.trajectories(session["session_id"]).fidelity.rows == 1


def test_a_large_prompt_is_rendered_off_the_loop(monkeypatch: pytest.MonkeyPatch):
    threads = []
    with gateway(ScriptedEngine(lambda _: ids("four"), context_length=None)) as running:
        plan = running.core.planner.plan

        def watched(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return plan(*args)

        monkeypatch.setattr(running.core.planner, "plan", watched)
        for text in ("small", "large " * 50_000):
            messages = [{"role": "user", "content": text}]
            client(running.open_session()).chat.completions.create(model=MODEL, messages=messages)
    assert threads[0] == "gateway"
    assert threads[1] != "gateway"
