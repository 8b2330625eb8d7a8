"""Which renderer of the package `renderers` a model gets: its family's own, or one for any chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ..errors import ConfigError
from .chat import Message
from .standins import StandIns

History = Literal["exact", "template"]


def factory(tokenizer: StandIns, name: str, history: History) -> Callable[[dict[str, Any]], Any]:
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
            def render_ids(
                self, messages: list[Message], *, tools: Any = None, add_generation_prompt: bool = False
            ) -> list[int]:
                ids: list[int] = self._tokenizer.encode(self.text(messages, tools, add_generation_prompt))
                return ids

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


def is_generic(renderer: Any) -> bool:
    return isinstance(renderer, _generic_class())


def _parsers(tokenizer: StandIns) -> dict[str, str]:
    """How a model without a renderer writes tool calls and reasoning, as far as its tokens and template tell."""
    template = tokenizer.chat_template or ""
    missing = (None, tokenizer.unk_token_id)
    parsers = {}
    if tokenizer.convert_tokens_to_ids("<tool_call>") not in missing:
        parsers["tool_parser"] = "qwen3.5" if "<function=" in template else "qwen3"
    if "<think>" in template:
        parsers["reasoning_parser"] = "think"
    return parsers
