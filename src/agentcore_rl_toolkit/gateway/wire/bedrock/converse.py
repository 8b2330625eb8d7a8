"""Bedrock's Converse and ConverseStream: what is said over them. Pure.

Shapes are those of botocore's service model. AWS signatures are not looked at: the key in the URL is what counts.
Guardrails and prompt resources don't exist here, and what would need them is refused; the model is not told of tools
that AWS runs (`blocks.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ....common.eventstream import CONTENT_TYPE, encode_event, encode_exception
from ....errors import GatewayFault
from ...call.chat import ChatCall, TextCall, ToolCall
from ...record.turn import Tokens
from ..base import Asked, Refusal, Wire, call_input
from ..json_body import dump
from .converse_request import read_converse

if TYPE_CHECKING:
    from ...record.session import Answer, Outcome

_STOP_SEQUENCE = "/stop_sequence"


def model_name(path: str) -> str | None:
    """The model in a path: a name, an inference profile or an ARN."""
    return unquote(path.partition("model/")[2].rpartition("/")[0]) or None


def usage(answer: Answer) -> dict[str, int]:
    """The tokens that an answer took. As on AWS, the prompt's are split into those read from the cache and others."""
    turn = answer.outcomes[0].turn
    return {
        "inputTokens": turn.prompt_length - turn.keep,
        "outputTokens": len(turn.sampled),
        "totalTokens": turn.length,
        "cacheReadInputTokens": turn.keep,
        "cacheWriteInputTokens": 0,
    }


def stop_reason(outcome: Outcome) -> str:
    if outcome.turn.finish == "length":
        return "max_tokens"
    if outcome.reply.tool_calls:
        return "tool_use"
    return "stop_sequence" if outcome.reply.stop is not None else "end_turn"


def _tool_use(call: ToolCall) -> dict[str, str]:
    return {"toolUseId": call.id, "name": call.name}


def _event(name: str, **fields: Any) -> bytes:
    return encode_event(name, dump(fields))


class ConverseExchange:
    """One request to `converse`, or to `converse-stream`."""

    def __init__(self, asked: Asked, *, stream: bool) -> None:
        self.call: ChatCall | TextCall = read_converse(asked.body, model_name(asked.path))
        self.stream = stream
        paths = asked.body.get("additionalModelResponseFieldPaths")
        self._tells_stop = isinstance(paths, list) and _STOP_SEQUENCE in paths
        self._begun = False
        self._uid = ""
        """Signs reasoning: clients send it back as reasoning only if it has a signature."""
        self._open = ""
        """The kind of the block that is being said."""
        self._index = 0

    def whole(self, answer: Answer) -> bytes:
        (outcome,) = answer.outcomes
        reply = outcome.reply
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            thought = {"text": reply.reasoning, "signature": answer.uid}
            content.append({"reasoningContent": {"reasoningText": thought}})
        if reply.content or not (reply.reasoning or reply.tool_calls):
            content.append({"text": reply.content})
        for call in reply.tool_calls:
            content.append({"toolUse": {**_tool_use(call), "input": call_input(call.arguments or "{}")}})
        message = {"role": "assistant", "content": content}
        return dump({"output": {"message": message}, **self._end(outcome), **self._costs(answer)})

    def begin(self, answer: Answer) -> None:
        self._uid = answer.uid

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        data = b"" if self._begun else _event("messageStart", role="assistant")
        self._begun = True
        if reasoning:
            data += self._delta("reasoningContent", {"text": reasoning})
        if content:
            data += self._delta("text", content)
        return data

    def finish(self, choice: int, outcome: Outcome) -> bytes:
        data, calls = b"", outcome.reply.tool_calls
        if not self._open and not calls:  # nobody expects a message without a block
            data = self._delta("text", "")
        data += self._close()
        for call in calls:
            data += _event("contentBlockStart", start={"toolUse": _tool_use(call)}, contentBlockIndex=self._index)
            data += self._delta("toolUse", {"input": dump(call_input(call.arguments or "{}")).decode()})
            data += self._close()
        return data + _event("messageStop", **self._end(outcome))

    def end(self, answer: Answer) -> bytes:
        return _event("metadata", **self._costs(answer))

    def fail(self, fault: GatewayFault) -> bytes:
        return stream_exception(fault)

    def keep_alive(self) -> bytes:
        """An event that no service model has: SDKs pass over those, because AWS may add some."""
        return _event("keepAlive")

    def _delta(self, kind: str, said: Any) -> bytes:
        data = self._close() if self._open not in ("", kind) else b""
        self._open = kind
        return data + self._said(kind, said)

    def _said(self, kind: str, said: Any) -> bytes:
        return _event("contentBlockDelta", delta={kind: said}, contentBlockIndex=self._index)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        data = self._said(self._open, {"signature": self._uid}) if self._open == "reasoningContent" else b""
        data += _event("contentBlockStop", contentBlockIndex=self._index)
        self._open = ""
        self._index += 1
        return data

    def _end(self, outcome: Outcome) -> dict[str, Any]:
        end: dict[str, Any] = {"stopReason": stop_reason(outcome)}
        if self._tells_stop:
            end["additionalModelResponseFields"] = {"stop_sequence": outcome.reply.stop}
        return end

    def _costs(self, answer: Answer) -> dict[str, Any]:
        return {"usage": usage(answer), "metrics": {"latencyMs": round(answer.outcomes[0].turn.seconds * 1000)}}


# Refusals

_EXCEPTIONS = {
    401: (403, "AccessDeniedException"),
    403: (403, "AccessDeniedException"),
    404: (404, "ResourceNotFoundException"),
    405: (405, "UnknownOperationException"),
    408: (408, "ModelTimeoutException"),
    410: (404, "ResourceNotFoundException"),
    429: (429, "ThrottlingException"),
    502: (424, "ModelErrorException"),
    503: (503, "ServiceUnavailableException"),
    504: (408, "ModelTimeoutException"),
}
"""The status and name of an error on AWS, for each of ours."""

_STREAMED = {
    "AccessDeniedException": "ValidationException",
    "ResourceNotFoundException": "ValidationException",
    "ModelErrorException": "ModelStreamErrorException",
    "ModelTimeoutException": "ModelStreamErrorException",
}
"""What goes for an error that no stream may hold."""


def _exception(fault: GatewayFault) -> tuple[int, str]:
    other = (400, "ValidationException") if fault.status < 500 else (500, "InternalServerException")
    return _EXCEPTIONS.get(fault.status, other)


def stream_exception(fault: GatewayFault) -> bytes:
    """The frame that ends a stream with an error."""
    _, kind = _exception(fault)
    return encode_exception(_STREAMED.get(kind, kind), fault.message)


def refuse(fault: GatewayFault) -> Refusal:
    status, kind = _exception(fault)
    return Refusal(status, dump({"message": fault.message}), {"x-amzn-ErrorType": kind})


CONVERSE = Wire(partial(ConverseExchange, stream=False), refuse)
STREAM = Wire(partial(ConverseExchange, stream=True), refuse, CONTENT_TYPE)
