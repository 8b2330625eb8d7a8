"""The turns of one session as a tree: which turn a call goes on from, and what a new prompt shares with older ones.

What the model saw is decided by our record, not by the history a client echoes: a call is matched by fingerprints,
and goes on from the recorded turn's exact ids. A history that was really changed (compaction, a sub-agent, a retry, a
branch) finds the last turn it still agrees with, or none.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from .chat import ChatCall, Prints, Seen, about, exact, fingerprint, has_assistant, spelled
from .turn import Turn

_COMPARED = 8  # how many turns a changed history is compared with, token by token
_WORTH_SHARING = 16


class Tree:
    """Turns, and the conversations that end in them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._ends: dict[bytes, list[tuple[Turn, bytes]]] = {}
        self._seen: Seen | None = None

    def add(self, turn: Turn, end: bytes, own: bytes) -> None:
        """Take in a turn; `end` is the print of its conversation with its reply, `own` the exact one of the reply.

        No call goes on from a turn without an `end`.
        """
        self.turns.append(turn)
        if end:
            self._ends.setdefault(end, []).append((turn, own))

    def find(self, call: ChatCall) -> tuple[Turn | None, int, Prints]:
        """The turn that a call goes on from, how many messages that one has seen, and the prints of the call.

        Agents send all of a growing conversation again and again: what the last call had is compared, not read.
        """
        seen, own = self._seen, about(call)
        if seen is not None and seen.about != own:
            seen = None
        if seen is not None and seen.request and seen.request == call.follows:  # that the bytes are the same is known
            count, letters = seen.count, seen.letters
        elif not has_assistant(call.messages):
            return None, 0, fingerprint(call)
        else:
            count = seen.count if seen is not None else 0
            letters = spelled(call.messages[:count])
            if seen is not None and seen.letters.digest() != letters.digest():
                seen = None
        turn, used = None, 0
        if seen is not None:
            prints = fingerprint(call, seen)
            turn, used = self.match(prints)
        if turn is None:  # not with a reply since then: maybe with an older one
            prints = fingerprint(call)
            turn, used = self.match(prints)
        letters = spelled(call.messages[count:], letters)
        self._seen = Seen(len(call.messages), own, letters, prints.whole, call.request)
        return turn, used, prints

    def match(self, prints: Prints) -> tuple[Turn | None, int]:
        """The deepest turn whose conversation the call's begins with, and how many messages that is."""
        for place, end, message in reversed(prints.echoes):
            found = self._ends.get(end)
            if found and len(found) > 1:
                own = exact(message)
                found = [(turn, theirs) for turn, theirs in found if theirs == own] or found
            if found:
                return found[-1][0], place
        return None, 0

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


def common_prefix(one: array[int], other: array[int]) -> int:
    """How many leading ids are the same."""
    length = min(len(one), len(other))
    if length == 0:
        return 0
    differ = np.frombuffer(one, np.uint32, length) != np.frombuffer(other, np.uint32, length)
    first = int(differ.argmax())
    return first if differ[first] else length
