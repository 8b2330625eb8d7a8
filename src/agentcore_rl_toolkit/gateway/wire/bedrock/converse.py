"""Bedrock's Converse and ConverseStream: answers, streams and errors, in the shapes of botocore's service model. Pure.

The gateway does not check AWS signatures: the key in the URL decides. It refuses requests that need guardrails.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ....common.eventstream import CONTENT_TYPE, encode_event, encode_exception
from ....errors import GatewayFault
from ...call.chat import ChatCall, TextCall, ToolCall
from ...record.turn import Tokens
from ..anthropic.messages import stop_reason
from ..base import BlockStream, ErrorReply, Wire, WireRequest
from ..fields import parse
from ..json_body import dump
from ..tools import call_input
from .converse_request import ConverseRequest, read_converse

if TYPE_CHECKING:
    from ...record.session import CallAnswer, ChoiceOutcome

_STOP_SEQUENCE = "/stop_sequence"


def model_name(path: str) -> str | None:
    """The model in a path: a name, an inference profile or an ARN."""
    return unquote(path.partition("model/")[2].rpartition("/")[0]) or None


def usage(answer: CallAnswer) -> dict[str, int]:
    """The tokens that an answer took. As on AWS, prompt tokens from the cache are counted apart."""
    turn = answer.outcomes[0].turn
    return {
        "inputTokens": turn.prompt_length - turn.keep,
        "outputTokens": len(turn.sampled),
        "totalTokens": turn.length,
        "cacheReadInputTokens": turn.keep,
        "cacheWriteInputTokens": 0,
    }


def _tool_use(call: ToolCall) -> dict[str, str]:
    return {"toolUseId": call.id, "name": call.name}


def _event(name: str, **fields: Any) -> bytes:
    return encode_event(name, dump(fields))


class ConverseExchange:
    def __init__(self, request: WireRequest, *, stream: bool) -> None:
        body = parse(request.body, ConverseRequest)
        self.call: ChatCall | TextCall = read_converse(body, model_name(request.path))
        self.stream = stream
        self._shows_stop = _STOP_SEQUENCE in (body.additional_model_response_field_paths or ())
        self._blocks = BlockStream()

    def whole(self, answer: CallAnswer) -> bytes:
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
        return dump({"output": {"message": message}, **self._stop(outcome), **_metadata(answer)})

    def begin(self, answer: CallAnswer) -> None:
        self._blocks.uid = answer.uid

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        data = self._blocks.begin_once(lambda: _event("messageStart", role="assistant"))
        if reasoning:
            data += self._extend("reasoningContent", {"text": reasoning})
        if content:
            data += self._extend("text", content)
        return data

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        calls = outcome.reply.tool_calls
        data = b"" if self._blocks.open or calls else self._extend("text", "")  # a message must have a block
        data += self._close()
        for call in calls:
            start = {"toolUse": _tool_use(call)}
            data += _event("contentBlockStart", start=start, contentBlockIndex=self._blocks.index)
            data += self._extend("toolUse", {"input": dump(call_input(call.arguments or "{}")).decode()})
            data += self._close()
        return data + _event("messageStop", **self._stop(outcome))

    def end(self, answer: CallAnswer) -> bytes:
        return _event("metadata", **_metadata(answer))

    def fail(self, fault: GatewayFault) -> bytes:
        return stream_exception(fault)

    def keep_alive(self) -> bytes:
        """An event that the service model lacks: SDKs skip those, because AWS may add some."""
        return _event("keepAlive")

    def _extend(self, kind: str, value: Any) -> bytes:
        data = self._close() if self._blocks.open != kind else b""
        self._blocks.open = kind
        return data + self._delta(kind, value)

    def _delta(self, kind: str, value: Any) -> bytes:
        return _event("contentBlockDelta", delta={kind: value}, contentBlockIndex=self._blocks.index)

    def _close(self) -> bytes:
        kind = self._blocks.open
        signature = self._delta(kind, {"signature": self._blocks.uid}) if kind == "reasoningContent" else b""
        return self._blocks.close(signature, _event("contentBlockStop", contentBlockIndex=self._blocks.index))

    def _stop(self, outcome: ChoiceOutcome) -> dict[str, Any]:
        stop: dict[str, Any] = {"stopReason": stop_reason(outcome)}
        if self._shows_stop:
            stop["additionalModelResponseFields"] = {"stop_sequence": outcome.reply.stop}
        return stop


def _metadata(answer: CallAnswer) -> dict[str, Any]:
    return {"usage": usage(answer), "metrics": {"latencyMs": round(answer.outcomes[0].turn.seconds * 1000)}}


# Errors

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
"""AWS's status and exception for each status of ours."""

_STREAMED = {
    "AccessDeniedException": "ValidationException",
    "ResourceNotFoundException": "ValidationException",
    "ModelErrorException": "ModelStreamErrorException",
    "ModelTimeoutException": "ModelStreamErrorException",
}
"""Exceptions that a stream can't hold, and the one to send instead."""


def _exception(fault: GatewayFault) -> tuple[int, str]:
    other = (400, "ValidationException") if fault.status < 500 else (500, "InternalServerException")
    return _EXCEPTIONS.get(fault.status, other)


def stream_exception(fault: GatewayFault) -> bytes:
    """The frame that ends a stream with an error."""
    _, kind = _exception(fault)
    return encode_exception(_STREAMED.get(kind, kind), fault.message)


def refuse(fault: GatewayFault) -> ErrorReply:
    status, kind = _exception(fault)
    return ErrorReply(status, dump({"message": fault.message}), {"x-amzn-ErrorType": kind})


CONVERSE = Wire(partial(ConverseExchange, stream=False), refuse)
STREAM = Wire(partial(ConverseExchange, stream=True), refuse, CONTENT_TYPE)
