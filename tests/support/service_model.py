"""Requests to AWS's services, checked by botocore's own service models: boto3 leaves most of it to the service."""

from __future__ import annotations

import functools
import re
from typing import Any

import botocore.session


class Refused(Exception):
    """An error of the service: its code and its message."""


@functools.cache
def service_model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def check_request(service: str, operation: str, members: dict[str, Any]) -> None:
    """Refuse a request that the service's model doesn't allow."""
    check_shape(service_model(service).operation_model(operation).input_shape, members, operation)


def check_shape(shape: Any, value: Any, at: str) -> None:
    """Refuse what a shape doesn't allow: members, patterns, values of enums, and ranges."""
    if getattr(shape, "is_document_type", False):
        return
    if shape.type_name == "structure":
        for name in shape.required_members:
            if name not in value:
                raise Refused("ValidationException", f"{at}.{name} is required")
        for name, item in value.items():
            if name not in shape.members:
                raise Refused("ValidationException", f"{at}.{name} is unknown")
            check_shape(shape.members[name], item, f"{at}.{name}")
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            raise Refused("ValidationException", f"{at} takes one of {sorted(shape.members)}, not {sorted(value)}")
    elif shape.type_name in ("list", "map"):
        items = value.items() if shape.type_name == "map" else enumerate(value)
        for name, item in items:
            check_shape(shape.value if shape.type_name == "map" else shape.member, item, f"{at}.{name}")
    rules = shape.metadata
    size = len(value) if shape.type_name in ("string", "list", "map") else value
    if "pattern" in rules and not re.fullmatch(rules["pattern"].replace(r"\p{L}\p{Z}\p{N}", r"\w\s"), value):
        raise Refused("ValidationException", f"{at}: {value!r} does not match {rules['pattern']}")
    if "enum" in rules and value not in rules["enum"]:
        raise Refused("ValidationException", f"{at}: {value!r} is not one of {rules['enum']}")
    if ("min" in rules and size < rules["min"]) or ("max" in rules and size > rules["max"]):
        raise Refused("ValidationException", f"{at}: {value!r} is out of bounds")
