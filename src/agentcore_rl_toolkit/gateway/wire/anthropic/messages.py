"""Anthropic's Messages, to and from canonical calls. Pure.

A tool's result is a message of its own, before what the user says beside it. Reasoning is a `thinking` block, whose
signature nobody checks. A reply that the client has begun itself is refused: its tokens would be nobody's.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ....errors import GatewayFault
from ...call.chat import ChatCall, Message, Reply, TextCall, ToolCall
from ...record.turn import Tokens
from ..base import Asked, Refusal, Wire, call_arguments, call_input, with_user_turn, without_prefill
from ..fields import flag, short, text
from ..json_body import dump, one_line
from ..omitted import Omitted, Part, content_fields
from ..openai.sampling import read_sampling
from .messages_tools import MessagesTools

if TYPE_CHECKING:
    from ...record.session import Answer, Outcome

_THINKING = {"disabled": False, "enabled": True, "adaptive": True, "between_tools": True}
_MOST_STOPS = 16
_NO_TEXT = ("image", "document", "search_result", "container_upload")


# Requests


def read_call(body: dict[str, Any]) -> ChatCall:
    """A request to `/messages`."""
    if body.get("max_tokens") is None:
        raise GatewayFault.invalid("max_tokens is missing: say how many tokens to sample at most", param="max_tokens")
    call = read_counted(body)
    without_prefill(list(call.messages))
    return call


def read_counted(body: dict[str, Any]) -> ChatCall:
    """A request to `/messages/count_tokens`: the same, but that nothing is asked for."""
    tools = MessagesTools(body)
    messages = _system(body.get("system")) + read_messages(body.get("messages"), tools)
    settings = {
        "stop": _stops(body.get("stop_sequences")),
        "response_format": _format(body.get("output_config")),
        "max_completion_tokens": None,
    }
    return ChatCall(
        messages=messages,
        tools=tools.shown,
        loaded=tools.loaded,
        omitted=tuple(tools.omitted),
        tool_choice=tools.choice(body.get("tool_choice")),
        sampling=read_sampling(body | settings),
        model=text(body, "model"),
        template=_template(body.get("thinking")),
    )


def read_messages(messages: Any, tools: MessagesTools | None = None) -> list[Message]:
    """Messages in canonical form; tools that they refer to are loaded."""
    if not isinstance(messages, list) or not messages:
        raise GatewayFault.invalid("messages is not a list with at least one message", param="messages")
    read: list[Message] = []
    tools = tools or MessagesTools({})
    for place, message in enumerate(messages):
        read += _message(message, f"messages[{place}]", tools)
    return with_user_turn(read)


def _message(message: Any, where: str, tools: MessagesTools) -> list[Message]:
    if not isinstance(message, dict):
        raise GatewayFault.invalid(f"{where} is not an object", param=where)
    role = message.get("role")
    if role == "user":
        return _user(_blocks(message.get("content"), where), where, tools)
    if role == "assistant":
        return [_assistant(_blocks(message.get("content"), where), where)]
    if role == "system":
        return _system(message.get("content"), where)
    raise GatewayFault.invalid(f"{where}.role is {short(role)}; expected user, assistant or system", param=where)


def _user(blocks: list[dict[str, Any]], where: str, tools: MessagesTools) -> list[Message]:
    results = [_result(block, where, tools) for block in blocks if block["type"] == "tool_result"]
    parts = [_part(block, where) for block in blocks if block["type"] != "tool_result"]
    return [*results, {"role": "user", **content_fields(parts)}] if parts or not results else results


def _result(block: dict[str, Any], where: str, tools: MessagesTools) -> Message:
    if not isinstance(block.get("tool_use_id"), str):
        raise GatewayFault.invalid(f"{where} has a tool_result without a tool_use_id", param=where)
    parts = [
        tools.load(inner.get("tool_name"), where) if inner["type"] == "tool_reference" else _part(inner, where)
        for inner in _blocks(block.get("content") or "", where)
    ]
    return {"role": "tool", **content_fields(parts), "tool_call_id": block["tool_use_id"]}


def _assistant(blocks: list[dict[str, Any]], where: str) -> Message:
    parts: list[Part] = []
    thoughts, calls = [], []
    for block in blocks:
        if block["type"] == "thinking":
            thoughts.append(_text(block, where, "thinking"))
        elif block["type"] == "tool_use":
            calls.append(_call(block, where))
        elif block["type"] != "redacted_thinking":
            parts.append(_part(block, where))
    read: Message = {"role": "assistant", **content_fields(parts)}
    if calls:
        read["tool_calls"] = calls
    if any(thoughts):
        read["reasoning_content"] = "".join(thoughts)
    return read


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(block.get("name"), str) or not isinstance(given, (dict, type(None))):
        raise GatewayFault.invalid(
            f"{where} has a tool_use without a name or with an input that is no object", param=where
        )
    function = {"name": block["name"], "arguments": call_arguments(given or {})}
    return {"id": str(block.get("id") or ""), "type": "function", "function": function}


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    """Content as blocks, each of which has a type."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise GatewayFault.invalid(f"{where}.content is neither a text nor a list of blocks", param=where)
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise GatewayFault.invalid(f"{where} has a block without a type: {short(block)}", param=where)
    return content


def _part(block: dict[str, Any], where: str) -> Part:
    """What the model reads of a block: its text, or a placeholder."""
    kind, source = block["type"], block.get("source")
    if kind == "document" and isinstance(source, dict) and isinstance(source.get("data"), str):
        return source["data"] if source.get("type") == "text" else Omitted(kind)
    if kind in _NO_TEXT or kind.endswith(("_tool_use", "_tool_result")):  # those of tools on Anthropic's servers
        return Omitted(kind[:80])
    return _text(block, where)


def _text(block: dict[str, Any], where: str, kind: str = "text") -> str:
    """What a block says; one that is not of this kind is refused."""
    if block["type"] != kind:
        raise GatewayFault.invalid(
            f"{where} has a block of type {block['type'][:40]!r}, which has no place there", param=where
        )
    said = block.get(kind)
    if not isinstance(said, str):
        raise GatewayFault.invalid(f"{where} has a {kind} block without its text", param=where)
    return said


def _system(system: Any, where: str = "system") -> list[Message]:
    if system is None:
        return []
    read = content_fields(_part(block, where) for block in _blocks(system, where))
    return [{"role": "system", **read}] if read["content"] else []


def _stops(stops: Any) -> list[str]:
    if stops is None:
        return []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise GatewayFault.invalid(f"stop_sequences is not a list of up to {_MOST_STOPS} texts", param="stop_sequences")
    return stops


def _format(config: Any) -> dict[str, Any] | None:
    """The wanted form of the reply, as OpenAI's `response_format`."""
    wanted = config.get("format") if isinstance(config, dict) else config
    if wanted is None:
        return None
    schema = wanted.get("schema") if isinstance(wanted, dict) and wanted.get("type") == "json_schema" else None
    if not isinstance(schema, dict):
        raise GatewayFault.invalid("output_config.format is no json_schema with its schema", param="output_config")
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _template(thinking: Any) -> dict[str, Any]:
    if thinking is None:
        return {}
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(kind, str) or kind not in _THINKING:
        raise GatewayFault.invalid(
            f"thinking is {short(thinking)}; its type is one of {', '.join(_THINKING)}", param="thinking"
        )
    return {"enable_thinking": _THINKING[kind]}


# Responses


def usage(outcome: Outcome) -> dict[str, Any]:
    """The tokens that an answer took; those of the prompt that a turn before had already are counted apart."""
    turn = outcome.turn
    return {
        "input_tokens": turn.prompt_length - turn.keep,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.keep,
        "output_tokens": len(turn.sampled),
    }


def blocks(reply: Reply, uid: str) -> list[dict[str, Any]]:
    """What the model said. There is a text, be it empty, wherever there is no call."""
    said: list[dict[str, Any]] = []
    if reply.reasoning:
        said.append({"type": "thinking", "thinking": reply.reasoning, "signature": uid})
    if reply.content or not reply.tool_calls:
        said.append({"type": "text", "text": reply.content})
    return said + [tool_use(call, call_input(call.arguments)) for call in reply.tool_calls]


def tool_use(call: ToolCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def ending(outcome: Outcome) -> dict[str, Any]:
    """Why a reply ended."""
    reason, stop = "end_turn", None
    if outcome.turn.finish == "length":
        reason = "max_tokens"
    elif outcome.reply.tool_calls:
        reason = "tool_use"
    elif outcome.reply.stop is not None:
        reason, stop = "stop_sequence", outcome.reply.stop
    return {"stop_reason": reason, "stop_sequence": stop}


_STARTS: dict[str, dict[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


class MessagesExchange:
    """One request to `/messages`."""

    def __init__(self, asked: Asked) -> None:
        self.call: ChatCall | TextCall = read_call(asked.body)
        self.stream = flag(asked.body, "stream")
        self._about: dict[str, Any] = {}
        self._begun = False
        self._uid = ""
        self._index = 0
        self._open = ""
        """The kind of the block that is being said."""

    def whole(self, answer: Answer) -> bytes:
        (outcome,) = answer.outcomes
        said = blocks(outcome.reply, answer.uid)
        return dump(_about(answer) | {"content": said, **ending(outcome), "usage": usage(outcome)})

    def begin(self, answer: Answer) -> None:
        counted = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
        open_end = {"stop_reason": None, "stop_sequence": None}
        self._uid = answer.uid
        self._about = _about(answer) | {"content": [], **open_end, "usage": counted}

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        data = b"" if self._begun else self._event("message_start", message=self._about)
        self._begun = True
        for kind, said in (("thinking", reasoning), ("text", content)):
            if said:
                data += self._block(kind) + self._delta(f"{kind}_delta", kind, said)
        return data

    def finish(self, choice: int, outcome: Outcome) -> bytes:
        calls = outcome.reply.tool_calls
        data = b"" if calls else self._block("text")
        data += self._close()
        for call in calls:
            data += self._start(tool_use(call, {}))
            data += self._delta("input_json_delta", "partial_json", dump(call_input(call.arguments)).decode())
            data += self._close()
        return data + self._event("message_delta", delta=ending(outcome), usage=usage(outcome))

    def end(self, answer: Answer) -> bytes:
        return self._event("message_stop")

    def fail(self, fault: GatewayFault) -> bytes:
        return b"event: error\ndata: " + one_line(dump(error(fault, _request_id()))) + b"\n\n"

    def keep_alive(self) -> bytes:
        return self._event("ping")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), one_line(dump({"type": kind, **fields})))

    def _block(self, kind: str) -> bytes:
        """Make sure that a block of this kind is open."""
        return b"" if self._open == kind else self._close() + self._start(_STARTS[kind])

    def _start(self, block: dict[str, Any]) -> bytes:
        self._open = block["type"]
        return self._event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, name: str, said: str) -> bytes:
        return self._event("content_block_delta", index=self._index, delta={"type": kind, name: said})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        data = self._delta("signature_delta", "signature", self._uid) if self._open == "thinking" else b""
        data += self._event("content_block_stop", index=self._index)
        self._open = ""
        self._index += 1
        return data


def _about(answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.uid}", "type": "message", "role": "assistant", "model": answer.model}


def counted(tokens: int) -> bytes:
    """The answer of `/messages/count_tokens`."""
    return dump({"input_tokens": tokens})


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
    """An error in Anthropic's shape."""
    kind = _TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    message = fault.message
    if fault.code == "context_length_exceeded":  # agents look for these words
        message = f"prompt is too long: {message}"
    said = {"type": kind, "message": message, "details": {"error_code": fault.code}}
    return {"type": "error", "error": said, "request_id": request_id}


def refuse(fault: GatewayFault) -> Refusal:
    request_id = _request_id()
    return Refusal(fault.status, dump(error(fault, request_id)), {"request-id": request_id})


def _request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


MESSAGES = Wire(MessagesExchange, refuse)
