"""Show a session that the gateway recorded: its messages, or with --tokens the tokens of each training row.

Tokens that were sampled and are trained on are green (fainter the less likely), sampled but masked ones are red.
Without a session, lists all. Reads the log only, so the gateway may be running.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..flags import say
from ..terminal.table import format_table

if TYPE_CHECKING:
    from ...gateway.record.segments import SegmentIndex
    from ...gateway.record.session import Session
    from ...gateway.record.trajectory import Trajectories

HELP = "show a recorded session"
EXAMPLES = (
    "agentcore-rl gateway show --log runs/gateway",
    "agentcore-rl gateway show SESSION --log runs/gateway --tokens --tokenizer tiny",
)
_GREEN = ("\x1b[38;5;22m", "\x1b[38;5;28m", "\x1b[38;5;34m", "\x1b[38;5;46m")
_RED, _DIM, _BOLD, _END = "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="a session's id (default: list all)")
    parser.add_argument("--log", required=True, metavar="DIR", help="the folder given to `gateway serve --log`")
    parser.add_argument("--tokens", action="store_true", help="show tokens, coloured by mask and logprob")
    parser.add_argument("--tokenizer", help="with --tokens: the model's tokenizer, a folder or a hub id")


def run(args: argparse.Namespace) -> int:
    from ...gateway.record.replay import build_session
    from ...gateway.record.segments import SegmentIndex

    folder = Path(args.log)
    if not folder.is_dir():
        raise ConfigError(f"{args.log} is not a folder", hint="name the folder given to `gateway serve --log`")
    try:
        indexes = [SegmentIndex(part) for part in sorted(folder.glob("worker-*")) or [folder]]
    except OSError as error:
        raise ConfigError(f"the log in {args.log} can't be read: {error}") from error
    if args.session is None:
        return _list_sessions(indexes)
    index = next((index for index in indexes if args.session in index.places), None)
    if index is None:
        hint = "leave the id out to list all"
        raise ConfigError(f"{args.log} has no session {args.session!r}", hint=hint)
    records = list(index.records(args.session))
    session = build_session(iter(records))
    if session is None:
        raise ConfigError(f"session {args.session!r} can't be read: another version of the gateway logged it")
    session.damaged = args.session in index.damaged_sessions
    folded = _fold(session)
    if args.tokens:
        _print_tokens(folded, args.tokenizer)
    else:
        _print_messages(session, records)
    _print_fidelity(folded, session.damaged)
    return 0


def _fold(session: Session) -> Trajectories:
    from ...gateway.record.trajectory import fold

    return fold(session.tree.turns, mask_truncated=session.settings.mask_truncated)


def _list_sessions(indexes: list[SegmentIndex]) -> int:
    from ...gateway.record.replay import build_session

    rows = []
    for index, session_id in [(one, name) for one in indexes for name in one.places]:
        session = build_session(index.records(session_id))
        if session is None:
            continue
        known = _fold(session).fidelity
        state = ("closed" if session.closed else "open") + (", damaged" if session_id in index.damaged_sessions else "")
        counts = (known.turns, known.rows, known.sampled, known.trained, sum(known.split.values()))
        rows.append([session_id, state, *map(str, counts)])
    if rows:
        print(format_table(["session", "state", "turns", "rows", "sampled", "trained", "unbridged"], rows))
    else:
        say("the log has no sessions")
    return 0


def _print_messages(session: Session, records: list[dict[str, Any]]) -> None:
    for record in records:
        if record["kind"] == "result":
            print(_paint(_BOLD, "result"), record["result"])
        if record["kind"] != "turn":
            continue
        print(_paint(_DIM, f"── {_turn_heading(session.tree.turns[record['index']])} " + "─" * 8))
        if record["text"] is not None:
            _print_line("text", _paint(_DIM, "a raw prompt; --tokens shows it"))
        for message in record["messages"]:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            if message["content"] or not calls:
                _print_line(message["role"], _escape(message["content"]))
            _print_calls(calls)
        reply = record["reply"]
        if reply["reasoning"]:
            _print_line("thinks", _paint(_DIM, _escape(reply["reasoning"])))
        if reply["content"]:
            _print_line("assistant", _escape(reply["content"]))
        _print_calls(reply["tool_calls"])


def _turn_heading(turn: Any) -> str:
    parent = f"after turn {turn.parent.index}" if turn.parent is not None else "from the start"
    parts = [turn.origin, parent, f"{turn.prompt_length} + {len(turn.sampled)} tokens", turn.finish]
    versions = ", ".join(version for version, _ in turn.versions)
    parts += [f"weights {versions}"] if versions else []
    parts += [f"masked: {turn.masked}"] if turn.masked else []
    parts += [f"not bridged: {turn.unbridged}"] if turn.unbridged else []
    return f"turn {turn.index}: {', '.join(parts)}"


def _print_line(name: str, text: str) -> None:
    print(f"{_paint(_BOLD, name)}  {text}")


def _print_calls(calls: list[dict[str, Any]]) -> None:
    for call in calls:
        arguments = call["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        _print_line("calls", f"{_escape(call['name'])}({_escape(text)})")


def _print_tokens(folded: Trajectories, tokenizer: str | None) -> None:
    from ...gateway.render.tokenizer import load_tokenizer

    if tokenizer is None:
        raise ConfigError("--tokens needs the tokenizer", hint="--tokenizer <a folder or a hub id>")
    decode = load_tokenizer(tokenizer).decode
    for number, row in enumerate(folded.rows):
        heading = f"row {number}: {len(row.token_ids)} tokens, {row.trained} trained, weight {row.weight:.3f}"
        print(_paint(_DIM, f"── {heading} ──"))
        parts = []
        for token, trained, logprob in zip(row.token_ids, row.loss_mask, row.logprobs, strict=True):
            text = _escape(decode([token]))
            if trained:
                text = _paint(_GREEN[sum(logprob > bound for bound in (-3, -1, -0.1))], text)
            elif logprob == logprob:  # a NaN means that the token was not sampled
                text = _paint(_RED, text)
            parts.append(text)
        print("".join(parts))


def _print_fidelity(folded: Trajectories, damaged: bool) -> None:
    known = folded.fidelity
    text = f"{known.turns} turns, {known.rows} rows, {known.trained} of {known.sampled} sampled tokens trained"
    counts = {"masked": known.masked, "rendered anew": known.unbridged, "not shown to the model": known.omitted}
    for name, reasons in counts.items():
        text += f"; {name}: {', '.join(f'{count} {reason}' for reason, count in reasons.items())}" if reasons else ""
    text += f"; {known.parse_failures} tool calls could not be parsed" if known.parse_failures else ""
    say(text + ("; later turns could not be read" if damaged else ""))


def _escape(text: str) -> str:
    """Text of agents and models, without characters that move the cursor or change the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _paint(code: str, text: str) -> str:
    """Coloured text, on a terminal that wants colour."""
    return f"{code}{text}{_END}" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
