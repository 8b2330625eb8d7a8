"""Chooses a renderer for a tokenizer by its vocabulary and its chat template, not by its name.

Every renderer of the package `renderers` that finds its special tokens in the vocabulary renders a set of probes. The
gateway uses the one that renders all of them as the chat template does. If none does, the template itself renders, and
the renderer that best parses the template's own calls and reasoning parses replies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import ConfigError
from ..call.chat import ChatCall, Message
from .chat_template import ChatTemplate, TemplateRenderer
from .probes import TEXT, THOUGHT, TOOL, USER, Difference, ProbeComparison, Render, compare_rendering, make_calls
from .reply_parser import ReplyParser
from .template_reply import encode_template_reply, matches_reply
from .tokenizer import Tokenizer
from .tool_formats import READERS, TextReader

History = Literal["exact", "template"]
_ARGUMENTS = {"at": "Paris", "days": 2}
_PARSERS = ("qwen3", "qwen3.5", "glm", "deepseek_v3")
_LONGEST_DATE = "%d %b %Y"


@dataclass(frozen=True)
class Family:
    """The renderer that was chosen."""

    name: str
    """Its name in `renderers`; `default` for the chat template itself."""
    create: Callable[[dict[str, Any]], Any] = field(repr=False)
    """Creates a renderer with the given template settings."""
    format: str
    """The name of the renderer that parses replies."""
    checked: bool
    """Whether it was compared with the tokenizer's chat template."""
    nearest: tuple[str, Difference] | None = None
    """If no renderer fits: the nearest one, and its first difference from the template."""
    later: Difference | None = None
    """For a renderer requested by name: where a later prompt, not the first one, differs from the template."""


def choose_family(tokenizer: Tokenizer, name: str, history: History, settings: dict[str, Any]) -> Family:
    """Choose a renderer: by `name`, by probing (`auto`), or the chat template itself (`default`)."""
    try:
        import renderers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the gateway renders with the package `renderers`, which can't be imported: {error}",
            hint="pip install 'agentcore-rl-toolkit[gateway]' (Python 3.11 or later)",
        ) from error
    if name not in ("auto", "default"):
        return _check_named(tokenizer, name, history, settings)
    if not tokenizer.chat_template:
        return _look_up_model(tokenizer, history)
    nearest = None
    if name == "auto":
        found, nearest = _find_fitting(tokenizer, history, settings)
        if found is not None:
            return found
    return _use_template(tokenizer, settings, nearest)


def _look_up_model(tokenizer: Tokenizer, history: History) -> Family:
    """Without a chat template, look up the renderer by the model's name."""
    from renderers.base import MODEL_RENDERER_MAP

    name = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    if name is None:
        raise ConfigError(
            f"{tokenizer.name_or_path!r} has no chat template and no renderer of its own",
            hint="choose the renderer of its model family, for example --renderer qwen3",
        )
    return Family(name, _make_creator(tokenizer, _load_config(name), history), name, checked=False)


def _check_named(tokenizer: Tokenizer, name: str, history: History, settings: dict[str, Any]) -> Family:
    """The renderer `name`, if it renders a session's first prompt as the chat template does."""
    base = _load_config(name)
    if not tokenizer.chat_template:
        return Family(name, _make_creator(tokenizer, base, history), name, checked=False)
    template = ChatTemplate(tokenizer, settings)
    tried = list(_compare_all(tokenizer, _list_variants(base), settings, template))
    if not tried:  # it can't be created; the caller reports why
        return Family(name, _make_creator(tokenizer, base, history), name, checked=False)
    config, found = max(tried, key=lambda one: (one[1].agreed, -one[1].thoughts))
    if found.difference is not None and found.difference.first:
        raise ConfigError(
            f"the renderer {name!r} does not fit {tokenizer.name_or_path!r}: {found.difference}",
            hint="omit --renderer, and the gateway chooses one that fits the tokenizer",
        )
    return Family(name, _make_creator(tokenizer, config, history), name, checked=True, later=found.difference)


def _find_fitting(
    tokenizer: Tokenizer, history: History, settings: dict[str, Any]
) -> tuple[Family | None, tuple[str, Difference] | None]:
    """Find the renderer that renders as the template does; otherwise the nearest one and its first difference."""
    template = ChatTemplate(tokenizer, settings)
    fitting: list[tuple[tuple[int, int], Any]] = []
    nearest: tuple[int, str, Difference] | None = None
    for config, found in _compare_all(tokenizer, _list_candidates(tokenizer), settings, template):
        if found.difference is None:
            rank = (found.thoughts, _count_unknown_settings(config, tokenizer.chat_template or ""))
            fitting.append((rank, config))
            if not any(rank):
                break
        elif nearest is None or found.agreed > nearest[0]:
            nearest = (found.agreed, config.name, found.difference)
    if not fitting:
        return None, nearest[1:] if nearest is not None else None
    _, config = min(fitting, key=lambda one: one[0])
    return Family(config.name, _make_creator(tokenizer, config, history), config.name, checked=True), None


def _list_candidates(tokenizer: Tokenizer) -> Iterator[Any]:
    """Yield the configurations of all renderers, starting with the one registered for the model's name."""
    from renderers.base import MODEL_RENDERER_MAP

    first = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    names = dict.fromkeys([*([first] if first else []), *MODEL_RENDERER_MAP.values()])
    for name in names:
        yield from _list_variants(_load_config(name))


def _list_variants(config: Any) -> Iterator[Any]:
    """Yield the configuration, then copies with settings whose defaults differ between a family's templates."""
    yield config
    fields = type(config).template_field_names()
    if "enable_thinking" in fields:
        yield config.model_copy(update={"enable_thinking": False})
        yield config.model_copy(update={"enable_thinking": True})
    if "date_string" in fields:
        yield config.model_copy(update={"date_string": time.strftime(_LONGEST_DATE)})


def _count_unknown_settings(config: Any, template: str) -> int:
    """Count the settings that only the renderer knows; among fitting renderers, the one with the fewest is chosen."""
    return sum(name not in template for name in type(config).template_field_names())


def _compare_all(
    tokenizer: Tokenizer, configs: Iterator[Any], settings: dict[str, Any], template: ChatTemplate
) -> Iterator[tuple[Any, ProbeComparison]]:
    """Compare each renderer that can be created for this vocabulary with the template."""
    from renderers import create_renderer, merge_chat_template_kwargs

    for config in configs:
        try:
            renderer = create_renderer(tokenizer, merge_chat_template_kwargs(config, settings))
        except Exception:  # missing special tokens, unsupported settings, files that can't be loaded
            continue
        yield (
            config,
            compare_rendering(_make_render(renderer), template.render_text, tokenizer.encode, tokenizer.decode),
        )


def _make_render(renderer: Any) -> Render:
    return lambda messages, tools, reply_follows: renderer.render_ids(
        messages, tools=tools, add_generation_prompt=reply_follows
    )


def _load_config(name: str) -> Any:
    from renderers import config_from_name

    try:
        return config_from_name(name)
    except ValueError as error:
        raise ConfigError(f"unknown renderer {name!r}: {error}") from error


def _make_creator(tokenizer: Tokenizer, config: Any, history: History) -> Callable[[dict[str, Any]], Any]:
    from renderers import create_renderer, merge_chat_template_kwargs

    if history == "exact":
        config = config.model_copy(update={"thinking_retention": "all"})
    return lambda settings: create_renderer(tokenizer, merge_chat_template_kwargs(config, settings))


# Rendering with the template itself


def _use_template(tokenizer: Tokenizer, settings: dict[str, Any], nearest: tuple[str, Difference] | None) -> Family:
    best = max(_score_parsers(tokenizer, settings), key=lambda one: one[0])
    _, name, plain = best

    def create(settings: dict[str, Any]) -> TemplateRenderer:
        return TemplateRenderer(tokenizer, settings, plain.parser, like=plain)

    return Family("default", create, name, checked=True, nearest=nearest)


def _score_parsers(tokenizer: Tokenizer, settings: dict[str, Any]) -> Iterator[tuple[int, str, TemplateRenderer]]:
    """Yield each parser with the number of the template's replies that it parses correctly."""
    first = TemplateRenderer(tokenizer, settings, None)
    stop_ids, samples = first.get_stop_token_ids(), list(_sample_replies(tokenizer, first))
    replies = ReplyParser(tokenizer, stop_ids)
    for name, parser in _list_parsers(tokenizer):
        renderer = TemplateRenderer(tokenizer, settings, parser, like=first)
        score = sum(_parses_reply(replies, renderer, ids, prompt, message) for ids, prompt, message in samples)
        yield score, name, renderer
        if score == len(samples):
            return


def _list_parsers(tokenizer: Tokenizer) -> Iterator[tuple[str, Any]]:
    """Yield the parsers that need only tokens, then every renderer that the vocabulary allows."""
    from renderers import DefaultRendererConfig, create_renderer
    from renderers.default import DefaultRenderer

    thoughts = {"reasoning_parser": "think"} if "<think>" in (tokenizer.chat_template or "") else {}
    has_calls = tokenizer.convert_tokens_to_ids("<tool_call>") not in (None, tokenizer.unk_token_id)
    for tool_parser in (*_PARSERS, None) if has_calls else (None, *_PARSERS):
        config = DefaultRendererConfig(tool_parser=tool_parser, **thoughts)
        try:
            yield tool_parser or "default", DefaultRenderer(tokenizer, config)
        except Exception:  # the vocabulary lacks its tokens
            continue
    for name, (mark, read) in READERS.items():
        if mark in (tokenizer.chat_template or ""):
            yield name, TextReader(tokenizer, read)
    for config in _list_candidates(tokenizer):
        try:
            yield config.name, create_renderer(tokenizer, config)
        except Exception:
            continue


def _sample_replies(tokenizer: Tokenizer, renderer: TemplateRenderer) -> Iterator[tuple[list[int], list[int], Message]]:
    """Yield replies as the model would sample them, with their prompts and messages."""

    def prompt(messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        return renderer.render_ids(messages, tools=tools, add_generation_prompt=True)

    thoughtful = make_calls(arguments=_ARGUMENTS, reasoning_content="Hm.")
    for message in (TEXT, make_calls(arguments=_ARGUMENTS), make_calls(2, _ARGUMENTS), THOUGHT, thoughtful):
        try:
            ids = encode_template_reply(tokenizer, prompt, renderer.map_stops(), [USER], message, [TOOL])
            yield ids, prompt([USER], [TOOL]), message
        except Exception:  # the template refuses the reply, or does not end it
            continue


def _parses_reply(replies: ReplyParser, renderer: Any, ids: list[int], prompt: list[int], message: Message) -> bool:
    try:
        reply = replies.parse(renderer, ids, prompt[-64:], ChatCall([USER], [TOOL]), "probe")
    except Exception:  # a parser of another format may raise any exception
        return False
    return matches_reply(reply, message)
