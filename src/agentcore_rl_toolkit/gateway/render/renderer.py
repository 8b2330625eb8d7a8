"""Messages to token ids and sampled ids back to a reply, through `renderers`.

`bridge` is what keeps tokens exact: the next prompt is the last one's ids and the sampled ids as they are, then only
the new messages' tokens. For chat templates that `renderers` has no renderer for, a bridge derived from the template
does the same where it can be proven: the conversation before the reply must be written the same with and without what
follows, and the reply must end with the token the model samples to end its turn.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ...engine.base import IDS
from ...errors import ConfigError, RenderFault
from ..call.chat import ChatCall, Message, Reply, has_assistant
from ..record import reasons
from ..record.turn import Turn
from .chat_template import ChatTemplate, TemplateBridge, TemplateRenderer
from .families import History, choose
from .reply_parser import ReplyParser
from .roles import RoleOrderAdapter, adapt_roles, unwrap
from .tokenizer import Tokenizer

_TAIL = 256  # how much of a prompt a bridge looks back on: how it begins the reply is what matters
_PROMPT_END = 64
_CACHED_TOKENS = 4_000_000
_RENDERERS = 64  # how many different template settings are kept ready
_RESERVED = {
    *("chat_template", "tokenize", "tools", "conversation", "messages", "add_generation_prompt", "tokenizer_kwargs"),
    *("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("tool_parser", "reasoning_parser", "thinking_retention", "name"),
}


class ChatRenderer:
    """Renders, bridges and parses for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        renderer: str = "auto",
        history: History = "exact",
        template: dict[str, Any] | None = None,
    ) -> None:
        """`renderer` is a name `renderers` knows, `auto` (what fits the tokenizer) or `default` (its chat template)."""
        if history not in ("exact", "template"):
            raise ConfigError(f"history={history!r} is neither 'exact' nor 'template'")
        self.tokenizer = tokenizer
        self.history = history
        self._lock = threading.Lock()
        self._template = dict(template or {})
        self.family = choose(tokenizer, renderer, history, self._template)
        self._create = self.family.create
        self._renderers: OrderedDict[str, Any] = OrderedDict()
        self._bridges: WeakKeyDictionary[Any, TemplateBridge] = WeakKeyDictionary()
        try:
            self._plain = self._renderer({})
        except RenderFault as error:
            raise ConfigError(f"the tokenizer {tokenizer.name_or_path!r} can't be rendered for: {error}") from error
        self.name = self.family.name
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(self._plain.get_stop_token_ids()))
        if not self.stop_ids:
            raise ConfigError(f"the tokenizer {tokenizer.name_or_path!r} has no token that ends a turn")
        self._parser = ReplyParser(tokenizer, self.stop_ids)
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._cached = 0

    @property
    def stops(self) -> dict[str, int]:
        """The marks that end a reply, and the tokens that the model samples there."""
        if isinstance(plain := unwrap(self._plain), TemplateRenderer):
            return plain.stops()
        return {self.tokenizer.decode([stop]): stop for stop in self.stop_ids}

    def template(self) -> ChatTemplate | None:
        """The tokenizer's chat template, if it has one."""
        if isinstance(plain := unwrap(self._plain), TemplateRenderer):
            return plain.template
        return ChatTemplate(self.tokenizer, self._template) if self.tokenizer.chat_template else None

    # Prompts

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts that are kept."""
        return self._cached

    @property
    def kept_settings(self) -> int:
        """How many different template settings are kept ready."""
        return len(self._renderers)

    def render(self, call: ChatCall, key: bytes | None = None) -> array[int]:
        """The whole conversation's prompt. Calls with the same `key` have the same prompt, and share the work."""
        with self._lock:  # large calls are rendered on other threads
            if key is not None and key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        renderer = self._renderer(call.template)
        try:
            ids = renderer.render_ids(list(call.messages), tools=call.tools or None, add_generation_prompt=True)
            prompt = array(IDS, ids)
        except Exception as error:  # a Jinja template may raise anything it likes
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        if key is not None:
            with self._lock:
                self._cached += len(prompt) - len(self._cache.pop(key, ()))
                self._cache[key] = prompt
                while self._cached > _CACHED_TOKENS and self._cache:
                    self._cached -= len(self._cache.popitem(last=False)[1])
        return prompt

    def bridge(self, turn: Turn, call: ChatCall, used: int, appended: str = "") -> tuple[int, array[int]] | str:
        """How the prompt goes on from `turn` with the messages after the first `used`: tokens kept, tokens added.

        What a client has `appended` to the turn's reply is a message of its own, which was not sampled. Where
        exactness can't be had, the reason, one of `unbridged`: the conversation is then rendered anew.
        """
        if appended:
            return self._bridge_appended(turn, call, used, appended)
        new = call.messages[used:]
        if not new or has_assistant(new):
            return reasons.FOREIGN
        known = turn.tokens(turn.prompt_length, max(0, turn.prompt_length - _TAIL)).tolist()
        sampled = turn.sampled.tolist()
        renderer = self._renderer(call.template)
        try:
            if isinstance(unwrap(renderer), TemplateRenderer):
                added = self._template_bridge(renderer, call, used, known, sampled)
                return added if isinstance(added, str) else (turn.length, array(IDS, added))
            bridged = renderer.bridge_to_next_turn(known, sampled, new, tools=call.tools or None)
            unended = self._bridge_open_thought(renderer, known, sampled, call, used) if bridged is None else None
        except Exception as error:
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        if bridged is not None:
            ids: list[int] = bridged.token_ids
        elif unended is not None:
            ids = unended
        elif (shown := self._bridge_shown(renderer, call, used, sampled)) is not None:
            return turn.length, array(IDS, shown)
        elif self.history == "template" and any(message["role"] == "user" for message in new):
            return reasons.THOUGHT_DROPPED
        else:
            return reasons.REFUSED
        old = known + sampled
        common = len(old) if ids[: len(old)] == old else _common(ids, old)
        if common < len(known):
            return reasons.REFUSED
        return turn.length - (len(old) - common), array(IDS, ids[common:])

    def _bridge_shown(self, renderer: Any, call: ChatCall, used: int, sampled: list[int]) -> list[int] | None:
        """What the chat template shows between the reply and the next prompt, where a renderer that renders as the
        template does refuses to go on: some take no user's message after a tool's result."""
        family = self.family
        if self.history != "exact" or not family.checked or family.later or not self.tokenizer.chat_template:
            return None
        messages = list(call.messages)
        if isinstance(renderer, RoleOrderAdapter):
            messages, used = renderer.around_reply(messages, used)
        try:
            if renderer not in self._bridges:
                template = ChatTemplate(self.tokenizer, self._template | call.template)
                self._bridges[renderer] = TemplateBridge(template, self.tokenizer)
            found = self._bridges[renderer].bridge(messages, used, call.tools or None, sampled, self.stop_ids)
        except Exception:  # the renderer may take what the template refuses
            return None
        return None if isinstance(found, str) else found

    def _bridge_open_thought(
        self, renderer: Any, known: list[int], sampled: list[int], call: ChatCall, used: int
    ) -> list[int] | None:
        """A turn that ended within a thought goes on as one that ended its thought: the turn's end is what counts."""
        if not sampled or sampled[-1] not in self.stop_ids:
            return None
        closed = [*known, *sampled[:-1], *self.tokenizer.encode("</think>"), sampled[-1]]
        new = call.messages[used:]
        bridged = renderer.bridge_to_next_turn(known, closed[len(known) :], new, tools=call.tools or None)
        if bridged is None or bridged.token_ids[: len(closed)] != closed:
            return None
        added: list[int] = bridged.token_ids[len(closed) :]
        return known + sampled + added

    def _bridge_appended(self, turn: Turn, call: ChatCall, used: int, appended: str) -> tuple[int, array[int]] | str:
        """A bridge with a user's message, and in its place the appended one and those after it."""
        echo = call.messages[used - 1]
        sampled = echo | {"content": echo["content"][: echo["content"].rindex(appended)].rstrip()}
        probed = dataclasses.replace(call, messages=[*call.messages[: used - 1], sampled, _PROBE])
        bridged = self.bridge(turn, probed, used)
        if isinstance(bridged, str):
            return bridged
        keep, probe = bridged
        new = [{"role": "assistant", "content": appended}, *call.messages[used:]]
        start, probed_end = self._said_after_probe(call, [_PROBE]), self._said_after_probe(call, new)
        end = len(probe) - len(start or ())
        if not start or not probed_end or probe[end:].tolist() != start:
            return reasons.REFUSED
        return keep, probe[:end] + array(IDS, probed_end)

    def _said_after_probe(self, call: ChatCall, messages: list[Message]) -> list[int] | None:
        """What messages are in a conversation that goes on after them; None where they change what was before.

        They follow a user's message, or a reply where the template joins or refuses two messages of a user.
        """
        return self._said_after(call, [_PROBE], messages) or self._said_after(call, [_PROBE, _PROBE_REPLY], messages)

    def _said_after(self, call: ChatCall, first: list[Message], messages: list[Message]) -> list[int] | None:
        renderer, tools = self._renderer(call.template), call.tools or None
        try:
            before = renderer.render_ids(first, tools=tools)
            whole: list[int] = renderer.render_ids([*first, *messages], tools=tools, add_generation_prompt=True)
        except Exception:  # not every template takes two messages of one role
            return None
        if before and before[-1] in self.stop_ids and whole[: len(before)] != before:
            before.pop()  # an end of text, which some write after the last message
        return whole[len(before) :] if whole[: len(before)] == before else None

    def _template_bridge(
        self, renderer: Any, call: ChatCall, used: int, known: list[int], sampled: list[int]
    ) -> list[int] | str:
        messages, thought = list(call.messages), None
        if self.history == "template":  # what it does to the reasoning of this turn decides
            thought = bool(self.parse(sampled, known[-_PROMPT_END:], call, "").reasoning)
        if isinstance(renderer, RoleOrderAdapter):
            messages, used = renderer.around_reply(messages, used)
        inner: TemplateRenderer = unwrap(renderer)
        return inner.bridge.bridge(messages, used, call.tools or None, sampled, self.stop_ids, thought=thought)

    def forced(self, call: ChatCall) -> list[int]:
        """The tokens that make the model begin with a tool call, as `tool_choice` asks for.

        They are what two calls have in common that differ in nothing but the name, or but the arguments of that name.
        """
        if call.tool_choice in ("auto", "none"):
            return []
        name = call.tool_choice.removeprefix("=") if call.tool_choice.startswith("=") else None
        arguments = {"probe_key": 1}
        probes = [(name, arguments), (name, {})] if name else [("probe_name", arguments), ("other_name", arguments)]
        renderer = self._renderer(call.template)
        try:
            start = renderer.render_ids([_PROBE], tools=call.tools, add_generation_prompt=True)
            replies = [renderer.render_ids([_PROBE, _probe_call(*probe)], tools=call.tools) for probe in probes]
        except Exception as error:
            raise RenderFault(f"the model's chat template can't force a tool call: {error}") from error
        first, second = (self.tokenizer.encode(self._rest(start, reply)) for reply in replies)
        ids = first[: _common(first, second)]
        if not ids or first == second or (name and name not in self.tokenizer.decode(ids)):
            raise RenderFault("this model's tool format has no place to force a call in")
        return ids

    def _rest(self, start: list[int], whole: list[int]) -> str:
        """What a conversation says after the prompt for its last message."""
        before, text = self.tokenizer.decode(start), self.tokenizer.decode(whole)
        if text.startswith(before):
            return text[len(before) :]
        common = _common(start, whole)
        rest = self.tokenizer.decode(whole[common:]).lstrip()
        # The prompt may have opened a thought, which the template then leaves out.
        opened = "<think>" in self.tokenizer.decode(start[common:]) and not rest.startswith("</think>")
        return f"</think>\n\n{rest}" if opened else rest

    # Replies

    def parse(self, sampled: Sequence[int], prompt_end: Sequence[int], call: ChatCall, uid: str) -> Reply:
        """What the sampled ids say. `prompt_end` are the prompt's last ids: they may have begun the reply."""
        return self._parser.parse(self._renderer(call.template), sampled, prompt_end, call, uid)

    def _renderer(self, template: dict[str, Any]) -> Any:
        settings = self._template | template
        try:
            key = json.dumps(settings, sort_keys=True) if settings else ""
            if key in self._renderers:
                self._renderers.move_to_end(key)
                return self._renderers[key]
            refused = sorted(settings.keys() & _RESERVED)
            if refused:
                raise ValueError(f"{', '.join(refused)} can't be set")
            created = self._renderers[key] = adapt_roles(self._create(settings), self.tokenizer.decode)
        except ConfigError:
            raise
        except Exception as error:
            raise RenderFault(f"chat_template_kwargs {str(settings)[:200]} are refused: {error}") from error
        if len(self._renderers) > _RENDERERS:
            self._renderers.popitem(last=False)
        return created


_PROBE: Message = {"role": "user", "content": "x"}
_PROBE_REPLY: Message = {"role": "assistant", "content": "x"}


def _probe_call(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": arguments}
    call = {"id": f"functions.{name}:0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _common(one: list[int], other: list[int]) -> int:
    common = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        common += 1
    return common
