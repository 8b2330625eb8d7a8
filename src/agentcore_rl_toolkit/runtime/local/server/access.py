"""Who may talk to the runtime's port, and which folders they may have results stored in.

Web pages never may (`http_guard.py`). On loopback the runtime's own user may, from any process; anybody else needs the
token that was made when the runtime started, and beyond loopback everybody does. boto3 sends the token as its access
key id, other programs as `Authorization: Bearer …`. Signatures are not checked, so whoever reads a presigned URL has
the token.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....common.http_guard import GuardRefusal, RequestGuard, is_loopback
from ....common.socket_owner import is_own_process
from ....errors import ConfigError, RuntimeFault
from ....store.base import directory_of
from ...base import TOKEN_VARIABLE

_SOUND_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_CREDENTIAL = re.compile(r"AWS4-[A-Z0-9-]+ .*?\bCredential=([^/,\s]+)/")
_EVERYWHERE = ("", "0.0.0.0", "::")


def choose_token(given: str | None) -> str:
    """The token that was given, or set in the environment, or a new one."""
    token = given or os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(20)
    if not _SOUND_TOKEN.fullmatch(token):
        raise ConfigError(
            "the runtime's token must be 16 to 128 letters, digits, '-' and '_'",
            hint=f"unset {TOKEN_VARIABLE} to have one made",
        )
    return token


class Access:
    """The rules of one runtime's port."""

    def __init__(self, token: str, *, host: str, allow_hosts: Iterable[str]) -> None:
        self._token = token.encode()
        self._trusts_own = is_loopback(host)
        self._guard = RequestGuard([*allow_hosts] if host in _EVERYWHERE else [host, *allow_hosts])
        self._own: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def refusal(self, headers: Mapping[str, str], query: Mapping[str, str], transport: Any) -> GuardRefusal | None:
        """Why a request is not served, None if it is; `transport` is its connection."""
        refusal = self._guard.refusal(headers, _arrived_at(transport))
        if refusal is not None:
            return refusal
        sent, is_bearer = _credential(headers, query)
        if hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), self._token):
            return None
        hint = f"send the {TOKEN_VARIABLE} that it printed: as AWS_ACCESS_KEY_ID, or as Authorization: Bearer …"
        if is_bearer:
            return GuardRefusal("this is not the runtime's token", hint)
        if self._trusts_own and self._is_own(transport):
            return None
        whom = "processes of other users, or of unknown ones," if self._trusts_own else "requests"
        return GuardRefusal(f"{whom} need the runtime's token", hint)

    def _is_own(self, transport: Any) -> bool:
        """Asked of the kernel once for each connection."""
        if transport is None:  # it is closed already
            return False
        if transport not in self._own:
            self._own[transport] = is_own_process(transport)
        return self._own[transport]


def check_store(payload: Mapping[str, Any], folders: Sequence[Path]) -> None:
    """Refuse a rollout whose result would be stored in a folder outside of `folders`."""
    settings = payload.get("_rollout")
    name = settings.get("s3_bucket") if isinstance(settings, dict) else None
    directory = directory_of(name) if isinstance(name, str) else None
    if directory is None:
        return
    wanted = Path(os.path.realpath(directory))
    known = ", ".join(map(str, folders)) or "none"
    if not any(wanted.is_relative_to(os.path.realpath(folder)) for folder in folders):
        raise RuntimeFault(
            f"s3_bucket: {name} is not in a folder that this runtime may store results in",
            code="AccessDeniedException",
            hint=f"it may use {known} and folders below; name others with --store when you start it",
        )


def store_folders(given: Iterable[str | os.PathLike[str]] | None) -> list[Path]:
    """The folders that callers may name, the current one by default; but never all there are without being told."""
    if given is not None:
        return [Path(os.path.abspath(folder)) for folder in given]
    here = Path.cwd()
    return [] if here == Path(here.anchor) else [here]


def _credential(headers: Mapping[str, str], query: Mapping[str, str]) -> tuple[str, bool]:
    """What a request shows as its token, and whether it can be nothing else: AWS's clients send their own key ids."""
    authorization = headers.get("Authorization", "")
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip(), True
    if scheme == "AWS":
        return rest.partition(":")[0], False
    if match := _CREDENTIAL.match(authorization):
        return match[1], False
    return query.get("X-Amz-Credential", "").partition("/")[0] or query.get("AWSAccessKeyId", ""), False


def _arrived_at(transport: Any) -> str | None:
    """The address of ours that a connection was made to."""
    name = transport.get_extra_info("sockname") if transport is not None else None
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else None
