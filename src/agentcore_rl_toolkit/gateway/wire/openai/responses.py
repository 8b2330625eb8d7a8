"""OpenAI's Responses, to and from canonical calls. Pure.

A call may continue an earlier response of its session by `previous_response_id`. The gateway has only this session's
own responses, and only tools that the client runs: it serves no conversations, prompt templates or background work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import ChatCall, Message, TextCall
from ...record.conversation import StoredConversation
from ...record.turn import Tokens
from ..base import Wire, WireRequest
from ..content import with_user_turn
from ..fields import PositiveCount, TopLogprobs, parse, short
from ..json_body import dump, one_line
from .chat_completions import (
    KEEP_ALIVE,
    chat_logprobs,
    error_fields,
    read_tool_choice,
    refuse,
    template_settings,
    token_texts,
)
from .response_items import read_items
from .response_output import Event, ResponseOutput
from .response_tools import ResponseTools
from .sampling import JsonSchemaFormat, ResponseFormat, SamplingSettings, to_sampling

if TYPE_CHECKING:
    from ...record.session import CallAnswer, ChoiceOutcome

_PREFIX = "resp_"
_LOGPROBS = "message.output_text.logprobs"
_ITEMS = {"items": {"$ref": "#/components/schemas/ResponseItem"}}
_NOT_SERVED = {
    "background": "the gateway makes no response in the background",
    "conversation": "the gateway stores no conversations; use previous_response_id",
    "prompt": "the gateway stores no prompt templates; use instructions and input",
}


# Requests


class TextFormat(Struct):
    type: Annotated[str, Meta(pattern="^(text|json_object|json_schema)$")]
    schema: dict[str, Any] | None = None


class TextSettings(Struct):
    format: TextFormat | None = None


class ResponseRequest(SamplingSettings, kw_only=True):
    """A request to `/responses`."""

    model: str | None = None
    input: str | Annotated[list[Any], Meta(extra_json_schema=_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    text: TextSettings | None = None
    max_output_tokens: PositiveCount | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[Any] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    user: str | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None


def read_response(request: ResponseRequest, kept: Mapping[str, StoredConversation], tools: ResponseTools) -> ChatCall:
    """The call of a request; `kept` are the session's conversations, `tools` those of the request."""
    for name, why in _NOT_SERVED.items():
        if getattr(request, name):
            raise GatewayFault.invalid(f"{name} is not supported: {why}", param=name)
    lead: list[Message] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    messages = _continued(request, kept) + read_items(request.input, kept, tools)
    if not messages:
        raise GatewayFault.invalid("input is empty; send something to reply to", param="input")
    top = request.top_logprobs or 0
    request.max_completion_tokens = None
    request.max_tokens = request.max_output_tokens
    request.response_format = _read_format(request.text)
    return ChatCall(
        messages=with_user_turn(lead + messages),
        **tools.fields(),
        tool_choice=read_tool_choice(tools.flatten_choice(request.tool_choice), tools, nested=False),
        sampling=to_sampling(request, top),
        model=request.model or None,
        logprobs=top > 0 or _LOGPROBS in (request.include or ()),
        template=template_settings(request.chat_template_kwargs),
        remember=len(lead) if request.store is not False else None,
    )


def _continued(request: ResponseRequest, kept: Mapping[str, StoredConversation]) -> list[Message]:
    """The conversation that a call continues, without its instructions."""
    name = request.previous_response_id
    if not name:
        return []
    known = kept.get(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
    if known is None:
        raise GatewayFault(
            f"Previous response with id {short(name)} not found.",
            status=400,
            code="previous_response_not_found",
            param="previous_response_id",
            hint="this session has not stored such a response",
        )
    return known.conversation()


def _read_format(text: TextSettings | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    if text.format.type == "json_schema" and text.format.schema is None:
        raise GatewayFault.invalid("text.format.schema is missing", param="text")
    return ResponseFormat(text.format.type, JsonSchemaFormat(text.format.schema))


# Answers


class ResponseExchange:
    def __init__(self, request: WireRequest) -> None:
        body = parse(request.body, ResponseRequest)
        self._tools = ResponseTools(body.tools)
        call = read_response(body, request.session.conversations, self._tools)
        self.call: ChatCall | TextCall = call
        self.stream = bool(body.stream)
        self._decode = request.decode
        self._echo = _echo(body, request.body, call)
        self._envelope: dict[str, Any] = {}
        self._output = ResponseOutput("")
        self._begun = False
        self._sent = 0
        self._pending: list[dict[str, Any]] = []
        """Logprobs of tokens whose text was not sent yet."""

    def whole(self, answer: CallAnswer) -> bytes:
        (outcome,) = answer.outcomes
        self.begin(answer)
        logprobs = self._logprobs(outcome.tokens)
        self._output.items = ResponseOutput.of(answer.uid, outcome.reply, logprobs, _status(outcome), self._tools)
        return dump(self._response(_status(outcome), outcome))

    def begin(self, answer: CallAnswer) -> None:
        self._envelope = {"id": f"{_PREFIX}{answer.uid}", "created_at": answer.created, "model": answer.model}
        self._output = ResponseOutput(answer.uid, self._tools)

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        self._pending += self._logprobs(tokens)
        events: list[Event] = []
        if reasoning:
            events += self._output.extend("reasoning", reasoning)
        if content:
            events += self._output.extend("message", content, self._pending)
            self._pending = []
        return self._start() + self._events(events)

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        events = self._output.finish(outcome.reply.tool_calls, self._pending, _status(outcome))
        return self._start() + self._events(events)

    def end(self, answer: CallAnswer) -> bytes:
        (outcome,) = answer.outcomes
        status = _status(outcome)
        return self._events([(f"response.{status}", {"response": self._response(status, outcome)})])

    def fail(self, fault: GatewayFault) -> bytes:
        """As OpenAI's API: an error, which the SDK raises, and the failed response."""
        fields = {"code": fault.code, "message": fault.message, "param": fault.param}
        # The event's type has these fields; `error` is what makes SDKs raise it.
        events: list[Event] = [("error", fields | {"error": error_fields(fault)})]
        if self._envelope:
            code = "rate_limit_exceeded" if fault.status == 429 else "server_error"
            failed = self._response("failed") | {"error": {"code": code, "message": fault.message}}
            events.append(("response.failed", {"response": failed}))
        return self._events(events)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        response = self._response("in_progress")
        return self._events([(f"response.{name}", {"response": response}) for name in ("created", "in_progress")])

    def _events(self, events: Iterable[Event]) -> bytes:
        data = b""
        for kind, fields in events:
            event = {"type": kind, "sequence_number": self._sent, **fields}
            data += b"event: %s\ndata: %s\n\n" % (kind.encode(), one_line(dump(event)))
            self._sent += 1
        return data

    def _logprobs(self, tokens: Tokens) -> list[dict[str, Any]]:
        if not self.call.logprobs:
            return []
        entries: list[dict[str, Any]] = chat_logprobs(*token_texts(tokens, self._decode))["content"]
        return entries

    def _response(self, status: str, outcome: ChoiceOutcome | None = None) -> dict[str, Any]:
        return {
            **self._envelope,
            "object": "response",
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output.items if outcome is not None else [],
            "usage": usage(outcome, self._decode) if outcome is not None else None,
            **self._echo,
        }


def _status(outcome: ChoiceOutcome) -> str:
    return "incomplete" if outcome.turn.finish == "length" else "completed"


def usage(outcome: ChoiceOutcome, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    turn = outcome.turn
    return {
        "input_tokens": turn.prompt_length,
        "input_tokens_details": {"cached_tokens": turn.keep, "cache_write_tokens": 0},
        "output_tokens": len(turn.sampled),
        "output_tokens_details": {"reasoning_tokens": _reasoning_tokens(outcome, decode)},
        "total_tokens": turn.prompt_length + len(turn.sampled),
    }


def _reasoning_tokens(outcome: ChoiceOutcome, decode: Callable[[Sequence[int]], str]) -> int:
    """How many tokens the reply has up to the end of its reasoning."""
    reasoning, ids = outcome.reply.reasoning, outcome.turn.sampled.tolist()
    place = decode(ids).find(reasoning) if reasoning else -1
    if place < 0:
        return 0
    end = place + len(reasoning)
    return bisect_left(range(len(ids)), end, key=lambda count: len(decode(ids[:count])))


def _echo(request: ResponseRequest, body: dict[str, Any], call: ChatCall) -> dict[str, Any]:
    """The fields that a response repeats from its request."""
    shown = ("type", "name", "description", "parameters", "strict")
    return {
        "instructions": request.instructions,
        "previous_response_id": request.previous_response_id,
        "tools": [
            {name: tool.get(name) for name in shown} if tool["type"] == "function" else tool
            for tool in request.tools or ()
        ],
        "tool_choice": request.tool_choice or "auto",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "max_output_tokens": call.sampling.max_tokens,
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "top_logprobs": call.sampling.top_logprobs,
        "text": {"format": {"type": "text"}, **(body.get("text") or {})},
        "store": call.remember is not None,
        "background": False,
        "reasoning": request.reasoning or None,
        "user": request.user or None,
        "metadata": request.metadata or {},
        "truncation": request.truncation or "disabled",
    }


RESPONSES = Wire(ResponseExchange, refuse)
