"""The index of a run's rollouts: one record of fixed size for each, and the texts that records name by number.

`index/0.records` has records, `index/0.texts` one JSON string a line; the number is that of the writer, so that several
processes can share a run. Both files only grow. A later record of a rollout replaces the earlier one, because a group's
outcome is known only after its rollouts are written. A record of kind `FILE` says that a file starts over: its earlier
records are void. Readers rebuild a lost index from the files.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...types import Status
from ..failure_causes import cause_of
from ..rollout import Action, Rollout
from .rollout_files import end_with_a_line, write_all
from .run_lock import take_lock
from .run_text import parse_texts

FILE, ROLLOUT = 1, 2
PHASES = ("train", "before", "at_step", "after", "eval", "rollout")
"""What a rollout was for: training; held-out rows before, during and after it; `agentcore-rl eval` and `rollout`."""
STATUSES = tuple(status.value for status in Status)
ACTIONS = tuple(action.value for action in Action)
MARK = 0x52C7
"""Ends every record: a disk that lost power may leave zeros."""
_LONGEST = 300  # characters of a text in the index
_MOST_TEXTS = 100_000  # texts that a writer recognizes

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("kind", "B", "u1"),
    ("phase", "B", "u1"),
    ("status", "B", "u1"),
    ("action", "B", "u1"),
    ("n", "I", "<u4"),
    ("offset", "Q", "<u8"),
    ("length", "I", "<u4"),
    ("at", "d", "<f8"),
    ("step", "i", "<i4"),
    ("group", "i", "<i4"),
    ("sample", "i", "<i4"),
    ("reward", "d", "<f8"),
    ("advantage", "d", "<f8"),
    *((name, "I", "<u4") for name in ("turns", "tool_calls", "unknown_tools", "sampled", "trained", "tokens", "rows")),
    *((name, "I", "<u4") for name in ("parse_failures", "unbridged", "truncated")),
    *((name, "f", "<f4") for name in ("seconds", "model", "tool", "waiting")),
    *((name, "I", "<u4") for name in ("file", "input_id", "session_id", "why", "cause", "tools", "dropped")),
    ("mark", "I", "<u4"),
)
"""Name, format of `struct`, and type of numpy of each field of a record."""
TEXTS = ("file", "input_id", "session_id", "why", "cause", "tools", "dropped")
"""Fields that are numbers of texts; 0 is none."""
LARGEST = 1e100
"""The largest reward and advantage, so that their squares can be added."""
_MOST: dict[str, Any] = {"I": 2**32 - 1, "i": 2**31 - 1, "f": 3e38, "d": LARGEST}
_RECORD = struct.Struct("<" + "".join(code for _, code, _ in FIELDS))
RECORD_BYTES = _RECORD.size
_EMPTY: dict[str, Any] = dict.fromkeys((name for name, _, _ in FIELDS), 0) | {"mark": MARK}


@dataclass(frozen=True)
class Entry:
    """One rollout as the index has it."""

    key: str
    """Finds the rollout again, even in a copy of the folder: the writer's number and the rollout's."""
    phase: str
    """One of `PHASES`."""
    step: int
    """Updates of the weights before it."""
    group: int | None
    """The place of its row in the step."""
    sample: int
    input_id: str
    session_id: str | None
    status: str
    action: str
    why: str | None
    """Why it is not trained on."""
    cause: str | None
    """Why it failed, without what varies between two reports of one cause."""
    dropped: str | None
    """Why its group is not trained on."""
    reward: float | None
    advantage: float | None
    """What the trainer made of the reward, where it is known."""
    turns: int
    tool_calls: int
    unknown_tools: int
    """Calls of tools that were not offered."""
    tools: tuple[str, ...]
    """The tools that were called."""
    sampled: int
    trained: int
    tokens: int
    rows: int
    parse_failures: int
    unbridged: int
    truncated: int
    """Turns that were cut at the token limit."""
    at: float
    """When it ended, in Unix time."""
    seconds: float
    model: float
    """Seconds in model calls."""
    tool: float
    """Seconds between model calls, in the agent and its tools."""
    waiting: float
    """Seconds before its session began, or while weights were updated."""

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return dict(vars(self)) | {"tools": list(self.tools)}


def rollout_values(rollout: Rollout, phase: str, step: int) -> dict[str, Any]:
    """What the index says about a rollout; texts as they are, None for none."""
    fidelity, transcript, seconds = rollout.fidelity, rollout.transcript, rollout.seconds
    session, model = seconds.get("session", 0.0), seconds.get("model", 0.0)
    held = sum(turn.waited for turn in transcript.turns)
    called = [str(call.get("name")) for turn in transcript.turns for call in turn.reply.get("tool_calls") or ()]
    reward = rollout.reward
    return {
        "kind": ROLLOUT,
        "phase": PHASES.index(phase),
        "status": STATUSES.index(rollout.status.value),
        "action": ACTIONS.index(rollout.action.value),
        "at": time.time(),
        "step": step,
        "group": -1 if rollout.group is None else rollout.group,
        "sample": rollout.sample,
        "reward": math.nan if reward is None else reward,
        "advantage": math.nan,
        "turns": fidelity.turns,
        "tool_calls": fidelity.tool_calls,
        "unknown_tools": len(transcript.unknown_tools()),
        "sampled": fidelity.sampled,
        "trained": fidelity.trained,
        "tokens": rollout.tokens,
        "rows": len(rollout.rows),
        "parse_failures": fidelity.parse_failures,
        "unbridged": sum(fidelity.split.values()),
        "truncated": sum(turn.finish == "length" for turn in transcript.turns),
        "seconds": sum(taken for station, taken in seconds.items() if station != "model"),
        "model": max(0.0, model - held),
        "tool": max(0.0, session - model),
        "waiting": seconds.get("open", 0.0) + seconds.get("invoke", 0.0) + held,
        "input_id": rollout.input_id,
        "session_id": rollout.session_id,
        "why": rollout.why,
        "cause": cause_of(rollout) if rollout.failed else None,
        "tools": " ".join(sorted({name[:64].replace(" ", "_") for name in called}))[:_LONGEST] or None,
        "dropped": None,
    }


class IndexWriter:
    """Appends records; not safe to call from several threads at once."""

    def __init__(self, folder: Path, writer: int) -> None:
        (folder / "index").mkdir(parents=True, exist_ok=True)
        records, texts = (folder / "index" / f"{writer}.{kind}" for kind in ("records", "texts"))
        self._records = records.open("ab", buffering=0)
        try:
            take_lock(self._records)
        except OSError:
            self._records.close()
            raise ConfigError(f"another process writes to {folder}", hint="choose another folder") from None
        self._texts = texts.open("ab", buffering=0)
        self._texts_end = end_with_a_line(texts)
        known = parse_texts(texts.read_bytes())
        self._count = len(known)
        self._known: dict[str, int] = {text: number for number, text in enumerate(known, 1) if text is not None}
        size = records.stat().st_size
        self._records_end = size - size % RECORD_BYTES  # a kill may have cut off the last one
        self._records.truncate(self._records_end)
        self.next = 1 + max((record[4] for record in _RECORD.iter_unpack(records.read_bytes())), default=-1)
        """The number of the next rollout."""

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a record with these values."""
        numbers = {name: self._number(name, values[name]) for name in TEXTS if name in values}
        record = {**_EMPTY, **values, **numbers}
        data = _RECORD.pack(*fit_values(record).values())
        write_all(self._records, data, self._records_end)
        self._records_end += len(data)

    def close(self) -> None:
        self._records.close()
        self._texts.close()

    def _number(self, field: str, text: str | None) -> int:
        """The number of a text, which is written before a record names it."""
        if text is None:
            return 0
        text = text[:_LONGEST]
        number = self._known.get(text)
        if number is None:
            line = json.dumps(text).encode() + b"\n"
            write_all(self._texts, line, self._texts_end)
            self._texts_end += len(line)
            self._count = number = self._count + 1
            if field == "file" or (field != "session_id" and len(self._known) < _MOST_TEXTS):
                self._known[text] = number
        return number


def check_values(values: Mapping[str, Any]) -> None:
    """Raise an exception if values can't be a record: any program may have written the file."""
    _RECORD.pack(*fit_values({**_EMPTY, **values} | dict.fromkeys(TEXTS, 0)).values())
    wrong = [name for name in TEXTS if not isinstance(values.get(name), (str, type(None)))]
    if wrong:
        raise TypeError(f"{', '.join(wrong)} should be text")


def fit_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Each field's value, as far as it fits: hostile agents have sessions of any size, and any reward."""
    return {name: _fit(code, values[name]) for name, code, _ in FIELDS}


def _fit(code: str, value: Any) -> Any:
    if code not in _MOST or value != value:
        return value
    return max(0 if code == "I" else -_MOST[code], min(_MOST[code], value))
