"""`JsonSchemaValidity`: is the response JSON of the right shape? Needs `jsonschema` (extra `rewards`).

It ignores `format`, and fetches no `$ref` from the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..agent.reward import RewardFunction
from ..errors import ConfigError
from ._fence import last_fenced


class JsonSchemaValidity(RewardFunction):
    """1.0 if the response is JSON (bare, or in its last ```json fence) that is valid under the schema, else 0.0.

    With `partial=True` an invalid object earns its share of valid properties, below 1.0: required and present declared
    properties count one each, and the whole object counts one more. An invalid schema raises `ConfigError` at once.

    >>> schema = {"properties": {"city": {"type": "string"}, "zip": {"type": "string"}}, "required": ["city", "zip"]}
    >>> JsonSchemaValidity(schema)(response_text='{"city": "Paris", "zip": "75001"}')
    1.0
    >>> JsonSchemaValidity(schema, partial=True)(response_text='{"city": "Paris", "zip": 75001}')
    0.3333333333333333
    """

    def __init__(self, schema: Mapping[str, Any] | bool, *, partial: bool = False) -> None:
        self.partial = partial
        self._validator = _validator(schema)

    def __call__(self, *, response_text: str, **kwargs: Any) -> float:
        import referencing.exceptions

        try:
            value = _parse(response_text)
            errors = list(self._validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as error:
            raise ConfigError(
                f"the schema's $ref {error.ref!r} can't be resolved", hint="put it under $defs"
            ) from error
        except (ValueError, RecursionError):
            return 0.0
        if not errors:
            return 1.0
        return self._share(value, errors) if self.partial else 0.0

    def _share(self, value: Any, errors: list[Any]) -> float:
        schema = self._validator.schema
        if not isinstance(value, dict) or isinstance(schema, bool):
            return 0.0
        required = set(schema.get("required", ()))
        counted = required | (set(schema.get("properties", ())) & set(value))
        wrong = (required - set(value)) | {error.absolute_path[0] for error in errors if error.absolute_path}
        return len(counted - wrong) / (len(counted) + 1)


def _validator(schema: Any) -> Any:
    try:
        import jsonschema
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    except ImportError as error:
        message = f"JsonSchemaValidity needs a package that is not installed: {error}"
        raise ConfigError(message, hint="pip install 'agentcore-rl-toolkit[rewards]'") from error
    if not isinstance(schema, (Mapping, bool)):
        raise ConfigError(f"schema is a {type(schema).__name__}, not a JSON Schema", hint="pass a dict")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"schema is not a valid JSON Schema at {error.json_path}: {error.message}") from error
    # With this registry; the default one downloads what a $ref points to.
    return kind(schema, registry=REGISTRY)


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        fenced = last_fenced(text, "json")
        if fenced is None:
            raise
    return json.loads(fenced, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
