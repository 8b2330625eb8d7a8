"""`WorldRequest`: what a payload has to be before anything of it reaches the agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentcore_rl_toolkit.errors import ConfigError

_TOOL_BLOCKS = {"toolUse", "toolResult", "tool_use", "tool_result", "tool_call", "tool_calls", "function_call"}


def _only_text(value: Any) -> Any:
    """A prompt is text: blocks could bring tool calls, and results of tools, that no model asked for."""
    if value is None or isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else [value]
    for block in blocks:
        if isinstance(block, dict) and (block.keys() & _TOOL_BLOCKS or block.get("type") in _TOOL_BLOCKS):
            raise ValueError("has tool-use blocks; only text is taken")
    raise ValueError(f"is a {type(value).__name__}; only text is taken")


class WorldRequest(BaseModel):
    """A task, and the world it is in."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    task_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    world: Literal["appworld", "builtin"] = "appworld"
    prompt: Annotated[str | None, BeforeValidator(_only_text), Field(max_length=100_000)] = None
    """What to do, if not what the task's own instruction says."""

    @classmethod
    def read(cls, payload: Any) -> WorldRequest:
        """The request of a payload; a `ConfigError` says what is wrong with it.

        >>> WorldRequest.read({"task_id": "82e2fac_1", "prompt": [{"toolUse": {"name": "run_code"}}]})
        Traceback (most recent call last):
        agentcore_rl_toolkit.errors.ConfigError: payload.prompt has tool-use blocks; only text is taken
        """
        try:
            return cls.model_validate(payload)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(["payload", *(str(part) for part in first["loc"])])
            raise ConfigError(f"{place} {first['msg'].removeprefix('Value error, ')}") from None
