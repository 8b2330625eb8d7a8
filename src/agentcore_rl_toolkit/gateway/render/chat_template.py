"""A model rendered by its own chat template, and bridges for it that are derived by rendering probes.

`renderers` knows many families; this is for every other template. What stands between a sampled reply and the prompt
for the next one is found by rendering the conversation with a mark in the reply's place and the new messages behind
it. A reply that others follow is written as history is, so that what templates do to the last message alone (an empty
thought, an end of text) is not taken for a difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..call.chat import Message, parse_arguments
from ..record import reasons
from .probes import SYSTEM, TOOL, USER, calling, result, shared, without_thoughts

_MARK, _NEXT, _THOUGHT_MARK = "probe51mark", "probe82mark", "probe37mark"
_CALLED = [USER, calling(arguments={"at": _MARK}), result()]
_THOUGHT: list[Message] = [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": _MARK}]


@dataclass(frozen=True)
class TemplateForms:
    """How a template takes messages, where templates differ."""

    arguments_as_text: bool = False
    """Tool arguments are JSON text."""
    no_content: Any = ""
    """What stands for the text of a reply that has tool calls only."""
    thought_key: str = "reasoning_content"
    """The field that reasoning is in."""
    text_in_parts: bool = False
    """Text is a list of parts, as messages with images have it."""

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        formed = [self._formed(m) if m["role"] == "assistant" else m for m in _with_own_ids(messages)]
        return [_in_parts(m) for m in formed] if self.text_in_parts else formed

    def _formed(self, message: Message) -> Message:
        formed = dict(message)
        if message.get("tool_calls"):
            formed["content"] = message.get("content") or self.no_content
            formed["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        if self.thought_key != "reasoning_content" and "reasoning_content" in formed:
            formed[self.thought_key] = formed.pop("reasoning_content")
        return formed

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = parse_arguments(function.get("arguments"))
        if self.arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return call | {"type": "function", "function": function | {"arguments": arguments}}


@dataclass(frozen=True)
class TurnEnd:
    """How a template ends a reply that other messages follow."""

    before: str
    """What it writes between the reply and the token that ends the turn."""
    token: str
    """That token, as history has it."""
    sampled: str
    """The token that the model samples to end it, mostly the same."""


class ChatTemplate:
    """A tokenizer's chat template as text, with what probes show of it."""

    def __init__(self, tokenizer: Any, settings: dict[str, Any], forms: TemplateForms | None = None) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self.forms = forms or self._find_forms()

    def text(self, messages: Sequence[Message], tools: Any, reply_follows: bool) -> str:
        return self._text(self.forms, messages, tools, reply_follows)

    def _text(self, forms: TemplateForms, messages: Sequence[Message], tools: Any, reply_follows: bool) -> str:
        settings = self._settings | ({"tools": tools} if tools else {})
        formed = forms.apply(messages)
        text: str = self._tokenizer.apply_chat_template(
            formed, add_generation_prompt=reply_follows, tokenize=False, **settings
        )
        return text

    def _find_forms(self) -> TemplateForms:
        """The first that shows calls, and then the first that shows reasoning; the plainest if none does."""
        asked = str(USER["content"])
        in_parts = not self._shows(TemplateForms(), [USER], asked) and self._shows(
            TemplateForms(text_in_parts=True), [USER], asked
        )
        forms = TemplateForms(text_in_parts=in_parts)
        for as_text, no_content in ((False, ""), (False, None), (True, ""), (True, None)):
            tried = replace(forms, arguments_as_text=as_text, no_content=no_content)
            if self._shows(tried, _CALLED, _MARK):
                return self._with_thoughts(tried)
        return self._with_thoughts(forms)

    def _with_thoughts(self, forms: TemplateForms) -> TemplateForms:
        for key in ("reasoning_content", "thinking", "reasoning"):
            tried = replace(forms, thought_key=key)
            if self._shows(tried, _THOUGHT, _MARK):
                return tried
        return forms

    def _shows(self, forms: TemplateForms, messages: list[Message], mark: str) -> bool:
        try:
            return mark in self._text(forms, messages, [TOOL], False)
        except Exception:  # a Jinja template may raise anything it likes
            return False

    # What the start says of it

    def shows_calls(self) -> bool:
        return self._shows(self.forms, _CALLED, _MARK)

    def shows_results(self) -> bool:
        return self._shows(self.forms, [USER, calling(), result(content=_MARK)], _MARK)

    def shows_tools(self) -> bool:
        try:
            return "look" in self.text([USER], [TOOL], True)
        except Exception:
            return False

    def shows_thoughts(self) -> bool:
        return self._shows(self.forms, _THOUGHT, _MARK)

    def takes_system(self) -> bool:
        try:
            return str(SYSTEM["content"]) in self.text([SYSTEM, USER], None, True)
        except Exception:
            return False

    def opening(self) -> str:
        """What the prompt for a reply adds to the conversation."""
        asked, prompt = self.text([USER], None, False), self.text([USER], None, True)
        return prompt[len(shared(asked, prompt)) :]


class TemplateBridge:
    """The tokens between a sampled reply and the next prompt, for a template known only by what it does."""

    def __init__(self, template: ChatTemplate, tokenizer: Any) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._marks = re.compile("|".join(map(re.escape, sorted(tokenizer.get_added_vocab(), key=len, reverse=True))))
        self._has_marks = bool(tokenizer.get_added_vocab())
        self._shows_calls = template.shows_calls()
        self._opening = self._find_opening()
        self._ends: list[TurnEnd | None] = []
        """How a reply ends that has no tool call, one, or several."""
        for calls in (0, 1, 2) if self._shows_calls else (0,):
            known = not calls or self._ends[0] is not None  # a template that ends no text ends no call either
            self._ends.append(self._find_end(calls) if known else None)
        sampled = [end.sampled for end in self._ends if end is not None]
        self.stop_ids = [tokenizer.convert_tokens_to_ids(token) for token in dict.fromkeys(sampled)]

    def marks(self) -> dict[str, int]:
        """The tokens that end a reply in history, and the id of what the model samples there."""
        ends = [end for end in self._ends if end is not None and end.token != end.sampled]
        return {end.token: self._tokenizer.convert_tokens_to_ids(end.sampled) for end in ends}

    @property
    def closing(self) -> str:
        """What the template writes between a text and the token that ends the turn."""
        return self._ends[0].before.strip() if self._ends[0] is not None else ""

    def bridge(
        self,
        messages: Sequence[Message],
        used: int,
        tools: Any,
        sampled: Sequence[int],
        stop_ids: Sequence[int],
        *,
        thought: bool | None = None,
    ) -> list[int] | str:
        """The tokens after a sampled reply, the last of the first `used` messages; or why there are none.

        With `thought` given, history must stand as the template writes it: whether the reply has reasoning.
        """
        exact = thought is None
        reply, new = messages[used - 1], messages[used:]
        calls = len(reply.get("tool_calls") or ()) if self._shows_calls else 0
        end = self._ends[min(calls, 2)]
        if end is None:
            return reasons.NO_TURN_END
        before = [_plain(message) for message in messages[: used - 1]]
        marked = _marked(reply, calls) | ({"reasoning_content": _THOUGHT_MARK} if thought else {})
        try:
            prompt, whole = self._with_and_without(before, [marked, *new], tools)
        except Exception:  # a reply that the template refuses: its tokens are on record, whatever it says here
            before = [_neutral(message) for message in before]
            prompt, whole = self._with_and_without(before, [marked, *new], tools)
        head, found, tail = whole.rpartition(_MARK)
        if not found:
            return reasons.REPLY_HIDDEN
        if thought and _THOUGHT_MARK not in head:
            return reasons.THOUGHT_DROPPED
        if not _starts(head, prompt.removesuffix(self._opening), exact):
            return reasons.REWRITTEN
        if not tail.startswith(end.before + end.token):
            return reasons.NO_TURN_END
        closed = bool(sampled) and sampled[-1] in stop_ids
        return self._new_ids(tail, end, closed=closed, calls=bool(calls))

    def _with_and_without(self, before: list[Message], after: list[Message], tools: Any) -> tuple[str, str]:
        return self._template.text(before, tools, True), self._template.text([*before, *after], tools, True)

    def _new_ids(self, tail: str, end: TurnEnd, *, closed: bool, calls: bool) -> list[int]:
        # The token is encoded with what follows: some swallow the space behind them.
        ids: list[int] = self._tokenizer.encode(tail[len(end.before) :])
        if closed:
            return ids[1:]
        unsaid = [] if calls else self._tokenizer.encode(end.before)
        return [*unsaid, self._tokenizer.convert_tokens_to_ids(end.sampled), *ids[1:]]

    def _find_opening(self) -> str:
        try:
            return self._template.opening()
        except Exception:
            return ""

    def _find_end(self, calls: int) -> TurnEnd | None:
        """How a reply ends: by the last token that it has in common as history and as the last message."""
        reply = _marked(calling(calls) if calls else {}, calls)
        following = [result(n, _NEXT) for n in range(calls)] or [{"role": "user", "content": _NEXT}]
        tools = [TOOL] if calls else None
        history = self._behind([USER, reply, *following], tools, True)
        last = self._behind([USER, reply], tools, False)
        if history is None or last is None:
            return None
        gap = history.partition(_NEXT)[0]
        tokens = self._tokens(shared(gap, last))
        if tokens:
            start, token = tokens[-1]
            return TurnEnd(gap[:start], token, self._unless_between_calls(token))
        ends, lasts = self._tokens(gap), self._tokens(last)
        if ends and lasts:  # the last message ends in a token of its own
            start, token = ends[0]
            return TurnEnd(gap[:start], token, lasts[-1][1])
        return None

    def _behind(self, messages: list[Message], tools: Any, reply_follows: bool) -> str | None:
        """What stands behind the mark; None if it is not shown, or the template refuses."""
        try:
            _, found, rest = self._template.text(messages, tools, reply_follows).rpartition(_MARK)
            return rest if found else None
        except Exception:  # a Jinja template may raise anything it likes
            return None

    def _unless_between_calls(self, token: str) -> str:
        """The token, unless it also stands between two calls: then the model ends its turn with another."""
        reply = _marked(calling(2, {"at": _NEXT}), 2, 0)
        behind = self._behind([USER, reply, result(), result(1)], [TOOL], False) or ""
        between, shown, _ = behind.partition(_NEXT)
        end = self._ends[0] if self._ends else None
        return end.sampled if end is not None and shown and token in between else token

    def _tokens(self, text: str) -> list[tuple[int, str]]:
        return [(found.start(), found[0]) for found in self._marks.finditer(text)] if self._has_marks else []


def _plain(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def _neutral(message: Message) -> Message:
    """A reply with words that every template takes: no marks of the format, and arguments that are an object."""
    if message["role"] != "assistant":
        return message
    calls = [call | {"function": call["function"] | {"arguments": {}}} for call in message.get("tool_calls") or ()]
    return message | {"content": "x" if message.get("content") else ""} | ({"tool_calls": calls} if calls else {})


def _marked(reply: Message, calls: int, place: int = -1) -> Message:
    """The reply with a mark for its last words; with calls, in the arguments of the one at `place`."""
    if not calls:
        return {"role": "assistant", "content": _MARK}
    made = list(reply["tool_calls"])
    made[place] = made[place] | {"function": made[place]["function"] | {"arguments": {"at": _MARK}}}
    return _plain(reply) | {"content": "", "tool_calls": made}  # text may stand behind the calls, too


def _with_own_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Tool-call ids that an earlier reply had already, and the results under them, get names of their own.

    Some templates look up a result's tool by its id; clients that count their calls in each turn repeat ids.
    """
    made = [call.get("id") for message in messages for call in message.get("tool_calls") or ()]
    if len(set(made)) == len(made):
        return messages
    seen: dict[Any, int] = {}
    named = []
    for message in messages:
        if message.get("tool_calls"):
            calls = message["tool_calls"]
            for known in {call.get("id") for call in calls}:
                seen[known] = seen.get(known, 0) + 1
            message = message | {"tool_calls": [call | {"id": _own_id(call.get("id"), seen)} for call in calls]}
        elif message.get("tool_call_id") in seen:
            message = message | {"tool_call_id": _own_id(message["tool_call_id"], seen)}
        named.append(message)
    return named


def _own_id(known: Any, seen: dict[Any, int]) -> Any:
    return known if seen[known] == 1 else f"{known}_{seen[known]}"


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _starts(head: str, before: str, exact: bool) -> bool:
    """Whether the conversation before the reply is written as it was; kept reasoning is not part of the question."""
    if head.startswith(before):
        return True
    return exact and without_thoughts(head).startswith(without_thoughts(before))


class TemplateRenderer:
    """Renders by the tokenizer's chat template, and reads replies as `parser`, a renderer of `renderers`, does."""

    name = "default"

    def __init__(
        self, tokenizer: Any, settings: dict[str, Any], parser: Any, *, like: TemplateRenderer | None = None
    ) -> None:
        """`like` is one with other settings: what was found out of the template for it holds here."""
        self._tokenizer = tokenizer
        self.parser = parser
        forms = like.template.forms if like is not None else None
        self.template: ChatTemplate = ChatTemplate(tokenizer, settings, forms)
        self._stop_ids: list[int] = like._stop_ids if like is not None else self._find_stop_ids()
        closing = like._closing if like is not None else tokenizer.encode(self.bridge.closing)
        self._closing: list[int] = closing
        """What stands between a text and the token that ends the turn."""

    def _find_stop_ids(self) -> list[int]:
        ends = dict.fromkeys([self._tokenizer.eos_token_id, *self.bridge.stop_ids])
        return [token for token in ends if token is not None]

    @cached_property
    def bridge(self) -> TemplateBridge:
        return TemplateBridge(self.template, self._tokenizer)

    def get_stop_token_ids(self) -> list[int]:
        return self._stop_ids

    def stops(self) -> dict[str, int]:
        """The marks that end a reply in history, and the tokens that the model samples there."""
        known = {self._tokenizer.decode([stop]): stop for stop in self._stop_ids}
        return self.bridge.marks() | known

    def render_ids(
        self, messages: list[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        ids: list[int] = self._tokenizer.encode(self.template.text(messages, tools, add_generation_prompt))
        return ids

    def parse_response(self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None) -> Any:
        end = next((place for place, token in enumerate(token_ids) if token in self._stop_ids), len(token_ids))
        ids = token_ids[:end]
        if self._closing and ids[-len(self._closing) :] == self._closing:
            ids = ids[: -len(self._closing)]
        return self.parser.parse_response(ids, tools=tools, prompt_ids=prompt_ids)
