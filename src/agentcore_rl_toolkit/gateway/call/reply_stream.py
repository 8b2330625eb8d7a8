"""A reply as it comes: sampled ids in; pieces of reasoning and text out, as soon as it is clear what they are.

Nothing is passed on that could turn out to be part of something else: half a character, the start of a stop string, of
`</think>` or of a tool call. Tool calls are passed on whole, once parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..render.tokenizer import Tokenizer
from .chat import Reply

_CONTEXT = 6  # ids
_OPEN, _CLOSE = "<think>", "</think>"
# How the tool formats that `renderers` parses begin.
_CALLS = (
    "<tool_call",
    "<|tool_call",
    "<function",
    "<|python_tag|>",
    "<｜tool",
    "[TOOL_CALLS]",
    "<minimax:tool_call",
    "<tool_sep",
)
_CHANNELLED = ("gpt-oss", "harmony", "atem", "gemma", "inkling", "hy3", "laguna")


def can_stream(renderer: str) -> bool:
    """Whether a renderer's format can be told apart by the marks above; if not, replies are passed on when whole."""
    return not renderer.startswith(_CHANNELLED)


class Text:
    """Ids decoded as they come. Half a character waits for its other half."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # ids from here on are decoded together, because what comes before a token may change its text
        self._read = 0

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now and was not before."""
        self._ids.extend(ids)
        known = self._tokenizer.decode(self._ids[self._start : self._read])
        text = self._tokenizer.decode(self._ids[self._start :])
        if len(text) <= len(known) or text.endswith("\ufffd"):
            return ""
        self._read = len(self._ids)
        self._start = max(self._start, self._read - _CONTEXT)
        return text[len(known) :]


class ReplyStream:
    """Turns sampled ids into pieces of a reply."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_ids: Sequence[int],
        stop: Sequence[str],
        calls: bool,
        thinking: bool,
        live: bool,
        plain: bool = False,
    ) -> None:
        """`calls`: tool calls may come. `thinking`: the prompt has opened a thought. `live`: pass on pieces.
        `plain`: all of it is text."""
        self._text = Text(tokenizer)
        self._stop_ids = frozenset(stop_ids)
        self._special_ids = frozenset(tokenizer.special_ids) - self._stop_ids
        self._stop = tuple(stop)
        self._calls = calls
        self._live = live
        self._state = "plain" if plain else "thought" if thinking else "start"
        self._held = ""
        self._scanned = ""  # the last characters seen, to find stop strings across pieces
        self.reasoning = ""
        self.content = ""
        self.stopped = False
        """A stop string has come: nothing after it counts."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str]:
        """Take in ids; gives (reasoning, content) to pass on now."""
        kept = [i for i in ids if i not in self._stop_ids]
        odd = next((place for place, token in enumerate(kept) if token in self._special_ids), None)
        if odd is None:
            return self._take(self._text.feed(kept))
        passed = self._take(self._text.feed(kept[:odd]))
        self._state = "whole"  # only parsing tells whether a special token is part of the text
        self._take(self._text.feed(kept[odd:]))
        return passed

    def _take(self, text: str) -> tuple[str, str]:
        if not text or self.stopped:
            return "", ""
        self._held += text
        if self._stop:
            self._cut(text)
        return self._advance() if self._live else ("", "")

    def finish(self, reply: Reply) -> tuple[str, str]:
        """The reasoning and content of the whole `reply` that were not passed on yet."""
        reasoning = _rest(reply.reasoning, self.reasoning)
        content = _rest(reply.content, self.content)
        self.reasoning += reasoning
        self.content += content
        return reasoning, content

    def _cut(self, text: str) -> None:
        seen = self._scanned + text
        places = [place for place in (seen.find(stop) for stop in self._stop) if place >= 0]
        if places:
            self.stopped = True
            beyond = len(seen) - min(places)
            self._held = self._held[: max(0, len(self._held) - beyond)]
        self._scanned = seen[-max(map(len, self._stop)) :]

    def _advance(self) -> tuple[str, str]:
        if self._state == "start":
            self._begin()
        reasoning = content = ""
        if self._state == "plain":
            ready = len(self._held) - _partial(self._held, self._stop)
            content, self._held = self._held[:ready], self._held[ready:]
            self.content += content
        if self._state == "thought":
            ready, begun = self._ready((*_CALLS, _CLOSE), _OPEN)
            closed = begun and self._held.startswith(_CLOSE, ready)
            reasoning, kept = _trim(self._held[:ready].replace(_OPEN, ""), first=not self.reasoning)
            self.reasoning += reasoning
            self._held = self._held[ready + len(_CLOSE) :] if closed else kept + self._held[ready:]
            self._state = "content" if closed else "whole" if begun else "thought"
        if self._state == "content":
            ready, begun = self._ready((*_CALLS, _OPEN, _CLOSE) if self._calls else (_OPEN, _CLOSE))
            content, kept = _trim(self._held[:ready], first=not self.content)
            self.content += content
            self._held = kept + self._held[ready:]
            self._state = "whole" if begun else "content"
        return reasoning, content

    def _ready(self, marks: Sequence[str], *others: str) -> tuple[int, bool]:
        """How much of the held text precedes a mark, or the possible start of one; and whether it has a mark."""
        begins = [place for place in map(self._held.find, marks) if place >= 0]
        if begins:
            return min(begins), True
        return len(self._held) - _partial(self._held, (*marks, *others, *self._stop)), False

    def _begin(self) -> None:
        begun = self._held.lstrip()
        if not begun or (_OPEN.startswith(begun) and begun != _OPEN):
            return
        if begun.startswith(_OPEN):
            self._state, self._held = "thought", begun[len(_OPEN) :]
        elif self._calls and begun[0] in "{[":
            self._state = "whole"  # some models write calls as bare JSON
        else:
            self._state = "content"


def _trim(text: str, *, first: bool) -> tuple[str, str]:
    """The text without space around it, and the trailing space, which may turn out to end the reply."""
    text = text.lstrip() if first else text
    core = text.rstrip()
    return core, text[len(core) :]


def _partial(text: str, marks: Sequence[str]) -> int:
    """How many of the last characters could be the start of a mark."""
    longest = max(map(len, marks), default=1) - 1
    tail = text[max(0, len(text) - longest) :]
    firsts = {mark[0] for mark in marks}
    for place, character in enumerate(tail):
        if character in firsts and any(mark.startswith(tail[place:]) for mark in marks):
            return len(tail) - place
    return 0


def _rest(whole: str, passed: str) -> str:
    return whole[len(passed) :] if whole.startswith(passed) else ""
