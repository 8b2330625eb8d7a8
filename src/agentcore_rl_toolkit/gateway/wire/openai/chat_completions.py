"""OpenAI's chat completions, to and from canonical calls; and the parts that its other wires share. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import ChatCall, Message, Reply, TextCall, ToolCall, parse_arguments
from ...record.turn import Tokens
from ..base import ErrorReply, Wire, WireRequest
from ..content import Omitted, Part, content_fields, with_user_turn
from ..fields import Choices, Name, TopLogprobs, parse, short
from ..json_body import dump, one_line
from ..tools import OfferedTools, function_call
from .sampling import SamplingSettings, to_sampling

if TYPE_CHECKING:
    from ...record.session import CallAnswer, ChoiceOutcome

_DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MEDIA = {
    **dict.fromkeys(("image_url", "image", "input_image"), "image"),
    **dict.fromkeys(("file", "input_file"), "file"),
    "input_audio": "audio",
    "video_url": "video",
}
"""Parts that a placeholder replaces, and the kind that it names."""
_TEXTS = ("text", "input_text", "output_text", "refusal")
Tops = Sequence[Sequence[tuple[str, float]]]
"""The likeliest tokens of each position, with their logprobs. Parts of characters may have the same text."""


# Requests


class ContentPart(Struct):
    type: Annotated[str, Meta(extra_json_schema={"enum": [*_TEXTS, *_MEDIA]})]
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    """A URL, or an object with one."""


class CalledFunction(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ChatToolCall(Struct):
    function: CalledFunction
    id: Any = None


class ChatMessage(Struct):
    role: Annotated[str, Meta(pattern=f"^({'|'.join(ROLES)})$")]
    content: str | list[ContentPart] | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: Any = None
    name: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    function_call: Any = None


class ToolFunction(Struct):
    name: Name
    parameters: dict[str, Any] | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class CompletionsRequest(SamplingSettings, kw_only=True):
    """The settings that chat completions and completions share."""

    model: str | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatRequest(CompletionsRequest, kw_only=True):
    """A request to `/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: Any = None


def read_chat(request: ChatRequest) -> ChatCall:
    if request.functions:
        raise GatewayFault.invalid("functions is not supported; send tools instead", param="functions")
    tools = _read_tools(request.tools or [])
    return ChatCall(
        messages=with_user_turn(
            [read_message(message, f"messages[{place}]") for place, message in enumerate(request.messages)]
        ),
        **tools.fields(),
        tool_choice=read_tool_choice(request.tool_choice, tools),
        sampling=to_sampling(request, (request.top_logprobs or 0) if request.logprobs else 0),
        n=request.n or 1,
        model=request.model or None,
        logprobs=bool(request.logprobs),
        template=template_settings(request.chat_template_kwargs),
    )


def template_settings(settings: dict[str, Any] | None) -> dict[str, Any]:
    """Settings of the chat template. An agent can't supply its own template."""
    if settings and "chat_template" in settings:
        raise GatewayFault.invalid(
            "chat_template_kwargs has a chat_template; only settings of the model's own template are allowed",
            param="chat_template_kwargs",
        )
    return settings or {}


def read_message(message: ChatMessage, where: str) -> Message:
    if message.function_call:
        raise GatewayFault.invalid(f"{where}.function_call is not supported; send tool_calls instead", param=where)
    content = message.refusal if message.content is None else message.content
    read: Message = {"role": ROLES[message.role], **read_content(content, where)}
    if message.role == "assistant":
        if message.tool_calls:
            read["tool_calls"] = [
                function_call(str(call.id or ""), call.function.name, parse_arguments(call.function.arguments or "{}"))
                for call in message.tool_calls
            ]
        reasoning = message.reasoning_content or message.reasoning
        if reasoning and isinstance(reasoning, str):
            read["reasoning_content"] = reasoning
    elif message.role == "tool":
        if isinstance(message.tool_call_id, str):
            read["tool_call_id"] = message.tool_call_id
        if isinstance(message.name, str):
            read["name"] = message.name
    return read


def read_content(content: str | list[ContentPart] | None, where: str) -> Message:
    """The `content` of a canonical message: its texts joined, with a placeholder for each image or file."""
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    return content_fields(_read_part(part, where) for part in content)


def _read_part(part: ContentPart, where: str) -> Part:
    if part.type in _MEDIA:
        url = part.image_url.get("url") if isinstance(part.image_url, dict) else part.image_url
        return Omitted(_MEDIA[part.type], url)
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in _TEXTS or text is None:
        raise GatewayFault.invalid(f"{where} has a content part of type {short(part.type)} without a text", param=where)
    return text


def _read_tools(given: list[dict[str, Any]]) -> OfferedTools:
    """The functions; tools of other types run on a provider's own servers and are left out."""
    tools = OfferedTools()
    for place, tool in enumerate(given):
        kind = tool.get("type")
        if isinstance(kind, str) and kind not in ("function", "custom") and "function" not in tool:
            tools.omitted.append(kind[:80])
        else:
            where = f"tools[{place}].function"
            parse(tool.get("function"), ToolFunction, where)
            tools.shown.append(tool)
    return tools


def read_tool_choice(choice: Any, tools: OfferedTools, *, nested: bool = True) -> str:
    """The canonical tool choice. Chat completions nest the chosen tool under the name of its type."""
    if choice is None or choice in ("auto", "none"):
        return choice or "auto"
    if choice == "required":
        return tools.require_any()
    if not isinstance(choice, dict):
        return tools.require(choice)
    kind, chosen = choice.get("type", "function"), _chosen(choice, nested)
    if kind == "function":
        return tools.require(chosen.get("name"))
    if kind in tools.omitted:
        return "auto"
    if kind != "allowed_tools":
        raise GatewayFault.invalid(
            f"tool_choice is of type {short(kind)}; expected function or allowed_tools", param="tool_choice"
        )
    mode, allowed = chosen.get("mode"), chosen.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list):
        raise GatewayFault.invalid(
            "tool_choice of type allowed_tools needs a mode (auto or required) and tools", param="tool_choice"
        )
    return tools.allow([_chosen(tool, nested).get("name") for tool in allowed], required=mode == "required")


def _chosen(choice: Any, nested: bool) -> dict[str, Any]:
    if nested and isinstance(choice, dict):
        choice = choice.get(str(choice.get("type", "function")))
    return choice if isinstance(choice, dict) else {}


# Responses


def usage(answer: CallAnswer) -> dict[str, Any]:
    turns = [outcome.turn for outcome in answer.outcomes]
    prompt, sampled = turns[0].prompt_length, sum(len(turn.sampled) for turn in turns)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": turns[0].keep},
    }


def reply_message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [tool_call(call) for call in reply.tool_calls]
    return message


def tool_call(call: ToolCall) -> dict[str, Any]:
    return function_call(call.id, call.name, call.arguments)


def finish_reason(outcome: ChoiceOutcome) -> str:
    finish = outcome.turn.finish
    return "tool_calls" if outcome.reply.tool_calls and finish == "stop" else finish


class CompletionsExchange(ABC):
    """One request for completions of either kind, and its events."""

    _prefix: str
    _kind: str
    _chunk: str

    def __init__(self, call: ChatCall | TextCall, body: CompletionsRequest, request: WireRequest) -> None:
        self.call = call
        self.stream = bool(body.stream)
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._decode = request.decode
        self._head = b""

    def whole(self, answer: CallAnswer) -> bytes:
        choices = [self._choice(place, outcome) for place, outcome in enumerate(answer.outcomes)]
        return dump(self._envelope(answer, self._kind) | {"choices": choices, "usage": usage(answer)})

    def begin(self, answer: CallAnswer) -> None:
        self._head = b"data: " + dump(self._envelope(answer, self._chunk))[:-1]

    def end(self, answer: CallAnswer) -> bytes:
        last = self._head + b',"choices":[],"usage":' + dump(usage(answer)) + b"}\n\n" if self._with_usage else b""
        return last + _DONE

    def fail(self, fault: GatewayFault) -> bytes:
        return b"data: " + one_line(error(fault)) + b"\n\n"

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    @abstractmethod
    def _choice(self, place: int, outcome: ChoiceOutcome) -> dict[str, Any]:
        """One choice of a whole answer."""

    def _envelope(self, answer: CallAnswer, kind: str) -> dict[str, Any]:
        created, model = answer.created, answer.model
        return {"id": f"{self._prefix}-{answer.uid}", "object": kind, "created": created, "model": model}

    def _event(self, choice: int, fields: dict[str, Any], logprobs: Any, reason: str | None) -> bytes:
        entry = {"index": choice, **fields, "logprobs": logprobs, "finish_reason": reason}
        return self._head + b',"choices":[' + one_line(dump(entry)) + b"]}\n\n"


class ChatExchange(CompletionsExchange):
    _prefix, _kind, _chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, request: WireRequest) -> None:
        body = parse(request.body, ChatRequest)
        super().__init__(read_chat(body), body, request)
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

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        data = b""
        for place, call in enumerate(outcome.reply.tool_calls):  # one in each chunk: some clients read only the first
            data += self._event(choice, {"delta": {"tool_calls": [{"index": place, **tool_call(call)}]}}, None, None)
        return data + self._event(choice, {"delta": {}}, None, finish_reason(outcome))

    def _choice(self, place: int, outcome: ChoiceOutcome) -> dict[str, Any]:
        return {
            "index": place,
            "message": reply_message(outcome.reply),
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
    """Logprobs in the format of `/chat/completions`; null for a token without one."""
    return {
        "content": [
            _logprob(token, value) | {"top_logprobs": [_logprob(*alternative) for alternative in top]}
            for token, value, top in zip(tokens, values, tops, strict=True)
        ],
        "refusal": None,
    }


def _logprob(token: str, value: float) -> dict[str, Any]:
    # For part of a character `bytes` is None, because the text does not show which bytes it has.
    data = None if "\ufffd" in token else list(token.encode("utf-8", "surrogatepass"))
    return {"token": token, "logprob": finite_or_none(value), "bytes": data}


def finite_or_none(value: float) -> float | None:
    """A logprob; null if the engine gave none."""
    return value if math.isfinite(value) else None


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(fault: GatewayFault) -> bytes:
    return dump({"error": error_fields(fault)})


def error_fields(fault: GatewayFault) -> dict[str, Any]:
    kind = _TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
    return {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}


def refuse(fault: GatewayFault) -> ErrorReply:
    return ErrorReply(fault.status, error(fault))


CHAT = Wire(ChatExchange, refuse)
