"""One rollout as a conversation, and two of them next to each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...common.text_table import escape
from ...gateway.record.conversation import ReadableTurn, Transcript
from ...rollout import Rollout
from ...rollout.run_folder import Entry
from ..rollout_diff import diff_rollouts
from ..server.run_answers import row_fields
from .safe_text import BOLD, DIM, GREEN, RED, Paint, shorten


def show_rollout(rollout: Rollout, entry: Entry | None, paint: Paint) -> Iterator[str]:
    """What a rollout is, its turns, its result, and what its session printed."""
    if entry is not None:
        reward = "none" if entry.reward is None else f"{entry.reward:g}"
        advantage = "" if entry.advantage is None else f", advantage {entry.advantage:.3f}"
        where = f"{entry.phase} step {entry.step}, row {escape(entry.input_id)}, sample {entry.sample}"
        yield paint(BOLD, f"{entry.key}: {where}: {entry.status}, reward {reward}{advantage}")
    if fields := row_fields(rollout.payload):
        yield _line("row", ", ".join(f"{name}: {text}" for name, text in fields), paint)
    if rollout.why:
        yield f"not trained on: {escape(rollout.why)}"
    yield from show_transcript(rollout.transcript, paint)
    if rollout.rows and not rollout.transcript.turns:
        yield paint(DIM, "this run is from before texts were kept; --tokens shows what was sampled")
    if rollout.error:
        yield _line("error", rollout.error, paint)
    if rollout.result is not None:
        yield _line("result", json.dumps(_shown_result(rollout.result), ensure_ascii=False, default=repr), paint)
    if rollout.printed:
        yield _line("printed", rollout.printed.rstrip(), paint)


def show_transcript(transcript: Transcript, paint: Paint) -> Iterator[str]:
    """Each turn under a heading, with the messages that are new in it."""
    for turn in transcript.turns:
        yield paint(DIM, f"── {_heading(turn)} " + "─" * 8)
        if not turn.messages and turn.before is None:
            yield _line("text", paint(DIM, "a raw prompt; --tokens shows it"), paint, safe=True)
        for place in turn.messages:
            yield from show_message(transcript.messages[place], paint)
        yield from show_message({"role": "assistant", **turn.reply}, paint)
    if transcript.left_out:
        yield paint(DIM, f"{transcript.left_out} characters were left out")


def show_message(message: Mapping[str, Any], paint: Paint) -> Iterator[str]:
    """A message: its reasoning, its text, and its calls."""
    role, content = str(message.get("role", "?")), message.get("content")
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    if message.get("reasoning"):
        yield _line("thinks", paint(DIM, escape(message["reasoning"])), paint, safe=True)
    if content or (role != "assistant" and not calls):
        yield _line(role, content if isinstance(content, str) else json.dumps(content, default=repr), paint)
    for call in calls:
        given = call.get("arguments")
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=repr)
        yield _line("calls", f"{call.get('name')}({text})", paint)


def show_diff(before: Rollout, after: Rollout, paint: Paint) -> Iterator[str]:
    """Two rollouts of a row: what both said, and what only one of them did (`-` before, `+` after)."""
    plain = Paint()
    for pair in diff_rollouts(before, after):
        sides = (
            [(" ", DIM, pair["before"])] if pair["same"] else [("-", RED, pair["before"]), ("+", GREEN, pair["after"])]
        )
        for mark, code, message in sides:
            for line in show_message(message, plain) if message is not None else ():
                yield paint(code, f"{mark} " + line.replace("\n", f"\n{mark} "))


def _heading(turn: ReadableTurn) -> str:
    parent = "from the start" if turn.before is None else f"after turn {turn.before}"
    versions = ", ".join(version for version, _ in turn.versions if version)
    parts = [
        *(turn.origin, parent, f"{turn.prompt_tokens} + {turn.sampled_tokens} tokens", f"{turn.seconds:.2f} s"),
        turn.finish,
        f"weights {versions}" if versions else "",
        f"the agent asked for {turn.asked_model}" if turn.asked_model else "",
        f"masked: {turn.masked}" if turn.masked else "",
        f"not bridged: {turn.unbridged}" if turn.unbridged else "",
        f"{turn.parse_failures} calls not parsed" if turn.parse_failures else "",
    ]
    return escape(f"turn {turn.turn}: {', '.join(filter(None, parts))}")


def _line(name: str, text: str, paint: Paint, *, safe: bool = False) -> str:
    return f"{paint(BOLD, escape(name))}  {text if safe else escape(text)}"


def _shown_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without the fields that are shown elsewhere, with long texts shortened."""
    left_out = ("payload", "s3_bucket", "result_key", "input_id", "_rollout")
    known = {name: value for name, value in result.items() if name not in left_out}
    return {name: shorten(value, 2000) if isinstance(value, str) and name != "traceback" else value
            for name, value in known.items()}  # fmt: skip
