"""A gateway's log: its sessions, one a line, or one session's turns, result and fidelity."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...common.text_table import escape, format_table
from ...errors import ConfigError
from ...gateway.record.replay import build_session
from ...gateway.record.segments import SegmentIndex
from ...gateway.record.session import Session
from ...gateway.record.trajectory import Fidelity, Trajectories, fold, mask_reasons
from .conversation_view import show_transcript
from .safe_text import BOLD, Paint
from .token_view import show_tokens

_HEADER = ("session", "state", "turns", "rows", "sampled", "trained", "unbridged")


class GatewayLog:
    """The log in a folder that was given to `gateway serve --log`. The gateway may be running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._indexes = [SegmentIndex(part) for part in sorted(folder.glob("worker-*")) or [folder]]
        except OSError as error:
            raise ConfigError(f"the log in {folder} can't be read: {error}") from error

    def sessions(self) -> list[dict[str, Any]]:
        """Every session in figures."""
        found = []
        for index in self._indexes:
            for name in index.places:
                session = build_session(index.records(name))
                if session is not None:
                    session.damaged = name in index.damaged_sessions
                    found.append(_session_figures(name, session))
        return found

    def open(self, name: str) -> tuple[Session, Trajectories]:
        """One session, and the rows that its turns fold into."""
        index = next((one for one in self._indexes if name in one.places), None)
        if index is None:
            raise ConfigError(f"{self.folder} has no session {name!r}", hint="leave --rollout out to list all")
        session = build_session(index.records(name))
        if session is None:
            raise ConfigError(f"session {name!r} can't be read: another version of the gateway logged it")
        session.damaged = name in index.damaged_sessions
        return session, _fold(session)


def is_gateway_log(folder: Path) -> bool:
    """Whether a folder has segments of a gateway's log."""
    return any(folder.glob("*.turns")) or any(folder.glob("worker-*/*.turns"))


def list_sessions(sessions: list[dict[str, Any]]) -> str:
    return format_table(_HEADER, [[escape(one[name]) for name in _HEADER] for one in sessions])


def show_session(
    session: Session, folded: Trajectories, paint: Paint, decode: Callable[[list[int]], str] | None
) -> Iterator[str]:
    """A session's turns, or with `decode` its tokens."""
    if decode is not None:
        yield from show_tokens(folded.rows, decode, paint)
        return
    yield from show_transcript(folded.transcript, paint)
    if session.result is not None:
        yield f"{paint(BOLD, 'result')}  {escape(session.result)}"


def fidelity_text(known: Fidelity, damaged: bool) -> str:
    """What became of the sampled tokens, and why."""
    turns, rows = (f"{n} {thing}{'' if n == 1 else 's'}" for n, thing in ((known.turns, "turn"), (known.rows, "row")))
    text = f"{turns}, {rows}, {known.trained} of {known.sampled} sampled tokens can be trained on"
    counts = {"masked": known.masked, "rendered from scratch": known.unbridged, "not shown to the model": known.omitted}
    for name, reasons in counts.items():
        listed = ", ".join(f"{count} {escape(reason)}" for reason, count in reasons.items())
        text += f"; {name}: {listed}" if reasons else ""
    text += f"; {known.parse_failures} tool calls could not be parsed" if known.parse_failures else ""
    return text + ("; later turns could not be read" if damaged else "")


def session_fields(name: str, session: Session, folded: Trajectories) -> dict[str, Any]:
    """A session as JSON values."""
    return _session_figures(name, session) | {
        "transcript": folded.transcript.to_fields(),
        "result": json.loads(json.dumps(session.result, default=str)),
    }


def _session_figures(name: str, session: Session) -> dict[str, Any]:
    known = _fold(session).fidelity
    state = ("closed" if session.closed else "open") + (", damaged" if session.damaged else "")
    figures = (known.turns, known.rows, known.sampled, known.trained, sum(known.split.values()))
    return dict(zip(_HEADER, (name, state, *figures), strict=True))


def _fold(session: Session) -> Trajectories:
    turns, truncated = session.tree.turns, session.settings.mask_truncated
    folded = fold(turns, mask_truncated=truncated)
    transcript = session.transcript.transcript(turns, mask_reasons(turns, mask_truncated=truncated))
    return replace(folded, transcript=transcript)
