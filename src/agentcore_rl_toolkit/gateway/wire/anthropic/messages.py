"""Anthropic's Messages: answers, streams and errors. Pure.

Reasoning is a `thinking` block; the gateway does not check the signature that a client sends back with it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ....errors import GatewayFault
from ...call.chat import ChatCall, Reply, TextCall, ToolCall
from ...record.turn import Tokens
from ..base import BlockStream, ErrorReply, Wire, WireRequest
from ..fields import parse
from ..json_body import dump, one_line
from ..tools import call_input
from .messages_request import MessagesRequest, read_call

if TYPE_CHECKING:
    from ...record.session import CallAnswer, ChoiceOutcome


def usage(outcome: ChoiceOutcome) -> dict[str, Any]:
    """The tokens that an answer took; prompt tokens that an earlier turn had already are counted apart."""
    turn = outcome.turn
    return {
        "input_tokens": turn.prompt_length - turn.keep,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.keep,
        "output_tokens": len(turn.sampled),
    }


def reply_blocks(reply: Reply, uid: str) -> list[dict[str, Any]]:
    """A reply's blocks. One without calls has a text, even if it is empty."""
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": uid})
    if reply.content or not reply.tool_calls:
        blocks.append({"type": "text", "text": reply.content})
    return blocks + [tool_use(call, call_input(call.arguments)) for call in reply.tool_calls]


def tool_use(call: ToolCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def stop_reason(outcome: ChoiceOutcome) -> str:
    """Why a reply ended, in the words of Anthropic and Bedrock."""
    if outcome.turn.finish == "length":
        return "max_tokens"
    if outcome.reply.tool_calls:
        return "tool_use"
    return "stop_sequence" if outcome.reply.stop is not None else "end_turn"


def stop_fields(outcome: ChoiceOutcome) -> dict[str, Any]:
    reason = stop_reason(outcome)
    return {"stop_reason": reason, "stop_sequence": outcome.reply.stop if reason == "stop_sequence" else None}


_STARTS: dict[str, dict[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


class MessagesExchange:
    def __init__(self, request: WireRequest) -> None:
        body = parse(request.body, MessagesRequest)
        self.call: ChatCall | TextCall = read_call(body)
        self.stream = bool(body.stream)
        self._start_event: dict[str, Any] = {}
        self._blocks = BlockStream()

    def whole(self, answer: CallAnswer) -> bytes:
        (outcome,) = answer.outcomes
        content = reply_blocks(outcome.reply, answer.uid)
        return dump(_envelope(answer) | {"content": content, **stop_fields(outcome), "usage": usage(outcome)})

    def begin(self, answer: CallAnswer) -> None:
        used = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
        stop = {"stop_reason": None, "stop_sequence": None}
        self._blocks.uid = answer.uid
        self._start_event = _envelope(answer) | {"content": [], **stop, "usage": used}

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        data = self._blocks.begin_once(lambda: self._event("message_start", message=self._start_event))
        for kind, text in (("thinking", reasoning), ("text", content)):
            if text:
                data += self._open(kind) + self._delta(f"{kind}_delta", kind, text)
        return data

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        calls = outcome.reply.tool_calls
        data = b"" if calls else self._open("text")
        data += self._close()
        for call in calls:
            data += self._start(tool_use(call, {}))
            data += self._delta("input_json_delta", "partial_json", dump(call_input(call.arguments)).decode())
            data += self._close()
        return data + self._event("message_delta", delta=stop_fields(outcome), usage=usage(outcome))

    def end(self, answer: CallAnswer) -> bytes:
        return self._event("message_stop")

    def fail(self, fault: GatewayFault) -> bytes:
        return b"event: error\ndata: " + one_line(dump(error(fault, _request_id()))) + b"\n\n"

    def keep_alive(self) -> bytes:
        return self._event("ping")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), one_line(dump({"type": kind, **fields})))

    def _open(self, kind: str) -> bytes:
        """Make sure that a block of this kind is open."""
        return b"" if self._blocks.open == kind else self._close() + self._start(_STARTS[kind])

    def _start(self, block: dict[str, Any]) -> bytes:
        self._blocks.open = block["type"]
        return self._event("content_block_start", index=self._blocks.index, content_block=block)

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        return self._event("content_block_delta", index=self._blocks.index, delta={"type": kind, name: text})

    def _close(self) -> bytes:
        signed = self._blocks.open == "thinking"
        signature = self._delta("signature_delta", "signature", self._blocks.uid) if signed else b""
        return self._blocks.close(signature, self._event("content_block_stop", index=self._blocks.index))


def _envelope(answer: CallAnswer) -> dict[str, Any]:
    return {"id": f"msg_{answer.uid}", "type": "message", "role": "assistant", "model": answer.model}


# Errors

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error(fault: GatewayFault, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    message = fault.message
    if fault.code == "context_length_exceeded":  # agents look for these words
        message = f"prompt is too long: {message}"
    fields = {"type": kind, "message": message, "details": {"error_code": fault.code}}
    return {"type": "error", "error": fields, "request_id": request_id}


def refuse(fault: GatewayFault) -> ErrorReply:
    request_id = _request_id()
    return ErrorReply(fault.status, dump(error(fault, request_id)), {"request-id": request_id})


def _request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


MESSAGES = Wire(MessagesExchange, refuse)
