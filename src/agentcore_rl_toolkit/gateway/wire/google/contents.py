"""Contents of Google's generateContent, as canonical messages. Pure.

A function's response is a message of its own, before the text beside it. Contents of the model that follow each other
are one reply: clients keep a stream that way, chunk by chunk. A signature that `sign` made brings back the thought of a
reply whose client keeps none; those of other models are ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from ....errors import GatewayFault
from ...call.chat import Message
from ..base import call_arguments, with_user_turn
from ..fields import short
from ..json_body import dump
from ..omitted import Omitted, Part, content_fields
from .google_types import members, names_in_camel_case

_ROLES = {"user": "user", "function": "user", "tool": "user", "model": "assistant"}
_MEDIA = ("inlineData", "fileData")
_RUN_BY_GOOGLE = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts that tell of tools on Google's servers."""
_BESIDE = ("thought", "thoughtSignature")
"""What a part may have without saying anything."""
_OUTPUT = ("output", "result", "error")
"""Where clients put what a function returned, if it is all they send."""
_SIGNED = b"thought:"


def read_contents(contents: Any, system: Any = None) -> list[Message]:
    """Contents in canonical form."""
    if not isinstance(contents, list) or not contents:
        raise GatewayFault.invalid("contents is not a list with at least one content", param="contents")
    read = _system(system)
    reading = _Calls()
    for role, parts, where in _replies(contents):
        read += [_reply(parts, reading, where)] if role == "assistant" else _input(parts, reading, where)
    return with_user_turn(read)


def _replies(contents: list[Any]) -> Iterator[tuple[str, list[dict[str, Any]], str]]:
    """The role and parts of each content, those of a reply together."""
    open_reply: tuple[str, list[dict[str, Any]], str] | None = None
    for place, content in enumerate(contents):
        where = f"contents[{place}]"
        if not isinstance(content, dict):
            raise GatewayFault.invalid(f"{where} is not an object", param=where)
        role = _ROLES.get(content.get("role") or "user") if isinstance(content.get("role") or "", str) else None
        if role is None:
            raise GatewayFault.invalid(f"{where}.role is {short(content['role'])}; expected user or model", param=where)
        parts = _parts(content.get("parts"), where)
        if role == "user" and not parts:
            raise GatewayFault.invalid(f"{where} has no parts", param=where)
        if role == "assistant" and open_reply is not None:
            open_reply[1].extend(parts)
            continue
        if open_reply is not None:
            yield open_reply
        open_reply = (role, parts, where) if role == "assistant" else None
        if open_reply is None:
            yield role, parts, where
    if open_reply is not None:
        yield open_reply


def _parts(parts: Any, where: str) -> list[dict[str, Any]]:
    if parts is None:
        return []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise GatewayFault.invalid(f"{where}.parts is not a list of objects", param=where)
    return [names_in_camel_case(part) for part in parts]


def _system(system: Any) -> list[Message]:
    if system is None:
        return []
    if not isinstance(system, (str, dict)):
        raise GatewayFault.invalid(f"systemInstruction is {short(system)}, not a content", param="systemInstruction")
    parts = [{"text": system}] if isinstance(system, str) else _parts(system.get("parts"), "systemInstruction")
    said = content_fields(_said(part, "systemInstruction") for part in parts)
    return [{"role": "system", **said}] if said["content"] else []


class _Calls:
    """The calls of a conversation that no function has answered yet: responses may come without ids."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[tuple[str, str]] = []

    def made(self, name: str, given: str) -> str:
        """The id of a call, made up from its place where the client gives none."""
        call_id = given or f"call_{self._count}"
        self._count += 1
        self._open.append((name, call_id))
        return call_id

    def answered(self, name: str, given: str) -> str:
        """The id of the call that a response is for: the first of this name, if the client gives none."""
        for call in self._open:
            if call[1] == given or (not given and call[0] == name):
                self._open.remove(call)
                return call[1]
        return given


def _input(parts: list[dict[str, Any]], calls: _Calls, where: str) -> list[Message]:
    results = [_result(part, calls, where) for part in parts if "functionResponse" in part]
    said = [_said(part, where) for part in parts if "functionResponse" not in part]
    return [*results, {"role": "user", **content_fields(said)}] if said or not results else results


def _reply(parts: list[dict[str, Any]], calls: _Calls, where: str) -> Message:
    said: list[Part] = []
    thoughts: list[Part] = []
    made, signed = [], ""
    for part in parts:
        signed = signed or _signed(part.get("thoughtSignature"))
        if "functionCall" in part:
            made.append(_call(part, calls, where))
        elif not any(kind in part for kind in _RUN_BY_GOOGLE):
            (thoughts if part.get("thought") is True else said).append(_said(part, where))
    read: Message = {"role": "assistant", **content_fields(said)}
    if made:
        read["tool_calls"] = made
    if reasoning := content_fields(thoughts)["content"] or signed:
        read["reasoning_content"] = reasoning
    return read


def _said(part: dict[str, Any], where: str) -> Part:
    """What a part says, or what it is if a text model can't be shown it."""
    for name in _MEDIA:
        if name in part:
            return Omitted(_kind(members(part, name).get("mimeType")))
    said = part.get("text")
    if said is None and any(name in part for name in _BESIDE):
        return ""
    if not isinstance(said, str):
        raise GatewayFault.invalid(
            f"{where} has a part that is neither text nor a function's: {short(part)}", param=where
        )
    return said


def _kind(media: Any) -> str:
    kind = media.partition("/")[0] if isinstance(media, str) else ""
    return kind if kind in ("image", "audio", "video") else "file"


def _call(part: dict[str, Any], calls: _Calls, where: str) -> dict[str, Any]:
    call = members(part, "functionCall")
    name, given = call.get("name"), call.get("args")
    if not isinstance(name, str) or not name or not isinstance(given, (dict, type(None))):
        raise GatewayFault.invalid(
            f"{where} has a functionCall without a name or with args that are no object", param=where
        )
    function = {"name": name, "arguments": call_arguments(given or {})}
    return {"id": calls.made(name, _id(call)), "type": "function", "function": function}


def _result(part: dict[str, Any], calls: _Calls, where: str) -> Message:
    result = members(part, "functionResponse")
    name, response = result.get("name"), result.get("response")
    if not isinstance(name, str) or not name or not isinstance(response, (dict, type(None))):
        raise GatewayFault.invalid(
            f"{where} has a functionResponse without a name or with a response that is no object", param=where
        )
    media = [_said(inner, where) for inner in _parts(result.get("parts"), where)]
    message: Message = {"role": "tool", **content_fields([_output(response or {}), *media]), "name": name}
    if call_id := calls.answered(name, _id(result)):
        message["tool_call_id"] = call_id
    return message


def _id(known: dict[str, Any]) -> str:
    return known["id"] if isinstance(known.get("id"), str) else ""


def _output(response: dict[str, Any]) -> str:
    """What a function returned, as text: JSON where it is none, without the name that stands for all of it."""
    ((name, value),) = response.items() if len(response) == 1 else (("", response),)
    value = value if name in _OUTPUT else response
    return value if isinstance(value, str) else dump(value).decode()


def sign(thought: str) -> str:
    """A signature that brings a thought back, however little of it the client keeps."""
    return base64.b64encode(_SIGNED + thought.encode("utf-8", "surrogatepass")).decode()


def _signed(signature: Any) -> str:
    """The thought in a signature of ours; clients may spell base64 either way."""
    if not isinstance(signature, str):
        return ""
    try:
        known = base64.b64decode(signature.encode() + b"==", b"-_" if "-" in signature or "_" in signature else None)
        return known.removeprefix(_SIGNED).decode() if known.startswith(_SIGNED) else ""
    except (binascii.Error, ValueError):
        return ""
