"""What agents' clients ask besides model calls: which models there are, and how long a prompt would be. No HTTP."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from ...errors import GatewayFault
from ..call.chat import ChatCall
from ..call.core import Core
from ..record.session import Session
from ..wire import model_list as models
from ..wire.anthropic import messages as anthropic
from ..wire.bedrock import converse
from ..wire.bedrock.converse_request import read_converse
from ..wire.google import generate as google
from ..wire.google.generate_request import read_counted
from ..wire.json_body import dump, read_json
from ..wire.routes import speaks_anthropic, speaks_google


class Inquiries:
    """Answers from a `Core`, as bytes in the words of the wire that the question came over."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._started = int(time.time())

    async def models(self, session: Session, path: str, headers: Mapping[str, str]) -> bytes:
        """Those that a session may call."""
        await self._core.model(None, session)
        names = (session.settings.model,) if session.settings.model else self._core.info.models
        return models.listed(names, self._started, self._context(session), wire=_wire(path, headers))

    async def model(self, session: Session, path: str, headers: Mapping[str, str]) -> bytes:
        """One of them."""
        name = unquote(path.partition("odels/")[2])
        known = await self._core.model(name, session)
        if known != name:
            raise GatewayFault(
                f"the model {name!r} does not exist", status=404, code="model_not_found", hint=f"there is: {known}"
            )
        return models.described(name, self._started, self._context(session), wire=_wire(path, headers))

    async def count(self, session: Session, at: str, path: str, raw: bytes) -> bytes:
        """How long a prompt would be; `at` is the route, and the path names the model."""
        read, said = _COUNTED[at]
        return said(await self._core.count(session, read(read_json(raw), path), size=len(raw)))

    def _context(self, session: Session) -> int | None:
        limits = [limit for limit in (session.settings.context_limit, self._core.info.context_length) if limit]
        return min(limits, default=None)


def _wire(path: str, headers: Mapping[str, str]) -> str:
    if not path.startswith("v1/models") or speaks_google(headers):
        return "google"
    return "anthropic" if speaks_anthropic(headers) else "openai"


def _read_bedrock(body: dict[str, Any], path: str) -> ChatCall:
    """A request to `count-tokens`, which holds one to Converse or to InvokeModel."""
    given, model = body.get("input"), converse.model_name(path)
    if isinstance(given, dict) and isinstance(given.get("converse"), dict):
        return read_converse(given["converse"], model)
    invoked = given.get("invokeModel") if isinstance(given, dict) else None
    encoded = invoked.get("body") if isinstance(invoked, dict) else None
    if not isinstance(encoded, str):
        raise GatewayFault.invalid(
            "input has neither a converse request nor an invokeModel request with its body", param="input"
        )
    try:
        inner = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise GatewayFault.invalid("input.invokeModel.body is not base64", param="input") from None
    return anthropic.read_counted(read_json(inner) | {"model": model})


_COUNTED: dict[str, tuple[Callable[[dict[str, Any], str], ChatCall], Callable[[int], bytes]]] = {
    "v1/messages/count_tokens": (lambda body, path: anthropic.read_counted(body), anthropic.counted),
    "v1beta/models/{model}:countTokens": (
        lambda body, path: read_counted(body, google.model_name(path)),
        google.counted,
    ),
    "model/{model}/count-tokens": (_read_bedrock, lambda tokens: dump({"inputTokens": tokens})),
}
"""How a question is read, and how its answer is said."""
COUNTED = tuple(_COUNTED)
