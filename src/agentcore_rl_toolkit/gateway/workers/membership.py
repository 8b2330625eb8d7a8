"""Which processes share sessions, as one of them knows it: peers change while they run, the workers of one don't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, GatewayFault
from ..http.openapi import PeersRequest
from ..wire.fields import parse
from ..wire.json_body import read_json
from .members import Member, Members, check_peers, of_gateways, of_workers


class Membership:
    """The members that one worker knows, itself among them."""

    def __init__(self, own_urls: Sequence[str], own_index: int, *, peers: Sequence[str] = (), peer: str = "") -> None:
        """`own_urls` are those of the gateway's workers; `peers` those of all gateways, `peer` this one's."""
        self._own_urls, self._own_index, self._peer = own_urls, own_index, peer
        self.peers, self._leaving = list(peers), list[str]()
        self._members = self._read()

    @property
    def index(self) -> int:
        """Which of them this worker is."""
        return self._members.index

    @property
    def first(self) -> int:
        """The first worker of this gateway, which carries out operations on all."""
        return self._members.first

    @property
    def is_first(self) -> bool:
        return self.index == self.first

    @property
    def owners(self) -> int:
        """How many of them, from the start, get new sessions."""
        return self._members.owners

    @property
    def urls(self) -> Sequence[str]:
        """The addresses of all."""
        return [member.url for member in self._members.members] if self.peers else self._own_urls

    @property
    def others(self) -> list[int]:
        """All but this one."""
        return [worker for worker in range(len(self._members.members)) if worker != self.index]

    def __getitem__(self, worker: int) -> Member:
        return self._members.members[worker]

    def owner(self, session_id: str) -> int:
        """The worker that owns a session."""
        return self._members.owner(session_id)

    def read(self, body: bytes) -> PeersRequest:
        """The peers that a request names; a `GatewayFault` if they can't be."""
        if not self.peers:
            text = "this gateway has no peers"
            raise GatewayFault(text, status=409, code="no_peers", hint="start it with --peers and --peer-url")
        asked = parse(read_json(body), PeersRequest)
        try:
            named = check_peers([*asked.peers, *asked.leaving])
        except ConfigError as error:
            raise GatewayFault.invalid(str(error), param="peers") from None
        return PeersRequest(named[: len(asked.peers)], named[len(asked.peers) :])

    def change(self, asked: PeersRequest) -> None:
        """Share sessions with these gateways from now on."""
        self.peers, self._leaving = asked.peers, asked.leaving
        self._members = self._read()

    def take_over(self, told: dict[str, Any]) -> None:
        """Share sessions with those that another gateway shares them with, as it `describe`d them."""
        if told["workers"] != (own := len(self._own_urls)):
            text = f"another gateway has {told['workers']} workers, and this one {own}"
            raise ConfigError(text, hint="start all of them with the same --workers")
        self.change(PeersRequest(told["peers"], told["leaving"]))

    def describe(self) -> dict[str, Any]:
        return {"peers": self.peers, "leaving": self._leaving, "workers": len(self._own_urls)}

    def _read(self) -> Members:
        if self.peers:
            return of_gateways(self.peers, self._peer, self._own_urls, self._own_index, self._leaving)
        return of_workers(self._own_urls, self._own_index)
