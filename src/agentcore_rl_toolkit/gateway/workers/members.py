"""Which of the processes that share sessions owns one: the one with the highest hash (rendezvous). Pure.

A process that joins or leaves moves only the sessions that it owns: for any other, the highest hash is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from xxhash import xxh3_64_intdigest

from ...errors import ConfigError


@dataclass(frozen=True)
class Member:
    name: str
    """What is hashed: it must outlast a restart."""
    url: str


@dataclass(frozen=True)
class Members:
    members: tuple[Member, ...]
    index: int
    """Which of them this process is."""
    first: int
    """The first worker of this process's own gateway, which carries out operations on all."""
    owners: int
    """How many of them, from the start, get new sessions; the others are leaving."""

    def owner(self, session_id: str) -> int:
        """Who owns a session, by its place among the members.

        >>> a, b = Member("a", "http://a"), Member("b", "http://b")
        >>> one, two = Members((a, b), 0, 0, 2), Members((b, a), 0, 0, 2)
        >>> one.members[one.owner("s")] == two.members[two.owner("s")]
        True
        """
        if self.owners == 1:
            return 0
        key = session_id.encode("utf-8", "surrogatepass") + b"\n"
        hashes = [xxh3_64_intdigest(key + member.name.encode()) for member in self.members[: self.owners]]
        return hashes.index(max(hashes))


def of_workers(urls: Sequence[str], index: int) -> Members:
    """The workers of one gateway; a log's folder has a worker's number, so that is its name.

    >>> of_workers(["http://a:1", "http://a:2"], 1).members[1]
    Member(name='1', url='http://a:2')
    """
    return Members(tuple(Member(str(number), url) for number, url in enumerate(urls)), index, 0, len(urls))


def of_gateways(
    peers: Sequence[str], own: str, urls: Sequence[str], index: int, leaving: Sequence[str] = ()
) -> Members:
    """The workers of several gateways, as worker `index` of the gateway at `own` knows them.

    Each gateway has the same number of workers, on its peer address's port and those after it. One that is `leaving`
    serves the sessions that it has, and gets no new ones.

    >>> known = of_gateways(["http://a:9000", "http://b:9000"], "http://b:9000", ["http://127.0.0.1:9000"], 0)
    >>> [member.url for member in known.members], known.members[known.index].name
    (['http://a:9000', 'http://127.0.0.1:9000'], 'http://b:9000/0')
    """
    others = [] if own in (*peers, *leaving) else [own]
    members = [
        Member(f"{peer}/{number}", urls[number] if peer == own else _port_after(peer, number))
        for peer in [*peers, *leaving, *others]
        for number in range(len(urls))
    ]
    first = next(place for place, member in enumerate(members) if member.name == f"{own}/0")
    return Members(tuple(members), first + index, first, len(peers) * len(urls))


def check_peers(peers: Sequence[str]) -> list[str]:
    """The addresses of gateways, without a slash at their ends; a `ConfigError` for anything else."""
    read = [peer.rstrip("/") for peer in peers]
    for peer in read:
        parts = urlsplit(peer)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path:
            raise ConfigError(f"{peer!r} is not a gateway's address", hint="write it like http://10.0.0.7:9000")
    if len(set(read)) != len(read):
        raise ConfigError("a gateway is named twice among the peers", hint="name each once")
    return read


def _port_after(peer: str, number: int) -> str:
    if not number:
        return peer
    parts = urlsplit(peer)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{(parts.port or 80) + number}"
