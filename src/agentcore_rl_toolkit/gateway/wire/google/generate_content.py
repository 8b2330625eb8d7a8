"""Google's generateContent and streamGenerateContent: answers, streams and errors. Pure.

A stream is server-sent events or one JSON array, as the query says. Thoughts are sent if the call asks for them; a
signature carries them in any case, on the first function call or on the last text, as on Google's servers. The gateway
does not check API keys: the key in the URL decides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ....errors import GatewayFault
from ...call.chat import ChatCall, Reply, TextCall, ToolCall
from ...record.turn import Tokens
from ..base import ErrorReply, Wire, WireRequest
from ..json_body import dump, one_line
from ..openai.chat_completions import finite_or_none
from ..tools import call_input
from .contents import sign
from .generate_request import parse_generate, read_generate

if TYPE_CHECKING:
    from ...record.session import CallAnswer, ChoiceOutcome

_JSON = "application/json"
Part = dict[str, Any]


def model_name(path: str) -> str | None:
    """The model in a path. Vertex's clients split a name at its slash: the first part is the publisher.

    >>> model_name("v1beta/models/gemini-2.5-pro:generateContent")
    'gemini-2.5-pro'
    >>> model_name("v1/projects/p/locations/l/publishers/Qwen/models/Qwen3-8B:generateContent")
    'Qwen/Qwen3-8B'
    """
    before, _, rest = unquote(path).partition("odels/")
    name = rest.rpartition(":")[0]
    publisher = before.partition("publishers/")[2].partition("/")[0] or "google"
    return (name if publisher == "google" else f"{publisher}/{name}") or None


def usage(prompt: int, kept: int, sampled: int) -> dict[str, int]:
    """The tokens that an answer took; the candidates' include thoughts."""
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": sampled,
        "totalTokenCount": prompt + sampled,
        "cachedContentTokenCount": kept,
    }


def function_call(call: ToolCall) -> Part:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call_input(call.arguments or "{}")}}


class GenerateExchange:
    """One request to `generateContent`, or to `streamGenerateContent` as events."""

    def __init__(self, request: WireRequest, *, stream: bool = False) -> None:
        body = parse_generate(request.body)
        self.call: ChatCall | TextCall = read_generate(body, model_name(request.path))
        self.stream = stream
        config = body.generation_config
        thinking = config.thinking_config if config is not None else None
        self._shows_thoughts = thinking is not None and thinking.include_thoughts is True
        self._decode = request.decode
        self._envelope: dict[str, Any] = {}
        self._pending: dict[int, list[Tokens]] = {}
        """Tokens whose logprobs go with the next chunk of their choice."""
        self._sampled = 0

    def whole(self, answer: CallAnswer) -> bytes:
        candidates = []
        for place, outcome in enumerate(answer.outcomes):
            self._note(place, outcome.tokens)
            reply = outcome.reply
            thought = [_thought(reply.reasoning)] if reply.reasoning and self._shows_thoughts else []
            texts = [{"text": reply.content}] if reply.content else []
            candidates.append(self._candidate(place, thought + _signed(texts, reply), _finish_reason(outcome)))
        turns = [outcome.turn for outcome in answer.outcomes]
        used = usage(turns[0].prompt_length, turns[0].keep, sum(len(turn.sampled) for turn in turns))
        return dump({"candidates": candidates, "usageMetadata": used, **_envelope(answer)})

    def begin(self, answer: CallAnswer) -> None:
        self._envelope = _envelope(answer)

    def piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        self._note(choice, tokens)
        parts: list[Part] = [_thought(reasoning)] if reasoning and self._shows_thoughts else []
        if content:
            parts.append({"text": content})
        return self._chunk({"candidates": [self._candidate(choice, parts)]}) if parts else b""

    def finish(self, choice: int, outcome: ChoiceOutcome) -> bytes:
        turn = outcome.turn
        self._sampled += len(turn.sampled)
        candidate = self._candidate(choice, _signed([], outcome.reply), _finish_reason(outcome))
        used = usage(turn.prompt_length, turn.keep, self._sampled)
        return self._chunk({"candidates": [candidate], "usageMetadata": used})

    def end(self, answer: CallAnswer) -> bytes:
        return b""

    def fail(self, fault: GatewayFault) -> bytes:
        """As plain JSON: clients look for an error there, and read an event as an empty chunk."""
        return one_line(dump(error(fault))) + b"\n\n"

    def keep_alive(self) -> bytes:
        """White space: Google's clients read no comments."""
        return b"\n\n"

    def _chunk(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + one_line(dump(fields | self._envelope)) + b"\n\n"

    def _note(self, choice: int, tokens: Tokens) -> None:
        if self.call.logprobs and tokens is not None and tokens.ids:
            self._pending.setdefault(choice, []).append(tokens)

    def _candidate(self, choice: int, parts: list[Part], reason: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": choice}
        if reason is not None:
            candidate["finishReason"] = reason
        pending = self._pending.pop(choice, [])
        if pending:
            candidate["logprobsResult"] = self._logprobs(pending)
        return candidate

    def _logprobs(self, pending: list[Tokens]) -> dict[str, Any]:
        chosen = [self._token(*pair) for tokens in pending for pair in zip(tokens.ids, tokens.logprobs, strict=True)]
        tops = [
            {"candidates": [self._token(*pair) for pair in top.items()]} for tokens in pending for top in tokens.tops
        ]
        return {"chosenCandidates": chosen, "topCandidates": tops}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._decode([token]), "tokenId": token, "logProbability": finite_or_none(logprob)}


class ArrayExchange(GenerateExchange):
    """One request to `streamGenerateContent`, answered with one JSON array, an element at a time."""

    _begun = False

    def _chunk(self, fields: dict[str, Any]) -> bytes:
        return self._element(dump(fields | self._envelope))

    def end(self, answer: CallAnswer) -> bytes:
        return b"]"

    def fail(self, fault: GatewayFault) -> bytes:
        return self._element(dump(error(fault))) + b"]"

    def _element(self, data: bytes) -> bytes:
        before = b",\n" if self._begun else b"["
        self._begun = True
        return before + data


def _envelope(answer: CallAnswer) -> dict[str, Any]:
    return {"modelVersion": answer.model, "responseId": answer.uid}


def _thought(text: str) -> Part:
    return {"text": text, "thought": True}


def _signed(texts: list[Part], reply: Reply) -> list[Part]:
    """A reply's parts with its calls, and its thought in a signature. A reply without any gets an empty part."""
    calls = [function_call(call) for call in reply.tool_calls]
    if not calls and not texts:
        texts = [{"text": ""}]
    if reply.reasoning:
        (calls or texts)[0]["thoughtSignature"] = sign(reply.reasoning)
    return texts + calls


def _finish_reason(outcome: ChoiceOutcome) -> str:
    return "MAX_TOKENS" if outcome.turn.finish == "length" else "STOP"


# Errors

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_TYPE = "type.googleapis.com/google.rpc."


def error(fault: GatewayFault) -> dict[str, Any]:
    message = fault.message
    if fault.code == "context_length_exceeded":  # agents look for these words
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    about = {"field": fault.param} if fault.param else {}
    info = {"reason": fault.code.upper(), "domain": "agentcore-rl-toolkit", "metadata": about}
    details: list[dict[str, Any]] = [{"@type": f"{_TYPE}ErrorInfo", **info}]
    if fault.retry_after is not None:
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{max(1, round(fault.retry_after))}s"})
    status = _STATUSES.get(fault.status, "INVALID_ARGUMENT" if fault.status < 500 else "INTERNAL")
    return {"error": {"code": fault.status, "message": message, "status": status, "details": details}}


def refuse(fault: GatewayFault) -> ErrorReply:
    return ErrorReply(fault.status, dump(error(fault)))


GENERATE = Wire(GenerateExchange, refuse)
EVENTS = Wire(partial(GenerateExchange, stream=True), refuse)
ARRAY = Wire(partial(ArrayExchange, stream=True), refuse, _JSON)
