"""The page's questions about one rollout: its conversation, turns, rows and tokens. Knows no HTTP."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from ...errors import ConfigError
from ...gateway.record.trajectory import Row
from ...rollout import Rollout
from ...rollout.run_folder import Run
from ...rollout.run_folder.rollout_files import described_fields
from ..rollout_diff import diff_rollouts
from .clipped_values import Clipper, find_text
from .run_answers import Answer, Query, row_fields
from .run_catalog import OpenRun

_MOST_TOKENS = 4_000
"""Tokens in one answer."""
_MOST_LANES, _MOST_TURNS = 256, 200
"""Rollouts in a timeline, and turns of each."""
_PIECE = 200_000
"""Characters of a long text in one answer."""
_LONGEST_CHARACTER = 6
"""Tokens that may make up one character."""

_HIDDEN = ("schema_version", "input_id", "session_id", "group", "sample", "action")
"""What the page takes from a rollout's entry instead."""

Decode = Callable[[list[int]], str]
_LOADING = threading.Lock()


def show_rollout(opened: OpenRun, query: Query) -> Answer:
    """A rollout without its tokens."""

    def read(run: Run) -> Answer:
        position = run.find(query["key"])
        rollout = run.rollout(position)
        siblings = _siblings(run, position)
        rows = [_row_fields(rollout, number) for number in range(len(rollout.rows))]
        texts: Answer = Clipper().clip(_texts(rollout))
        about = {"entry": run.entry(position).to_dict(), "rows": rows, "row_fields": row_fields(rollout.payload)}
        return about | siblings | texts

    return opened.use(read)


def show_timeline(opened: OpenRun, query: Query) -> Answer:
    """When each rollout of a step ran, and which weights sampled its turns."""
    phase, step = query.step

    def read(run: Run) -> Answer:
        places = run.select(phase=phase, step=step)
        lanes = [_lane(run, at) for at in places[:_MOST_LANES].tolist()]
        return {"lanes": Clipper(longest=200).clip(lanes), "total": len(places)}

    return opened.known(("timeline", phase, step), read)


def _lane(run: Run, position: int) -> Answer:
    entry = run.entry(position)
    try:
        turns = run.rollout(position).transcript.turns
    except (ConfigError, OSError):
        turns = ()
    shown = [[one.started, one.seconds, one.waited, list(one.versions[:20])] for one in turns[:_MOST_TURNS]]
    kept = ("key", "group", "sample", "reward", "status", "seconds")
    return {name: getattr(entry, name) for name in kept} | {"began": entry.at - entry.seconds, "turns": shown}


def show_text(opened: OpenRun, query: Query) -> Answer:
    """A piece of a long text of a rollout; `at` is where it is."""
    try:
        at = json.loads(query["at"])
    except (ValueError, RecursionError):
        at = None
    if not isinstance(at, list):
        raise ConfigError("at must be a list")
    start = query.whole("start")
    text = opened.use(lambda run: find_text(_texts(run.rollout(run.find(query["key"]))), at))
    return {"text": text[start : start + _PIECE], "length": len(text)}


def show_tokens(opened: OpenRun, query: Query, decode: Decode | None) -> Answer:
    """Some tokens of a row: ids, which are trained on, logprobs, ratios, weight versions, and their text if known."""
    key, number, start = query["key"], query.whole("row"), query.whole("start")

    def read(run: Run) -> tuple[Rollout, Any]:
        position = run.find(key)
        return run.rollout(position), run.log_ratios(position, number)

    rollout, known = opened.use(read)
    if not 0 <= number < len(rollout.rows):
        raise ConfigError(f"rollout {key} has {len(rollout.rows)} rows, and none with number {number}")
    row = rollout.rows[number]
    end = min(len(row.token_ids), start + _MOST_TOKENS)
    ids = row.token_ids[start:end].tolist()
    logprobs = [None if math.isnan(one) else round(float(one), 5) for one in row.logprobs[start:end]]
    return _row_fields(rollout, number) | {
        "start": start,
        "ids": ids,
        "mask": row.loss_mask[start:end].tolist(),
        "logprobs": logprobs,
        "ratios": _ratios(row, known, start, end),
        "texts": None if decode is None else split_text(ids, decode),
    }


def _ratios(row: Row, known: Any, start: int, end: int) -> list[float | None] | None:
    """How much likelier the trainer found each token than the sampler; None where it is not known."""
    places = row.loss_mask.nonzero()[0].tolist()
    if known is None or len(known) != len(places):
        return None
    found: list[float | None] = [None] * (end - start)
    for place, value in zip(places, known.tolist(), strict=True):
        if start <= place < end and not math.isnan(value):
            found[place - start] = float(f"{math.exp(max(-50, min(50, value))):.5g}")
    return found


def show_comparison(opened: OpenRun, query: Query) -> Answer:
    """Two rollouts, message beside message."""

    def read(run: Run) -> Answer:
        places = [run.find(query[name]) for name in ("before", "after")]
        left, right = (run.rollout(at) for at in places)
        clipper = Clipper(budget=1_000_000)
        return {
            "before": run.entry(places[0]).to_dict(),
            "after": run.entry(places[1]).to_dict(),
            "pairs": clipper.clip(diff_rollouts(left, right)[:2_000]),
            "row_fields": row_fields(left.payload),
        }

    return opened.use(read)


def split_text(ids: list[int], decode: Decode) -> list[str]:
    """The text of each token. Where several make up one character, the last of them has it.

    >>> split_text([1, 2, 3], lambda ids: {(1,): "a", (2,): "\\ufffd", (2, 3): "é"}[tuple(ids)])
    ['a', '', 'é']
    """
    texts, waiting = [], list[int]()
    for token in ids:
        waiting.append(token)
        text = decode(waiting)
        if text.endswith("\ufffd") and len(waiting) < _LONGEST_CHARACTER:
            texts.append("")
        else:
            texts.append(text)
            waiting = []
    if waiting:
        texts[-1] = decode(waiting)
    return texts


def decoder(tokenizer: str) -> Decode:
    """What turns ids into text. Threads wait for the first to load it: Transformers can't be imported by several."""
    with _LOADING:
        return _load_decoder(tokenizer)


@lru_cache
def _load_decoder(tokenizer: str) -> Decode:
    from ...gateway.render.tokenizer import load_tokenizer

    return load_tokenizer(tokenizer).decode


def _texts(rollout: Rollout) -> Answer:
    """What a rollout holds beside its tokens, as JSON values."""
    return {name: value for name, value in described_fields(rollout).items() if name not in _HIDDEN}


def _row_fields(rollout: Rollout, number: int) -> Answer:
    row: Row = rollout.rows[number]
    fields: Answer = Clipper(longest=200).clip(
        {
            "row": number,
            "tokens": len(row.token_ids),
            "trained": row.trained,
            "weight": row.weight,
            "prompt_length": row.prompt_length,
            "spans": [asdict(span) for span in row.spans[:2_000]],
            "versions": [list(one) for one in row.versions[:2_000]],
        }
    )
    return fields


def _siblings(run: Run, position: int) -> Answer:
    """The rollouts of the same group, and the neighbours in the step."""
    element = run.table[position]
    step = run.select(phase=run.entry(position).phase, step=int(element["step"]))
    group = step[run.table["group"][step] == element["group"]] if element["group"] >= 0 else step[:0]
    at = int((step == position).argmax())
    around = {"previous": step[at - 1] if at else None, "next": step[at + 1] if at + 1 < len(step) else None}
    keys = {name: None if one is None else run.entry(int(one)).key for name, one in around.items()}
    samples = sorted((run.entry(int(one)) for one in group[:200]), key=lambda entry: entry.sample)
    return {"group": [entry.to_dict() for entry in samples], **keys}
