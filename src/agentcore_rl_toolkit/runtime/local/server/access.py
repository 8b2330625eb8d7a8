"""Who may use the runtime's port, which folders they may store results in, and what their bad requests log.

Web pages never may (`http_guard.py`). On loopback, processes of the runtime's own user may; all others need the token
that was made when the runtime started. Beyond loopback, every caller needs it. boto3 sends the token as its access key
id, other programs as `Authorization: Bearer …`. Signatures are not checked, so a presigned URL contains the token.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ....common.http_guard import GuardRefusal, RequestGuard, is_loopback, local_address
from ....common.socket_owner import is_own_process
from ....errors import RuntimeFault
from ....store.base import directory_of
from ...base import TOKEN_VARIABLE

_CREDENTIAL = re.compile(r"AWS4-[A-Z0-9-]+ .*?\bCredential=([^/,\s]+)/")

UNREADABLE = (web.RequestPayloadError, HttpProcessingError)
"""What aiohttp raises for a request, or a body, that it can't read."""


def http_logger() -> logging.Logger:
    """The logger for an HTTP server, without the tracebacks of requests that are unreadable or break off: callers could
    fill the log with them."""
    logger = logging.getLogger(f"{__package__}.http")
    theirs = (*UNREADABLE, ConnectionError)
    if not logger.filters:
        logger.addFilter(lambda record: not record.exc_info or not isinstance(record.exc_info[1], theirs))
    return logger


class Access:
    """The rules of one runtime's port."""

    def __init__(self, token: str, *, host: str, allow_hosts: Iterable[str]) -> None:
        self._token = token.encode()
        self._trusts_own = is_loopback(host)
        self._guard = RequestGuard.listening(host, allow_hosts)

    def refusal(self, headers: Mapping[str, str], query: Mapping[str, str], transport: Any) -> GuardRefusal | None:
        """Why a request is refused; None if it is allowed. `transport` is its connection."""
        refusal = self._guard.refusal(headers, local_address(transport))
        if refusal is not None:
            return refusal
        sent, is_bearer = _token_in(headers, query)
        if hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), self._token):
            return None
        hint = f"send the {TOKEN_VARIABLE} that the runtime printed, as AWS_ACCESS_KEY_ID or Authorization: Bearer …"
        if is_bearer:
            return GuardRefusal("this is not the runtime's token", hint)
        if self._trusts_own and is_own_process(transport):
            return None
        who = "processes of other or unknown users" if self._trusts_own else "requests"
        return GuardRefusal(f"{who} need the runtime's token", hint)


def check_store(payload: Mapping[str, Any], folders: Sequence[str]) -> None:
    """Refuse a rollout whose store is a folder outside of `folders`."""
    settings = payload.get("_rollout")
    name = settings.get("s3_bucket") if isinstance(settings, dict) else None
    directory = directory_of(name) if isinstance(name, str) else None
    if directory is None:
        return
    wanted = Path(os.path.realpath(directory))
    known = ", ".join(folders) or "none"
    if not any(wanted.is_relative_to(os.path.realpath(folder)) for folder in folders):
        raise RuntimeFault(
            f"s3_bucket: {name} is not in a folder that this runtime may store results in",
            code="AccessDeniedException",
            hint=f"it may use {known} and folders below; start it with --allow-store for others",
        )


def _token_in(headers: Mapping[str, str], query: Mapping[str, str]) -> tuple[str, bool]:
    """The token in a request, and whether it was sent as one: an AWS client may send another key id."""
    authorization = headers.get("Authorization", "")
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip(), True
    if scheme == "AWS":
        return rest.partition(":")[0], False
    if match := _CREDENTIAL.match(authorization):
        return match[1], False
    return query.get("X-Amz-Credential", "").partition("/")[0] or query.get("AWSAccessKeyId", ""), False
