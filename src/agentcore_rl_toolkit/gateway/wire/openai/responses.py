"""OpenAI's Responses, to and from canonical calls. Pure.

A call may go on from an earlier response of its session by `previous_response_id`. Tools are those that the client
runs, and only this session's own responses are known: no conversations, prompt templates or work in the background.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import GatewayFault
from ...call.chat import ChatCall, Message, TextCall
from ...call.history import Kept
from ...record.turn import Tokens
from ..base import Asked, Wire, with_user_turn
from ..fields import flag, short, text, whole
from ..json_body import dump, one_line
from .chat_completions import chat_logprobs, error_fields, read_template, read_tool_choice, refuse, token_texts
from .response_items import Event, Output, read_items
from .response_tools import ResponseTools
from .sampling import read_sampling

if TYPE_CHECKING:
    from ...record.session import Answer, Outcome

_KEEP_ALIVE = b": keep-alive\n\n"
_LONGEST = 2**31 - 1
_PREFIX = "resp_"
_LOGPROBS = "message.output_text.logprobs"
_NOT_SERVED = {
    "background": "no response is made in the background",
    "conversation": "conversations are not kept apart from responses: use previous_response_id",
    "prompt": "there are no prompt templates: use instructions and input",
}
# Accepted, and said back as the real API does; they change nothing here.
_ECHOED: dict[str, type] = {"metadata": dict, "reasoning": dict, "truncation": str, "user": str}


# Requests


def read_response(body: dict[str, Any], kept: Mapping[str, Kept], tools: ResponseTools | None = None) -> ChatCall:
    """A request to `/responses`; `kept` are the session's conversations, `tools` those of the body."""
    for name, why in _NOT_SERVED.items():
        if body.get(name):
            raise GatewayFault.invalid(f"{name} is not served: {why}", param=name)
    for name, kind in _ECHOED.items():
        if not isinstance(body.get(name) or kind(), kind):
            raise GatewayFault.invalid(f"{name} is {short(body[name])}, which is of the wrong type", param=name)
    instructions = text(body, "instructions")
    lead: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    tools = tools or ResponseTools(body.get("tools"))
    messages = _before(body, kept) + read_items(body.get("input"), kept, tools)
    if not messages:
        raise GatewayFault.invalid("input has nothing in it to reply to", param="input")
    logprobs, top = _logprobs(body)
    return ChatCall(
        messages=with_user_turn(lead + messages),
        tools=tools.shown,
        loaded=tools.loaded,
        omitted=tuple(tools.omitted),
        tool_choice=read_tool_choice(tools.choice(body.get("tool_choice")), tools.known, nested=False),
        sampling=read_sampling(body | _renamed(body), top_logprobs=top),
        n=whole(body, "n", 1, 1, 1),
        model=text(body, "model"),
        logprobs=logprobs,
        template=read_template(body),
        remember=len(lead) if body.get("store") is None or flag(body, "store") else None,
    )


def _before(body: dict[str, Any], kept: Mapping[str, Kept]) -> list[Message]:
    """The conversation that a call goes on from; its instructions are not part of it."""
    name = text(body, "previous_response_id")
    if name is None:
        return []
    known = kept.get(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
    if known is None:
        raise GatewayFault(
            f"Previous response with id {short(name)} not found.",
            status=400,
            code="previous_response_not_found",
            param="previous_response_id",
            hint="this session has stored no such response",
        )
    return known.conversation()


def _logprobs(body: dict[str, Any]) -> tuple[bool, int]:
    """Whether logprobs are wanted, and of how many alternatives."""
    include = body.get("include") or []
    if not isinstance(include, list):
        raise GatewayFault.invalid("include is not a list", param="include")
    top = whole(body, "top_logprobs", 0, 0, 20)
    return _LOGPROBS in include or top > 0, top


def _renamed(body: dict[str, Any]) -> dict[str, Any]:
    """Sampling settings that have other names on this wire."""
    longest = whole(body, "max_output_tokens", 0, 1, _LONGEST)
    return {"max_tokens": longest or None, "max_completion_tokens": None, "response_format": _format(body.get("text"))}


def _format(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    form = wanted.get("format") if isinstance(wanted, dict) else wanted
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind in ("text", "json_object"):
        return {"type": kind}
    if kind == "json_schema" and isinstance(form.get("schema"), dict):
        return {"type": kind, "json_schema": form}
    raise GatewayFault.invalid(
        "text.format is none of text, json_object and json_schema (with its schema)", param="text"
    )


# Answers


class ResponseExchange:
    """One request to `/responses`."""

    def __init__(self, asked: Asked) -> None:
        self._tools = ResponseTools(asked.body.get("tools"))
        call = read_response(asked.body, asked.session.kept, self._tools)
        self.call: ChatCall | TextCall = call
        self.stream = flag(asked.body, "stream")
        self._decode = asked.decode
        self._echo = _echo(asked.body, call)
        self._about: dict[str, Any] = {}
        self._output = Output("")
        self._begun = False
        self._sent = 0
        self._unsaid: list[dict[str, Any]] = []
        """Logprobs of tokens that no text has come of yet."""

    def whole(self, answer: Answer) -> bytes:
        (outcome,) = answer.outcomes
        self.begin(answer)
        logprobs = self._logprobs(outcome.tokens)
        self._output.items = Output.of(answer.uid, outcome.reply, logprobs, _status(outcome), self._tools)
        return dump(self._response(_status(outcome), outcome))

    def begin(self, answer: Answer) -> None:
        self._about = {"id": f"{_PREFIX}{answer.uid}", "created_at": answer.created, "model": answer.model}
        self._output = Output(answer.uid, self._tools)

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        self._unsaid += self._logprobs(tokens)
        events: list[Event] = []
        if reasoning:
            events += self._output.say("reasoning", reasoning)
        if content:
            events += self._output.say("message", content, self._unsaid)
            self._unsaid = []
        return self._start() + self._events(events)

    def finish(self, choice: int, outcome: Outcome) -> bytes:
        reply = outcome.reply
        return self._start() + self._events(self._output.finish(reply.tool_calls, self._unsaid, _status(outcome)))

    def end(self, answer: Answer) -> bytes:
        (outcome,) = answer.outcomes
        status = _status(outcome)
        return self._events([(f"response.{status}", {"response": self._response(status, outcome)})])

    def fail(self, fault: GatewayFault) -> bytes:
        """As the real API does: an error, which the SDK raises, and the response that came to nothing."""
        said = {"code": fault.code, "message": fault.message, "param": fault.param}
        # The event's type has these fields; `error` is what makes SDKs raise it.
        events: list[Event] = [("error", said | {"error": error_fields(fault)})]
        if self._about:
            code = "rate_limit_exceeded" if fault.status == 429 else "server_error"
            failed = self._response("failed") | {"error": {"code": code, "message": fault.message}}
            events.append(("response.failed", {"response": failed}))
        return self._events(events)

    def keep_alive(self) -> bytes:
        return _KEEP_ALIVE

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

    def _response(self, status: str, outcome: Outcome | None = None) -> dict[str, Any]:
        return {
            **self._about,
            "object": "response",
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output.items if outcome is not None else [],
            "usage": usage(outcome, self._decode) if outcome is not None else None,
            **self._echo,
        }


def _status(outcome: Outcome) -> str:
    return "incomplete" if outcome.turn.finish == "length" else "completed"


def usage(outcome: Outcome, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """The tokens that a response took."""
    turn = outcome.turn
    return {
        "input_tokens": turn.prompt_length,
        "input_tokens_details": {"cached_tokens": turn.keep, "cache_write_tokens": 0},
        "output_tokens": len(turn.sampled),
        "output_tokens_details": {"reasoning_tokens": _thought(outcome, decode)},
        "total_tokens": turn.prompt_length + len(turn.sampled),
    }


def _thought(outcome: Outcome, decode: Callable[[Sequence[int]], str]) -> int:
    """How many tokens it took to say the reasoning."""
    reasoning, ids = outcome.reply.reasoning, outcome.turn.sampled.tolist()
    place = decode(ids).find(reasoning) if reasoning else -1
    if place < 0:
        return 0
    end = place + len(reasoning)
    return bisect_left(range(len(ids)), end, key=lambda count: len(decode(ids[:count])))


def _echo(body: dict[str, Any], call: ChatCall) -> dict[str, Any]:
    """What a response repeats of its request."""
    tools = [
        {name: tool.get(name) for name in ("type", "name", "description", "parameters", "strict")}
        if tool["type"] == "function"
        else tool
        for tool in body.get("tools") or ()
    ]
    parallel = body.get("parallel_tool_calls")
    return {
        "instructions": body.get("instructions"),
        "previous_response_id": body.get("previous_response_id"),
        "tools": tools,
        "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": True if parallel is None else flag(body, "parallel_tool_calls"),
        "max_output_tokens": call.sampling.max_tokens,
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "top_logprobs": call.sampling.top_logprobs,
        "text": {"format": {"type": "text"}, **(body.get("text") or {})},
        "store": call.remember is not None,
        "background": False,
        **{name: body.get(name) or None for name in _ECHOED},
        "metadata": body.get("metadata") or {},
        "truncation": body.get("truncation") or "disabled",
    }


RESPONSES = Wire(ResponseExchange, refuse)
