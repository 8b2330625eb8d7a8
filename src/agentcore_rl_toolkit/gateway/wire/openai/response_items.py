"""Items of OpenAI's Responses, read into canonical messages. Pure.

A model's turn is several items here, and one message in canonical form. The ids that the gateway gave its items tell
which of them belong to one turn; where a client left the ids out, their order tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from ....errors import GatewayFault
from ...call.chat import Message, parse_arguments
from ...record.conversation import StoredConversation
from ..fields import parse, short
from ..tools import call_arguments, function_call
from .chat_completions import ROLES, ContentPart, read_content
from .response_output import ResponseOutput
from .response_tools import SEARCH, ResponseTools, custom_arguments, flat_name

_OWN_ID = re.compile(r"(?:rs|msg|fc|ctc|tsc|call)_([0-9a-f]{16})_\d+")
_CALLS = ("function_call", "custom_tool_call", "tool_search_call")
_RESULTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")
_SERVER_SIDE = (
    *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "computer_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
)
"""Items of tools that run on OpenAI's servers: this model never made them."""
_KINDS = ["message", "reasoning", "item_reference", "additional_tools", *_CALLS, *_RESULTS, *_SERVER_SIDE]


class ResponseItem(Struct):
    type: Annotated[str, Meta(extra_json_schema={"enum": _KINDS})] | None = None
    id: Any = None
    role: Annotated[str, Meta(pattern="^(system|developer|user|assistant)$")] | None = None
    content: str | list[ContentPart] | None = None
    summary: list[Any] | None = None
    call_id: Any = None
    name: str | None = None
    namespace: Any = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | list[ContentPart] | None = None
    tools: list[Any] | None = None


def read_items(
    given: str | list[Any] | None, kept: Mapping[str, StoredConversation], tools: ResponseTools | None = None
) -> list[Message]:
    """A request's input in canonical form.

    `kept` resolves references to items of earlier responses. Tools that come with the input are added to `tools`.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    reader = _ItemReader(kept, tools or ResponseTools())
    for place, item in enumerate(given or ()):
        where = f"input[{place}]"
        reader.add(parse(item, ResponseItem, where), where)
    return reader.messages


class _ItemReader:
    """Builds messages from items, one after the other."""

    def __init__(self, kept: Mapping[str, StoredConversation], tools: ResponseTools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._kept = kept
        self._open: Message | None = None
        """The assistant's message that the next item may be a part of."""
        self._uid: str | None = None
        """The turn it belongs to, if an item's id tells."""
        self._turns: dict[str, Message] = {}
        """Turns since the last user message: calls may come between the results of others."""

    def add(self, item: ResponseItem, where: str) -> None:
        kind = item.type or ("message" if item.role is not None else "item_reference" if item.id else None)
        if kind == "message":
            self._add_message(item, where)
        elif kind in _CALLS:
            self._add_call(item, kind, where)
        elif kind in _RESULTS:
            self._add_result(item, where)
        elif kind == "additional_tools":
            self._add_tools(item, where)
        elif kind in _SERVER_SIDE:
            self._tools.omitted.append(kind)
        elif kind == "reasoning":
            self._add_reasoning(item)
        elif kind == "item_reference":
            self.add(self._resolve(item.id, where), where)
        else:
            raise GatewayFault.invalid(f"{where}.type is {short(kind)}, which is not supported", param=where)

    def _add_message(self, item: ResponseItem, where: str) -> None:
        if item.role is None:
            raise GatewayFault.invalid(f"{where}.role is missing", param=where)
        read = read_content(item.content, where)
        if item.role == "assistant":
            self._assistant(item)["content"] += read["content"]
        else:
            self._add_input({"role": ROLES[item.role], **read})

    def _add_input(self, message: Message) -> None:
        self._open, self._uid, self._turns = None, None, {}
        self.messages.append(message)

    def _add_tools(self, item: ResponseItem, where: str) -> None:
        """Tools that come with the input. Those after the first turn are a message, so that the prompt only grows."""
        if any(message["role"] in ("assistant", "tool") for message in self.messages):
            text = self._tools.load_definitions(item.tools, f"{where}.tools")
            self._add_input({"role": "system", "content": text})
        else:
            self._tools.show(item.tools, f"{where}.tools")

    def _add_call(self, item: ResponseItem, kind: str, where: str) -> None:
        name = SEARCH if kind == "tool_search_call" else item.name
        if not name:
            raise GatewayFault.invalid(f"{where}.name is missing", param=where)
        call = function_call(_text(item.call_id), flat_name(name, item.namespace), _read_arguments(item, kind, where))
        self._assistant(item).setdefault("tool_calls", []).append(call)

    def _add_result(self, item: ResponseItem, where: str) -> None:
        message: Message = {"role": "tool", **read_content(item.output, where)}
        if item.type == "tool_search_output":
            message["content"] = self._tools.load_definitions(item.tools, f"{where}.tools")
        if isinstance(item.call_id, str):
            message["tool_call_id"] = item.call_id
        self._open = None
        self.messages.append(message)

    def _add_reasoning(self, item: ResponseItem) -> None:
        content = item.content if isinstance(item.content, list) else []
        text = "".join(part.text or "" for part in content)
        text = text or "".join(_text(part.get("text")) for part in item.summary or () if isinstance(part, dict))
        message = self._assistant(item)
        if text:
            message["reasoning_content"] = message.get("reasoning_content", "") + text

    def _assistant(self, item: ResponseItem) -> Message:
        """The message that an item of the assistant is part of."""
        uid = _turn_uid(item)
        if uid in self._turns:
            return self._turns[uid]
        message = self._open
        if message is None or (uid and self._uid) or _starts_turn(item, message):
            message = {"role": "assistant", "content": ""}
            self.messages.append(message)
            self._uid = None
        self._open, self._uid = message, uid or self._uid
        if uid:
            self._turns[uid] = message
        return message

    def _resolve(self, name: Any, where: str) -> ResponseItem:
        found = _OWN_ID.fullmatch(_text(name))
        kept = self._kept.get(found[1]) if found is not None else None
        for item in ResponseOutput.of(found[1], kept.reply) if found is not None and kept is not None else ():
            if item["id"] == name:
                return parse(item, ResponseItem, where)
        raise GatewayFault(
            f"{where} refers to {short(name)}, which is not an item of a response that this session has stored",
            status=400,
            code="item_not_found",
            param=where,
            hint="send the item itself",
        )


def _starts_turn(item: ResponseItem, before: Message) -> bool:
    """Whether the order of items starts another turn here: a text ends a turn without calls."""
    return bool(before["content"]) and "tool_calls" not in before and item.type not in _CALLS


def _turn_uid(item: ResponseItem) -> str | None:
    for value in (item.id, item.call_id):
        if found := _OWN_ID.fullmatch(_text(value)):
            return found[1]
    return None


def _read_arguments(item: ResponseItem, kind: str, where: str) -> Any:
    """A call's arguments in canonical form."""
    if kind == "custom_tool_call":
        return custom_arguments(item.input or "")
    if not isinstance(item.arguments, dict):
        return parse_arguments(item.arguments or "{}")
    if kind != "tool_search_call":
        raise GatewayFault.invalid(f"{where}.arguments is an object; expected JSON text", param=where)
    return call_arguments(item.arguments)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
