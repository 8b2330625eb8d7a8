"""Agents' requests besides model calls: the models to choose from, and the length of a prompt. No HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from ...errors import GatewayFault
from ..call.core import Core
from ..record.session import Session
from ..wire.anthropic.messages_request import CountTokensRequest, read_prompt
from ..wire.bedrock import converse, invoke_model
from ..wire.fields import parse
from ..wire.google import generate_content as google
from ..wire.google.generate_request import read_count
from ..wire.json_body import dump, read_json
from ..wire.routes import is_anthropic_client, is_google_client


class ModelQueries:
    """Answers from a `Core`, as bytes in the format of the wire that a query came over."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._started = int(time.time())

    async def list_models(self, session: Session, path: str, headers: Mapping[str, str]) -> bytes:
        await self._core.resolve_model(None, session)
        names = (session.settings.model,) if session.settings.model else self._core.info.models
        wire = _wire(path, headers)
        data = [self._describe(name, session, wire) for name in names]
        if wire == "google":
            return dump({"models": data})
        if wire == "openai":
            return dump({"object": "list", "data": data})
        first, last = (names[0], names[-1]) if names else (None, None)
        return dump({"data": data, "has_more": False, "first_id": first, "last_id": last})

    async def describe_model(self, session: Session, path: str, headers: Mapping[str, str]) -> bytes:
        name = unquote(path.partition("odels/")[2])
        served = await self._core.resolve_model(name, session)
        if served != name:
            raise GatewayFault(
                f"the model {name!r} does not exist", status=404, code="model_not_found", hint=f"use {served}"
            )
        return dump(self._describe(name, session, _wire(path, headers)))

    async def count_tokens(self, session: Session, route: str, path: str, raw: bytes) -> bytes:
        """How many tokens a prompt has. `path` names the model on some routes."""
        body = read_json(raw)
        if route == "v1/messages/count_tokens":
            name, call = "input_tokens", read_prompt(parse(body, CountTokensRequest))
        elif route.startswith("v1beta"):
            name, call = "totalTokens", read_count(body, google.model_name(path))
        else:
            asked = parse(body, invoke_model.BedrockCountRequest)
            name, call = "inputTokens", invoke_model.read_count(asked, converse.model_name(path))
        return dump({name: await self._core.count(session, call, size=len(raw))})

    def _describe(self, name: str, session: Session, wire: str) -> dict[str, Any]:
        limits = [limit for limit in (session.settings.context_limit, self._core.info.context_length) if limit]
        context = min(limits, default=None)
        if wire == "google":
            tokens = {"inputTokenLimit": context, "outputTokenLimit": context} if context else {}
            methods = ["generateContent", "countTokens"]
            return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods, **tokens}
        if wire == "openai":
            fields = {"id": name, "object": "model", "created": self._started, "owned_by": "agentcore-rl-toolkit"}
            return fields | {"max_model_len": context}
        created = datetime.fromtimestamp(self._started, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"id": name, "display_name": name, "type": "model", "created_at": created}
        return fields | {"lifecycle": "active", "max_input_tokens": context}


def _wire(path: str, headers: Mapping[str, str]) -> str:
    if not path.startswith("v1/models") or is_google_client(headers):
        return "google"
    return "anthropic" if is_anthropic_client(headers) else "openai"
