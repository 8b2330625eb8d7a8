"""OpenAI's chat completions and completions, to and from canonical calls. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ..chat import ChatCall, Message, Reply, TextCall, ToolCall, parse_arguments
from ..engine.base import Sampling
from ..faults import Fault, invalid

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_LINE_ENDS = [(c.encode(), b"\\u%04x" % ord(c)) for c in "\u2028\u2029\x85"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MOST_CHOICES = 128
_DEEPEST = 100

# name → (smallest, largest, whole numbers only)
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, False),
    "top_k": (-1, 2**31 - 1, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.0, 100.0, False),
    "max_tokens": (1, 2**31 - 1, True),
    "max_completion_tokens": (1, 2**31 - 1, True),
    "min_tokens": (0, 2**31 - 1, True),
    "seed": (-(2**63), 2**64 - 1, True),
}


SAMPLING = frozenset({*_NUMBERS, "stop", "stop_token_ids", "logit_bias", "ignore_eos", "response_format"})
"""What `read_sampling` reads."""


# Requests


def read_json(body: bytes) -> dict[str, Any]:
    """A request's body as an object."""
    try:
        data = orjson.loads(body)
    except ValueError:
        try:  # orjson refuses lone surrogates, which no tokenizer, log or client could take
            data = _mended(json.loads(body, parse_constant=_refused))
        except (ValueError, OverflowError, RecursionError) as error:
            raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > _DEEPEST and _depth(data) > _DEEPEST:
        raise invalid(f"the body is nested more than {_DEEPEST} deep", code="invalid_json")
    return data


def _mended(value: Any) -> Any:
    """With U+FFFD for each lone surrogate, and no number that a float could not hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is too large")
    if type(value) is int and not -(2**63) <= value < 2**64:
        return float(value)
    return value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        level = [item for item in inner if isinstance(item, (dict, list))]
    return depth


def read_chat(body: dict[str, Any]) -> ChatCall:
    """A request to `/chat/completions`."""
    messages = read_messages(body.get("messages"))
    tools = _tools(body.get("tools"))
    template = body.get("chat_template_kwargs") or {}
    if not isinstance(template, dict) or "chat_template" in template:
        raise invalid("chat_template_kwargs is not an object of settings", param="chat_template_kwargs")
    logprobs = _flag(body, "logprobs")
    return ChatCall(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice"), tools),
        sampling=read_sampling(body, top_logprobs=_whole(body, "top_logprobs", 0, 0, 20) if logprobs else 0),
        n=_whole(body, "n", 1, 1, _MOST_CHOICES),
        model=_text(body, "model"),
        logprobs=logprobs,
        template=template,
    )


def read_completion(body: dict[str, Any]) -> TextCall:
    """A request to `/completions`."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt:
        if not all(type(i) is int and 0 <= i < 2**31 for i in prompt):
            raise invalid("prompt is neither a text nor a list of token ids", param="prompt")
    elif not isinstance(prompt, str) or not prompt:
        raise invalid("prompt is neither a text nor a list of token ids (one a request)", param="prompt")
    for name in ("echo", "suffix"):
        if body.get(name):
            raise invalid(f"{name} is not supported", param=name)
    top = body.get("logprobs")
    return TextCall(
        prompt=prompt,
        sampling=read_sampling(body, top_logprobs=_whole(body, "logprobs", 0, 0, 20) if top is not None else 0),
        n=_whole(body, "n", 1, 1, _MOST_CHOICES),
        model=_text(body, "model"),
        logprobs=top is not None and top is not False,
    )


def read_messages(messages: Any) -> list[Message]:
    """Messages in canonical form."""
    if not isinstance(messages, list) or not messages:
        raise invalid("messages is not a list with at least one message", param="messages")
    read = [_message(message, place) for place, message in enumerate(messages)]
    if not any(message["role"] in ("user", "tool") for message in read):
        raise invalid("messages has no user turn: there is nothing to reply to", param="messages")
    return read


def _message(message: Any, place: int) -> Message:
    where = f"messages[{place}]"
    if not isinstance(message, dict):
        raise invalid(f"{where} is not an object", param=where)
    role = _ROLES.get(message.get("role") or "") if isinstance(message.get("role"), str) else None
    if role is None:
        raise invalid(
            f"{where}.role is {_short(message.get('role'))}; expected one of {', '.join(_ROLES)}", param=where
        )
    content = message.get("content")
    read: Message = {"role": role, "content": content if isinstance(content, str) else read_content(content, where)}
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


def read_content(content: Any, where: str) -> str:
    """Text parts joined; anything else is refused."""
    if content is None:
        return ""
    if not isinstance(content, list):
        raise invalid(f"{where}.content is neither a text nor a list of parts", param=where)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind in ("image_url", "input_audio", "file", "video_url", "image"):
            raise invalid(f"{where} has a part of type {kind!r}, and this model reads text only", param=where)
        else:
            raise invalid(f"{where} has a content part that is no text: {str(part)[:80]}", param=where)
    return "".join(texts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise invalid(f"{where}.tool_calls is not a list", param=where)
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"{where}.tool_calls has an entry that is no function call", param=where)
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, (str, dict)):
            raise invalid(f"{where}.tool_calls has arguments that are neither JSON text nor an object", param=where)
        read.append(
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {"name": function["name"], "arguments": parse_arguments(arguments or "{}")},
            }
        )
    return read


def _tools(tools: Any) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise invalid("tools is not a list", param="tools")
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise invalid(f"tools[{place}] is no function with a name", param="tools")
        if not isinstance(function.get("parameters") or {}, dict):
            raise invalid(f"tools[{place}].function.parameters is not a JSON schema", param="tools")
    return tools


def _tool_choice(choice: Any, tools: Sequence[dict[str, Any]]) -> str:
    if choice is None or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    if not tools:
        raise invalid("tool_choice asks for a tool, but there are no tools", param="tool_choice")
    if choice == "required":
        return "required"
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in [tool["function"]["name"] for tool in tools]:
        raise invalid(f"tool_choice {str(choice)[:80]} names none of the tools", param="tool_choice")
    return f"={name}"


def read_sampling(body: dict[str, Any], *, top_logprobs: int = 0) -> Sampling:
    """The sampling settings of a request, or of a session's defaults."""
    numbers: dict[str, Any] = {}
    for name, (least, most, whole) in _NUMBERS.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, float) and whole and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (whole and not isinstance(value, int)):
            raise invalid(f"{name} is {_short(value)}, not a {'whole ' if whole else ''}number", param=name)
        if not (least <= value <= most) or not math.isfinite(value):
            raise invalid(f"{name} is {_short(value)}; expected {least:g} to {most:g}", param=name)
        numbers[name] = value
    longest = numbers.pop("max_completion_tokens", None)
    if longest is not None:
        numbers["max_tokens"] = longest
    if numbers.get("top_k") in (0, -1):
        del numbers["top_k"]
    return Sampling(
        **numbers,
        stop=_stop(body.get("stop")),
        stop_token_ids=tuple(_ids(body.get("stop_token_ids"), "stop_token_ids")),
        logit_bias=_bias(body.get("logit_bias")),
        ignore_eos=_flag(body, "ignore_eos"),
        top_logprobs=top_logprobs,
        json_schema=_schema(body.get("response_format")),
    )


def _stop(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(s, str) for s in stops):
        raise invalid("stop is neither a text nor a list of up to 16 texts", param="stop")
    return tuple(s for s in stops if s)


def _ids(ids: Any, name: str) -> Iterable[int]:
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise invalid(f"{name} is not a list of token ids", param=name)
    return ids


def _bias(bias: Any) -> tuple[tuple[int, float], ...]:
    if bias is None:
        return ()
    try:
        pairs = tuple((int(token), float(value)) for token, value in bias.items())
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise invalid("logit_bias is not an object of token ids and numbers", param="logit_bias") from None
    if not all(0 <= token < 2**31 and -100 <= value <= 100 for token, value in pairs):
        raise invalid("logit_bias is outside of -100 to 100", param="logit_bias")
    return pairs


def _schema(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        described = wanted.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if isinstance(schema, dict):
            return schema
    raise invalid(
        "response_format is none of text, json_object and json_schema (with its schema)", param="response_format"
    )


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"{name} is {_short(value)}, not true or false", param=name)
    return value


def _whole(body: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise invalid(f"{name} is {_short(value)}; expected a whole number from {least} to {most}", param=name)
    return value


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{name} is {_short(value)}, not a text", param=name)
    return value or None


def _short(value: Any) -> str:
    return repr(value)[:80]


def read_stream(body: dict[str, Any]) -> tuple[bool, bool]:
    """Whether to stream, and whether to end the stream with the usage."""
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise invalid("stream_options is not an object", param="stream_options")
    return _flag(body, "stream"), bool(options and _flag(options, "include_usage"))


# Responses


def usage(prompt: int, sampled: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
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


def finish_reason(finish: str, reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls and finish == "stop" else finish


def completion(uid: str, created: int, model: str, choices: list[dict[str, Any]], used: dict[str, Any]) -> bytes:
    """A whole answer of `/chat/completions`."""
    return dump(
        {
            "id": f"chatcmpl-{uid}",
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": choices,
            "usage": used,
        }
    )


def text_completion(uid: str, created: int, model: str, choices: list[dict[str, Any]], used: dict[str, Any]) -> bytes:
    """A whole answer of `/completions`."""
    return dump(
        {
            "id": f"cmpl-{uid}",
            "object": "text_completion",
            "created": created,
            "model": model,
            "choices": choices,
            "usage": used,
        }
    )


class Chunks:
    """The events of one stream."""

    def __init__(self, uid: str, created: int, model: str, *, chat: bool = True) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {
            "id": f"chatcmpl-{uid}" if chat else f"cmpl-{uid}",
            "object": kind,
            "created": created,
            "model": model,
        }
        self._head = b"data: " + dump(head)[:-1]
        self._chat = chat

    def begin(self, choice: int) -> bytes:
        return self._choice(choice, {"role": "assistant", "content": ""}, None, None) if self._chat else b""

    def piece(self, choice: int, reasoning: str, content: str, logprobs: Any = None) -> bytes:
        delta: dict[str, Any] = {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if content:
            delta["content"] = content
        return self._choice(choice, delta, logprobs, None)

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        deltas = [{"index": place, **tool_call(call)} for place, call in enumerate(calls)]
        return self._choice(choice, {"tool_calls": deltas}, None, None)

    def finish(self, choice: int, reason: str, logprobs: Any = None) -> bytes:
        return self._choice(choice, {}, logprobs, reason)

    def usage(self, used: dict[str, Any]) -> bytes:
        return self._head + b',"choices":[],"usage":' + dump(used) + b"}\n\n"

    def _choice(self, choice: int, delta: dict[str, Any], logprobs: Any, reason: str | None) -> bytes:
        if self._chat:
            entry = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        else:
            text = delta.get("content", "")
            entry = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._head + b',"choices":[' + one_line(dump(entry)) + b"]}\n\n"


def error_event(fault: Fault) -> bytes:
    """An error that comes after the stream has begun."""
    return b"data: " + one_line(error(fault)) + b"\n\n"


def one_line(data: bytes) -> bytes:
    """JSON without the characters that are line ends to some clients, though not to the standard."""
    for line_end, escaped in _LINE_ENDS:
        if line_end in data:
            data = data.replace(line_end, escaped)
    return data


def chat_logprobs(
    tokens: Sequence[str], values: Sequence[float], tops: Sequence[dict[str, float] | None]
) -> dict[str, Any]:
    """Logprobs as `/chat/completions` gives them; a token without one says so with null."""
    return {
        "content": [
            {
                "token": token,
                "logprob": _number(value),
                "bytes": list(token.encode("utf-8", "surrogatepass")),
                "top_logprobs": [
                    {"token": t, "logprob": _number(v), "bytes": list(t.encode("utf-8", "surrogatepass"))}
                    for t, v in (top or {}).items()
                ],
            }
            for token, value, top in zip(tokens, values, tops, strict=True)
        ],
        "refusal": None,
    }


def text_logprobs(
    tokens: Sequence[str], values: Sequence[float], tops: Sequence[dict[str, float] | None], start: int = 0
) -> dict[str, Any]:
    """Logprobs as `/completions` gives them."""
    offsets, place = [], start
    for token in tokens:
        offsets.append(place)
        place += len(token)
    return {
        "tokens": list(tokens),
        "token_logprobs": [_number(value) for value in values],
        "top_logprobs": [{t: _number(v) for t, v in (top or {}).items()} for top in tops],
        "text_offset": offsets,
    }


def models(names: Sequence[str], created: int, context: int | None) -> bytes:
    """The answer of `/models`."""
    entry = {"object": "model", "created": created, "owned_by": "agentcore-rl-toolkit", "max_model_len": context}
    return dump({"object": "list", "data": [{"id": name, **entry} for name in names]})


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(fault: Fault) -> bytes:
    """An error in OpenAI's shape."""
    kind = _TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
    return dump({"error": {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}})


def dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates
        return json.dumps(value, separators=(",", ":")).encode()


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
