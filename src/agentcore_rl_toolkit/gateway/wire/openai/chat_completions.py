"""OpenAI's chat completions, to and from canonical calls; and what its other wires share with them. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import GatewayFault
from ...call.chat import ChatCall, Message, Reply, TextCall, ToolCall, parse_arguments
from ...record.turn import Tokens
from ..base import Asked, Refusal, Wire, any_tool, chosen_tool, with_user_turn
from ..fields import flag, short, text, whole
from ..json_body import dump, one_line
from ..omitted import Omitted, Part, content_fields
from .sampling import read_sampling

if TYPE_CHECKING:
    from ...record.session import Answer, Outcome

_DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MOST_CHOICES = 128
_NO_TEXT = {
    **dict.fromkeys(("image_url", "image", "input_image"), "image"),
    **dict.fromkeys(("file", "input_file"), "file"),
    "input_audio": "audio",
    "video_url": "video",
}
"""Parts that a placeholder takes the place of, and what they are."""

Tops = Sequence[Sequence[tuple[str, float]]]
"""The likeliest tokens of each place, with their logprobs. Parts of characters may have the same text."""


# Requests


def read_chat(body: dict[str, Any]) -> ChatCall:
    """A request to `/chat/completions`."""
    if body.get("functions"):
        raise GatewayFault.invalid("functions is not supported; write them as tools", param="functions")
    messages = read_messages(body.get("messages"))
    tools, omitted = _tools(body.get("tools"))
    logprobs = flag(body, "logprobs")
    return ChatCall(
        messages=messages,
        tools=tools,
        omitted=tuple(omitted),
        tool_choice="auto"
        if _asks_for_omitted(body, tools, omitted)
        else read_tool_choice(body.get("tool_choice"), tools),
        sampling=read_sampling(body, top_logprobs=whole(body, "top_logprobs", 0, 0, 20) if logprobs else 0),
        n=whole(body, "n", 1, 1, MOST_CHOICES),
        model=text(body, "model"),
        logprobs=logprobs,
        template=read_template(body),
    )


def read_template(body: dict[str, Any]) -> dict[str, Any]:
    """Settings of the chat template, but no template."""
    template = body.get("chat_template_kwargs") or {}
    if not isinstance(template, dict) or "chat_template" in template:
        raise GatewayFault.invalid("chat_template_kwargs is not an object of settings", param="chat_template_kwargs")
    return template


def read_messages(messages: Any) -> list[Message]:
    """Messages in canonical form."""
    if not isinstance(messages, list) or not messages:
        raise GatewayFault.invalid("messages is not a list with at least one message", param="messages")
    return with_user_turn([_plain(message) or _message(message, place) for place, message in enumerate(messages)])


def _plain(message: Any) -> Message | None:
    """A message that is a role and a text, as most are; conversations have hundreds of them, sent again every turn."""
    if type(message) is dict and len(message) == 2:
        role, content = message.get("role"), message.get("content")
        if type(content) is str and (role == "user" or role == "assistant"):
            return message
    return None


def _message(message: Any, place: int) -> Message:
    where = f"messages[{place}]"
    if not isinstance(message, dict):
        raise GatewayFault.invalid(f"{where} is not an object", param=where)
    role = _ROLES.get(message.get("role") or "") if isinstance(message.get("role"), str) else None
    if role is None:
        raise GatewayFault.invalid(
            f"{where}.role is {short(message.get('role'))}; expected one of {', '.join(_ROLES)}", param=where
        )
    if message.get("function_call"):
        raise GatewayFault.invalid(f"{where}.function_call is not supported; write it as tool_calls", param=where)
    content = message.get("content")
    if content is None:
        content = message.get("refusal")
    read: Message = {"role": role, **read_content(content, where)}
    if role == "assistant":
        if message.get("tool_calls"):
            read["tool_calls"] = _calls(message["tool_calls"], where)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            read["reasoning_content"] = reasoning
    elif role == "tool":
        if isinstance(message.get("tool_call_id"), str):
            read["tool_call_id"] = message["tool_call_id"]
        if isinstance(message.get("name"), str):
            read["name"] = message["name"]
    return read


def read_content(content: Any, where: str) -> Message:
    """The `content` of a canonical message: text parts joined, with a placeholder for each image or file."""
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    if not isinstance(content, list):
        raise GatewayFault.invalid(f"{where}.content is neither a text nor a list of parts", param=where)
    parts: list[Part] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            parts.append(part["refusal"])
        elif isinstance(kind, str) and kind in _NO_TEXT:
            parts.append(Omitted(_NO_TEXT[kind]))
        else:
            raise GatewayFault.invalid(f"{where} has a content part that is no text: {str(part)[:80]}", param=where)
    return content_fields(parts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise GatewayFault.invalid(f"{where}.tool_calls is not a list", param=where)
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise GatewayFault.invalid(f"{where}.tool_calls has an entry that is no function call", param=where)
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, (str, dict)):
            raise GatewayFault.invalid(
                f"{where}.tool_calls has arguments that are neither JSON text nor an object", param=where
            )
        read.append(
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {"name": function["name"], "arguments": parse_arguments(arguments or "{}")},
            }
        )
    return read


def _tools(tools: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The functions, and the types of tools that a provider runs on its own servers."""
    if not isinstance(tools, list | None):
        raise GatewayFault.invalid("tools is not a list", param="tools")
    read, omitted = [], []
    for place, tool in enumerate(tools or ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in ("function", "custom") and "function" not in tool:
            omitted.append(kind[:80])
            continue
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise GatewayFault.invalid(f"tools[{place}] is no function with a name", param="tools")
        if not isinstance(function.get("parameters") or {}, dict):
            raise GatewayFault.invalid(f"tools[{place}].function.parameters is not a JSON schema", param="tools")
        read.append(tool)
    return read, omitted


def _asks_for_omitted(body: dict[str, Any], tools: Sequence[dict[str, Any]], omitted: Sequence[str]) -> bool:
    """Whether the call asks for a tool that is left out: nothing is forced then."""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else None
    return kind in omitted or (choice == "required" and bool(omitted) and not tools)


def read_tool_choice(choice: Any, tools: Sequence[dict[str, Any]], *, nested: bool = True) -> str:
    """What may be called. Chat completions have what is chosen under the name of its type: nested."""
    if choice is None or choice in ("auto", "none"):
        return choice or "auto"
    if choice == "required":
        return any_tool(tools)
    if not isinstance(choice, dict):
        return chosen_tool(choice, tools)
    kind, chosen = choice.get("type", "function"), _chosen(choice, nested)
    if kind == "function":
        return chosen_tool(chosen.get("name"), tools)
    if kind != "allowed_tools":
        raise GatewayFault.invalid(f"tool_choice is of type {short(kind)}, which is not served", param="tool_choice")
    mode, allowed = chosen.get("mode"), chosen.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list):
        raise GatewayFault.invalid(
            "tool_choice of allowed_tools needs a mode (auto or required) and tools", param="tool_choice"
        )
    return allowed_tools([_chosen(tool, nested).get("name") for tool in allowed], tools, required=mode == "required")


def _chosen(choice: Any, nested: bool) -> dict[str, Any]:
    if nested and isinstance(choice, dict):
        choice = choice.get(str(choice.get("type", "function")))
    return choice if isinstance(choice, dict) else {}


def allowed_tools(
    names: list[Any], tools: Sequence[dict[str, Any]], *, required: bool, param: str = "tool_choice"
) -> str:
    """A choice among some of the tools, where it can be kept to: all of them, or one that has to be called."""
    for name in names:
        chosen_tool(name, tools, param=param)
    if {tool["function"]["name"] for tool in tools} <= set(names):
        return any_tool(tools, param=param) if required else "auto"
    if required and len(set(names)) == 1:
        return chosen_tool(names[0], tools, param=param)
    raise GatewayFault.invalid(f"{param} can't allow some tools only: send just these in tools", param=param)


def read_stream(body: dict[str, Any]) -> tuple[bool, bool]:
    """Whether to stream, and whether to end the stream with the usage."""
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise GatewayFault.invalid("stream_options is not an object", param="stream_options")
    return flag(body, "stream"), bool(options and flag(options, "include_usage"))


# Responses


def usage(answer: Answer) -> dict[str, Any]:
    """The tokens that an answer took."""
    turns = [outcome.turn for outcome in answer.outcomes]
    prompt, sampled = turns[0].prompt_length, sum(len(turn.sampled) for turn in turns)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": turns[0].keep},
    }


def message(reply: Reply) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning:
        said["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        said["content"] = reply.content or None
        said["tool_calls"] = [tool_call(call) for call in reply.tool_calls]
    return said


def tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def finish_reason(outcome: Outcome) -> str:
    finish = outcome.turn.finish
    return "tool_calls" if outcome.reply.tool_calls and finish == "stop" else finish


class Exchange(ABC):
    """One request for completions of either kind, and its events."""

    _prefix: str
    _kind: str
    _chunk: str

    def __init__(self, call: ChatCall | TextCall, asked: Asked) -> None:
        self.call = call
        self.stream, self._with_usage = read_stream(asked.body)
        self._decode = asked.decode
        self._head = b""

    def whole(self, answer: Answer) -> bytes:
        choices = [self._choice(place, outcome) for place, outcome in enumerate(answer.outcomes)]
        return dump(self._about(answer, self._kind) | {"choices": choices, "usage": usage(answer)})

    def begin(self, answer: Answer) -> None:
        self._head = b"data: " + dump(self._about(answer, self._chunk))[:-1]

    def end(self, answer: Answer) -> bytes:
        last = self._head + b',"choices":[],"usage":' + dump(usage(answer)) + b"}\n\n" if self._with_usage else b""
        return last + _DONE

    def fail(self, fault: GatewayFault) -> bytes:
        return b"data: " + one_line(error(fault)) + b"\n\n"

    def keep_alive(self) -> bytes:
        return _KEEP_ALIVE

    @abstractmethod
    def _choice(self, place: int, outcome: Outcome) -> dict[str, Any]:
        """One choice of a whole answer."""

    def _about(self, answer: Answer, kind: str) -> dict[str, Any]:
        created, model = answer.created, answer.model
        return {"id": f"{self._prefix}-{answer.uid}", "object": kind, "created": created, "model": model}

    def _event(self, choice: int, said: dict[str, Any], logprobs: Any, reason: str | None) -> bytes:
        entry = {"index": choice, **said, "logprobs": logprobs, "finish_reason": reason}
        return self._head + b',"choices":[' + one_line(dump(entry)) + b"]}\n\n"


class ChatExchange(Exchange):
    """One request to `/chat/completions`."""

    _prefix, _kind, _chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, asked: Asked) -> None:
        super().__init__(read_chat(asked.body), asked)
        self._begun: set[int] = set()

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        data = b""
        if choice not in self._begun:
            self._begun.add(choice)
            data = self._event(choice, {"delta": {"role": "assistant", "content": ""}}, None, None)
        logprobs = self._logprobs(tokens) if tokens.ids else None
        if reasoning or content or logprobs:
            delta = {"reasoning_content": reasoning} if reasoning else {}
            if content:
                delta["content"] = content
            data += self._event(choice, {"delta": delta}, logprobs, None)
        return data

    def finish(self, choice: int, outcome: Outcome) -> bytes:
        data = b""
        for place, call in enumerate(outcome.reply.tool_calls):  # one in each chunk: some clients read only the first
            data += self._event(choice, {"delta": {"tool_calls": [{"index": place, **tool_call(call)}]}}, None, None)
        return data + self._event(choice, {"delta": {}}, None, finish_reason(outcome))

    def _choice(self, place: int, outcome: Outcome) -> dict[str, Any]:
        return {
            "index": place,
            "message": message(outcome.reply),
            "logprobs": self._logprobs(outcome.tokens),
            "finish_reason": finish_reason(outcome),
        }

    def _logprobs(self, tokens: Tokens) -> dict[str, Any] | None:
        return chat_logprobs(*token_texts(tokens, self._decode)) if self.call.logprobs else None


def token_texts(tokens: Tokens, decode: Callable[[Sequence[int]], str]) -> tuple[list[str], list[float], Tops]:
    """Tokens as the client reads them: their texts, logprobs, and alternatives."""
    texts = [decode([token]) for token in tokens.ids]
    tops = [[(decode([token]), value) for token, value in top.items()] for top in tokens.tops]
    return texts, list(tokens.logprobs), [*tops, *([] for _ in texts[len(tops) :])]


def chat_logprobs(tokens: Sequence[str], values: Sequence[float], tops: Tops) -> dict[str, Any]:
    """Logprobs as `/chat/completions` gives them; a token without one says so with null."""
    return {
        "content": [
            {
                "token": token,
                "logprob": number(value),
                "bytes": _bytes(token),
                "top_logprobs": [{"token": t, "logprob": number(v), "bytes": _bytes(t)} for t, v in top],
            }
            for token, value, top in zip(tokens, values, tops, strict=True)
        ],
        "refusal": None,
    }


def _bytes(token: str) -> list[int] | None:
    """A token's bytes; None for a part of a character, whose bytes its text doesn't tell."""
    return None if "\ufffd" in token else list(token.encode("utf-8", "surrogatepass"))


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(fault: GatewayFault) -> bytes:
    """An error in OpenAI's shape."""
    return dump({"error": error_fields(fault)})


def error_fields(fault: GatewayFault) -> dict[str, Any]:
    kind = _TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
    return {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}


def refuse(fault: GatewayFault) -> Refusal:
    return Refusal(fault.status, error(fault))


CHAT = Wire(ChatExchange, refuse)


def number(value: float) -> float | None:
    """A logprob, null if there is none."""
    return value if math.isfinite(value) else None
