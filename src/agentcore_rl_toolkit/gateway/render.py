"""Messages to token ids and sampled ids back to a reply, through `renderers`.

`bridge` is what keeps tokens exact: the next prompt is the last one's ids and the sampled ids as they are, then only
the new messages' tokens. For chat templates that `renderers` has no renderer for, a generic bridge does the same where
it can be proven: rendering the conversation with and without the new messages must differ by nothing but an ending,
and the beginning must end with the token the model samples to end its turn.
"""

from __future__ import annotations

import json
import re
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import orjson

from ..errors import ConfigError
from .chat import ChatCall, Message, Reply, ToolCall, has_assistant
from .engine.base import IDS
from .tokenizer import Tokenizer
from .turn import Turn

History = Literal["exact", "template"]

_TAIL = 2048  # how much of a prompt a bridge looks back on: the last message is what matters
_CACHED_TOKENS = 4_000_000
_TEXT_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class RenderFault(Exception):
    """The chat template can't render these messages; the agent's request is at fault."""


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
        """`renderer` is a name `renderers` knows, `auto` (by the tokenizer's name) or `default` (its chat template)."""
        if history not in ("exact", "template"):
            raise ConfigError(f"history={history!r} is neither 'exact' nor 'template'")
        self.tokenizer = tokenizer
        self.history = history
        self._create = _factory(tokenizer, renderer, history)
        self._renderers: dict[bytes, Any] = {}
        self._template = dict(template or {})
        self._plain = self._renderer({})
        self.name: str = getattr(self._plain.config, "name", "default")
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(self._plain.get_stop_token_ids()))
        if not self.stop_ids:
            raise ConfigError(f"the tokenizer {tokenizer.name_or_path!r} has no token that ends a turn")
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._cached = 0

    # Prompts

    def render(self, call: ChatCall, key: bytes | None = None) -> array[int]:
        """The whole conversation's prompt. Calls with the same `key` have the same prompt, and share the work."""
        if key is not None and key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        try:
            ids = self._renderer(call.template).render_ids(
                call.messages, tools=call.tools or None, add_generation_prompt=True
            )
        except Exception as error:  # a Jinja template may raise anything it likes
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        prompt = array(IDS, ids)
        if key is not None:
            self._cache[key] = prompt
            self._cached += len(prompt)
            while self._cached > _CACHED_TOKENS and self._cache:
                self._cached -= len(self._cache.popitem(last=False)[1])
        return prompt

    def bridge(self, turn: Turn, call: ChatCall, used: int) -> tuple[int, array[int]] | None:
        """How the prompt goes on from `turn` with the messages after the first `used`: tokens kept, tokens added.

        None where exactness can't be had: the conversation is then rendered anew.
        """
        new = call.messages[used:]
        if not new or has_assistant(new):
            return None
        known = turn.delta[-_TAIL:].tolist()
        sampled = turn.sampled.tolist()
        renderer = self._renderer(call.template)
        try:
            bridged = renderer.bridge_to_next_turn(known, sampled, new, tools=call.tools or None)
        except Exception as error:
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        if bridged is not None:
            ids: list[int] = bridged.token_ids
        elif self._is_generic(renderer):
            added = self._generic_bridge(renderer, call, used, sampled)
            if added is None:
                return None
            ids = known + sampled + added
        else:
            return None
        old = known + sampled
        common = len(old) if ids[: len(old)] == old else _common(ids, old)
        if common < len(known):
            return None
        return turn.length - (len(old) - common), array(IDS, ids[common:])

    def _generic_bridge(self, renderer: Any, call: ChatCall, used: int, sampled: list[int]) -> list[int] | None:
        """The tokens after the assistant's turn, for a template known only by what it does."""
        messages = call.messages
        if self.history == "exact":  # what the template does to old reasoning is not to decide over exactness
            messages = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]
        tools = call.tools or None
        try:
            before = renderer.text(messages[:used], tools, False)
            whole = renderer.text(messages, tools, True)
        except Exception as error:
            raise RenderFault(f"the model's chat template can't render these messages: {error}") from error
        ends = [self.tokenizer.decode([stop]) for stop in self.stop_ids]
        stripped = before.rstrip()
        end = next((end for end in ends if stripped.endswith(end)), None)
        if end is None or not whole.startswith(stripped):
            return None
        ending = self.tokenizer.encode(whole[len(stripped) :])
        closed = bool(sampled) and sampled[-1] in self.stop_ids
        return ending if closed else [self.stop_ids[ends.index(end)], *ending]

    def forced(self, call: ChatCall) -> list[int]:
        """The tokens that make the model begin with a tool call, as `tool_choice` asks for."""
        if call.tool_choice in ("auto", "none"):
            return []
        name = call.tool_choice.removeprefix("=") if call.tool_choice.startswith("=") else None
        probe = name or "probe_name"
        history: list[Message] = [{"role": "user", "content": "x"}]
        arguments = {"probe_key": 1}
        reply: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": probe, "arguments": arguments}}],
        }
        renderer = self._renderer(call.template)
        try:
            start = renderer.render_ids(history, tools=call.tools, add_generation_prompt=True)
            whole = renderer.render_ids([*history, reply], tools=call.tools)
        except Exception as error:
            raise RenderFault(f"the model's chat template can't force a tool call: {error}") from error
        text = self.tokenizer.decode(whole[_common(whole, start) :])
        end = text.rfind("{", 0, max(0, text.find("probe_key"))) if name else text.find(probe)
        if end <= 0 or (name and name not in text[:end]):
            raise RenderFault("this model's tool format has no place to force a call in")
        return self.tokenizer.encode(text[:end])

    # Replies

    def parse(self, sampled: Sequence[int], prompt_end: Sequence[int], call: ChatCall, uid: str) -> Reply:
        """What the sampled ids say. `prompt_end` are the prompt's last ids: they may have begun the reply."""
        ids = list(sampled)
        tools = call.tools or None
        parsed = self._renderer(call.template).parse_response(ids, tools=tools, prompt_ids=list(prompt_end))
        reply = Reply(content=parsed.content.strip("\n"), reasoning=(parsed.reasoning_content or "").strip("\n"))
        attempts = parsed.tool_calls
        if not tools or call.tool_choice == "none":
            if attempts:  # nothing to call: what looks like a call is text
                reply.content = self._visible(ids, reply)
            return reply
        broken: list[str] = []
        for attempt in attempts:
            if attempt.status == "ok" or (attempt.name and attempt.status == "unknown_tool"):
                reply.tool_calls.append(_tool_call(uid, len(reply.tool_calls), attempt.name, attempt.arguments))
            else:
                broken.append(f"<tool_call>{attempt.raw}</tool_call>")
        if not attempts and "<tool_call>" in reply.content:
            _parse_text_calls(reply, uid, broken)
        reply.parse_failures = len(broken)
        if broken:
            reply.content = "\n".join(filter(None, [reply.content, *broken]))
        return reply

    def _visible(self, ids: list[int], reply: Reply) -> str:
        while ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        text = self.tokenizer.decode(ids)
        return text.partition("</think>")[2].strip("\n") if reply.reasoning and "</think>" in text else text

    def _renderer(self, template: dict[str, Any]) -> Any:
        settings = self._template | template
        key = orjson.dumps(settings, option=orjson.OPT_SORT_KEYS) if settings else b""
        found = self._renderers.get(key)
        if found is None:
            if len(self._renderers) > 64:
                raise RenderFault("too many different chat template settings")
            try:
                found = self._renderers[key] = self._create(settings)
            except ConfigError:
                raise
            except Exception as error:
                raise RenderFault(f"chat_template_kwargs {settings} are refused: {error}") from error
        return found

    def _is_generic(self, renderer: Any) -> bool:
        return isinstance(renderer, _generic_class())


def _factory(tokenizer: Tokenizer, name: str, history: History) -> Callable[[dict[str, Any]], Any]:
    """What makes a renderer with given template settings."""
    try:
        from renderers import DefaultRendererConfig, config_from_name, create_renderer, merge_chat_template_kwargs
        from renderers.base import MODEL_RENDERER_MAP
    except ImportError as error:
        raise ConfigError(
            "the gateway renders with the package `renderers` (Python 3.11 or later)",
            hint="pip install 'agentcore-rl-toolkit[gateway]'",
        ) from error
    if name == "auto":
        name = MODEL_RENDERER_MAP.get(tokenizer.name_or_path, "default")
    if name == "default":
        if not tokenizer.chat_template:
            raise ConfigError(
                f"{tokenizer.name_or_path!r} has no chat template and no renderer of its own",
                hint="name the model's family, e.g. --renderer qwen3",
            )
        parsers = _parsers(tokenizer)
        return lambda template: _generic_class()(tokenizer, DefaultRendererConfig(**parsers, **template))
    try:
        base = config_from_name(name)
    except ValueError as error:
        raise ConfigError(f"there is no renderer {name!r}: {error}") from error
    assert base is not None
    if history == "exact":
        base = base.model_copy(update={"thinking_retention": "all"})

    def create(template: dict[str, Any]) -> Any:
        return create_renderer(tokenizer, merge_chat_template_kwargs(base, template))

    return create


def _generic_class() -> type[Any]:
    """A renderer for any chat template, which also gives the text before it is tokenized."""
    global _Generic
    if _Generic is None:
        from renderers.default import DefaultRenderer, _decode_tool_call_arguments

        class Generic(DefaultRenderer):  # type: ignore[misc, unused-ignore]
            def text(self, messages: list[Message], tools: Any, add_generation_prompt: bool) -> str:
                settings = dict(self.config.model_extra or {})
                if tools is not None:
                    settings["tools"] = tools
                text: str = self._tokenizer.apply_chat_template(
                    _decode_tool_call_arguments(messages),
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                    **settings,
                )
                return text

        _Generic = Generic
    return _Generic


_Generic: type[Any] | None = None


def _parsers(tokenizer: Tokenizer) -> dict[str, str]:
    """How a model without a renderer writes tool calls and reasoning, as far as its tokens and template tell."""
    template = tokenizer.chat_template or ""
    missing = (None, tokenizer.unk_token_id)
    parsers = {}
    if tokenizer.convert_tokens_to_ids("<tool_call>") not in missing:
        parsers["tool_parser"] = "qwen3.5" if "<function=" in template else "qwen3"
    if "<think>" in template:
        parsers["reasoning_parser"] = "think"
    return parsers


def _tool_call(uid: str, place: int, name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(f"call_{uid or uuid.uuid4().hex}_{place}", name, text)


def _parse_text_calls(reply: Reply, uid: str, broken: list[str]) -> None:
    """Calls written as text between `<tool_call>` tags, by models that have no tokens of their own for it."""
    for match in _TEXT_CALL.finditer(reply.content):
        try:
            found = json.loads(match[1])
            name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
        except (ValueError, TypeError, KeyError, AttributeError):
            broken.append(match[0])
            continue
        reply.tool_calls.append(_tool_call(uid, len(reply.tool_calls), str(name), arguments))
    reply.content = _TEXT_CALL.sub("", reply.content).strip("\n")


def _common(one: list[int], other: list[int]) -> int:
    common = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        common += 1
    return common
