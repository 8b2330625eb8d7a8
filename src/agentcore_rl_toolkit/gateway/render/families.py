"""Which renderer a model gets, by what its tokenizer is: its vocabulary and its chat template, whatever its name.

Every renderer of the package `renderers` that finds its special tokens in the vocabulary renders a set of probes. The
one that renders all of them as the chat template does is taken. Where none does, the template itself renders, and
replies are read by the renderer that reads the template's own calls and reasoning best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import ConfigError
from ..call.chat import ChatCall, Message, ToolCall, parse_arguments
from .chat_template import ChatTemplate, TemplateRenderer
from .probes import TEXT, THOUGHT, TOOL, USER, Difference, ProbeComparison, Render, calling, compare
from .reply_parser import ReplyParser
from .template_reply import template_reply_ids
from .tokenizer import Tokenizer
from .tool_formats import READERS, TextReader

History = Literal["exact", "template"]
_SPOKEN = {"at": "Paris", "days": 2}
_PARSERS = ("qwen3", "qwen3.5", "glm", "deepseek_v3")
_LONGEST_DATE = "%d %b %Y"


@dataclass(frozen=True)
class Family:
    """A renderer that was chosen."""

    name: str
    """As `renderers` names it; `default` for the chat template itself."""
    create: Callable[[dict[str, Any]], Any] = field(repr=False)
    """Makes a renderer with given template settings."""
    format: str
    """The renderer that reads replies."""
    checked: bool
    """It was compared with the tokenizer's chat template."""
    nearest: tuple[str, Difference] | None = None
    """Where none fits: the one that came nearest, and its first difference."""
    later: Difference | None = None
    """Of a renderer that was asked for: where it differs from the template, though not in a first prompt."""


def choose(tokenizer: Tokenizer, name: str, history: History, settings: dict[str, Any]) -> Family:
    """The renderer for a tokenizer: the one named, `auto`, or `default` for its chat template."""
    try:
        import renderers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the gateway renders with the package `renderers` (Python 3.11 or later)",
            hint="pip install 'agentcore-rl-toolkit[gateway]'",
        ) from error
    if name not in ("auto", "default"):
        return _named(tokenizer, name, history, settings)
    if not tokenizer.chat_template:
        return _by_name(tokenizer, history)
    nearest = None
    if name == "auto":
        found, nearest = _fitting(tokenizer, history, settings)
        if found is not None:
            return found
    return _by_template(tokenizer, settings, nearest)


def _by_name(tokenizer: Tokenizer, history: History) -> Family:
    """Without a template, the name of the model has to tell."""
    from renderers.base import MODEL_RENDERER_MAP

    name = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    if name is None:
        raise ConfigError(
            f"{tokenizer.name_or_path!r} has no chat template and no renderer of its own",
            hint="name the model's family, e.g. --renderer qwen3",
        )
    return Family(name, _creator(tokenizer, _config(name), history), name, checked=False)


def _named(tokenizer: Tokenizer, name: str, history: History, settings: dict[str, Any]) -> Family:
    """The renderer that was asked for, if a session's first prompt is what the chat template renders."""
    base = _config(name)
    if not tokenizer.chat_template:
        return Family(name, _creator(tokenizer, base, history), name, checked=False)
    template = ChatTemplate(tokenizer, settings)
    tried = list(_compared(tokenizer, _variants(base), settings, template))
    if not tried:  # it can't be made at all, and the caller says why
        return Family(name, _creator(tokenizer, base, history), name, checked=False)
    config, found = max(tried, key=lambda one: (one[1].agreed, -one[1].thoughts))
    if found.difference is not None and found.difference.first:
        raise ConfigError(
            f"the renderer {name!r} is not that of {tokenizer.name_or_path!r}: {found.difference}",
            hint="leave --renderer out, and the one that fits the tokenizer is chosen",
        )
    return Family(name, _creator(tokenizer, config, history), name, checked=True, later=found.difference)


def _fitting(
    tokenizer: Tokenizer, history: History, settings: dict[str, Any]
) -> tuple[Family | None, tuple[str, Difference] | None]:
    """The renderer that does what the template does; if there is none, the nearest and its first difference."""
    template = ChatTemplate(tokenizer, settings)
    fitting: list[tuple[tuple[int, int], Any]] = []
    nearest: tuple[int, str, Difference] | None = None
    for config, found in _compared(tokenizer, _candidates(tokenizer), settings, template):
        if found.difference is None:
            rank = (found.thoughts, _unknown_settings(config, tokenizer.chat_template or ""))
            fitting.append((rank, config))
            if not any(rank):
                break
        elif nearest is None or found.agreed > nearest[0]:
            nearest = (found.agreed, config.name, found.difference)
    if not fitting:
        return None, nearest[1:] if nearest is not None else None
    _, config = min(fitting, key=lambda one: one[0])
    return Family(config.name, _creator(tokenizer, config, history), config.name, checked=True), None


def _candidates(tokenizer: Tokenizer) -> Iterator[Any]:
    """Configurations of all renderers; that of a model of this name first."""
    from renderers.base import MODEL_RENDERER_MAP

    first = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    names = dict.fromkeys([*([first] if first else []), *MODEL_RENDERER_MAP.values()])
    for name in names:
        yield from _variants(_config(name))


def _variants(config: Any) -> Iterator[Any]:
    """A configuration, and it with the settings that a family's templates have different defaults of."""
    yield config
    fields = type(config).template_field_names()
    if "enable_thinking" in fields:
        yield config.model_copy(update={"enable_thinking": False})
        yield config.model_copy(update={"enable_thinking": True})
    if "date_string" in fields:
        yield config.model_copy(update={"date_string": time.strftime(_LONGEST_DATE)})


def _unknown_settings(config: Any, template: str) -> int:
    """How many settings a renderer takes that the template doesn't: of two that fit, the one with fewer is its own."""
    return sum(name not in template for name in type(config).template_field_names())


def _compared(
    tokenizer: Tokenizer, configs: Iterator[Any], settings: dict[str, Any], template: ChatTemplate
) -> Iterator[tuple[Any, ProbeComparison]]:
    """The renderers that can be made for this vocabulary, beside the template."""
    from renderers import create_renderer, merge_chat_template_kwargs

    for config in configs:
        try:
            renderer = create_renderer(tokenizer, merge_chat_template_kwargs(config, settings))
        except Exception:  # special tokens that the vocabulary hasn't, settings it doesn't take, files it can't load
            continue
        yield config, compare(_rendering(renderer), template.text, tokenizer.encode, tokenizer.decode)


def _rendering(renderer: Any) -> Render:
    return lambda messages, tools, reply_follows: renderer.render_ids(
        messages, tools=tools, add_generation_prompt=reply_follows
    )


def _config(name: str) -> Any:
    from renderers import config_from_name

    try:
        return config_from_name(name)
    except ValueError as error:
        raise ConfigError(f"there is no renderer {name!r}: {error}") from error


def _creator(tokenizer: Tokenizer, config: Any, history: History) -> Callable[[dict[str, Any]], Any]:
    from renderers import create_renderer, merge_chat_template_kwargs

    if history == "exact":
        config = config.model_copy(update={"thinking_retention": "all"})
    return lambda settings: create_renderer(tokenizer, merge_chat_template_kwargs(config, settings))


# The template itself


def _by_template(tokenizer: Tokenizer, settings: dict[str, Any], nearest: tuple[str, Difference] | None) -> Family:
    best = max(_readers(tokenizer, settings), key=lambda one: one[0])
    _, name, plain = best

    def create(settings: dict[str, Any]) -> TemplateRenderer:
        return TemplateRenderer(tokenizer, settings, plain.parser, like=plain)

    return Family("default", create, name, checked=True, nearest=nearest)


def _readers(tokenizer: Tokenizer, settings: dict[str, Any]) -> Iterator[tuple[int, str, TemplateRenderer]]:
    """Renderers that could read what the template writes, and how much of it each reads as what it is."""
    first = TemplateRenderer(tokenizer, settings, None)
    stop_ids, said = first.get_stop_token_ids(), list(_said(tokenizer, first))
    replies = ReplyParser(tokenizer, stop_ids)
    for name, parser in _parsers(tokenizer):
        renderer = TemplateRenderer(tokenizer, settings, parser, like=first)
        score = sum(_reads(replies, renderer, ids, prompt, message) for ids, prompt, message in said)
        yield score, name, renderer
        if score == len(said):
            return


def _parsers(tokenizer: Tokenizer) -> Iterator[tuple[str, Any]]:
    """First those that need nothing but tokens, then every renderer that the vocabulary allows."""
    from renderers import DefaultRendererConfig, create_renderer
    from renderers.default import DefaultRenderer

    thoughts = {"reasoning_parser": "think"} if "<think>" in (tokenizer.chat_template or "") else {}
    has_calls = tokenizer.convert_tokens_to_ids("<tool_call>") not in (None, tokenizer.unk_token_id)
    for tool_parser in (*_PARSERS, None) if has_calls else (None, *_PARSERS):
        config = DefaultRendererConfig(tool_parser=tool_parser, **thoughts)
        try:
            yield tool_parser or "default", DefaultRenderer(tokenizer, config)
        except Exception:  # tokens that the vocabulary hasn't
            continue
    for name, (mark, read) in READERS.items():
        if mark in (tokenizer.chat_template or ""):
            yield name, TextReader(tokenizer, read)
    for config in _candidates(tokenizer):
        try:
            yield config.name, create_renderer(tokenizer, config)
        except Exception:
            continue


def _said(tokenizer: Tokenizer, renderer: TemplateRenderer) -> Iterator[tuple[list[int], list[int], Message]]:
    """Replies as the model samples them, the prompts before them, and what they say."""

    def prompt(messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        return renderer.render_ids(messages, tools=tools, add_generation_prompt=True)

    thoughtful = calling(arguments=_SPOKEN, reasoning_content="Hm.")
    for message in (TEXT, calling(arguments=_SPOKEN), calling(2, _SPOKEN), THOUGHT, thoughtful):
        try:
            ids = template_reply_ids(tokenizer, prompt, renderer.stops(), [USER], message, [TOOL])
            yield ids, prompt([USER], [TOOL]), message
        except Exception:  # a template that doesn't take it, or writes no end
            continue


def _reads(replies: ReplyParser, renderer: Any, ids: list[int], prompt: list[int], message: Message) -> bool:
    try:
        reply = replies.parse(renderer, ids, prompt[-64:], ChatCall([USER], [TOOL]), "probe")
    except Exception:  # a parser of another format may raise anything
        return False
    calls = [{"function": _function(call)} for call in reply.tool_calls]
    wanted = [{"function": call["function"]} for call in message.get("tool_calls", ())]
    return (reply.content, calls) == (message["content"], wanted) and (
        not reply.reasoning or reply.reasoning == message.get("reasoning_content")
    )


def _function(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": parse_arguments(call.arguments)}
