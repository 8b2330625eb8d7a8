"""Items of OpenAI's Responses, made from a reply as it streams. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...call.chat import Reply, ToolCall
from .response_tools import ResponseTools

Event = tuple[str, dict[str, Any]]
"""An event's type and its other fields."""
_PARTS = {"reasoning": ("rs", "reasoning_text"), "message": ("msg", "output_text")}


class ResponseOutput:
    """The items of a response, and the events that stream them."""

    def __init__(self, uid: str, tools: ResponseTools | None = None) -> None:
        """`tools` tells which item a call becomes; without them each becomes a function call."""
        self.items: list[dict[str, Any]] = []
        """Items that are complete."""
        self._uid = uid
        self._tools = tools or ResponseTools()
        self._kind = ""
        """The kind of the open item: `reasoning`, `message`, or none."""
        self._texts: list[str] = []
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
        output = cls(uid, tools)
        if reply.reasoning:
            output.extend("reasoning", reply.reasoning)
        if reply.content:
            output.extend("message", reply.content)
        output.finish(reply.tool_calls, logprobs, end)
        return output.items

    def extend(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """Add text to the open item, or open one of this kind."""
        events = [] if kind == self._kind else [*self._close(), *self._begin(kind)]
        self._texts.append(text)
        delta: dict[str, Any] = {"delta": text}
        if kind == "message":
            self._logprobs.extend(logprobs)
            delta["logprobs"] = list(logprobs)
        return [*events, (f"response.{_PARTS[kind][1]}.delta", self._place() | delta)]

    def finish(self, calls: Sequence[ToolCall], logprobs: Sequence[dict[str, Any]], end: str) -> list[Event]:
        """Add the tool calls and the end. An empty reply becomes an empty message, for the client to echo."""
        events: list[Event] = []
        if not calls and self._kind != "message":
            events += [*self._close(), *self._begin("message")]
        self._logprobs.extend(logprobs)
        events += self._close("completed" if calls else end)
        for call in calls:
            events += self._call(call)
        return events

    def _begin(self, kind: str) -> list[Event]:
        self._kind, self._texts, self._logprobs = kind, [], []
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
        prefix, fields, streamed = self._tools.item(call)
        place = {"output_index": len(self.items)}
        at = place | {"item_id": f"{prefix}_{self._uid}_{len(self.items)}"}
        whole = {"id": at["item_id"], **fields, "status": "completed"}
        self.items.append(whole)
        begun = whole | {"status": "in_progress"} | ({streamed: ""} if streamed else {})
        events: list[Event] = [("response.output_item.added", place | {"item": begun})]
        if streamed:
            kind = "function_call_arguments" if streamed == "arguments" else "custom_tool_call_input"
            done = {streamed: fields[streamed]}
            if streamed == "arguments":
                done["name"] = fields["name"]
            events.append((f"response.{kind}.delta", at | {"delta": fields[streamed]}))
            events.append((f"response.{kind}.done", at | done))
        return [*events, ("response.output_item.done", place | {"item": whole})]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id(), "output_index": len(self.items), "content_index": 0}

    def _id(self) -> str:
        return f"{_PARTS[self._kind][0]}_{self._uid}_{len(self.items)}"

    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _PARTS[self._kind][1], "text": "".join(self._texts)}
        if self._kind == "message":
            part |= {"annotations": [], "logprobs": list(self._logprobs)}
        return part

    def _item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id(), "type": self._kind, "status": status, "content": parts}
        if self._kind == "message":
            return item | {"role": "assistant"}
        return item | {"summary": []}
