"""Show a run in the terminal: at a glance, its rollouts, or one of them as a conversation or as tokens.

RUN is the folder of a training run, the report of an evaluation, a folder of results, or a gateway's log (`--rollout`
then takes a session's id). It only reads, so the run may still be training. Colour is for terminals, and `NO_COLOR`
turns it off.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..flags import say
from ..terminal.parser import count

if TYPE_CHECKING:
    from ...rollout.run_folder import Run
    from ...studio.terminal.safe_text import Paint

HELP = "show a run in the terminal"
EXTRA = "gateway"
EXAMPLES = (
    "agentcore-rl show runs/train",
    "agentcore-rl show runs/train --step 3 --sort reward --descending --limit 5",
    "agentcore-rl show runs/train --failed --grep 'Traceback'",
    "agentcore-rl show runs/train --rollout 0.17 --tokens",
    "agentcore-rl show runs/train --diff before after",
    "agentcore-rl show runs/gateway --rollout SESSION --tokens --tokenizer tiny",
)
_ONLY_RUNS = ("step", "phase", "tool", "diff", "tokens", "min_sampled", "max_sampled")
"""Flags that mean nothing for results without a run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_folder", metavar="RUN", help="a run, a report of `eval`, a folder of results, or a gateway's log"
    )
    parser.add_argument(
        "--rollout", metavar="KEY", help="show one rollout: its key, its session's id, or the start of that"
    )
    parser.add_argument("--step", type=int, help="list the rollouts of this step (updates of the weights before it)")
    parser.add_argument(
        "--row", help="list the rollouts of a data row: its id or the start of it, in the list's column row"
    )
    parser.add_argument("--phase", help="list the rollouts of a phase: train, before, at_step, after, eval or rollout")
    parser.add_argument("--status", help="list the rollouts that ended so, such as timeout")
    parser.add_argument("--tool", help="list the rollouts that called a tool")
    for end, how in (("min", "at least"), ("max", "at most")):
        help = f"list the rollouts that sampled {how} this many tokens"
        parser.add_argument(f"--{end}-sampled", type=count, help=help)
    parser.add_argument("--failed", action="store_true", help="list failed rollouts, and their causes")
    parser.add_argument("--grep", metavar="TEXT", help="list the rollouts whose text, result or output contains a text")
    parser.add_argument(
        "--sort", metavar="COLUMN", help="sort the list, such as by reward or sampled, the lowest first"
    )
    parser.add_argument("--descending", action="store_true", help="with --sort: the highest first")
    parser.add_argument("--limit", type=count, help="list at most this many (default: 30)")
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="compare two rollouts of one held-out row: each a phase, a step, or a key (--row chooses the row)",
    )
    parser.add_argument(
        "--tokens", action="store_true", help="with --rollout: show tokens, coloured by mask and logprob"
    )
    parser.add_argument("--tokenizer", help="with --tokens: the model's tokenizer (default: the run's model)")
    parser.add_argument("--json", action="store_true", help="print JSON, one value a line")


def run(args: argparse.Namespace) -> int:
    """Exits with 1 if nothing matches."""
    from ...studio.terminal.log_view import is_gateway_log
    from ...studio.terminal.run_view import show_run, summarize_run
    from ...studio.terminal.safe_text import Paint

    path, paint = Path(args.run_folder), Paint.for_stream(sys.stdout)
    if not path.exists():
        raise ConfigError(f"{path} does not exist", hint="name the output folder of `agentcore-rl train`")
    if path.is_dir() and is_gateway_log(path):
        return _show_log(args, path, paint)
    if path.is_file() and path.suffix == ".json":
        return _show_outcomes(args, path, paint)
    try:
        from ...rollout.run_folder import open_run

        opened = open_run(path)
    except ConfigError:
        if not path.is_dir():
            raise
        _refuse_several_runs(path)
        return _show_outcomes(args, path, paint)
    if args.diff:
        return _show_diff(args, opened, paint)
    if args.rollout is not None:
        return _show_rollout(args, opened, paint)
    wanted = (args.row, args.phase, args.status, args.tool, args.grep, args.sort, args.limit, args.step)
    if args.failed or any(value is not None for value in (*wanted, args.min_sampled, args.max_sampled)):
        return _show_list(args, opened, paint)
    known = summarize_run(opened)
    _print(args, [known], lambda: show_run(known, paint))
    return 0


def _show_list(args: argparse.Namespace, opened: Run, paint: Paint) -> int:
    from ...studio.run_queries import row_of
    from ...studio.terminal.run_view import show_failures, show_list

    limit = args.limit or 30
    known = {"phase": args.phase, "step": args.step, "status": args.status, "tool": args.tool, "text": args.grep}
    known |= {"sort": args.sort, "descending": args.descending}
    places = opened.select(**known, failed=True if args.failed else None)
    sampled = opened.table["sampled"]
    if args.min_sampled is not None:
        places = places[sampled[places] >= args.min_sampled]
    if args.max_sampled is not None:
        places = places[sampled[places] <= args.max_sampled]
    if args.row is not None:
        names = [name or "" for name in opened.texts("input_id", places)]
        places = places[[any(one.startswith(args.row) for one in (name, row_of(name))) for name in names]]
    shown = places.tolist()[:limit]
    entries = [opened.entry(at) for at in shown]
    found = [opened.excerpt(at, args.grep) for at in shown] if args.grep else []
    if not entries:
        say("no rollout matches")
        return 1

    def text() -> Iterable[str]:
        if args.failed:
            yield from show_failures(opened.causes(places), paint)
        yield show_list(entries, found)

    fields = [{"found": one} for one in found] or [{}] * len(entries)
    _print(args, [entry.to_dict() | more for entry, more in zip(entries, fields, strict=True)], text)
    if len(places) > limit:
        say(f"{limit} of {len(places)}; --limit shows more")
    return 0


def _show_rollout(args: argparse.Namespace, opened: Run, paint: Paint) -> int:
    from ...rollout.run_folder.rollout_files import rollout_fields
    from ...studio.terminal.conversation_view import show_rollout
    from ...studio.terminal.log_view import fidelity_text
    from ...studio.terminal.token_view import show_tokens

    place = opened.find(args.rollout)
    rollout, entry = opened.rollout(place), opened.entry(place)
    if args.tokens:
        decode = _decoder(args.tokenizer or opened.info.get("model"))
        _print(args, [rollout_fields(rollout)], lambda: show_tokens(rollout.rows, decode, paint))
    else:
        _print(args, [entry.to_dict() | rollout_fields(rollout)], lambda: show_rollout(rollout, entry, paint))
    say(fidelity_text(rollout.fidelity, rollout.fidelity.damaged))
    return 0


def _show_diff(args: argparse.Namespace, opened: Run, paint: Paint) -> int:
    from ...studio.rollout_diff import diff_rollouts
    from ...studio.run_queries import find_pair
    from ...studio.terminal.conversation_view import show_diff

    before, after = find_pair(opened, args.diff[0], args.diff[1], args.row)
    entries, rollouts = (opened.entry(before), opened.entry(after)), (opened.rollout(before), opened.rollout(after))

    def text() -> Iterable[str]:
        for mark, entry in zip("-+", entries, strict=True):
            reward = "none" if entry.reward is None else f"{entry.reward:g}"
            yield f"{mark * 3} {entry.key}: {entry.phase} step {entry.step}, {entry.status}, reward {reward}"
        yield from show_diff(*rollouts, paint)

    _print(args, [{"before": entries[0].key, "after": entries[1].key, "messages": diff_rollouts(*rollouts)}], text)
    return 0


def _show_log(args: argparse.Namespace, path: Path, paint: Paint) -> int:
    from ...studio.terminal.log_view import GatewayLog, fidelity_text, list_sessions, session_fields, show_session

    unknown = ("step", "row", "phase", "status", "tool", "failed", "grep", "sort", "limit", "diff")
    _refuse(args, "a gateway's log", *unknown, "min_sampled", "max_sampled")
    log = GatewayLog(path)
    if args.rollout is None:
        sessions = log.sessions()
        if sessions:
            _print(args, sessions, lambda: [list_sessions(sessions)])
        else:
            say("the log has no sessions")
        return 0
    session, folded = log.open(args.rollout)
    decode = _decoder(args.tokenizer) if args.tokens else None
    fields = session_fields(args.rollout, session, folded)
    _print(args, [fields], lambda: show_session(session, folded, paint, decode))
    say(fidelity_text(folded.fidelity, session.damaged))
    return 0


def _show_outcomes(args: argparse.Namespace, path: Path, paint: Paint) -> int:
    from ...studio.terminal.result_view import (
        list_outcomes,
        read_report,
        read_results,
        select_outcomes,
        show_outcome,
        show_outcomes,
    )

    _refuse(args, "a folder of results or a report", *_ONLY_RUNS)
    outcomes = read_results(path, _counting()) if path.is_dir() else read_report(path)
    if not outcomes:
        hint = "name a run's folder, a gateway's log, or a store's folder"
        raise ConfigError(f"{path} has no results", hint=hint)
    order = {"sort": args.sort, "descending": args.descending}
    chosen = {"rollout": args.rollout, "row": args.row, "status": args.status, "failed": args.failed, "text": args.grep}
    outcomes = select_outcomes(outcomes, **chosen, **order)
    if not outcomes:
        say("no rollout matches")
        return 1
    limit = args.limit or 30

    def text() -> Iterable[str]:
        if args.rollout is not None and len(outcomes) == 1:
            yield from show_outcome(outcomes[0], paint)
            return
        yield from show_outcomes(str(path), outcomes, paint)
        yield list_outcomes(outcomes[:limit])

    _print(args, outcomes, text)
    if len(outcomes) > limit and not args.json:
        say(f"{limit} of {len(outcomes)}; --limit shows more")
    return 0


def _refuse_several_runs(folder: Path) -> None:
    """Refuse a folder of runs, unless it is a store: their results are not to be mixed."""
    from ...studio.server.run_catalog import RunCatalog

    names = [] if (folder / ".new").is_dir() else [str(path) for path in RunCatalog([folder]).runs().values()]
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        hint = f"name one: {shown}; `agentcore-rl ui {folder}` shows all"
        raise ConfigError(f"{folder} is a folder of runs, not a run", hint=hint)


def _counting() -> Callable[[int], None]:
    """Says how many results were read, every two seconds: a store may have very many."""
    said = time.monotonic()

    def count(results: int) -> None:
        nonlocal said
        if time.monotonic() - said >= 2:
            said = time.monotonic()
            say(f"{results} results read …")

    return count


def _refuse(args: argparse.Namespace, what: str, *names: str) -> None:
    """Refuse flags that have no effect here, instead of ignoring them."""
    values = {name: getattr(args, name) for name in names}
    given = [
        f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None and value is not False
    ]
    if given:
        raise ConfigError(f"{what} has no {', '.join(given)}", hint="these flags are for the folder of a run")


def _decoder(name: Any) -> Callable[[list[int]], str]:
    from ...gateway.render.tokenizer import load_tokenizer

    if not name:
        raise ConfigError("--tokens needs the tokenizer", hint="--tokenizer <a folder or a hub id>")
    return load_tokenizer(str(name)).decode


def _print(args: argparse.Namespace, values: Iterable[Any], text: Callable[[], Iterable[str]]) -> None:
    """Print values as JSON, or as text."""
    from ...studio.terminal.run_view import to_json

    for line in map(to_json, values) if args.json else text():
        print(line)
