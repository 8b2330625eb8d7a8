"""`OfficeRequest`: what a payload has to be before anything of it reaches the agent."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from agentcore_rl_toolkit.errors import ConfigError

from .checks import Check
from .content import parse_content

_TOOL_BLOCKS = {"toolUse", "toolResult", "tool_use", "tool_result", "tool_call", "tool_calls", "function_call"}


def _only_text(value: Any) -> Any:
    """A prompt is text: blocks could bring tool calls, and results of tools, that no model asked for."""
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else [value]
    for block in blocks:
        if isinstance(block, dict) and (block.keys() & _TOOL_BLOCKS or block.get("type") in _TOOL_BLOCKS):
            raise ValueError("has tool-use blocks; only text is taken")
    raise ValueError(f"is a {type(value).__name__}; only text is taken")


Text = Annotated[str, BeforeValidator(_only_text), Field(min_length=1, max_length=100_000)]


class OfficeRequest(BaseModel):
    """A user's request, the files it is about, and for rollouts the checks on what comes of it."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    prompt: Text
    username: str = Field("Alice", pattern=r"^\w[\w .-]*$", max_length=64)
    """Whose calendar and mail `calendar/<username>.ics` and `emails/<username>/` are."""
    date: str = ""
    weekday: str = ""
    time: str = ""
    files: dict[str, Any] = Field(default_factory=dict)
    """What is in the workspace at the start, by path."""
    checks: list[Check] = Field(default_factory=list)
    references: dict[str, Any] = Field(default_factory=dict)
    """Files that `exact_match` compares with; the agent never sees them."""

    @field_validator("files", "references")
    @classmethod
    def _parsed(cls, files: dict[str, Any]) -> dict[str, Any]:
        return {name: parse_content(name, value) for name, value in files.items()}

    @property
    def text(self) -> str:
        """The prompt, with what a person at a desk would know anyway."""
        moment = " ".join(part for part in (self.weekday, self.date, self.time) if part)
        return f"You work for {self.username}." + (f" Now: {moment}." if moment else "") + f"\n\n{self.prompt}"

    @classmethod
    def read(cls, payload: Any) -> OfficeRequest:
        """The request of a payload; a `ConfigError` says what is wrong with it.

        >>> OfficeRequest.read({"prompt": [{"toolUse": {"name": "email_send"}}]})
        Traceback (most recent call last):
        agentcore_rl_toolkit.errors.ConfigError: payload.prompt has tool-use blocks; only text is taken
        """
        try:
            return cls.model_validate(payload)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(["payload", *(str(part) for part in first["loc"])])
            raise ConfigError(f"{place} {first['msg'].removeprefix('Value error, ')}") from None
