"""One field of a body at a time, or a clear refusal. Pure."""

from __future__ import annotations

from typing import Any

from ...errors import GatewayFault


def flag(body: dict[str, Any], name: str) -> bool:
    """True or false; not given is false."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise GatewayFault.invalid(f"{name} is {short(value)}, not true or false", param=name)
    return value


def whole(body: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A whole number within bounds."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise GatewayFault.invalid(
            f"{name} is {short(value)}; expected a whole number from {least} to {most}", param=name
        )
    return value


def text(body: dict[str, Any], name: str) -> str | None:
    """A text; empty is none."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise GatewayFault.invalid(f"{name} is {short(value)}, not a text", param=name)
    return value or None


def short(value: Any) -> str:
    """A value as an error message shows it."""
    return repr(value)[:80]
