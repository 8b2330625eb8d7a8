"""Parses sampled ids into a reply, through `renderers`: text, reasoning and tool calls.

A reply that the parser can't read becomes plain text. A malformed tool call stays in the text as it was sampled, and
counts as a parse failure.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from ..call.chat import ChatCall, Reply, ToolCall, write_arguments
from .tokenizer import Tokenizer

_TEXT_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ReplyParser:
    """Parses replies for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids

    def parse(
        self, renderer: Any, sampled: Sequence[int], prompt_end: Sequence[int], call: ChatCall, uid: str
    ) -> Reply:
        """Parse the sampled ids. `prompt_end` holds the prompt's last ids, which may have begun the reply."""
        ids, tools = list(sampled), call.known_tools or None
        try:
            parsed = renderer.parse_response(ids, tools=tools, prompt_ids=list(prompt_end))
        except (ValueError, RecursionError):  # the model may write JSON that the parser refuses
            reply = self._plain_reply(ids, prompt_end)
            reply.parse_failures = 1 if tools else 0
            return reply
        reply = Reply(content=parsed.content.strip(), reasoning=(parsed.reasoning_content or "").strip())
        attempts = parsed.tool_calls
        may_call = bool(tools) and call.tool_choice != "none"
        # Some formats have no reasoning, and some parsers treat a whole reply as reasoning.
        odd = not reply.content if reply.reasoning else reply.content.startswith("<think>")
        if (attempts and not may_call) or (odd and not attempts):  # without tools, a call is text
            reply = self._plain_reply(ids, prompt_end, reply.reasoning)
        if not may_call:
            return reply
        broken: list[str] = []
        for attempt in attempts:
            made = attempt.status in ("ok", "unknown_tool")
            if not (made and _add_call(reply, uid, attempt.name, attempt.arguments)):
                broken.append(self._sampled_text(ids, attempt))
        if not attempts and "<tool_call>" in reply.content:
            _parse_text_calls(reply, uid, broken)
        reply.parse_failures = len(broken)
        if broken:
            reply.content = "\n".join(filter(None, [reply.content, *broken]))
        return reply

    def _sampled_text(self, ids: list[int], attempt: Any) -> str:
        """The text of a malformed call, as it was sampled."""
        if attempt.token_span is None:
            return str(attempt.raw)
        start, end = attempt.token_span
        return self._tokenizer.decode(ids[start:end]).strip()

    def _plain_reply(self, ids: list[int], prompt_end: Sequence[int], reasoning: str = "") -> Reply:
        """Reasoning and text as they were sampled, without tool calls."""
        end = next((place for place, token in enumerate(ids) if token in self._stop_ids), len(ids))
        text = self._tokenizer.decode(ids[:end]).strip()
        opened = self._tokenizer.decode(list(prompt_end[-4:])).rstrip().endswith("<think>")
        if not opened and not text.startswith("<think>"):
            return Reply(text)
        thought, closed, rest = text.partition("</think>")
        if not closed and reasoning:  # a call ended the thought, or nothing did
            thought, _, rest = text.partition(reasoning)
        return Reply(rest.strip(), reasoning or thought.replace("<think>", "").strip())


def _add_call(reply: Reply, uid: str, name: Any, arguments: Any) -> bool:
    """Add a call to the reply if clients can receive it; return whether they can."""
    if not name or not isinstance(name, str) or not _is_sendable(name):
        return False
    text = write_arguments(arguments or {})
    if not _is_sendable(text):
        text = json.dumps(json.loads(text))  # escapes lone surrogates
    reply.tool_calls.append(ToolCall(f"call_{uid or uuid.uuid4().hex}_{len(reply.tool_calls)}", name, text))
    return True


def _is_sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_text_calls(reply: Reply, uid: str, broken: list[str]) -> None:
    """Parse calls that models without special tokens for calls write as text between `<tool_call>` tags."""
    for match in _TEXT_CALL.finditer(reply.content):
        try:
            found = json.loads(match[1])
            made = _add_call(reply, uid, found["name"], found.get("arguments", found.get("parameters")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            made = False
        if not made:
            broken.append(match[0])
    reply.content = _TEXT_CALL.sub("", reply.content).strip()
