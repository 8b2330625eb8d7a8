"""Two rollouts of one data row, message beside message: which messages both have, and which only one has. Pure."""

from __future__ import annotations

import difflib
import json
from typing import Any

from ..gateway.call.chat import Message
from ..rollout import Rollout


def conversation_of(rollout: Rollout) -> list[Message]:
    """The conversation of a rollout's last trained turn, or of its last one."""
    turns = rollout.transcript.turns
    if not turns:
        return []
    last = next((one for one in reversed(turns) if one.masked is None), turns[-1])
    return rollout.transcript.conversation(last.turn)


def diff_rollouts(before: Rollout, after: Rollout) -> list[dict[str, Any]]:
    """Pairs of messages, in order; `before` or `after` is None where only the other has it."""
    left, right = conversation_of(before), conversation_of(after)
    matcher = difflib.SequenceMatcher(None, [*map(_key, left)], [*map(_key, right)], autojunk=False)
    pairs = []
    for kind, a, b, c, d in matcher.get_opcodes():
        for place in range(max(b - a, d - c)):
            pairs.append(
                {
                    "same": kind == "equal",
                    "before": left[a + place] if a + place < b else None,
                    "after": right[c + place] if c + place < d else None,
                }
            )
    return pairs


def _key(message: Message) -> str:
    """What makes two messages the same: ids of calls are drawn again in every rollout."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    said = [(call.get("name"), str(call.get("arguments"))) for call in calls]
    return json.dumps([message.get("role"), message.get("content"), said], sort_keys=True, default=repr)
