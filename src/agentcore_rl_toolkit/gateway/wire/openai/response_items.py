"""Items of OpenAI's Responses: read into canonical messages, and made of a reply as it comes. Pure.

A model's turn is several items here, and one message in canonical form. What belongs to one turn is told by the ids
that we gave its items, or by their order where a client left them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import GatewayFault
from ...call.chat import Message, Reply, ToolCall, parse_arguments
from ...call.history import Kept
from ..base import call_arguments
from ..fields import short
from .chat_completions import read_content
from .response_tools import SEARCH, ResponseTools, custom_arguments, flat_name

Event = tuple[str, dict[str, Any]]
"""Its type, and what else is in it."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_OURS = re.compile(r"(?:rs|msg|fc|ctc|tsc|call)_([0-9a-f]{16})_\d+")
_CALLS = ("function_call", "custom_tool_call", "tool_search_call")
_RESULTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")
_SERVED_ELSEWHERE = (
    *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "computer_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
)
"""Items of tools that OpenAI's servers run: none of them can be this model's."""
_PARTS = {"reasoning": ("rs", "reasoning_text"), "message": ("msg", "output_text")}


# Items in


def read_items(given: Any, kept: Mapping[str, Kept], tools: ResponseTools | None = None) -> list[Message]:
    """A request's input in canonical form; `kept` resolves references to items of earlier responses.

    Tools that come with the input are added to `tools`.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise GatewayFault.invalid("input is neither a text nor a list of items", param="input")
    reading = _Reading(kept, tools or ResponseTools(None))
    for place, item in enumerate(given):
        where = f"input[{place}]"
        if not isinstance(item, dict):
            raise GatewayFault.invalid(f"{where} is not an object", param=where)
        reading.take(item, where)
    return reading.messages


class _Reading:
    """Messages made of items, one after the other."""

    def __init__(self, kept: Mapping[str, Kept], tools: ResponseTools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._kept = kept
        self._open: Message | None = None
        """The assistant's message that the next item may be a part of."""
        self._uid: str | None = None
        """The turn it belongs to, where an item's id tells."""
        self._turns: dict[str, Message] = {}
        """Turns since the user last said something: calls may come between the results of others."""

    def take(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind in _CALLS:
            self._call(item, kind, where)
        elif kind in _RESULTS:
            self._result(item, where)
        elif kind == "additional_tools":
            self._bring(item, where)
        elif kind in _SERVED_ELSEWHERE:
            self._tools.omitted.append(kind)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "item_reference":
            self.take(self._referred(item.get("id"), where), where)
        else:
            raise GatewayFault.invalid(f"{where} is of type {short(kind)}, which is not served", param=where)

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise GatewayFault.invalid(
                f"{where}.role is {short(role)}; expected one of {', '.join(_ROLES)}", param=where
            )
        read = read_content(item.get("content"), where)
        if known == "assistant":
            message = self._assistant(item)
            message["content"] += read["content"]
        else:
            self._say({"role": known, **read})

    def _say(self, message: Message) -> None:
        """Add a message that is not the assistant's."""
        self._open, self._uid, self._turns = None, None, {}
        self.messages.append(message)

    def _bring(self, item: dict[str, Any], where: str) -> None:
        """Tools that come with the input: before the first turn they are like others, later their text is a message."""
        if any(message["role"] in ("assistant", "tool") for message in self.messages):
            self._say({"role": "system", "content": self._tools.load(item.get("tools"), f"{where}.tools")})
        else:
            self._tools.lead(item.get("tools"), f"{where}.tools")

    def _call(self, item: dict[str, Any], kind: str, where: str) -> None:
        name = SEARCH if kind == "tool_search_call" else item.get("name")
        if not isinstance(name, str) or not name:
            raise GatewayFault.invalid(f"{where} has no name", param=where)
        function = {"name": flat_name(name, item.get("namespace")), "arguments": _arguments(item, kind, where)}
        call = {"id": _text(item.get("call_id")), "type": "function", "function": function}
        self._assistant(item).setdefault("tool_calls", []).append(call)

    def _result(self, item: dict[str, Any], where: str) -> None:
        message: Message = {"role": "tool", **read_content(item.get("output"), where)}
        if item.get("type") == "tool_search_output":
            message["content"] = self._tools.load(item.get("tools"), f"{where}.tools")
        if isinstance(item.get("call_id"), str):
            message["tool_call_id"] = item["call_id"]
        self._open = None
        self.messages.append(message)

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        text = _joined(item.get("content"), where) or _joined(item.get("summary"), where)
        message = self._assistant(item)
        if text:
            message["reasoning_content"] = message.get("reasoning_content", "") + text

    def _assistant(self, item: dict[str, Any]) -> Message:
        """The message that an item of the assistant is part of."""
        uid = _uid(item)
        if uid in self._turns:
            return self._turns[uid]
        message = self._open
        if message is None or (uid and self._uid) or self._complete(message, item):
            message = {"role": "assistant", "content": ""}
            self.messages.append(message)
            self._uid = None
        self._open, self._uid = message, uid or self._uid
        if uid:
            self._turns[uid] = message
        return message

    def _complete(self, message: Message, item: dict[str, Any]) -> bool:
        """Whether an item is the first of another turn, as far as the order tells: a text ends one without calls."""
        return bool(message["content"]) and "tool_calls" not in message and item.get("type") not in _CALLS

    def _referred(self, name: Any, where: str) -> dict[str, Any]:
        found = _OURS.fullmatch(name) if isinstance(name, str) else None
        kept = self._kept.get(found[1]) if found is not None else None
        for item in Output.of(found[1], kept.reply) if found is not None and kept is not None else ():
            if item["id"] == name:
                return item
        raise GatewayFault(
            f"{where} refers to {short(name)}, which is no item of a response that this session has stored",
            status=400,
            code="item_not_found",
            param=where,
            hint="send the item itself",
        )


def _uid(item: dict[str, Any]) -> str | None:
    for name in ("id", "call_id"):
        found = _OURS.fullmatch(_text(item.get(name)))
        if found:
            return found[1]
    return None


def _arguments(item: dict[str, Any], kind: str, where: str) -> Any:
    """What a call was made with, in canonical form."""
    name = "input" if kind == "custom_tool_call" else "arguments"
    given = item.get(name)
    if kind == "tool_search_call" and isinstance(given, dict):
        return call_arguments(given)
    if given is not None and not isinstance(given, str):
        raise GatewayFault.invalid(f"{where}.{name} is not {'a' if name == 'input' else 'JSON'} text", param=where)
    return custom_arguments(given or "") if name == "input" else parse_arguments(given or "{}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _joined(parts: Any, where: str) -> str:
    """The text of reasoning."""
    if not isinstance(parts, list):
        if parts is not None:
            raise GatewayFault.invalid(f"{where} has reasoning that is not a list of parts", param=where)
        return ""
    return "".join(_text(part.get("text")) for part in parts if isinstance(part, dict))


# Items out


class Output:
    """What a response says, item by item, and the events that tell of it."""

    def __init__(self, uid: str, tools: ResponseTools | None = None) -> None:
        """`tools` tells which item a call comes as; without them each is a function's."""
        self.items: list[dict[str, Any]] = []
        """Those that are whole."""
        self._uid = uid
        self._tools = tools or ResponseTools(None)
        self._kind = ""
        """Of the item that is being said: `reasoning`, `message`, or none."""
        self._said: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    @classmethod
    def of(
        cls,
        uid: str,
        reply: Reply,
        logprobs: Sequence[dict[str, Any]] = (),
        end: str = "completed",
        tools: ResponseTools | None = None,
    ) -> list[dict[str, Any]]:
        """All items of a reply."""
        output = cls(uid, tools)
        if reply.reasoning:
            output.say("reasoning", reply.reasoning)
        if reply.content:
            output.say("message", reply.content)
        output.finish(reply.tool_calls, logprobs, end)
        return output.items

    def say(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """More of an item, or the beginning of another."""
        events = [] if kind == self._kind else [*self._close(), *self._begin(kind)]
        self._said.append(text)
        said: dict[str, Any] = {"delta": text}
        if kind == "message":
            self._logprobs.extend(logprobs)
            said["logprobs"] = list(logprobs)
        return [*events, (f"response.{_PARTS[kind][1]}.delta", self._place() | said)]

    def finish(self, calls: Sequence[ToolCall], logprobs: Sequence[dict[str, Any]], end: str) -> list[Event]:
        """The tool calls, and the end. A reply of nothing is an empty message, for the client to echo."""
        events: list[Event] = []
        if not calls and self._kind != "message":
            events += [*self._close(), *self._begin("message")]
        self._logprobs.extend(logprobs)
        events += self._close("completed" if calls else end)
        for call in calls:
            events += self._call(call)
        return events

    def _begin(self, kind: str) -> list[Event]:
        self._kind, self._said, self._logprobs = kind, [], []
        item = self._item("in_progress", [])
        return [
            ("response.output_item.added", {"output_index": len(self.items), "item": item}),
            ("response.content_part.added", self._place() | {"part": self._part()}),
        ]

    def _close(self, status: str = "completed") -> list[Event]:
        if not self._kind:
            return []
        part, place = self._part(), self._place()
        item = self._item(status, [part])
        done = {name: part[name] for name in ("text", "logprobs") if name in part}
        events: list[Event] = [
            (f"response.{part['type']}.done", place | done),
            ("response.content_part.done", place | {"part": part}),
            ("response.output_item.done", {"output_index": len(self.items), "item": item}),
        ]
        self.items.append(item)
        return events

    def _call(self, call: ToolCall) -> list[Event]:
        prefix, fields, said = self._tools.item(call)
        place = {"output_index": len(self.items)}
        at = place | {"item_id": f"{prefix}_{self._uid}_{len(self.items)}"}
        whole = {"id": at["item_id"], **fields, "status": "completed"}
        self.items.append(whole)
        begun = whole | {"status": "in_progress"} | ({said: ""} if said else {})
        events: list[Event] = [("response.output_item.added", place | {"item": begun})]
        if said:
            kind = "function_call_arguments" if said == "arguments" else "custom_tool_call_input"
            done = {"name": fields["name"], said: fields[said]} if said == "arguments" else {said: fields[said]}
            events += [
                (f"response.{kind}.delta", at | {"delta": fields[said]}),
                (f"response.{kind}.done", at | done),
            ]
        return [*events, ("response.output_item.done", place | {"item": whole})]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id(), "output_index": len(self.items), "content_index": 0}

    def _id(self) -> str:
        return f"{_PARTS[self._kind][0]}_{self._uid}_{len(self.items)}"

    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _PARTS[self._kind][1], "text": "".join(self._said)}
        if self._kind == "message":
            part |= {"annotations": [], "logprobs": list(self._logprobs)}
        return part

    def _item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id(), "type": self._kind, "status": status, "content": parts}
        if self._kind == "message":
            return item | {"role": "assistant"}
        return item | {"summary": []}
