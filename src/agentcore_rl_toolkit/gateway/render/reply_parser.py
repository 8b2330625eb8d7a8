"""Sampled ids to a reply, through `renderers`; and past it, where a reply is nothing but text.

It goes over a reply's ids, and over those of the prompt's end, several times in Python, which is most of what reading a
reply costs. Where no added token was sampled, where the text has none of the characters that every format's marks have,
and where the prompt ends as it does for any conversation, there is nothing for it to find. That this is so is tried
before it is relied upon: plain texts after all kinds of prompts must be read as they are.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..call.chat import ChatCall, Reply, ToolCall, written_arguments
from .tokenizer import Tokenizer

_MARKS = "<{[◁"
_TEXT_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_TEXTS = [
    *(
        "",
        " ",
        "\n\n",
        "Four.",
        "  Four.\n\nIt is four.  ",
        "naïve 中文字符 👩‍👩‍👧‍👦 \u2028\u00a0",
        "a > b | c ]} \"d\" `e` 'f' \\",
    ),
    *("assistant\n4", "assistant: 4", "user", "system\n", "think\nhm\n/think\n4", "thought\nhm", "analysis", "final 4"),
    *(
        "analysis to=functions.look code",
        "call:look(at='x')",
        "look(at='x')",
        "functions.look:0",
        "function=look",
        "python",
    ),
    *("```json\n4\n```", "name: look\narguments: x", "Action: look\nAction Input: x", "tool_call", "invoke name=look"),
]
_PROMPTS = [
    "",
    "hi",
    "<think>",
    "<think>\n",
    "</think>",
    "<think>hm",
    "<tool_call>",
    "assistant\n<think>\n",
    "<|im_start|>",
]
_TRIED = 50
_LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
_USER = {"role": "user", "content": "hi"}


class Replies:
    """What sampled ids say."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._added = frozenset(tokenizer.get_added_vocab().values()) | set(stop_ids)
        self._openings: WeakKeyDictionary[Any, list[int] | None] = WeakKeyDictionary()

    def parse(
        self, renderer: Any, sampled: Sequence[int], prompt_end: Sequence[int], call: ChatCall, uid: str
    ) -> Reply:
        """What the sampled ids say. `prompt_end` are the prompt's last ids: they may have begun the reply."""
        ids = list(sampled)
        text = self._text(renderer, ids, prompt_end)
        return Reply(text) if text is not None else self._read(renderer, ids, prompt_end, call, uid)

    def read(self, renderer: Any, sampled: Sequence[int], prompt_end: Sequence[int], call: ChatCall, uid: str) -> Reply:
        """As `parse`, without trying first whether there is a quicker way."""
        return self._read(renderer, list(sampled), prompt_end, call, uid)

    # Nothing but text

    def _text(self, renderer: Any, ids: list[int], prompt_end: Sequence[int]) -> str | None:
        """What they say, if it is nothing but text."""
        if renderer not in self._openings:
            self._openings[renderer] = self._opening(renderer)
        opening = self._openings[renderer]
        if opening is None or list(prompt_end[-len(opening) :]) != opening:
            return None
        return self._words(ids)

    def _words(self, ids: list[int]) -> str | None:
        if ids and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        if not self._added.isdisjoint(ids):
            return None
        text = self._tokenizer.decode(ids)
        return None if any(mark in text for mark in _MARKS) else text.strip()

    def _opening(self, renderer: Any) -> list[int] | None:
        """What this renderer's prompts end with, if it reads plain text after that as it is, whatever comes before."""
        try:
            whole = renderer.render_ids([_USER], add_generation_prompt=True)
            asked = renderer.render_ids([_USER])
            opening: list[int] = whole[len(asked) :]
            if not opening or whole[: len(asked)] != asked:
                return None
            agreed = all(self._agrees(renderer, ids, before + opening) for ids, before in self._tries(opening))
        except Exception:  # not every template takes a prompt like that
            return None
        return opening if agreed else None

    def _agrees(self, renderer: Any, ids: list[int], prompt_end: list[int]) -> bool:
        text = self._words(ids)
        calls = (ChatCall([_USER]), ChatCall([_USER], [_LOOK]))
        return text is None or all(self._read(renderer, ids, prompt_end, call, "") == Reply(text) for call in calls)

    def _tries(self, opening: list[int]) -> Iterator[tuple[list[int], list[int]]]:
        """Replies, and what comes before the prompt's opening."""
        encode = self._tokenizer.encode
        texts = [encode(text) for text in _TEXTS]
        chance = random.Random(0)
        for _ in range(_TRIED):
            ids = [chance.randrange(self._tokenizer.size) for _ in range(20)]
            texts.append([token for token in ids if self._words([token]) is not None])
        yield from ((ids, []) for ids in texts)
        yield from (([*ids, stop], []) for ids in texts[:4] for stop in self._stop_ids)
        befores = [encode(text) for text in _PROMPTS]
        befores += [opening + before for before in befores]
        befores += [[token] for token in sorted(self._added)]
        yield from ((ids, before) for ids in texts[3:5] for before in befores)

    # Text, reasoning and calls

    def _read(self, renderer: Any, ids: list[int], prompt_end: Sequence[int], call: ChatCall, uid: str) -> Reply:
        tools = call.known_tools or None
        try:
            parsed = renderer.parse_response(ids, tools=tools, prompt_ids=list(prompt_end))
        except (ValueError, RecursionError):  # a model may write JSON that no parser takes
            reply = self._plain_reply(ids, prompt_end)
            reply.parse_failures = 1 if tools else 0
            return reply
        reply = Reply(content=parsed.content.strip(), reasoning=(parsed.reasoning_content or "").strip())
        attempts = parsed.tool_calls
        may_call = bool(tools) and call.tool_choice != "none"
        # Not every format knows thoughts, and some take all of a reply for one.
        odd = not reply.content if reply.reasoning else reply.content.startswith("<think>")
        if (attempts and not may_call) or (odd and not attempts):  # without tools, what looks like a call is text
            reply = self._plain_reply(ids, prompt_end, reply.reasoning)
        if not may_call:
            return reply
        broken: list[str] = []
        for attempt in attempts:
            made = attempt.status in ("ok", "unknown_tool")
            if not (made and _add_call(reply, uid, attempt.name, attempt.arguments)):
                broken.append(self._written(ids, attempt))
        if not attempts and "<tool_call>" in reply.content:
            _parse_text_calls(reply, uid, broken)
        reply.parse_failures = len(broken)
        if broken:
            reply.content = "\n".join(filter(None, [reply.content, *broken]))
        return reply

    def _written(self, ids: list[int], attempt: Any) -> str:
        """A call that is none, as it was sampled."""
        if attempt.token_span is None:
            return str(attempt.raw)
        start, end = attempt.token_span
        return self._tokenizer.decode(ids[start:end]).strip()

    def _plain_reply(self, ids: list[int], prompt_end: Sequence[int], reasoning: str = "") -> Reply:
        """Reasoning and text as they were sampled, with nothing taken for a call."""
        end = next((place for place, token in enumerate(ids) if token in self._stop_ids), len(ids))
        text = self._tokenizer.decode(ids[:end]).strip()
        opened = self._tokenizer.decode(list(prompt_end[-4:])).rstrip().endswith("<think>")
        if not opened and not text.startswith("<think>"):
            return Reply(text)
        thought, closed, rest = text.partition("</think>")
        if not closed and reasoning:  # ended by a call, or not at all
            thought, _, rest = text.partition(reasoning)
        return Reply(rest.strip(), reasoning or thought.replace("<think>", "").strip())


def _add_call(reply: Reply, uid: str, name: Any, arguments: Any) -> bool:
    """Add a call to the reply, if it is one that can be sent."""
    if not name or not isinstance(name, str) or not _sendable(name):
        return False
    text = written_arguments(arguments or {})
    if not _sendable(text):
        text = json.dumps(json.loads(text))  # lone surrogates, escaped
    reply.tool_calls.append(ToolCall(f"call_{uid or uuid.uuid4().hex}_{len(reply.tool_calls)}", name, text))
    return True


def _sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_text_calls(reply: Reply, uid: str, broken: list[str]) -> None:
    """Calls written as text between `<tool_call>` tags, by models that have no tokens of their own for it."""
    for match in _TEXT_CALL.finditer(reply.content):
        try:
            found = json.loads(match[1])
            made = _add_call(reply, uid, found["name"], found.get("arguments", found.get("parameters")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            made = False
        if not made:
            broken.append(match[0])
    reply.content = _TEXT_CALL.sub("", reply.content).strip()
