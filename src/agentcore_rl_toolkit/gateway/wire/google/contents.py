"""Contents of Google's generateContent, as canonical messages. Pure.

A function's response becomes a separate message, before the text beside it. Consecutive contents of the model are
one reply: clients keep a stream that way, chunk by chunk. A signature that `sign` made restores the thought of a
reply whose client keeps none; the gateway ignores signatures of other models.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import Message
from ..content import Omitted, Part, content_fields, with_user_turn
from ..fields import Name
from ..json_body import dump
from ..tools import assistant_message, call_arguments, function_call

_OUTPUT = ("output", "result", "error")
"""The names under which clients send a function's return value, if it is all they send."""
_SIGNED = b"thought:"


class GoogleCall(Struct):
    name: Name
    args: dict[str, Any] | None = None
    id: Any = None


class GoogleResult(Struct):
    name: Name
    response: dict[str, Any] | None = None
    parts: list[GooglePart] | None = None
    id: Any = None


class GooglePart(Struct, rename="camel"):
    text: str | None = None
    thought: Any = None
    thought_signature: Any = None
    function_call: GoogleCall | None = None
    function_response: GoogleResult | None = None
    inline_data: dict[str, Any] | None = None
    file_data: dict[str, Any] | None = None
    executable_code: Any = None
    code_execution_result: Any = None
    tool_call: Any = None
    tool_response: Any = None

    def runs_on_google(self) -> bool:
        """Whether the part tells of a tool on Google's servers."""
        return bool(self.executable_code or self.code_execution_result or self.tool_call or self.tool_response)


class GoogleContent(Struct):
    role: Annotated[str, Meta(pattern="^(user|model|function|tool|)$")] | None = None
    parts: list[GooglePart] | None = None


def read_contents(contents: list[GoogleContent], system: str | GoogleContent | None = None) -> list[Message]:
    read, calls = _read_system(system), _OpenCalls()
    for by_model, parts, where in _merge_replies(contents):
        read += [_read_reply(parts, calls, where)] if by_model else _read_input(parts, calls, where)
    return with_user_turn(read)


def _merge_replies(contents: list[GoogleContent]) -> Iterator[tuple[bool, list[GooglePart], str]]:
    """For each content, whether it is the model's, and its parts; consecutive contents of the model are one."""
    reply: tuple[bool, list[GooglePart], str] | None = None
    for place, content in enumerate(contents):
        where, parts = f"contents[{place}]", content.parts or []
        if content.role == "model":
            reply = (True, [*reply[1], *parts], reply[2]) if reply is not None else (True, parts, where)
            continue
        if reply is not None:
            yield reply
            reply = None
        if not parts:
            raise GatewayFault.invalid(f"{where} has no parts", param=where)
        yield False, parts, where
    if reply is not None:
        yield reply


def _read_system(system: str | GoogleContent | None) -> list[Message]:
    parts = [GooglePart(system)] if isinstance(system, str) else system.parts or [] if system is not None else []
    content = content_fields(_read_part(part, "systemInstruction") for part in parts)
    return [{"role": "system", **content}] if content["content"] else []


class _OpenCalls:
    """The calls of a conversation that still wait for a response, because responses may come without ids."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[tuple[str, str]] = []

    def add(self, call: GoogleCall) -> str:
        """The id of a call, made from its position if the client gives none."""
        call_id = _id(call) or f"call_{self._count}"
        self._count += 1
        self._open.append((call.name, call_id))
        return call_id

    def remove(self, result: GoogleResult) -> str:
        """The id of the call that a response is for: the first of this name, if the client gives none."""
        given = _id(result)
        for call in self._open:
            if call[1] == given or (not given and call[0] == result.name):
                self._open.remove(call)
                return call[1]
        return given


def _id(given: GoogleCall | GoogleResult) -> str:
    return given.id if isinstance(given.id, str) else ""


def _read_input(parts: list[GooglePart], calls: _OpenCalls, where: str) -> list[Message]:
    results = [_read_result(part.function_response, calls, where) for part in parts if part.function_response]
    texts = [_read_part(part, where) for part in parts if not part.function_response]
    return [*results, {"role": "user", **content_fields(texts)}] if texts or not results else results


def _read_reply(parts: list[GooglePart], calls: _OpenCalls, where: str) -> Message:
    texts: list[Part] = []
    thoughts: list[Part] = []
    made, signed = [], ""
    for part in parts:
        signed = signed or _read_signature(part.thought_signature)
        if part.function_call is not None:
            call = part.function_call
            made.append(function_call(calls.add(call), call.name, call_arguments(call.args or {})))
        elif not part.runs_on_google():
            (thoughts if part.thought is True else texts).append(_read_part(part, where))
    return assistant_message(content_fields(texts), made, content_fields(thoughts)["content"] or signed)


def _read_part(part: GooglePart, where: str) -> Part:
    """A part's text, or the kind of media that it holds."""
    media = part.inline_data or part.file_data
    if media is not None:
        kind = str(media.get("mimeType")).partition("/")[0]
        source = media.get("data") or media.get("fileUri")
        return Omitted(kind if kind in ("image", "audio", "video") else "file", source)
    if part.text is None and part.thought is None and part.thought_signature is None:
        raise GatewayFault.invalid(f"{where} has a part without a text or a function", param=where)
    return part.text or ""


def _read_result(result: GoogleResult, calls: _OpenCalls, where: str) -> Message:
    media = [_read_part(part, where) for part in result.parts or ()]
    content = content_fields([_read_output(result.response or {}), *media])
    message: Message = {"role": "tool", **content, "name": result.name}
    if call_id := calls.remove(result):
        message["tool_call_id"] = call_id
    return message


def _read_output(response: dict[str, Any]) -> str:
    """A function's return value as text; values other than text are JSON."""
    ((name, value),) = response.items() if len(response) == 1 else (("", response),)
    value = value if name in _OUTPUT else response
    return value if isinstance(value, str) else dump(value).decode()


def sign(thought: str) -> str:
    """A signature that restores a thought, however little of it the client keeps."""
    return base64.b64encode(_SIGNED + thought.encode("utf-8", "surrogatepass")).decode()


def _read_signature(signature: Any) -> str:
    """The thought in a signature of ours, in either alphabet of base64."""
    if not isinstance(signature, str):
        return ""
    try:
        data = base64.b64decode(signature.encode() + b"==", b"-_" if "-" in signature or "_" in signature else None)
        return data.removeprefix(_SIGNED).decode() if data.startswith(_SIGNED) else ""
    except (binascii.Error, ValueError):
        return ""
