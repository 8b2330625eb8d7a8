"""Parses sampled ids into a reply, through `renderers`: text, reasoning and tool calls.

A reply that the parser can't read becomes plain text. A malformed tool call stays in the text as it was sampled, and
counts as a parse failure. A reply that can only be text skips the renderer.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..call.chat import ChatCall, Message, Reply, ToolCall, write_arguments
from .tokenizer import Tokenizer

_TEXT_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)

Parse = Callable[[Any, Sequence[int], Sequence[int], ChatCall, str], Reply]

_MARKS = "<{[◁"  # every format's marks have one of these characters
_TEXTS = [
    "", " ", "\n\n", "Four.", "  Four.\n\nIt is four.  ", "naïve 中文字符 👩‍👩‍👧‍👦 \u2028\u00a0",
    "a > b | c ]} `e` 'f' \\",
    "assistant\n4", "assistant: 4", "user", "system\n", "think\nhm\n/think\n4", "thought\nhm", "analysis", "final 4",
    "analysis to=functions.look code", "call:look(at='x')", "look(at='x')", "functions.look:0", "function=look",
    "```json\n4\n```", "name: look\narguments: x", "Action: look\nAction Input: x", "tool_call", "invoke name=look",
]  # fmt: skip
_PROMPTS = [
    "", "hi", "<think>", "<think>\n", "</think>", "<think>hm", "<tool_call>", "assistant\n<think>\n", "<|im_start|>",
]  # fmt: skip
_TRIED_TEXTS, _TRIED_TOKENS = 50, 300
_USER: Message = {"role": "user", "content": "hi"}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class PlainReplies:
    """Recognizes replies that can only be text: the parser goes over the ids of each several times in Python.

    Such a reply has no added token and no character that begins a mark, and its prompt ends as any conversation's does.
    Before this class relies on that, it compares its own result with the parser's on texts after prompts of all kinds.
    For 256 ids it takes 11 us, the parser 54: a tenth of a call.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int], parse: Parse) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._parse = parse
        self._added = frozenset(tokenizer.get_added_vocab().values()) | set(stop_ids)
        self._openings: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()

    def read(self, renderer: Any, sampled: Sequence[int], prompt_end: Sequence[int]) -> Reply | None:
        """The reply, or None if only the parser can tell what it is."""
        if renderer not in self._openings:
            self._openings[renderer] = self._find_opening(renderer)
        opening = self._openings[renderer]
        if not opening or list(prompt_end[-len(opening) :]) != opening:
            return None
        text = self._read_text(list(sampled))
        return Reply(text) if text is not None else None

    def _read_text(self, ids: list[int]) -> str | None:
        if ids and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        if not self._added.isdisjoint(ids):
            return None
        text = self._tokenizer.decode(ids)
        return None if any(mark in text for mark in _MARKS) else text.strip()

    def _find_opening(self, renderer: Any) -> list[int]:
        """The ids that end this renderer's prompts; none if it may find more than text after them."""
        try:
            asked = renderer.render_ids([_USER])
            whole: list[int] = renderer.render_ids([_USER], add_generation_prompt=True)
            opening = whole[len(asked) :] if whole[: len(asked)] == asked else []
            agreed = all(self._agrees(renderer, ids, before + opening) for ids, before in self._make_trials(opening))
        except Exception:  # some templates refuse such a prompt
            return []
        return opening if agreed else []

    def _agrees(self, renderer: Any, ids: list[int], prompt_end: list[int]) -> bool:
        text = self._read_text(ids)
        calls = (ChatCall([_USER]), ChatCall([_USER], [_TOOL]))
        return text is None or all(self._parse(renderer, ids, prompt_end, call, "") == Reply(text) for call in calls)

    def _make_trials(self, opening: list[int]) -> Iterator[tuple[list[int], list[int]]]:
        """Replies, and what precedes the prompt's opening."""
        encode, rng = self._tokenizer.encode, random.Random(0)
        texts = [encode(text) for text in _TEXTS]
        for _ in range(_TRIED_TEXTS):
            ids = [rng.randrange(self._tokenizer.size) for _ in range(20)]
            texts.append([token for token in ids if self._read_text([token]) is not None])
        yield from ((ids, []) for ids in texts)
        yield from (([*ids, stop], []) for ids in texts[:4] for stop in self._stop_ids)
        before = [encode(text) for text in _PROMPTS]
        before += [opening + ids for ids in before] + [[token] for token in sorted(self._added)[:_TRIED_TOKENS]]
        yield from ((ids, prompt) for ids in texts[3:5] for prompt in before)


class ReplyParser:
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
