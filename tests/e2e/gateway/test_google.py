"""Google's generateContent, by google-genai and Pydantic AI as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from google.genai import errors
from pydantic_ai import Agent
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import KEEPS_ALIVE, MODEL, Control, Gated, call_text, gateway, ids
from support.speakers.google_contents import google

GEMINI = "gemini-2.5-pro"
"""What production calls; a session opened with `model` samples from that instead."""
HELLO = {"contents": [{"parts": [{"text": "what is two plus two?"}]}]}
SCRIPT = [
    ids("<think>\nParis first\n</think>\n\nlet me see\n" + call_text("get_weather", city="Paris")),
    ids("<think>\nnow Rome\n</think>\n\n" + call_text("get_weather", city="Rome")),
    ids("<think>\ndone\n</think>\n\nsunny in both"),
    ids("bye"),
]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@contextmanager
def client(session: dict[str, Any], **settings: Any) -> Iterator[Any]:
    made = google(session, **settings)
    try:
        yield made
    finally:
        made.close()


def ask(session: dict[str, Any], *, stream: bool = False, model: str = MODEL, **config: Any) -> str:
    """What the model says."""
    asked = {"model": model, "contents": "what is two plus two?", "config": config}
    with client(session) as made:
        if not stream:
            return str(made.models.generate_content(**asked).text)
        return "".join(chunk.text or "" for chunk in made.models.generate_content_stream(**asked))


def one_row(running: Gateway, session: dict[str, Any], script: list[list[int]]) -> None:
    """What the policy sampled, all of it, in one row."""
    known = running.trajectories(session["session_id"])
    assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (len(script), 1, len(script) - 1)
    (row,) = known.rows
    trained = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert trained == [token for said in script for token in said]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_calls_functions_by_itself(stream: bool):
    with gateway(SCRIPT) as running:
        session = running.open_session(model=MODEL)
        with client(session) as made:
            chat = made.chats.create(model=GEMINI, config={"tools": [get_weather], "system_instruction": "be short"})
            for said, heard in (("the weather in Paris and Rome?", "sunny in both"), ("thanks", "bye")):
                if stream:
                    assert "".join(part.text or "" for part in chat.send_message_stream(said)).endswith(heard)
                else:
                    assert chat.send_message(said).text == heard
        one_row(running, session, SCRIPT)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")  # google-genai's own
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_of_pydantic_ai(stream: bool):
    with gateway(SCRIPT) as running:
        session = running.open_session(model=MODEL)
        with client(session) as made:
            model = GoogleModel(GEMINI, provider=GoogleProvider(client=made))
            agent = Agent(model, instructions="be short", tools=[get_weather])

            async def read(context: Any, events: Any) -> None:
                async for _ in events:
                    pass

            async def talk() -> list[str]:
                said, history = [], None
                for prompt in ("the weather in Paris and Rome?", "thanks"):
                    run = await agent.run(
                        prompt, message_history=history, event_stream_handler=read if stream else None
                    )
                    said.append(run.output)
                    history = run.all_messages()
                await made.aio.aclose()
                return said

            assert asyncio.run(talk()) == ["sunny in both", "bye"]
        one_row(running, session, SCRIPT)


@pytest.mark.parametrize("settings", [{}, {"vertexai": True}], ids=["developer", "vertex"])
def test_the_session_says_which_model_is_meant(settings: dict[str, Any]):
    engine = ScriptedEngine([ids("four")])
    with gateway(engine) as running:
        session = running.open_session(model=MODEL)
        with client(session, **settings) as made:
            assert made.models.generate_content(model=GEMINI, contents="?").text == "four"
        assert engine.requests[0].model == MODEL
        with client(running.open_session(), **settings) as made, pytest.raises(errors.ClientError) as refused:
            made.models.generate_content(model=GEMINI, contents="?")
        assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")


def test_a_sessions_base_url_will_do():
    with gateway([ids("four")]) as running:
        session = running.open_session()
        assert ask(session | {"google_base_url": session["base_url"]}) == "four"


def test_models_and_tokens():
    engine = ScriptedEngine([ids("four")])
    with gateway(engine) as running, client(running.open_session()) as made:
        assert [model.name for model in made.models.list()] == [f"models/{MODEL}"]
        known = made.models.get(model=MODEL)
        assert "generateContent" in known.supported_actions
        counted = made.models.count_tokens(model=MODEL, contents="what is two plus two?")
        assert not engine.requests
        made.models.generate_content(model=MODEL, contents="what is two plus two?")
        assert counted.total_tokens == len(engine.requests[0].prompt)
        with pytest.raises(errors.ClientError, match="does not exist"):
            made.models.get(model="nobody")


def test_a_stream_as_one_array():
    with gateway([ids("two plus two is four")]) as running:
        url = f"{running.open_session()['google_base_url']}/v1beta/models/{MODEL}:streamGenerateContent?key=EMPTY"
        answer = httpx.post(url, json=HELLO)
        assert answer.headers["content-type"] == "application/json"
        texts = [part["text"] for chunk in answer.json() for part in chunk["candidates"][0]["content"]["parts"]]
        assert "".join(texts) == "two plus two is four"
        assert len(texts) > 2


def test_logprobs_are_those_of_the_turn():
    with gateway([ids("four")]) as running:
        session = running.open_session()
        with client(session) as made:
            config = {"response_logprobs": True}
            answer = made.models.generate_content(model=MODEL, contents="?", config=config)
        (turn,) = Control(running).turns(session)
        chosen = answer.candidates[0].logprobs_result.chosen_candidates
        assert [one.token_id for one in chosen] == turn["sampled_ids"]
        assert [one.log_probability for one in chosen] == pytest.approx(turn["logprobs"])


# Errors


@pytest.mark.parametrize("stream", [False, True])
def test_errors_as_google_raises_them(stream: bool):
    failing = [ScriptedLine([], fails=EngineError("too bad", status=status)) for status in (502, 429, 400)]
    with gateway(failing) as running:
        session = running.open_session()
        for kind, status in (
            (errors.ServerError, "UNAVAILABLE"),
            (errors.ClientError, "RESOURCE_EXHAUSTED"),
            (errors.ClientError, "INVALID_ARGUMENT"),
        ):
            with pytest.raises(kind, match="too bad") as caught:
                ask(session, stream=stream)
            assert caught.value.status == status
        with pytest.raises(errors.ClientError, match="topP is 2") as caught:
            ask(session, stream=stream, top_p=2.0)
        assert caught.value.code == 400
        with pytest.raises(errors.ClientError, match="the key in the URL") as caught:
            ask({"google_base_url": session["google_base_url"].rpartition(".")[0] + ".wrong"}, stream=stream)
        assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")
        with pytest.raises(errors.ClientError, match="exceeds the maximum number of tokens"):
            ask(running.open_session(context_limit=10), stream=stream)


def test_an_error_in_a_stream():
    failing = ScriptedLine(ids("four", end=False), fails=EngineError("too { bad", status=503, sampled_any=True))
    with gateway([failing]) as running, client(running.open_session()) as made:
        chunks = made.models.generate_content_stream(model=MODEL, contents="?")
        assert next(chunks).text
        with pytest.raises(errors.ServerError, match=r"too \{ bad") as caught:
            list(chunks)
        assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")


def test_signs_of_life_are_nothing_to_the_client():
    engine = Gated(ScriptedEngine([ids("four")]))
    with gateway(engine, limits=KEEPS_ALIVE) as running, client(running.open_session()) as made:

        def let(response: httpx.Response) -> None:  # the headers are there, so a sign was sent
            engine.let(100)

        made._api_client._httpx_client.event_hooks["response"] = [let]
        chunks = list(made.models.generate_content_stream(model=MODEL, contents="?"))
        assert "".join(chunk.text or "" for chunk in chunks) == "four"


@pytest.mark.parametrize("path", ["models/m:generateContent", "models/m:embedContent", "cachedContents", "models/x"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"contents": 1}', b"\xff"])
def test_garbage_is_refused_in_googles_shape(served: dict[str, Any], path: str, body: bytes):
    answer = httpx.post(f"{served['google_base_url']}/v1beta/{path}", content=body)
    assert answer.status_code in (400, 404, 405)
    error = answer.json()["error"]
    assert (error["code"], error["details"][0]["domain"]) == (answer.status_code, "agentcore-rl-toolkit")


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    with gateway([]) as running:
        yield running.open_session()
