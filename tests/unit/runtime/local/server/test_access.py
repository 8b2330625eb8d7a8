"""Who is let in at the local runtime's port, by headers and connections that a test makes up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.runtime.local.server.access import Access

TOKEN = "t" * 20
OURS = {"Host": "localhost"}


class Transport:
    """A connection of this process to itself, as asyncio shows one."""

    def __init__(self, server: socket.socket) -> None:
        self.asked = 0
        self._server = server

    def get_extra_info(self, name: str) -> Any:
        self.asked += name == "peername"
        return self._server.getsockname() if name == "sockname" else self._server.getpeername()


@pytest.fixture
def own() -> Iterator[Transport]:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        server, _ = listening.accept()
        with server:
            yield Transport(server)


def test_a_connection_is_looked_up_only_without_the_token(own: Transport) -> None:
    access = Access(TOKEN, host="127.0.0.1", allow_hosts=[])
    assert access.refusal(OURS | {"Authorization": f"Bearer {TOKEN}"}, {}, own) is None
    assert own.asked == 0
    assert access.refusal(OURS, {}, own) is None
    assert own.asked == 1


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, {}),
        ({"Authorization": f"bearer  {TOKEN} "}, {}),
        ({"Authorization": f"AWS {TOKEN}:signature"}, {}),
        ({"Authorization": f"AWS4-HMAC-SHA256 Credential={TOKEN}/20260101/us-west-2/s3/aws4_request, Signature=0"}, {}),
        ({"Authorization": f"AWS4-ECDSA-P256-SHA256 Credential={TOKEN}/20260101/s3/aws4_request, Signature=0"}, {}),
        ({}, {"X-Amz-Credential": f"{TOKEN}/20260101/us-west-2/s3/aws4_request"}),
        ({}, {"AWSAccessKeyId": TOKEN}),
    ],
)
def test_ways_to_send_the_token(headers: dict[str, str], query: dict[str, str]) -> None:
    access = Access(TOKEN, host="0.0.0.0", allow_hosts=[])
    assert access.refusal(OURS | headers, query, None) is None
    changed = [{name: value.replace("tt", "tx") for name, value in each.items()} for each in (headers, query)]
    assert access.refusal(OURS | changed[0], changed[1], None) is not None


@pytest.mark.parametrize(
    "authorization",
    ["", TOKEN, f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"x Credential={TOKEN}/"],
)
def test_what_is_not_the_token(own: Transport, authorization: str) -> None:
    for host in ("0.0.0.0", "10.0.0.5", "::", "runtime.internal", ""):
        access = Access(TOKEN, host=host, allow_hosts=[])
        refusal = access.refusal(OURS | {"Authorization": authorization}, {}, own)
        assert refusal is not None
        assert "token" in refusal.message
        assert TOKEN not in "".join(refusal)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_connections_of_unknown_processes_need_the_token(host: str) -> None:
    access = Access(TOKEN, host=host, allow_hosts=[])
    assert access.refusal(OURS, {}, None) is not None
    assert access.refusal(OURS | {"Authorization": f"Bearer {TOKEN}"}, {}, None) is None
