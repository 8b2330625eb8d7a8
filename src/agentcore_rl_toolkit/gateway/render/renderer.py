"""Renders messages to token ids and parses sampled ids into replies, through `renderers`.

`bridge` keeps tokens exact: the next prompt is the last prompt's ids and the sampled ids, unchanged, followed by the
tokens of the new messages only. If `renderers` has no renderer for a chat template, the gateway derives the bridge from
the template. It uses that bridge only if it is provably exact: the template must write the conversation before the
reply the same with and without the new messages, and end the reply with the token that the model samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ...engine.base import IDS
from ...errors import ConfigError, PromptTooLong, RenderFault
from ..call.chat import ChatCall, Message, Reply
from ..images.session_images import SessionImages, drop_media, take_media
from ..images.vision_processor import VisionProcessor, find_vision
from ..record import reasons
from ..record.turn import Turn
from .chat_template import ChatTemplate, TemplateBridge, TemplateRenderer
from .families import History, choose_family
from .probes import TOOL, count_common, make_calls, make_result
from .reply_parser import PlainReplies, ReplyParser
from .roles import RoleOrderAdapter, adapt_roles, unwrap_adapter
from .tokenizer import Tokenizer

_PROMPT_END = 64
_RESERVED = {
    *("chat_template", "tokenize", "tools", "conversation", "messages", "add_generation_prompt", "tokenizer_kwargs"),
    *("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("tool_parser", "reasoning_parser", "thinking_retention", "name"),
}


class ChatRenderer:
    """Renders prompts, bridges turns and parses replies for one model."""

    bridge_tail = 256
    """How many of a prompt's last tokens a bridge needs, to see how the prompt begins the reply."""
    most_cached_tokens = 4_000_000
    """Tokens of the prompts that are kept, at most."""
    most_settings = 64
    """How many renderers are kept, one for each template setting, at most."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        renderer: str = "auto",
        history: History = "exact",
        template: dict[str, Any] | None = None,
    ) -> None:
        """`renderer` is a name in `renderers`, `auto` (the one that fits) or `default` (the chat template itself)."""
        if history not in ("exact", "template"):
            raise ConfigError(f"history={history!r} is neither 'exact' nor 'template'")
        self.tokenizer = tokenizer
        self.history = history
        self._lock = threading.Lock()
        self._template = dict(template or {})
        self.family = choose_family(tokenizer, renderer, history, self._template)
        self._create = self.family.create
        self.renderers: OrderedDict[str, Any] = OrderedDict()
        """By the template settings they were created with."""
        self._bridges: WeakKeyDictionary[Any, TemplateBridge] = WeakKeyDictionary()
        self.vision: VisionProcessor | None = None
        """What the model sees images with; None if it reads placeholders."""
        self.blind = ""
        """Why a vision model reads placeholders all the same."""
        try:
            self._plain = self._get_renderer({})
        except RenderFault as error:
            raise ConfigError(
                f"can't create a renderer for the tokenizer {tokenizer.name_or_path!r}: {error}"
            ) from error
        self.name = self.family.name
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(self._plain.get_stop_token_ids()))
        if not self.stop_ids:
            raise ConfigError(f"the tokenizer {tokenizer.name_or_path!r} has no token that ends a turn")
        self._parser = ReplyParser(tokenizer, self.stop_ids)
        self._plain_replies = PlainReplies(tokenizer, self.stop_ids, self._parser.parse)
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self.cached_tokens = 0
        """Of the prompts in the cache."""
        self._takes_placeholders = self._agrees_on_placeholders()

    @property
    def stops(self) -> dict[str, int]:
        """Each mark that ends a reply, with the id that the model samples there."""
        if isinstance(plain := unwrap_adapter(self._plain), TemplateRenderer):
            return plain.map_stops()
        return {self.tokenizer.decode([stop]): stop for stop in self.stop_ids}

    def template(self) -> ChatTemplate | None:
        """The tokenizer's chat template, if it has one."""
        if isinstance(plain := unwrap_adapter(self._plain), TemplateRenderer):
            return plain.template
        return ChatTemplate(self.tokenizer, self._template) if self.tokenizer.chat_template else None

    # Prompts

    def render(self, call: ChatCall, key: bytes | None = None) -> array[int]:
        """Render the whole conversation. Calls with the same `key` have the same prompt, which is cached.

        The rollouts of a group begin with the same prompt: of 1,900 tokens, it takes them 16 instead of 310 us.
        """
        with self._lock:  # other threads render large calls
            if key is not None and key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        renderer = self._get_renderer(call.template)
        try:
            prompt = self._render_whole(renderer, call, placeholders=self._takes_placeholders)
        except PromptTooLong:
            raise
        except Exception as error:  # a Jinja template may raise any exception
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        if key is not None:
            with self._lock:
                self.cached_tokens += len(prompt) - len(self._cache.pop(key, ()))
                self._cache[key] = prompt
                while self.cached_tokens > self.most_cached_tokens and self._cache:
                    self.cached_tokens -= len(self._cache.popitem(last=False)[1])
        return prompt

    def _render_whole(self, renderer: Any, call: ChatCall, *, placeholders: bool) -> array[int]:
        def render() -> list[int]:
            ids: list[int] = renderer.render_ids(
                self._form(call.messages, call), tools=call.tools or None, add_generation_prompt=True
            )
            return ids

        return self.tokenizer.fill_placeholders(render) if placeholders else array(IDS, render())

    def _agrees_on_placeholders(self) -> bool:
        """Whether prompts with long texts come out the same with placeholders: some formats look at a text's ids."""
        tried = []
        for call in LONG_CALLS:
            with contextlib.suppress(Exception):  # some templates refuse some roles
                expected = self._render_whole(self._plain, call, placeholders=False)
                tried.append(False)
                tried[-1] = self._render_whole(self._plain, call, placeholders=True) == expected
        return bool(tried) and all(tried)

    def bridge(self, turn: Turn, call: ChatCall, used: int, appended: str = "") -> tuple[int, array[int]] | str:
        """Continue from `turn` with the messages after the first `used`: the number of tokens kept, the tokens added.

        Text that a client `appended` to the turn's reply becomes a separate message, because it was not sampled. If the
        bridge would not be exact, returns the reason (see `unbridged`); the caller then renders the whole conversation.
        """
        if appended:
            return self._bridge_appended(turn, call, used, appended)
        new = self._form(call.messages[used:], call)
        if not new or any(message["role"] == "assistant" for message in new):
            return reasons.FOREIGN
        known = turn.tokens(turn.prompt_length, max(0, turn.prompt_length - self.bridge_tail)).tolist()
        sampled = turn.sampled.tolist()
        renderer = self._get_renderer(call.template)
        try:
            if isinstance(unwrap_adapter(renderer), TemplateRenderer):
                added = self._bridge_template_renderer(renderer, call, used, known, sampled)
                return added if isinstance(added, str) else (turn.length, array(IDS, added))
            bridged = renderer.bridge_to_next_turn(known, sampled, new, tools=call.tools or None)
            unended = self._bridge_open_thought(renderer, known, sampled, call, new) if bridged is None else None
        except PromptTooLong:
            raise
        except Exception as error:
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        if bridged is not None:
            ids: list[int] = bridged.token_ids
        elif unended is not None:
            ids = unended
        elif (fallback := self._bridge_with_template(renderer, call, used, sampled)) is not None:
            return turn.length, array(IDS, fallback)
        elif self.history == "template" and any(message["role"] == "user" for message in new):
            return reasons.THOUGHT_DROPPED
        else:
            return reasons.REFUSED
        old = known + sampled
        common = len(old) if ids[: len(old)] == old else count_common(ids, old)
        if common < len(known):
            return reasons.REFUSED
        return turn.length - (len(old) - common), array(IDS, ids[common:])

    def _bridge_with_template(self, renderer: Any, call: ChatCall, used: int, sampled: list[int]) -> list[int] | None:
        """Derive the bridge from the chat template when a renderer that agrees with the template refuses to bridge.

        Some renderers refuse a user's message after a tool's result.
        """
        family = self.family
        if self.history != "exact" or not family.checked or family.later or not self.tokenizer.chat_template:
            return None
        if any("images" in message for message in call.messages[used:]):
            return None
        messages = list(call.messages)
        if isinstance(renderer, RoleOrderAdapter):
            messages, used = renderer.adapt_around_reply(messages, used)
        try:
            if renderer not in self._bridges:
                template = ChatTemplate(self.tokenizer, self._template | call.template)
                self._bridges[renderer] = TemplateBridge(template, self.tokenizer)
            found = self._bridges[renderer].bridge(messages, used, call.tools or None, sampled, self.stop_ids)
        except Exception:  # the renderer may accept messages that the template refuses
            return None
        return None if isinstance(found, str) else found

    def _bridge_open_thought(
        self, renderer: Any, known: list[int], sampled: list[int], call: ChatCall, new: list[Message]
    ) -> list[int] | None:
        """Bridge from a turn that ended within a thought, with the tokens that would follow a closed thought."""
        if not sampled or sampled[-1] not in self.stop_ids:
            return None
        closed = [*known, *sampled[:-1], *self.tokenizer.encode("</think>"), sampled[-1]]
        bridged = renderer.bridge_to_next_turn(known, closed[len(known) :], new, tools=call.tools or None)
        if bridged is None or bridged.token_ids[: len(closed)] != closed:
            return None
        added: list[int] = bridged.token_ids[len(closed) :]
        return known + sampled + added

    def _bridge_appended(self, turn: Turn, call: ChatCall, used: int, appended: str) -> tuple[int, array[int]] | str:
        """Bridge to a probe message, then put the appended message and those after it in place of the probe."""
        echo = call.messages[used - 1]
        sampled = echo | {"content": echo["content"][: echo["content"].rindex(appended)].rstrip()}
        probed = dataclasses.replace(call, messages=[*call.messages[: used - 1], sampled, _PROBE])
        bridged = self.bridge(turn, probed, used)
        if isinstance(bridged, str):
            return bridged
        keep, probe = bridged
        new = [{"role": "assistant", "content": appended}, *call.messages[used:]]
        start, added = self._render_after_probe(call, [_PROBE]), self._render_after_probe(call, new)
        end = len(probe) - len(start or ())
        if not start or not added or probe[end:].tolist() != start:
            return reasons.REFUSED
        return keep, probe[:end] + array(IDS, added)

    def _render_after_probe(self, call: ChatCall, messages: list[Message]) -> list[int] | None:
        """Render the messages within a conversation; None if they change the text before them.

        They follow a user's message or, if the template joins or refuses two user messages in a row, a reply.
        """
        after_user = self._render_after(call, [_PROBE], messages)
        return after_user or self._render_after(call, [_PROBE, _PROBE_REPLY], messages)

    def _render_after(self, call: ChatCall, first: list[Message], messages: list[Message]) -> list[int] | None:
        renderer, tools = self._get_renderer(call.template), call.tools or None
        try:
            before = renderer.render_ids(first, tools=tools)
            after = self._form(messages, call)
            whole: list[int] = renderer.render_ids([*first, *after], tools=tools, add_generation_prompt=True)
        except Exception:  # some templates refuse two messages of one role
            return None
        if before and before[-1] in self.stop_ids and whole[: len(before)] != before:
            before.pop()  # an end of text, which some templates write after the last message
        return whole[len(before) :] if whole[: len(before)] == before else None

    def _bridge_template_renderer(
        self, renderer: Any, call: ChatCall, used: int, known: list[int], sampled: list[int]
    ) -> list[int] | str:
        messages, thought = list(call.messages), None
        if self.history == "template":  # the template may drop this turn's reasoning
            thought = bool(self.parse(sampled, known[-_PROMPT_END:], call, "").reasoning)
        if isinstance(renderer, RoleOrderAdapter):
            messages, used = renderer.adapt_around_reply(messages, used)
        inner: TemplateRenderer = unwrap_adapter(renderer)
        return inner.bridge.bridge(messages, used, call.tools or None, sampled, self.stop_ids, thought=thought)

    def encode_forced_call(self, call: ChatCall) -> list[int]:
        """Encode the beginning of the tool call that `tool_choice` requires.

        It is the common prefix of two calls that differ only in name or, if the name is given, in arguments.
        """
        if call.tool_choice in ("auto", "none"):
            return []
        name = call.tool_choice.removeprefix("=") if call.tool_choice.startswith("=") else None
        arguments = {"probe_key": 1}
        probes = [(name, arguments), (name, {})] if name else [("probe_name", arguments), ("other_name", arguments)]
        probed = ChatCall([_PROBE], call.tools, template=call.template)
        replies = self.render_replies(probed, [make_calls(1, made, called) for called, made in probes])
        first, second = map(self.tokenizer.encode, replies)
        ids = first[: count_common(first, second)]
        if not ids or first == second or (name and name not in self.tokenizer.decode(ids)):
            raise RenderFault("this model's tool format does not allow a forced call")
        return ids

    def render_replies(self, call: ChatCall, replies: Sequence[Message]) -> list[str]:
        """The text that each reply would add to the call's prompt."""
        renderer, tools = self._get_renderer(call.template), call.tools or None
        try:
            start = renderer.render_ids(list(call.messages), tools=tools, add_generation_prompt=True)
            wholes = [renderer.render_ids([*call.messages, reply], tools=tools) for reply in replies]
        except Exception as error:
            raise RenderFault(f"the model's chat template can't render this reply: {error}") from error
        return [self._decode_rest(start, whole) for whole in wholes]

    def _decode_rest(self, start: list[int], whole: list[int]) -> str:
        """The text of a conversation after the prompt for its last message."""
        before, text = self.tokenizer.decode(start), self.tokenizer.decode(whole)
        if text.startswith(before):
            return text[len(before) :]
        common = count_common(start, whole)
        rest = self.tokenizer.decode(whole[common:]).lstrip()
        # The prompt may have opened a thought that the template then omits.
        opened = "<think>" in self.tokenizer.decode(start[common:]) and not rest.startswith("</think>")
        return f"</think>\n\n{rest}" if opened else rest

    # Images

    def open_eyes(self, obstacle: str = "") -> None:
        """Show images to the model from now on, if it can see and `obstacle` is empty."""
        self.vision, self.blind = find_vision(self.tokenizer, self.family.name, self._plain, obstacle)
        if self.vision is not None:
            self.renderers.clear()
            self._plain = self._get_renderer({})

    def take_images(self, call: ChatCall, images: SessionImages) -> None:
        """Keep the images that the agent sent with a call if the model sees them; otherwise only their placeholders."""
        if self.vision is None:
            drop_media(call.messages)
        else:
            take_media(call.messages, images, self.vision.measure)
            call.images = images

    def _form(self, messages: Sequence[Message], call: ChatCall) -> list[Message]:
        """The messages of a call as the renderer takes them."""
        return [self.vision.form(m, call.images) for m in messages] if self.vision is not None else list(messages)

    # Replies

    def parse(self, sampled: Sequence[int], prompt_end: Sequence[int], call: ChatCall, uid: str) -> Reply:
        """Parse sampled ids. `prompt_end` holds the prompt's last ids, which may have begun the reply."""
        renderer = self._get_renderer(call.template)
        plain = self._plain_replies.read(renderer, sampled, prompt_end)
        return self._parser.parse(renderer, sampled, prompt_end, call, uid) if plain is None else plain

    def _get_renderer(self, template: dict[str, Any]) -> Any:
        settings = self._template | template
        try:
            key = json.dumps(settings, sort_keys=True) if settings else ""
            if key in self.renderers:
                self.renderers.move_to_end(key)
                return self.renderers[key]
            refused = sorted(settings.keys() & _RESERVED)
            if refused:
                raise ValueError(f"reserved names: {', '.join(refused)}")
            made = self._create(settings) if self.vision is None else self.vision.equip(self._create(settings))
            created = self.renderers[key] = adapt_roles(made, self.tokenizer.decode)
        except ConfigError:
            raise
        except Exception as error:
            raise RenderFault(f"can't use chat_template_kwargs {str(settings)[:200]}: {error}") from error
        if len(self.renderers) > self.most_settings:
            self.renderers.popitem(last=False)
        return created


_PROBE: Message = {"role": "user", "content": "x"}
_PROBE_REPLY: Message = {"role": "assistant", "content": "x"}

_LONG_TEXT = "the quick brown fox, 12 of them:\n    jumps(over) {'the': \"lazy dog\"}\n" * 12
_LONG_CHAT: list[Message] = [
    {"role": "system", "content": _LONG_TEXT},
    {"role": "user", "content": f"  {_LONG_TEXT}"},
    {"role": "assistant", "content": _LONG_TEXT},
    {"role": "user", "content": f"{_LONG_TEXT}\n\n"},
]
_LONG_TOOLS: list[Message] = [
    make_calls(arguments={"at": _LONG_TEXT}),
    make_result(content=_LONG_TEXT),
]
_LONG_TOOL = {"type": "function", "function": TOOL["function"] | {"description": _LONG_TEXT}}
LONG_CALLS = [
    ChatCall(_LONG_CHAT[1:2]),
    ChatCall(_LONG_CHAT),
    ChatCall([*_LONG_CHAT, *_LONG_TOOLS], [_LONG_TOOL]),
    ChatCall([*_LONG_CHAT[1:2], *_LONG_TOOLS, _LONG_TOOLS[1]], [_LONG_TOOL]),
]
