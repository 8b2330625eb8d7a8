"""Fingerprints of conversations, by which the gateway finds the turn that a call continues. Pure.

Fingerprints ignore what clients change in the history they send back: the order and spelling of tool arguments,
tool-call ids, whitespace, dropped reasoning, dropped text beside tool calls, `null` for empty content, text merged or
split into parts. The hash (xxh3) is as fast as copying and not secure: an agent that forges a collision confuses only
its own session. `hash_prompt` is shared between sessions, and therefore secure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_64, xxh3_128

from .chat import ChatCall, Message, parse_arguments, split_thought

_EXACT = 2**53  # up to here a float holds every integer
_LARGEST = 10**308


class Echo(NamedTuple):
    """An assistant message in a call: what a client sends back of a reply."""

    place: int
    """The number of messages up to it, itself included."""
    end: bytes
    """The fingerprint of all these."""
    message: Message
    before: bytes
    """The fingerprint of the messages before it."""


@dataclass(slots=True)
class Fingerprints:
    """Fingerprints of a conversation: of all of it, and up to each assistant message."""

    whole: Any
    """A running hash, which `extend_fingerprint` extends."""
    echoes: list[Echo]


def fingerprint_call(call: ChatCall, is_recorded: Callable[[bytes, Message], bool] | None = None) -> Fingerprints:
    """The fingerprints of a call's conversation, which includes its tools and template settings.

    Text beside tool calls counts only where `is_recorded` says that no reply with these calls has this text: clients
    may drop it, and an edit is an edit.
    """
    running = xxh3_128()
    if call.tools or call.template:
        running.update(_dump_sorted([call.tools, call.template]))
    echoes = []
    for place, message in enumerate(call.messages, start=1):
        if message["role"] != "assistant":
            running.update(_normalize(message))
            continue
        before = running.digest()
        running.update(_normalize(message))
        end = running.digest()
        beside = message.get("content") if message.get("tool_calls") else None
        if beside and is_recorded is not None and not is_recorded(end, message):
            running.update(_tagged("beside", strip_whitespace(split_thought(beside)[1])))
            end = running.digest()
        echoes.append(Echo(place, end, message, before))
    return Fingerprints(running, echoes)


def extend_fingerprint(whole: Any, message: Message) -> bytes:
    """The fingerprint of a conversation that continues with `message`."""
    running = whole.copy()
    running.update(_normalize(message))
    return bytes(running.digest())


def hash_message(message: Message) -> bytes:
    """A hash of one assistant message with its text, which distinguishes replies with the same tool calls."""
    text = strip_whitespace(split_thought(message.get("content") or "")[1])
    return bytes(xxh3_64(_normalize(message) + text).digest())


def hash_text(text: str) -> bytes:
    return bytes(xxh3_128(text.encode("utf-8", "surrogatepass")).digest())


def hash_prompt(call: ChatCall) -> bytes:
    """A hash of everything that a prompt is rendered from, to the letter.

    Sessions share rendered prompts, so an agent must not be able to make two calls with the same hash.
    """
    rendered = [call.messages, call.tools, call.template]
    data = _dump(rendered, 0)
    if b"null" in data:  # orjson writes NaN and infinity as null, but templates render them differently
        data = json.dumps(rendered).encode()
    return sha256(data, usedforsecurity=False).digest()[:16]


def strip_whitespace(text: str) -> bytes:
    """Text without whitespace, which is what clients change most."""
    return text.encode("utf-8", "surrogatepass").translate(None, b" \t\n\r\x0b\x0c")


def _normalize(message: Message) -> bytes:
    """The bytes by which two messages count as the same, tagged with their length."""
    content: str = message.get("content") or ""
    role: str = message["role"]
    if role != "assistant":
        return _tagged(role, content.replace("\r\n", "\n").strip().encode("utf-8", "surrogatepass"))
    if message.get("tool_calls"):  # clients drop the text beside them
        return b"calls:" + b"".join(map(_normalize_call, message["tool_calls"]))
    return _tagged(role, strip_whitespace(split_thought(content)[1]))


def _normalize_call(call: dict[str, Any]) -> bytes:
    function = call.get("function") or {}
    arguments = parse_arguments(function.get("arguments")) or {}
    if isinstance(arguments, str):
        text = _tagged("text", strip_whitespace(arguments))
    else:
        try:
            text = _dump_sorted(_normalize_numbers(arguments))
        except RecursionError:
            text = b"too deep"
    return _tagged("call", str(function.get("name")).encode("utf-8", "surrogatepass")) + text


def _tagged(kind: str, data: bytes) -> bytes:
    return b"%d %s:%s" % (len(data), kind.encode(), data)


def _normalize_numbers(value: Any) -> Any:
    """Numbers as a client that has only floats returns them: 1.0 is 1, long integers lose digits, and infinity, which
    JSON can't express, is `null`."""
    if isinstance(value, float):
        whole = abs(value) <= _EXACT and value.is_integer()
        return int(value) if whole else value if math.isfinite(value) else None
    if type(value) is int and abs(value) > _EXACT:
        return float(value) if abs(value) < _LARGEST else None
    if isinstance(value, dict):
        return {key: _normalize_numbers(item) for key, item in value.items()}
    return [_normalize_numbers(item) for item in value] if isinstance(value, list) else value


def _dump_sorted(value: Any) -> bytes:
    return _dump(value, orjson.OPT_SORT_KEYS)


def _dump(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # integers of more than 64 bits, lone surrogates, very deep nesting
        return json.dumps(value, sort_keys=bool(option)).encode()
