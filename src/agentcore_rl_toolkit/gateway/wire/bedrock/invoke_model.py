"""Bedrock's InvokeModel with the bodies of Anthropic's models: the Messages wire in AWS's envelope. Pure.

The path names the model, whole answers are Anthropic's, and a stream is frames whose chunks hold Anthropic's events.
Bodies of other model families are refused; Converse has one body for all of them.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import Struct

from ....common.eventstream import CONTENT_TYPE, KEEP_ALIVE, encode_event
from ....errors import GatewayFault
from ...call.chat import ChatCall
from ..anthropic.messages import MessagesExchange
from ..anthropic.messages_request import CountTokensRequest, read_prompt
from ..base import Wire, WireRequest
from ..fields import parse
from ..json_body import dump, read_json
from .converse import model_name, refuse, stream_exception
from .converse_request import ConverseRequest, read_converse

_OTHERS = ("prompt", "inputText", "inferenceConfig", "schemaVersion")
"""Fields that only bodies of other model families have."""


class InvokeExchange(MessagesExchange):
    def __init__(self, request: WireRequest, *, stream: bool) -> None:
        others = [name for name in _OTHERS if name in request.body]
        if others and "anthropic_version" not in request.body:
            raise GatewayFault.invalid(
                f"{others[0]} belongs to another model family's body: InvokeModel takes Anthropic's Messages here; "
                "call Converse (client.converse) for other models",
                param=others[0],
            )
        super().__init__(replace(request, body=request.body | {"model": model_name(request.path), "stream": stream}))

    def fail(self, fault: GatewayFault) -> bytes:
        return stream_exception(fault)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = base64.b64encode(dump({"type": kind, **fields})).decode()
        return encode_event("chunk", dump({"bytes": data}))


INVOKE = Wire(partial(InvokeExchange, stream=False), refuse)
STREAM = Wire(partial(InvokeExchange, stream=True), refuse, CONTENT_TYPE)


class InvokedModel(Struct):
    body: str


class CountInput(Struct, rename="camel"):
    converse: ConverseRequest | None = None
    invoke_model: InvokedModel | None = None


class BedrockCountRequest(Struct):
    """A request to `count-tokens`, which holds one to Converse or to InvokeModel."""

    input: CountInput


def read_count(request: BedrockCountRequest, model: str | None) -> ChatCall:
    if request.input.converse is not None:
        return read_converse(request.input.converse, model)
    if request.input.invoke_model is None:
        raise GatewayFault.invalid("input needs a converse request or an invokeModel request", param="input")
    try:
        body = base64.b64decode(request.input.invoke_model.body, validate=True)
    except (binascii.Error, ValueError):
        raise GatewayFault.invalid("input.invokeModel.body is not base64", param="input") from None
    return read_prompt(parse(read_json(body) | {"model": model}, CountTokensRequest))
