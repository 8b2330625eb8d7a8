"""Bedrock's InvokeModel with the bodies of Anthropic's models: the Messages wire in AWS's envelope. Pure.

The model is named in the path, whole answers are Anthropic's, and a stream is frames whose chunks hold Anthropic's
events. Bodies of other model families are refused; Converse takes one body for all of them.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial
from typing import Any

from ....common.eventstream import CONTENT_TYPE, KEEP_ALIVE, encode_event
from ....errors import GatewayFault
from ..anthropic.messages import MessagesExchange
from ..base import Asked, Wire
from ..json_body import dump
from .converse import model_name, refuse, stream_exception

_OTHERS = ("prompt", "inputText", "inferenceConfig", "schemaVersion")
"""Fields that only bodies of other model families have."""


class InvokeExchange(MessagesExchange):
    """One request to `invoke`, or to `invoke-with-response-stream`."""

    def __init__(self, asked: Asked, *, stream: bool) -> None:
        others = [name for name in _OTHERS if name in asked.body]
        if others and "anthropic_version" not in asked.body:
            raise GatewayFault.invalid(
                f"{others[0]} belongs to another model family's body: InvokeModel takes Anthropic's Messages here; "
                "call Converse (client.converse) for other models",
                param=others[0],
            )
        super().__init__(replace(asked, body=asked.body | {"model": model_name(asked.path), "stream": stream}))

    def fail(self, fault: GatewayFault) -> bytes:
        return stream_exception(fault)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _event(self, kind: str, **fields: Any) -> bytes:
        said = base64.b64encode(dump({"type": kind, **fields})).decode()
        return encode_event("chunk", dump({"bytes": said}))


INVOKE = Wire(partial(InvokeExchange, stream=False), refuse)
STREAM = Wire(partial(InvokeExchange, stream=True), refuse, CONTENT_TYPE)
