"""`AgentCoreConfig`: the settings of an app, in one object.

An explicit value wins over the environment, and the environment over the default. Unknown names are refused.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

ENV_PREFIX = "AGENTCORE_RL_"


def _setting(default: Any, help: str, env: str | None = None, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"help": help, "env": env})


@dataclass(frozen=True, kw_only=True)
class AgentCoreConfig:
    """The settings of an app. `load()` also reads the environment; the constructor doesn't.

    >>> AgentCoreConfig.load(environ={"AGENTCORE_RL_S3_BUCKET": "from-env"}).s3_bucket
    'from-env'
    >>> AgentCoreConfig.load(s3_bucket="explicit", environ={"AGENTCORE_RL_S3_BUCKET": "from-env"}).s3_bucket
    'explicit'
    """

    s3_bucket: str | None = _setting(
        None,
        "Where results land when the request names no store: a bucket, s3://bucket/prefix or a directory.",
    )
    sqs_url: str | None = _setting(None, "SQS queue (name or URL) on which stored results are announced.")
    base_url: str | None = _setting(None, "OpenAI-compatible endpoint of the model in production.", env="BASE_URL")
    model_id: str | None = _setting(None, "Model name sent to that endpoint.", env="MODEL_ID")
    model_api_key: str | None = _setting(
        None, "Key sent to that endpoint in production.", env="MODEL_API_KEY", secret=True
    )
    allowed_stores: tuple[str, ...] = _setting(
        (), "Stores a request may name (exactly, or a parent of it). Empty: any that the credentials reach."
    )
    secret_keys: tuple[str, ...] = _setting(
        (), "Further names of `_rollout` fields whose values must never be stored or logged."
    )
    store_retry_seconds: float = _setting(120.0, "How long a store write is retried before it is given up.")
    shutdown_seconds: float = _setting(10.0, "How long a shutdown waits for results to be stored.")

    def __post_init__(self) -> None:
        own: type = type(self)
        for name, kind in _types(own).items():
            object.__setattr__(self, name, _coerce(name, getattr(self, name), kind))

    @classmethod
    def load(cls, *, environ: Mapping[str, str] | None = None, **explicit: Any) -> AgentCoreConfig:
        """Build a config from `explicit` values, then the environment, then defaults."""
        environ = os.environ if environ is None else environ
        known = {f.name: f for f in dataclasses.fields(cls)}
        for name in explicit:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
                raise ConfigError(f"unknown setting {name!r}", hint=hint)
        values = {name: value for name, value in explicit.items() if value is not None}
        for name, spec in known.items():
            for variable in (ENV_PREFIX + name.upper(), spec.metadata["env"]):
                if name not in values and variable and environ.get(variable):
                    values[name] = environ[variable]
        return cls(**values)


@functools.cache
def _types(settings: type) -> dict[str, Any]:
    """Each setting's type. Once for a process and those that are forked from it: it takes Python's compiler."""
    return typing.get_type_hints(settings)


def _coerce(name: str, value: Any, kind: Any) -> Any:
    """Convert `value`, often a string from the environment, to the field's type."""
    if kind == tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple, set, frozenset)) or not all(isinstance(i, str) for i in items):
            raise ConfigError(f"{name} must be a list of strings or a comma-separated string, not {value!r}")
        return tuple(item.strip() for item in items if item.strip())
    if kind is float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} must be a number of seconds, not {value!r}") from None
        if not math.isfinite(number) or number < 0:
            raise ConfigError(f"{name} must be a number of seconds ≥ 0, not {value!r}")
        return number
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {type(value).__name__} ({value!r})")
    return value or None
