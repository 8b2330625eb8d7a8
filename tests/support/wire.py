"""What a wire gets from the rest of the gateway: requests as they came, and answers made up here."""

from __future__ import annotations

from array import array
from typing import Any

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.call.chat import Reply
from agentcore_rl_toolkit.gateway.record.session import CallAnswer, ChoiceOutcome, Session, SessionSettings
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Tokens, Turn
from agentcore_rl_toolkit.gateway.wire.base import Exchange, WireRequest
from agentcore_rl_toolkit.gateway.wire.bedrock import converse
from agentcore_rl_toolkit.gateway.wire.openai import chat_completions as openai

NOTHING = Tokens((), (), ())


def asked(body: dict[str, Any], path: str = "", session: Session | None = None) -> WireRequest:
    """A request; token ids read as their numbers."""
    session = session or Session(SessionSettings("s"), "k", 0.0)
    return WireRequest(body, session, lambda ids: "".join(f"<{token}>" for token in ids), path)


def read_chat(body: dict[str, Any]) -> Any:
    """The call that OpenAI's chat completions make of a body."""
    return openai.CHAT.read(asked(body)).call


def read_chat_messages(messages: Any) -> list[dict[str, Any]]:
    """OpenAI's messages in canonical form."""
    return list(read_chat({"messages": messages}).messages)


def read_converse(body: dict[str, Any]) -> Any:
    """The call that Bedrock's Converse makes of a body."""
    return converse.CONVERSE.read(asked(body, "model/m/converse")).call


def answer(*replies: Reply, finish: str = "stop", prompt: int = 3, sampled: int = 2) -> CallAnswer:
    """An answer with one choice for each reply."""
    answered = CallAnswer(1, "u", "m", b"", len(replies), prompt)
    for reply in replies:
        turn = Turn(
            index=0,
            parent=None,
            keep=0,
            delta_ids=array(IDS, range(prompt)),
            sampled_ids=array(IDS, range(sampled)),
            logprobs=array(LOGPROBS, [-0.5] * sampled),
            finish=finish,
        )
        answered.outcomes.append(ChoiceOutcome(turn, reply, []))
    return answered


def streamed(exchange: Exchange, answered: CallAnswer, *pieces: tuple[str, str]) -> bytes:
    """All of a stream: `pieces` of reasoning and text of the first choice, or else each reply in one piece."""
    exchange.begin(answered)
    data = b"".join(exchange.piece(0, *said, NOTHING) for said in pieces)
    for choice, outcome in enumerate(answered.outcomes):
        if not pieces:
            data += exchange.piece(choice, outcome.reply.reasoning, outcome.reply.content, NOTHING)
        data += exchange.finish(choice, outcome)
    return data + exchange.end(answered)
