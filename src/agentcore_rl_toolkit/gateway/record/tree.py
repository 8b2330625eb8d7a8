"""The turns of one session as a tree: which turn a call goes on from, and what a new prompt shares with older ones.

What the model saw is decided by our record, not by the history a client echoes: a call is matched by fingerprints,
and goes on from the recorded turn's exact ids. A history that was really changed (compaction, a sub-agent, a retry, a
branch) finds the last turn it still agrees with, or none.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from ..call.chat import ChatCall, Echo, Message, Prints, Reply, fingerprint
from ..call.echo import Said, known
from .turn import Turn

_COMPARED = 8  # how many turns a changed history is compared with, token by token
_WORTH_SHARING = 16


class Tree:
    """Turns, and the conversations that end in them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._ends: dict[bytes, list[Said]] = {}
        """Replies by the print of their conversation, themselves included …"""
        self._asked: dict[bytes, list[Said]] = {}
        """… and by that of the conversation before them."""

    def add(self, turn: Turn, end: bytes = b"", asked: bytes = b"", reply: Reply | None = None) -> None:
        """Take in a turn; `end` is the print of its conversation with its reply, `asked` the one without.

        No call goes on from a turn without a reply.
        """
        self.turns.append(turn)
        if reply is not None:
            said = Said.of(turn, reply)
            self._ends.setdefault(end, []).append(said)
            self._asked.setdefault(asked, []).append(said)

    def find(self, call: ChatCall) -> tuple[Turn | None, int, Prints]:
        """The turn that a call goes on from, how many messages that one has seen, and the prints of the call."""
        prints = self.fingerprint(call)
        return *self.match(prints), prints

    def fingerprint(self, call: ChatCall) -> Prints:
        """The prints of a call. An edit of the text beside tool calls is an edit."""
        return fingerprint(call, self._known)

    def _known(self, end: bytes, message: Message) -> bool:
        return known(self._ends.get(end), message)

    def match(self, prints: Prints) -> tuple[Turn | None, int]:
        """The deepest turn whose conversation the call's begins with, and how many messages that is."""
        for number in reversed(range(len(prints.echoes))):
            echo = prints.echoes[number]
            echoed = self._echoed(echo)
            if echoed:
                said = echoed[0] if len(echoed) == 1 else _branch(echoed, self._before(prints, number))
                prints.appended = "" if echo.end in self._ends else said.appended(echo.message) or ""
                return said.turn, echo.place
        return None, 0

    def _before(self, prints: Prints, number: int) -> Turn | None:
        """The turn that the messages before an echo go on from."""
        turn: Turn | None = None
        for echo in prints.echoes[:number]:
            echoed = self._echoed(echo)
            turn = _branch(echoed, turn).turn if echoed else turn
        return turn

    def _echoed(self, echo: Echo) -> list[Said]:
        """The replies that a message is the echo of, all equally like it: mostly one, or none."""
        said = self._ends.get(echo.end)
        if said is None:
            return self._extended(echo)
        if len(said) == 1:
            return said
        alike = [one.likeness(echo.message) for one in said]
        return [one for one, how in zip(said, alike, strict=True) if how == max(alike)]

    def _extended(self, echo: Echo) -> list[Said]:
        """The longest replies that a message begins with; what comes after them is the client's own."""
        said = [one for one in self._asked.get(echo.before, ()) if one.appended(echo.message) is not None]
        longest = max((one.length for one in said), default=0)
        return [one for one in said if one.length == longest]

    def share(self, prompt: array[int]) -> tuple[Turn | None, int]:
        """The turn whose tokens a new prompt has the longest beginning in common with, and its length."""
        best, longest = None, _WORTH_SHARING
        for turn in self._candidates():
            common = common_prefix(prompt, turn.tokens(min(turn.length, len(prompt))))
            if common > longest:
                best, longest = turn, common
        while best is not None and best.parent is not None and longest <= best.keep:
            best = best.parent  # the turn that these tokens really belong to
        return best, longest if best is not None else 0

    def _candidates(self) -> Iterable[Turn]:
        return [*self.turns[:1], *self.turns[1:][-_COMPARED:]]


def _branch(said: list[Said], before: Turn | None) -> Said:
    """Of replies that are all alike, the latest of those that go on from the turn before."""
    return ([one for one in said if before is not None and one.turn.goes_on_from(before)] or said)[-1]


def common_prefix(one: array[int], other: array[int]) -> int:
    """How many leading ids are the same."""
    length = min(len(one), len(other))
    if length == 0:
        return 0
    differ = np.frombuffer(one, np.uint32, length) != np.frombuffer(other, np.uint32, length)
    first = int(differ.argmax())
    return first if differ[first] else length
