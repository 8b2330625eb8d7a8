"""`agentcore-rl gateway show SESSION --log DIR`: what a session's agent and policy said to each other.

As messages, or with `--tokens` as the tokens of each training row: sampled and trained in green (fainter the less
likely), sampled but masked in red, everything else plain.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from ...gateway.record.segments import Index
    from ...gateway.record.session import Session

_GREEN = ("\x1b[38;5;22m", "\x1b[38;5;28m", "\x1b[38;5;34m", "\x1b[38;5;46m")
_RED, _DIM, _BOLD, _END = "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("show", help="show a recorded session", description=__doc__)
    parser.add_argument("session", nargs="?", help="a session's id (default: list what there is)")
    parser.add_argument("--log", required=True, metavar="DIR", help="the gateway's log folder")
    parser.add_argument("--tokens", action="store_true", help="tokens, coloured by mask and logprob")
    parser.add_argument("--tokenizer", help="needed for --tokens: a folder or a hub id")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from ...gateway.record.replay import build_session
    from ...gateway.record.segments import Index

    folder = Path(args.log)
    if not folder.is_dir():
        raise ConfigError(f"{args.log} is not a folder", hint="name the folder given to `gateway serve --log`")
    try:
        indexes = [Index(part) for part in sorted(folder.glob("worker-*")) or [folder]]
    except OSError as error:
        raise ConfigError(f"the log in {args.log} can't be read: {error}") from error
    if args.session is None:
        return _list(indexes)
    index = next((index for index in indexes if args.session in index.places), None)
    if index is None:
        raise ConfigError(f"no session {args.session!r} is logged in {args.log}", hint="without an id it lists all")
    session = build_session(index.records(args.session))
    if session is None and args.session in index.cut:
        raise ConfigError(f"session {args.session!r} is damaged from its beginning on")
    if session is None:
        raise ConfigError(f"session {args.session!r} was logged by another version of the gateway")
    session.damaged = args.session in index.cut
    if args.tokens:
        return _tokens(session, args.tokenizer)
    return _messages(session, list(index.records(args.session)))


def _list(indexes: list[Index]) -> int:
    from ...gateway.record.replay import build_session
    from ...gateway.record.trajectory import fold
    from ..terminal.table import format_table

    rows = []
    for index, session_id in [(one, name) for one in indexes for name in one.places]:
        session = build_session(index.records(session_id))
        if session is None:
            continue
        known = fold(session.tree.turns, mask_truncated=session.settings.mask_truncated).fidelity
        state = ("closed" if session.closed else "open") + (", damaged" if session_id in index.cut else "")
        counts = (known.turns, known.rows, known.sampled, known.trained, sum(known.split.values()))
        rows.append([session_id, state, *map(str, counts)])
    if rows:
        print(format_table(["session", "state", "turns", "rows", "sampled", "trained", "unbridged"], rows))
    else:
        print("no sessions are logged here", file=sys.stderr)
    return 0


def _messages(session: Session, records: list[dict[str, Any]]) -> int:
    paint = _painter()
    turns = session.tree.turns
    for record in records:
        if record["kind"] == "result":
            print(paint(_BOLD, "result"), record["result"])
        if record["kind"] != "turn":
            continue
        turn = turns[record["index"]]
        goes_on = f"after turn {turn.parent.index}" if turn.parent is not None else "from the beginning"
        versions = ", ".join(version for version, _ in turn.versions)
        about = f"{turn.origin}, {goes_on}, {turn.prompt_length} + {len(turn.sampled)} tokens, {turn.finish}"
        about += f", weights {versions}" if versions else ""
        about += f", masked: {turn.masked}" if turn.masked else ""
        about += f", not bridged: {turn.unbridged}" if turn.unbridged else ""
        print(paint(_DIM, f"── turn {turn.index}: {about} " + "─" * 8))
        if record["text"] is not None:
            print(f"{paint(_BOLD, 'text')}  {paint(_DIM, 'as it was written; --tokens shows it')}")
        for message in record["messages"]:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            if message["content"] or not calls:
                print(f"{paint(_BOLD, message['role'])}  {_safe(message['content'])}")
            _calls(calls, paint)
        reply = record["reply"]
        if reply["reasoning"]:
            print(f"{paint(_BOLD, 'thinks')}  {paint(_DIM, _safe(reply['reasoning']))}")
        if reply["content"]:
            print(f"{paint(_BOLD, 'assistant')}  {_safe(reply['content'])}")
        _calls(reply["tool_calls"], paint)
    _fidelity(session)
    return 0


def _calls(calls: list[dict[str, Any]], paint: Any) -> None:
    for call in calls:
        given = call["arguments"]
        said = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        print(f"{paint(_BOLD, 'calls')}  {_safe(call['name'])}({_safe(said)})")


def _safe(text: str) -> str:
    """What agents and models wrote, without what would move the cursor or change the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _tokens(session: Session, tokenizer: str | None) -> int:
    from ...gateway.record.trajectory import fold
    from ...gateway.render.tokenizer import load_tokenizer

    if tokenizer is None:
        raise ConfigError("--tokens needs the tokenizer", hint="--tokenizer <a folder or a hub id>")
    decode = load_tokenizer(tokenizer).decode
    paint = _painter()
    folded = fold(session.tree.turns, mask_truncated=session.settings.mask_truncated)
    for number, row in enumerate(folded.rows):
        print(
            paint(
                _DIM, f"── row {number}: {len(row.token_ids)} tokens, {row.trained} trained, weight {row.weight:.3f} ──"
            )
        )
        parts = []
        for token, trained, logprob in zip(row.token_ids, row.loss_mask, row.logprobs, strict=True):
            text = _safe(decode([token]))
            if trained:
                shade = 3 if logprob > -0.1 else 2 if logprob > -1 else 1 if logprob > -3 else 0
                text = paint(_GREEN[shade], text)
            elif logprob == logprob:
                text = paint(_RED, text)
            parts.append(text)
        print("".join(parts))
    _fidelity(session)
    return 0


def _fidelity(session: Session) -> None:
    from ...gateway.record.trajectory import fold

    known = fold(session.tree.turns, mask_truncated=session.settings.mask_truncated).fidelity
    masked = ", ".join(f"{count} {reason}" for reason, count in known.masked.items())
    anew = ", ".join(f"{count} {reason}" for reason, count in known.unbridged.items())
    omitted = ", ".join(f"{count} {kind}" for kind, count in known.omitted.items())
    print(
        f"{known.turns} turns, {known.rows} rows, {known.trained} of {known.sampled} sampled tokens trained"
        + (f"; masked: {masked}" if masked else "")
        + (f"; rendered anew: {anew}" if anew else "")
        + (f"; {known.parse_failures} tool calls could not be parsed" if known.parse_failures else "")
        + (f"; not shown to the model: {omitted}" if omitted else "")
        + ("; later turns could not be read" if session.damaged else ""),
        file=sys.stderr,
    )


def _painter() -> Any:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return (lambda code, text: f"{code}{text}{_END}") if colour else (lambda code, text: text)
