"""A gateway that is killed and started again: every acknowledged turn is there, and conversations go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import ADMIN_KEY, Gateway
from agentcore_rl_toolkit.gateway.record.conversation import Transcript
from agentcore_rl_toolkit.gateway.record.segments import PLACE_BITS, SegmentIndex
from support.fake_server import logprob
from support.fake_vllm import MODEL as FAKE
from support.fake_vllm import FakeVllm
from support.gateway import MODEL, WEATHER, Control, call_text, client, gateway, ids, tokenizer, until
from support.log import files_of_at_most
from support.process import clean_env, free_port, without_torch

HELLO = [{"role": "user", "content": "what is two plus two?"}]
AGAIN = [{"role": "user", "content": "and three plus three?"}]


def moved(session: dict[str, Any], before: Gateway, after: Gateway) -> dict[str, Any]:
    """The session's URLs, at the port that the gateway has now."""
    return session | {"base_url": session["base_url"].replace(before.url, after.url)}


def rows(running: Gateway, session: dict[str, Any]) -> Any:
    read = Control(running)("GET", f"/sessions/{session['session_id']}/trajectories").json()
    return read["rows"], read["fidelity"]


# In this process


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path):
    engine = ScriptedEngine(
        [ids("<think>\nhm\n</think>\n\n" + call_text("get_weather", city="Paris"))], weight_version="1", routes_width=2
    )
    with gateway(engine, log=tmp_path) as first:
        session = first.open_session(metadata={"a": 1}, group_id="g", input_id="i", enforced={"max_tokens": 50})
        message = client(session).chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER])
        call = message.choices[0].message
        Control(first)("PUT", f"/sessions/{session['session_id']}/result", json={"reward": 1}).raise_for_status()
        before = rows(first, session), Control(first).turns(session)
    engine = ScriptedEngine([ids("it is sunny")], weight_version="2", routes_width=2)
    with gateway(engine, log=tmp_path) as second:
        assert (rows(second, session), Control(second).turns(session)) == before
        described = Control(second)("GET", f"/sessions/{session['session_id']}").json()
        assert (described["metadata"], described["group_id"], described["result"]) == ({"a": 1}, "g", {"reward": 1})
        history = [
            *HELLO,
            call.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"},
        ]
        again = moved(session, first, second)
        answer = client(again).chat.completions.create(model=MODEL, messages=history, tools=[WEATHER])
        assert answer.choices[0].message.content == "it is sunny"
        assert engine.requests[0].sampling.max_tokens == 50
        (row,), known = rows(second, session)
        assert (known["rows"], known["bridges"], known["trained"]) == (1, 1, known["sampled"])
        assert [version for version, _, _ in row["weight_versions"]] == ["1", "2"]
        wrong = again | {"base_url": again["base_url"].replace("/v1", "x/v1")}
        with pytest.raises(openai.AuthenticationError):
            client(wrong).models.list()


def test_the_model_that_the_agent_named_is_known_after_a_restart(tmp_path: Path):
    with gateway([ids("four")] * 2, log=tmp_path) as first:
        session = first.open_session(model=MODEL)
        for model in ("gpt-4.1-mini", MODEL):
            assert client(session).chat.completions.create(model=model, messages=HELLO).model == MODEL
    with gateway([], log=tmp_path) as second:
        said = second.trajectories(session["session_id"]).transcript
    assert [turn.asked_model for turn in said.turns] == ["gpt-4.1-mini", ""]
    assert Transcript.from_fields(said.to_fields()) == said
    fields = said.to_fields()
    fields["turns"] = [{name: one[name] for name in one if name != "asked_model"} for one in fields["turns"]]
    assert [turn.asked_model for turn in Transcript.from_fields(fields).turns] == ["", ""]  # an older file


@pytest.mark.parametrize("n", [1, 2])
def test_a_retry_after_a_restart_gets_the_recorded_turn(tmp_path: Path, n: int):
    said = "<think>\nhm\n</think>\n\nLet me see." + call_text("get_weather", city="Paris")
    asked = {"model": MODEL, "messages": HELLO, "tools": [WEATHER], "n": n}
    with gateway([ids(said)] * n, log=tmp_path) as first:
        session = first.open_session()
        before = client(session).chat.completions.create(**asked)
    engine = ScriptedEngine([ids("another answer")] * 4)
    with gateway(engine, log=tmp_path) as second:
        again = client(moved(session, first, second))
        retried = again.chat.completions.create(**asked, extra_headers={"x-stainless-retry-count": "1"})
        assert retried == before
        assert engine.requests == []
        again.chat.completions.create(**asked)  # on purpose
        assert len(engine.requests) == n
        assert rows(second, session)[1]["turns"] == 2 * n


def test_who_asks_the_same_after_a_restart_may_never_have_had_the_answer(tmp_path: Path):
    asked = {"model": MODEL, "messages": HELLO, "logprobs": True, "top_logprobs": 1}
    other = asked | {"messages": AGAIN}
    with gateway([ids("four"), ids("six"), ids("good")], log=tmp_path) as first:
        session = first.open_session()
        asker = client(session)
        before = [asker.chat.completions.create(**asked), asker.chat.completions.create(**other)]
        went_on = [*HELLO, {"role": "assistant", "content": "four"}, {"role": "user", "content": "thanks"}]
        asker.chat.completions.create(**asked | {"messages": went_on})
    engine = ScriptedEngine([ids("five"), ids("seven")])
    with gateway(engine, log=tmp_path) as second:
        again = client(moved(session, first, second))
        assert again.chat.completions.create(**other) == before[1]  # with its alternatives
        assert engine.requests == []
        assert again.chat.completions.create(**asked).choices[0].message.content == "five"  # it was gone on from
        assert again.chat.completions.create(**other).choices[0].message.content == "seven"  # it has arrived now
        assert rows(second, session)[1]["turns"] == 5


def test_choices_and_a_prompt_in_common_are_not_taken_for_going_on_after_a_restart(tmp_path: Path):
    lead = {"role": "system", "content": "You answer questions about numbers, in one word, and never explain them."}
    asked, other = ({"model": MODEL, "messages": [lead, *asked], "n": 2} for asked in (HELLO, AGAIN))
    with gateway([ids(said) for said in ("four", "five", "six", "seven")], log=tmp_path) as first:
        session = first.open_session()
        before = [client(session).chat.completions.create(**call) for call in (asked, other)]
    engine = ScriptedEngine([])
    with gateway(engine, log=tmp_path) as second:
        again = client(moved(session, first, second))
        assert [again.chat.completions.create(**call) for call in (asked, other)] == before
        assert engine.requests == []


def test_an_answer_that_was_never_received_outlives_a_restart(tmp_path: Path):
    with gateway([ids("four")], log=tmp_path) as first:
        session = first.open_session()
        client(session).chat.completions.create(model=MODEL, messages=HELLO)
        until(lambda: first.core.in_flight == 0)
        known = first.core.sessions.get(session["session_id"])
        (answer,) = known.answers.values()
        first.core.recorder.mark_undelivered(known, answer)
    engine = ScriptedEngine([ids("five")])
    with gateway(engine, log=tmp_path) as second:
        assert rows(second, session)[1]["masked"] == {"undelivered": len(ids("four"))}
        answer = client(moved(session, first, second)).chat.completions.create(model=MODEL, messages=HELLO)
        assert (answer.choices[0].message.content, engine.requests) == ("four", [])
        known = rows(second, session)[1]
        assert (known["turns"], known["trained"]) == (1, known["sampled"])


def test_closed_deleted_and_plain_completions_after_a_restart(tmp_path: Path):
    with gateway([ids("the answer is"), ids(" four")], log=tmp_path) as first:
        control = Control(first)
        for name in ("closed", "deleted", "expired"):
            first.open_session(session_id=name, ttl_seconds=100)
        control("POST", "/sessions/closed/close").raise_for_status()
        control("DELETE", "/sessions/deleted").raise_for_status()
        first.core.sessions.get("expired").used -= 101
        first.core.sessions.sweep()
        session = first.open_session(session_id="open")
        client(session).completions.create(model=MODEL, prompt="two plus two? ")
    with gateway([ids(" four")], log=tmp_path) as second:
        control = Control(second)
        codes = {
            name: (response.status_code, response.json()["error"]["code"])
            for name in ("deleted", "expired", "other")
            for response in [control("GET", f"/sessions/{name}")]
        }
        assert codes == {
            "deleted": (410, "session_closed"),
            "expired": (410, "session_expired"),
            "other": (404, "session_unknown"),
        }
        assert control("GET", "/sessions/closed").json()["closed"] is True
        assert control("POST", "/sessions", json={"session_id": "closed"}).status_code == 409
        client(moved(session, first, second)).completions.create(model=MODEL, prompt="two plus two? the answer is")
        known = second.trajectories("open").fidelity
        assert (known.rows, known.bridges, known.trained) == (2, 1, known.sampled)  # the client wrote no end


def test_half_a_record_at_the_end_is_dropped(tmp_path: Path):
    with gateway([ids("four"), ids("five"), ids("six")], log=tmp_path) as first:
        session = first.open_session()
        asker = client(session)
        asker.chat.completions.create(model=MODEL, messages=HELLO)
        asker.chat.completions.create(model=MODEL, messages=AGAIN)
        before = rows(first, session)
        asker.chat.completions.create(model=MODEL, messages=HELLO)
    segment = max(tmp_path.glob("*.turns"))
    os.truncate(segment, segment.stat().st_size - 3)
    with gateway([ids("six")], log=tmp_path) as second:
        assert rows(second, session) == before
        client(moved(session, first, second)).chat.completions.create(model=MODEL, messages=[*HELLO, *HELLO])
    with gateway([], log=tmp_path) as third:
        assert len(Control(third).turns(session)) == 3


def test_a_damaged_turn_is_told_and_later_ones_are_kept(tmp_path: Path):
    with gateway(ScriptedEngine(lambda request: ids("four")), log=tmp_path) as first:
        session, other = first.open_session(), first.open_session()
        for _ in range(3):
            client(session).chat.completions.create(model=MODEL, messages=HELLO)
        client(other).chat.completions.create(model=MODEL, messages=HELLO)
        assert rows(first, session)[1]["damaged"] is False
    place = SegmentIndex(tmp_path).places[session["session_id"]][2] & (1 << PLACE_BITS) - 1
    segment = max(tmp_path.glob("*.turns"))
    data = bytearray(segment.read_bytes())
    data[place] ^= 1
    segment.write_bytes(data)
    for turns in (1, 2):
        with gateway(ScriptedEngine(lambda request: ids("five")), log=tmp_path) as again:
            control = Control(again)
            health = control("GET", "/health").json()
            assert (health["status"], health["log_damaged"], health["log_failures"]) == ("degraded", 1, 0)
            assert [rows(again, one)[1]["damaged"] for one in (session, other)] == [True, False]
            assert control("GET", f"/sessions/{session['session_id']}/turns").json()["damaged"] is True
            assert [len(control.turns(one)) for one in (session, other)] == [turns, 1]
            another = [{"role": "user", "content": f"question {turns}"}]
            client(moved(session, first, again)).chat.completions.create(model=MODEL, messages=another)
    assert segment.read_bytes()[: len(data)] == data


def test_a_disk_that_fails_fails_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with gateway(ScriptedEngine(lambda request: ids("four")), log=tmp_path) as running:
        control, log = Control(running), running.core.log
        assert log is not None
        session = running.open_session()
        assert control("GET", "/health").json()["status"] == "ok"
        with files_of_at_most(log.size):
            answer = client(session).chat.completions.create(model=MODEL, messages=HELLO)
            assert answer.choices[0].message.content == "four"
            health = control("GET", "/health").json()
            assert health["status"] == "degraded"
            assert health["log_failures"] >= 1
            assert "agentcore_rl_gateway_log_failures_total" in httpx.get(f"{running.url}/metrics").text
            assert len(control.turns(session)) == 1
    with gateway([], log=tmp_path) as second:  # the disk came back: nothing is missing
        assert len(Control(second).turns(session)) == 1
    assert "could not be logged" in caplog.text


# In a process that is killed


class Answering(FakeVllm):
    """Says where the conversation stands."""

    def _tokens(
        self, handler: Any, prompt: list[int], params: dict[str, Any]
    ) -> Iterator[tuple[int, float, str | None]]:
        said = ids(f"the answer is {len(prompt)}")
        for place, token in enumerate(said):
            handler.wait(self.pace)
            yield token, logprob(prompt, token), "stop" if place == len(said) - 1 else None


class Served:
    """`agentcore-rl gateway serve`, started again on the same port whenever it was killed."""

    def __init__(self, folder: Path, engine: str, log: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_key = "the admin's key"
        self._command = [
            str(Path(sys.executable).parent / "agentcore-rl"), "gateway", "serve", "--engine", f"vllm={engine}",
            "--tokenizer", str(folder), "--renderer", "qwen3", "--port", str(self.port), "--log", str(log), *flags,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = clean_env(**{ADMIN_KEY: self.admin_key}, **without_torch())
        self.process = subprocess.Popen(self._command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().decode().strip() == self.url

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def worker(self) -> int:
        """The process that `--restart` starts again."""
        assert self.process is not None
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Talk:
    """An agent that keeps on talking, asking again whenever the gateway is gone."""

    def __init__(self, session: dict[str, Any], stream: bool) -> None:
        self.session = session
        self.stream = stream
        self.acknowledged: list[tuple[str, str]] = []
        """The id and the text of every reply that arrived whole."""
        self.history: list[dict[str, Any]] = list(HELLO)

    def run(self, turns: int, stop: threading.Event) -> None:
        with openai.OpenAI(base_url=self.session["base_url"], api_key="EMPTY", max_retries=0, timeout=30) as asker:
            while len(self.acknowledged) < turns and not stop.is_set():
                try:
                    self.acknowledge(asker)
                except (openai.APIConnectionError, httpx.HTTPError):
                    stop.wait(0.1)

    def acknowledge(self, asker: openai.OpenAI) -> None:
        """One turn."""
        uid, text = self._ask(asker)
        self.acknowledged.append((uid, text))
        self.history += [{"role": "assistant", "content": text}, {"role": "user", "content": "and then?"}]

    def _ask(self, asker: openai.OpenAI) -> tuple[str, str]:
        answer: Any = asker.chat.completions.create(
            model=FAKE,
            messages=self.history,
            stream=self.stream,
            max_tokens=100,
        )
        if not self.stream:
            return answer.id, answer.choices[0].message.content
        uid, text, finish = "", "", None
        for chunk in answer:
            uid, finish = chunk.id, chunk.choices[0].finish_reason
            text += chunk.choices[0].delta.content or ""
        if finish is None:
            raise httpx.ReadError("the stream ended too early")
        return uid, text


@pytest.mark.timeout(180)
def test_killed_under_load_at_random_moments(tmp_path: Path):
    folder = tmp_path / "tokenizer"
    tokenizer().save_pretrained(folder)
    dice = random.Random(7)
    with Answering(context_length=100_000, pace=0.002).serving() as fake:
        served = Served(folder, fake.url, tmp_path / "log")
        served.start()
        headers = {"Authorization": f"Bearer {served.admin_key}"}
        stop = threading.Event()
        try:
            opened = [httpx.post(f"{served.url}/sessions", headers=headers, timeout=30).json() for _ in range(6)]
            talks = [Talk(session, stream=number % 2 == 0) for number, session in enumerate(opened)]
            threads = [threading.Thread(target=talk.run, args=(12, stop), daemon=True) for talk in talks]
            for thread in threads:
                thread.start()
            for goal in (8 + dice.randrange(8), 30 + dice.randrange(12)):
                until(lambda goal=goal: sum(len(talk.acknowledged) for talk in talks) >= goal)
                served.kill()
                served.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            for talk in talks:
                check(served.url, headers, talk)
        finally:
            stop.set()
            served.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(300)
def test_with_restart_calls_wait_for_the_process_that_takes_over(tmp_path: Path):
    folder = tmp_path / "tokenizer"
    tokenizer().save_pretrained(folder)
    with Answering(context_length=100_000).serving() as fake:
        served = Served(folder, fake.url, tmp_path / "log", "--restart")
        served.start()
        assert served.process is not None
        try:
            headers = {"Authorization": f"Bearer {served.admin_key}"}
            session = httpx.post(f"{served.url}/sessions", headers=headers, timeout=60).json()
            talk = Talk(session, stream=False)
            with openai.OpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0, timeout=240) as asker:
                talk.acknowledge(asker)
                killed = served.worker
                os.kill(killed, signal.SIGKILL)
                until(lambda: not Path(f"/proc/{killed}").exists())
                talk.acknowledge(asker)
            check(served.url, headers, talk, turns=2)
            last = served.worker
            served.process.terminate()
            assert served.process.wait(60) == 0
            assert not Path(f"/proc/{last}").exists()
        finally:
            served.kill()


def test_a_pause_and_the_version_of_the_weights_outlive_a_kill(tmp_path: Path):
    folder = tmp_path / "tokenizer"
    tokenizer().save_pretrained(folder)
    with Answering(context_length=100_000).serving() as fake:
        served = Served(folder, fake.url, tmp_path / "log")
        served.start()
        headers = {"Authorization": f"Bearer {served.admin_key}"}
        with httpx.Client(base_url=served.url, headers=headers, timeout=30) as admin:
            try:
                talk = Talk(admin.post("/sessions").json(), stream=False)
                admin.post("/pause").raise_for_status()
                admin.put("/weights", json={"version": 7}).raise_for_status()
                served.kill()
                served.start()
                told = admin.get("/health").json()
                assert (told["status"], told["weight_version"]) == ("paused", "7")
                thread = threading.Thread(target=talk.run, args=(1, threading.Event()), daemon=True)
                thread.start()
                until(lambda: admin.get("/health").json()["in_flight"] == 1)
                assert "/v1/completions" not in [path for path, _ in fake.requests]
                admin.post("/resume").raise_for_status()
                thread.join(60)
                served.kill()
                served.start()
                told = admin.get("/health").json()
                assert (told["status"], told["weight_version"]) == ("ok", "7")
                (turn,) = admin.get(f"/sessions/{talk.session['session_id']}/turns").json()["turns"]
                assert turn["weight_versions"] == [["7", len(turn["sampled_ids"])]]
            finally:
                served.kill()


def check(url: str, headers: dict[str, str], talk: Talk, turns: int = 12) -> None:
    """Every reply that arrived is on record, and each goes on from the one before."""
    read = httpx.get(f"{url}/sessions/{talk.session['session_id']}/turns", headers=headers, timeout=30).json()
    known = {f"chatcmpl-{turn['id']}": turn for turn in read["turns"]}
    assert len(talk.acknowledged) == turns
    before = None
    for uid, text in talk.acknowledged:
        turn = known[uid]
        assert turn["sampled_ids"] == ids(text)
        assert len(turn["logprobs"]) == len(turn["sampled_ids"])
        assert (turn["finish"], turn["parent"]) == ("stop", before["index"] if before is not None else None)
        if before is not None:
            assert turn["origin"] == "bridge"
            assert turn["kept_tokens"] == before["prompt_length"] + len(before["sampled_ids"])
        before = turn
