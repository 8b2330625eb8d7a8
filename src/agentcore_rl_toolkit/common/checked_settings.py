"""Settings as frozen dataclasses that check themselves, from Python, a file or the command line. Contacts nothing."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ..errors import ConfigError
from .object_repr import object_repr

Settings = TypeVar("Settings", bound="CheckedSettings")

_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def option(default: Any, help: str, *, alias: str | None = None) -> Any:
    """Declare a setting; `alias` is its name in trainers' own files, which is accepted too."""
    metadata = {"help": help, "alias": alias}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckedSettings:
    """Settings that refuse values of the wrong type or out of range, and unknown names."""

    at_least_one: ClassVar[tuple[str, ...]] = ()
    at_least_zero: ClassVar[tuple[str, ...]] = ()
    more_than_zero: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The allowed values of a setting."""

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            _check_kind(spec.name, getattr(self, spec.name), kinds[spec.name])
        self._check_ranges()
        for name, allowed in self.choices.items():
            if getattr(self, name) not in (None, *allowed):
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")

    def _check_ranges(self) -> None:
        """Refuse numbers that can't work."""
        for spec in dataclasses.fields(self):
            number = getattr(self, spec.name)
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"{spec.name} must be a finite number, not {number}")
        ranges = {"at least 1": self.at_least_one, "at least 0": self.at_least_zero, "more than 0": self.more_than_zero}
        for bound, names in ranges.items():
            for name in names:
                value, least = getattr(self, name), float(bound[-1])
                if value is not None and not (value > least or (value == least and bound.startswith("at least"))):
                    raise ConfigError(f"{name} must be {bound}, not {value}")

    def __repr__(self) -> str:
        """What differs from the defaults; `env` may hold secrets."""
        defaults = type(self)()
        shown = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self) if spec.name != "env"}
        return object_repr(self, **{name: value for name, value in shown.items() if value != getattr(defaults, name)})

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """Other accepted names, as trainers' own files have them, each with ours."""
        return {spec.metadata["alias"]: spec.name for spec in dataclasses.fields(cls) if spec.metadata["alias"]}

    @classmethod
    def from_mapping(cls: type[Settings], values: Mapping[str, Any]) -> Settings:
        """Make settings from their names or aliases; refuse an unknown name."""
        kinds, aliases = typing.get_type_hints(cls), cls.aliases()
        fields = [spec.name for spec in dataclasses.fields(cls)]
        given: dict[str, Any] = {}
        for name, value in values.items():
            ours = aliases.get(name, name)
            if ours in given:
                raise ConfigError(f"{name} and {ours} are the same setting", hint="give one of them")
            if ours not in fields:
                close = difflib.get_close_matches(name, [*fields, *aliases], 1)
                hint = f"did you mean {close[0]!r}?" if close else f"the settings are: {', '.join(fields)}"
                raise ConfigError(f"unknown setting {name!r}", hint=hint)
            if isinstance(value, list) and typing.get_origin(kinds[ours]) is tuple:
                value = tuple(value)
            elif kinds[ours] is float and isinstance(value, str) and _EXPONENT.fullmatch(value):
                value = float(value)  # YAML 1.1 reads 1e-6 as text, because it has no dot
            given[ours] = value
        return cls(**given)


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Refuse a value of the wrong type: a file may hold anything."""
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    plain = tuple(typing.get_origin(one) or one for one in allowed)
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return
    if not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain):
        named = " or ".join("nothing" if one is type(None) else one.__name__ for one in plain)
        raise ConfigError(f"{name} must be {named}, not {value!r}")
