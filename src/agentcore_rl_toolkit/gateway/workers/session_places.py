"""Where a session is: with its owner, or with the gateway that owned it before another one joined."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable

from .membership import Membership
from .worker_links import WorkerLinks

HAS = "/members/has/"
"""Asked by one member of another: whether it has a session."""
_FOUND_SECONDS, _MISSING_SECONDS, _MOST_FOUND = 60.0, 5.0, 10_000


class SessionPlaces:
    """Finds sessions, and remembers where they were."""

    def __init__(self, members: Membership, links: WorkerLinks, knows: Callable[[str], bool]) -> None:
        """`knows` tells whether this worker has a session."""
        self._members, self._links, self.knows = members, links, knows
        self._found: OrderedDict[str, tuple[int | None, float]] = OrderedDict()
        """Where sessions were found that their owners don't have, and until when that counts."""

    def forget(self) -> None:
        """The members have changed."""
        self._found.clear()

    async def locate(self, session_id: str) -> int:
        """Who has a session; its owner, if no member has."""
        owner = self._members.owner(session_id)
        if not self._members.peers:
            return owner
        if self.knows(session_id):
            return self._members.index
        now = asyncio.get_running_loop().time()
        found, until = self._found.get(session_id, (None, -math.inf))
        if until < now:
            found = await self._find(session_id, owner)
            self._found[session_id] = found, now + (_FOUND_SECONDS if found is not None else _MISSING_SECONDS)
            while len(self._found) > _MOST_FOUND:
                self._found.popitem(last=False)
        return owner if found is None else found

    async def _find(self, session_id: str, owner: int) -> int | None:
        """Ask the owner, and only if it doesn't have the session all others."""
        if owner != self._members.index and await self._has(owner, session_id):
            return owner
        others = [other for other in self._members.others if other != owner]
        having = await asyncio.gather(*(self._has(other, session_id) for other in others))
        return next((other for other, has in zip(others, having, strict=True) if has), None)

    async def _has(self, worker: int, session_id: str) -> bool:
        try:
            return (await self._links.ask(worker, HAS, session_id))[0] == 200
        except OSError:
            return False
