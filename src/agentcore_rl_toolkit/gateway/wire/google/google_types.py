"""Google's JSON: names in either case, and its `Schema` as a JSON schema. Pure."""

from __future__ import annotations

from typing import Any

_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
"""Numbers that Google writes as text, because JSON has no 64-bit integers."""
_SCHEMAS = {"parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "_responseJsonSchema"}
_OPAQUE = {"args", "response", *_SCHEMAS}
"""Fields whose values are the client's own."""


def in_camel_case(value: Any) -> Any:
    """A request with its field names as Google documents them, without those that are null.

    Google's servers accept names in camel case and in snake case.
    """
    if isinstance(value, list):
        return [in_camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_camel(name): inner for name, inner in value.items() if inner is not None}
    return {name: inner if name in _OPAQUE else in_camel_case(inner) for name, inner in named.items()}


def _camel(name: str) -> str:
    if "_" not in name or name.startswith("_"):
        return name
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


def json_schema(schema: Any) -> Any:
    """Google's `Schema` as a JSON schema; any other value unchanged."""
    if not isinstance(schema, dict):
        return schema
    given = {_camel(name): value for name, value in schema.items() if value is not None}
    read = {name: _member(name, value) for name, value in given.items() if name not in ("nullable", "propertyOrdering")}
    if read.get("type") == "type_unspecified":
        del read["type"]
    if given.get("nullable") is True:
        _allow_null(read)
    order, properties = given.get("propertyOrdering"), read.get("properties")
    if isinstance(order, list) and isinstance(properties, dict):
        first = [name for name in order if isinstance(name, str) and name in properties]
        read["properties"] = {name: properties[name] for name in [*first, *properties]}
    return read


def _member(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in ("properties", "$defs", "defs") and isinstance(value, dict):
        return {key: json_schema(inner) for key, inner in value.items()}
    if name in ("anyOf", "prefixItems") and isinstance(value, list):
        return [json_schema(inner) for inner in value]
    if name in ("items", "additionalProperties"):
        return json_schema(value)
    if name in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value


def _allow_null(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"].append({"type": "null"})
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], None]
