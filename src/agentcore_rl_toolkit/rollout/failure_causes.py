"""Why rollouts were not trained on, grouped by message. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..client.evaluation import general_message
from ..common.object_repr import object_repr
from ..errors import RolloutsStopped
from .rollout import NOT_NEEDED, Group, Rollout

_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 300, 4000
_HINTS = {
    "truncated": "raise max_tokens or context_limit, or set failures: truncated=train",
    "no reward": "return {'rewards': …} from the entrypoint",
    "rewards don't match turns": "return one reward for each model call that is trained on, or set credit=rollout",
    "nothing to train on": "the agent made no model call that the gateway recorded: does it use _rollout.base_url?",
}


class Causes:
    """Counts causes, with one message and one traceback of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._messages: dict[str, str] = {}
        self._tracebacks: dict[str, str] = {}

    def __repr__(self) -> str:
        return object_repr(self, dict(self.counts))

    def add(self, groups: Iterable[Group]) -> None:
        """Count the rollouts of these groups that were not trained on."""
        for group in groups:
            for rollout in (*group.rollouts, *group.others):
                if rollout.why not in (None, NOT_NEEDED):
                    self._count(rollout)
                elif rollout.trained and group.dropped is not None:
                    self._note(f"group dropped: {group.dropped}")

    @staticmethod
    def merged(parts: Iterable[Causes]) -> Causes:
        """The causes of several processes together."""
        merged = Causes()
        for part in parts:
            merged.counts.update(part.counts)
            merged._messages = part._messages | merged._messages
            merged._tracebacks = part._tracebacks | merged._tracebacks
        return merged

    def to_dict(self) -> dict[str, Any]:
        """The causes as JSON values, for another process; of tracebacks only the one that `text` shows."""
        shown = next((key for key, _ in self.counts.most_common() if key in self._tracebacks), None)
        tracebacks = {} if shown is None else {shown: self._tracebacks[shown]}
        return {"counts": dict(self.counts), "messages": self._messages, "tracebacks": tracebacks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Causes:
        """The inverse of `to_dict`."""
        made = cls()
        made.counts.update(values["counts"])
        made._messages, made._tracebacks = dict(values["messages"]), dict(values["tracebacks"])
        return made

    def figures(self) -> list[dict[str, str | int]]:
        """Messages with their counts, the commonest first."""
        return [{"cause": self._messages[key], "rollouts": count} for key, count in self.counts.most_common(20)]

    def text(self) -> str:
        """Every cause with its count, and the commonest one's traceback."""
        lines = [f"  {count:>6} × {self._messages[key]}" for key, count in self.counts.most_common(10)]
        if len(self.counts) > 10:
            lines.append(f"  and {len(self.counts) - 10} other causes")
        traceback = next((self._tracebacks[key] for key, _ in self.counts.most_common() if key in self._tracebacks), "")
        return "\n".join(lines) + (f"\n\n{traceback.rstrip()}" if traceback else "")

    def error(
        self, problem: str, folder: Path, by_hand: str = "rollout AGENT --data FILE --model MODEL --limit 1"
    ) -> RolloutsStopped:
        """The error of a run in `folder` that could not train; `by_hand` is the command that runs one rollout."""
        return RolloutsStopped(
            f"{problem}. What became of the rollouts:\n{self.text()}\n\nAll of them are in {folder / 'rollouts'}.",
            hint=self.hint or f"run one by hand: agentcore-rl {by_hand}",
        )

    @property
    def hint(self) -> str | None:
        """What to do about the commonest cause, if known."""
        commonest = next((self._messages[key] for key, _ in self.counts.most_common(1)), "")
        return _HINTS.get(commonest.partition(":")[0])

    def _count(self, rollout: Rollout) -> None:
        key = self._note(_message_of(rollout))
        traceback = (rollout.result or {}).get("traceback")
        if isinstance(traceback, str):
            self._tracebacks.setdefault(key, traceback[-_LONGEST_TRACEBACK:])

    def _note(self, message: str) -> str:
        key = general_message(message[:_LONGEST_MESSAGE])
        self.counts[key] += 1
        self._messages.setdefault(key, message[:_LONGEST_MESSAGE])
        return key


def cause_of(rollout: Rollout) -> str:
    """Why a rollout was not trained on, without what varies between two reports of one cause."""
    return general_message(_message_of(rollout)[:_LONGEST_MESSAGE])


def _message_of(rollout: Rollout) -> str:
    error = (rollout.error or "").strip().splitlines()
    why = rollout.why or rollout.status.value
    return f"{why}: {error[0]}" if error else why
