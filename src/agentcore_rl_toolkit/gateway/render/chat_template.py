"""Renders a model with its own chat template, and derives bridges by rendering probes.

`renderers` covers many model families; this module covers every other template. It finds the text between a sampled
reply and the next prompt by rendering the conversation with a mark in place of the reply, followed by the new messages.
The marked reply is always part of the history, because templates treat the last message specially: they add an empty
thought, or an end of text.
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
from .probes import SYSTEM, TOOL, USER, count_common, make_calls, make_result, strip_thoughts

_MARK, _NEXT, _THOUGHT_MARK = "probe51mark", "probe82mark", "probe37mark"
_CALLED = [USER, make_calls(arguments={"at": _MARK}), make_result()]
_THOUGHT: list[Message] = [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": _MARK}]


@dataclass(frozen=True)
class TemplateForms:
    """The form in which a template expects messages, where templates differ."""

    arguments_as_text: bool = False
    """Tool arguments are JSON text instead of objects."""
    no_content: Any = ""
    """The `content` of a reply that consists of tool calls only."""
    thought_key: str = "reasoning_content"
    """The field that holds reasoning."""
    text_in_parts: bool = False
    """Text is a list of parts, as in messages with images."""

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        formed = [self._form_message(m) if m["role"] == "assistant" else m for m in _rename_repeated_ids(messages)]
        return [_split_into_parts(m) for m in formed] if self.text_in_parts else formed

    def _form_message(self, message: Message) -> Message:
        formed = dict(message)
        if message.get("tool_calls"):
            formed["content"] = message.get("content") or self.no_content
            formed["tool_calls"] = [self._form_call(call) for call in message["tool_calls"]]
        if self.thought_key != "reasoning_content" and "reasoning_content" in formed:
            formed[self.thought_key] = formed.pop("reasoning_content")
        return formed

    def _form_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = parse_arguments(function.get("arguments"))
        if self.arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return call | {"type": "function", "function": function | {"arguments": arguments}}


@dataclass(frozen=True)
class TurnEnd:
    """How a template ends a reply that other messages follow."""

    before: str
    """The text between the reply and the token that ends the turn."""
    token: str
    """The token that ends the turn in the history."""
    sampled: str
    """The token that the model samples to end the turn, usually the same one."""


class ChatTemplate:
    """A tokenizer's chat template, which renders text, and the properties that probes reveal."""

    def __init__(self, tokenizer: Any, settings: dict[str, Any], forms: TemplateForms | None = None) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self.forms = forms or self._find_forms()

    def render_text(self, messages: Sequence[Message], tools: Any, reply_follows: bool) -> str:
        return self._render_text(self.forms, messages, tools, reply_follows)

    def _render_text(self, forms: TemplateForms, messages: Sequence[Message], tools: Any, reply_follows: bool) -> str:
        settings = self._settings | ({"tools": tools} if tools else {})
        formed = forms.apply(messages)
        text: str = self._tokenizer.apply_chat_template(
            formed, add_generation_prompt=reply_follows, tokenize=False, **settings
        )
        return text

    def _find_forms(self) -> TemplateForms:
        """The first forms that show calls, then the first that also show reasoning; the defaults if none do."""
        asked = str(USER["content"])
        in_parts = not self._shows(TemplateForms(), [USER], asked) and self._shows(
            TemplateForms(text_in_parts=True), [USER], asked
        )
        forms = TemplateForms(text_in_parts=in_parts)
        for as_text, no_content in ((False, ""), (False, None), (True, ""), (True, None)):
            tried = replace(forms, arguments_as_text=as_text, no_content=no_content)
            if self._shows(tried, _CALLED, _MARK):
                return self._find_thought_key(tried)
        return self._find_thought_key(forms)

    def _find_thought_key(self, forms: TemplateForms) -> TemplateForms:
        for key in ("reasoning_content", "thinking", "reasoning"):
            tried = replace(forms, thought_key=key)
            if self._shows(tried, _THOUGHT, _MARK):
                return tried
        return forms

    def _shows(self, forms: TemplateForms, messages: list[Message], mark: str) -> bool:
        try:
            return mark in self._render_text(forms, messages, [TOOL], False)
        except Exception:  # a Jinja template may raise any exception
            return False

    # Properties that the gateway reports at startup

    def shows_calls(self) -> bool:
        return self._shows(self.forms, _CALLED, _MARK)

    def shows_results(self) -> bool:
        return self._shows(self.forms, [USER, make_calls(), make_result(content=_MARK)], _MARK)

    def shows_tools(self) -> bool:
        return self._prompts("look", [USER], [TOOL])

    def shows_thoughts(self) -> bool:
        return self._shows(self.forms, _THOUGHT, _MARK)

    def shows_system(self) -> bool:
        return self._prompts(str(SYSTEM["content"]), [SYSTEM, USER], None)

    def _prompts(self, text: str, messages: list[Message], tools: Any) -> bool:
        """Whether a prompt for a reply has this text."""
        try:
            return text in self.render_text(messages, tools, True)
        except Exception:  # a Jinja template may raise any exception
            return False

    def find_opening(self) -> str:
        """The text that the generation prompt adds to the conversation; none if the template refuses the probe."""
        try:
            asked, prompt = self.render_text([USER], None, False), self.render_text([USER], None, True)
        except Exception:
            return ""
        return prompt[count_common(asked, prompt) :]


class TemplateBridge:
    """Derives the tokens between a sampled reply and the next prompt from what a template renders."""

    def __init__(self, template: ChatTemplate, tokenizer: Any) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._marks = re.compile("|".join(map(re.escape, sorted(tokenizer.get_added_vocab(), key=len, reverse=True))))
        self._has_marks = bool(tokenizer.get_added_vocab())
        self._shows_calls = template.shows_calls()
        self._opening = template.find_opening()
        self._ends: list[TurnEnd | None] = []
        """How a reply ends that has no tool call, one call, or several calls."""
        for calls in (0, 1, 2) if self._shows_calls else (0,):
            known = not calls or self._ends[0] is not None  # a template that doesn't end text doesn't end calls
            self._ends.append(self._find_end(calls) if known else None)
        sampled = [end.sampled for end in self._ends if end is not None]
        self.stop_ids = [tokenizer.convert_tokens_to_ids(token) for token in dict.fromkeys(sampled)]

    def map_end_marks(self) -> dict[str, int]:
        """Map each token that ends a reply in the history to the id that the model samples instead."""
        ends = [end for end in self._ends if end is not None and end.token != end.sampled]
        return {end.token: self._tokenizer.convert_tokens_to_ids(end.sampled) for end in ends}

    @property
    def closing(self) -> str:
        """The text that the template writes between a text reply and the token that ends the turn."""
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
        """The tokens that follow a sampled reply, which is message number `used`; or why a bridge would not be exact.

        `thought` says whether the reply has reasoning; with it, the history must be exactly what the template writes.
        """
        exact = thought is None
        reply, new = messages[used - 1], messages[used:]
        calls = len(reply.get("tool_calls") or ()) if self._shows_calls else 0
        end = self._ends[min(calls, 2)]
        if end is None:
            return reasons.NO_TURN_END
        before = [_drop_reasoning(message) for message in messages[: used - 1]]
        marked = _mark_reply(reply, calls) | ({"reasoning_content": _THOUGHT_MARK} if thought else {})
        try:
            prompt, whole = self._render_both(before, [marked, *new], tools)
        except Exception:  # the template refuses a reply; its tokens are recorded, so its text does not matter
            before = [_neutralize(message) for message in before]
            prompt, whole = self._render_both(before, [marked, *new], tools)
        head, found, tail = whole.rpartition(_MARK)
        if not found:
            return reasons.REPLY_HIDDEN
        if thought and _THOUGHT_MARK not in head:
            return reasons.THOUGHT_DROPPED
        if not _keeps_history(head, prompt.removesuffix(self._opening), exact):
            return reasons.REWRITTEN
        if not tail.startswith(end.before + end.token):
            return reasons.NO_TURN_END
        closed = bool(sampled) and sampled[-1] in stop_ids
        return self._encode_tail(tail, end, closed=closed, calls=bool(calls))

    def _render_both(self, before: list[Message], after: list[Message], tools: Any) -> tuple[str, str]:
        return self._template.render_text(before, tools, True), self._template.render_text(
            [*before, *after], tools, True
        )

    def _encode_tail(self, tail: str, end: TurnEnd, *, closed: bool, calls: bool) -> list[int]:
        # Encode the end token together with the text behind it: some tokens absorb the space that follows.
        ids: list[int] = self._tokenizer.encode(tail[len(end.before) :])
        if closed:
            return ids[1:]
        missing = [] if calls else self._tokenizer.encode(end.before)
        return [*missing, self._tokenizer.convert_tokens_to_ids(end.sampled), *ids[1:]]

    def _find_end(self, calls: int) -> TurnEnd | None:
        """Find the end of a reply: the last token that it has both in the history and as the last message."""
        reply = _mark_reply(make_calls(calls) if calls else {}, calls)
        following = [make_result(n, _NEXT) for n in range(calls)] or [{"role": "user", "content": _NEXT}]
        tools = [TOOL] if calls else None
        history = self._render_after_mark([USER, reply, *following], tools, True)
        last = self._render_after_mark([USER, reply], tools, False)
        if history is None or last is None:
            return None
        gap = history.partition(_NEXT)[0]
        tokens = self._find_tokens(gap[: count_common(gap, last)])
        if tokens:
            start, token = tokens[-1]
            return TurnEnd(gap[:start], token, self._find_sampled_end(token))
        ends, lasts = self._find_tokens(gap), self._find_tokens(last)
        if ends and lasts:  # the last message ends with a different token
            start, token = ends[0]
            return TurnEnd(gap[:start], token, lasts[-1][1])
        return None

    def _render_after_mark(self, messages: list[Message], tools: Any, reply_follows: bool) -> str | None:
        """The text after the mark; None if the template does not show the mark, or refuses the messages."""
        try:
            _, found, rest = self._template.render_text(messages, tools, reply_follows).rpartition(_MARK)
            return rest if found else None
        except Exception:  # a Jinja template may raise any exception
            return None

    def _find_sampled_end(self, token: str) -> str:
        """The token that the model samples: `token`, or the one that ends text if `token` also separates two calls."""
        reply = _mark_reply(make_calls(2, {"at": _NEXT}), 2, 0)
        after = self._render_after_mark([USER, reply, make_result(), make_result(1)], [TOOL], False) or ""
        between, shown, _ = after.partition(_NEXT)
        end = self._ends[0] if self._ends else None
        return end.sampled if end is not None and shown and token in between else token

    def _find_tokens(self, text: str) -> list[tuple[int, str]]:
        return [(found.start(), found[0]) for found in self._marks.finditer(text)] if self._has_marks else []


def _drop_reasoning(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def _neutralize(message: Message) -> Message:
    """Replace a reply's text and arguments by ones that every template accepts."""
    if message["role"] != "assistant":
        return message
    calls = [call | {"function": call["function"] | {"arguments": {}}} for call in message.get("tool_calls") or ()]
    return message | {"content": "x" if message.get("content") else ""} | ({"tool_calls": calls} if calls else {})


def _mark_reply(reply: Message, calls: int, place: int = -1) -> Message:
    """Put a mark in place of the reply's text or, if it has calls, of the arguments of the call at `place`."""
    if not calls:
        return {"role": "assistant", "content": _MARK}
    made = list(reply["tool_calls"])
    made[place] = made[place] | {"function": made[place]["function"] | {"arguments": {"at": _MARK}}}
    return _drop_reasoning(reply) | {"content": "", "tool_calls": made}  # some templates write the text after the calls


def _rename_repeated_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Rename tool-call ids that an earlier reply already used, and the ids of their results.

    Some templates look up a result's tool by its id, and clients that number their calls per turn repeat ids.
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
            message = message | {"tool_calls": [call | {"id": _number_id(call.get("id"), seen)} for call in calls]}
        elif message.get("tool_call_id") in seen:
            message = message | {"tool_call_id": _number_id(message["tool_call_id"], seen)}
        named.append(message)
    return named


def _number_id(known: Any, seen: dict[Any, int]) -> Any:
    return known if seen[known] == 1 else f"{known}_{seen[known]}"


def _split_into_parts(message: Message) -> Message:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _keeps_history(head: str, before: str, exact: bool) -> bool:
    """Whether the template still writes the conversation before the reply as before; `exact` ignores reasoning."""
    if head.startswith(before):
        return True
    return exact and strip_thoughts(head).startswith(strip_thoughts(before))


class TemplateRenderer:
    """Renders with the tokenizer's chat template, and parses replies with `parser`, a renderer of `renderers`."""

    name = "default"

    def __init__(
        self, tokenizer: Any, settings: dict[str, Any], parser: Any, *, like: TemplateRenderer | None = None
    ) -> None:
        """`like` is a renderer with other settings for the same template; its probe results are reused."""
        self._tokenizer = tokenizer
        self.parser = parser
        forms = like.template.forms if like is not None else None
        self.template: ChatTemplate = ChatTemplate(tokenizer, settings, forms)
        self._stop_ids: list[int] = like._stop_ids if like is not None else self._find_stop_ids()
        closing = like._closing if like is not None else tokenizer.encode(self.bridge.closing)
        self._closing: list[int] = closing
        """The ids between a text reply and the token that ends the turn."""

    def _find_stop_ids(self) -> list[int]:
        ends = dict.fromkeys([self._tokenizer.eos_token_id, *self.bridge.stop_ids])
        return [token for token in ends if token is not None]

    @cached_property
    def bridge(self) -> TemplateBridge:
        return TemplateBridge(self.template, self._tokenizer)

    def get_stop_token_ids(self) -> list[int]:
        return self._stop_ids

    def map_stops(self) -> dict[str, int]:
        """Map each mark that ends a reply in the history to the id that the model samples there."""
        known = {self._tokenizer.decode([stop]): stop for stop in self._stop_ids}
        return self.bridge.map_end_marks() | known

    def render_ids(
        self, messages: list[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        ids: list[int] = self._tokenizer.encode(self.template.render_text(messages, tools, add_generation_prompt))
        return ids

    def parse_response(self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None) -> Any:
        end = next((place for place, token in enumerate(token_ids) if token in self._stop_ids), len(token_ids))
        ids = token_ids[:end]
        if self._closing and ids[-len(self._closing) :] == self._closing:
            ids = ids[: -len(self._closing)]
        return self.parser.parse_response(ids, tools=tools, prompt_ids=prompt_ids)
