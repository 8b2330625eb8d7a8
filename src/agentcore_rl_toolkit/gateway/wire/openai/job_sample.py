"""SageMaker's Job Runtime: Sample and SampleWithResponseStream, chat completions with AWS's errors. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ....errors import GatewayFault
from ..base import ErrorReply, Wire, WireRequest
from ..json_body import dump
from .chat_completions import ChatExchange

_ERRORS = {
    401: (403, "AccessDeniedException"),
    403: (403, "AccessDeniedException"),
    404: (404, "ResourceNotFoundException"),
    409: (409, "ConflictException"),
    410: (404, "ResourceNotFoundException"),
    429: (429, "ThrottlingException"),
}
"""AWS's status and error for each status of ours."""


class SampleExchange(ChatExchange):
    """One request to `/sample`, or to `/sample-with-response-stream`: the operation says whether it streams."""

    def __init__(self, request: WireRequest, *, stream: bool) -> None:
        super().__init__(replace(request, body=request.body | {"stream": stream}))


def refuse(fault: GatewayFault) -> ErrorReply:
    other = (400, "ValidationException") if fault.status < 500 else (500, "InternalServiceError")
    status, kind = _ERRORS.get(fault.status, other)
    return ErrorReply(status, dump({"Message": fault.message}), {"x-amzn-ErrorType": kind})


SAMPLE = Wire(partial(SampleExchange, stream=False), refuse)
STREAM = Wire(partial(SampleExchange, stream=True), refuse)
