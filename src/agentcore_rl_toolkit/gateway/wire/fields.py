"""Request bodies as msgspec structs: the same declarations parse a body and describe it in OpenAPI. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ...errors import GatewayFault

T = TypeVar("T")

INT32_MAX = 2**31 - 1
MAX_CHOICES = 128
Temperature = Annotated[float, Meta(ge=0, le=100)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopK = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
PositiveCount = Annotated[int, Meta(ge=1, le=INT32_MAX)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StopStrings = Annotated[list[str], Meta(max_length=16)]
Name = Annotated[str, Meta(min_length=1)]

_PLACE = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_ONE_OF = re.compile(r"Expected `str` matching regex '\^\((.*)\)\$'")


def parse(body: Any, kind: type[T], within: str = "") -> T:
    """Convert `body` to the struct `kind`, or raise a `GatewayFault` that names the field, its value and the type.

    `within` is the path of `body` in the whole request. A float without a fraction may stand for an integer.
    """
    while True:
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError as error:
            problem, path = _split(str(error))
            if not problem.startswith("Expected `int") or not _make_integer(body, path):
                raise _fault(body, problem, path, within) from None


def _split(message: str) -> tuple[str, list[str | int]]:
    """What msgspec found wrong, and the path of the value."""
    found = _PLACE.search(message)
    if found is None:
        return message, []
    known = found[1].partition("[...]")[0]  # msgspec does not name keys of plain objects
    path = [int(index) if index else name for name, index in _STEP.findall(known)]
    return message[: found.start()], path


def _make_integer(body: Any, path: list[str | int]) -> bool:
    """Replace a float at `path` by the equal integer; returns whether one exists."""
    value = _at(body, path)
    if not path or not isinstance(value, float) or not value.is_integer() or abs(value) > 2**63:
        return False
    _at(body, path[:-1])[path[-1]] = int(value)
    return True


def _at(body: Any, path: list[str | int]) -> Any:
    for step in path:
        body = body[step]
    return body


def _fault(body: Any, problem: str, path: list[str | int], within: str) -> GatewayFault:
    where = within + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    where = where.removeprefix(".")
    missing = _MISSING.fullmatch(problem)
    if missing is not None or problem.endswith(", got `null`"):
        param = f"{where}.{missing[1]}".removeprefix(".") if missing is not None else where
        return GatewayFault.invalid(f"{param} is missing", param=param)
    one_of = _ONE_OF.fullmatch(problem)
    names = [name for name in one_of[1].split("|") if name] if one_of is not None else []
    expected = f"expected one of {', '.join(names)}" if names else problem[0].lower() + problem[1:]
    return GatewayFault.invalid(f"{where or 'the body'} is {short(_at(body, path))}: {expected}", param=where or "body")


def short(value: Any) -> str:
    """A value as an error message shows it."""
    return repr(value)[:80]
