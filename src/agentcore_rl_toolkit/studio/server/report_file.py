"""A report: the page and some of its answers in one file, which opens anywhere and fetches nothing.

It has each run's figures, its steps, the rows that changed, and a selection of rollouts: examples of failures and of
guards' findings, the groups of the first and the last step, and held-out rows before and after.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .. import run_queries
from .run_answers import Query, thin
from .studio_app import StudioApp, page_files

LARGEST = 30_000_000
"""Characters of the answers in a report."""
_MOST_RUNS, _MOST_STEPS, _MOST_GROUPS, _MOST_PAIRS = 8, 40, 8, 12
_IMPORT = re.compile(r'(?<=from ")(\.{1,2}/[^"]+)(?=")')

Question = tuple[str, dict[str, str]]


def write_report(app: StudioApp, path: Path) -> tuple[int, int, int]:
    """Write a report of the latest runs. Returns the numbers of rollouts and runs in it, and of all runs."""
    every = app.answer("runs", Query())["runs"]
    runs = sorted((run for run in every if "problem" not in run), key=lambda run: -run["changed"])[:_MOST_RUNS]
    if not runs:
        raise ConfigError("there is no run to report on", hint="name a run, or a folder of runs")
    answers: dict[str, Any] = {_name(("runs", {})): {"runs": runs}}
    size = 0
    for question in (one for run in runs for one in _questions(app, run["run"])):
        if size > LARGEST or _name(question) in answers:
            continue
        try:
            answer = app.answer(question[0], Query(question[1]))
        except ConfigError:
            continue
        answers[_name(question)] = answer
        size += len(json.dumps(answer))
    path.write_text(page_with({"answers": answers}), encoding="utf-8")
    return sum(name.startswith('["rollout"') for name in answers), len(runs), len(every)


def page_with(report: dict[str, Any]) -> str:
    """The page as one file that answers itself."""
    files, nonce = {name: data.decode() for name, (data, _) in page_files().items()}, secrets.token_hex(16)
    modules = {f"studio/{name}": _module(name, text) for name, text in files.items() if name.startswith("js/")}
    charts = _data("text/javascript", files["third_party/uplot/uPlot.iife.min.js"])
    styles = "\n".join(files[name] for name in ("third_party/uplot/uPlot.min.css", "css/studio.css", "css/views.css"))
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types"
    )
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>AgentCore RL</title>\n<link rel="icon" href="{_data("image/svg+xml", files["icon.svg"])}">',
        f'<style nonce="{nonce}">{styles}</style>',
        f'<script nonce="{nonce}" src="{charts}"></script>',
        f'<script nonce="{nonce}" type="importmap">{_script({"imports": modules})}</script>\n</head>\n<body>',
        '<header id="top"></header>\n<main id="view" tabindex="-1"></main>\n',
        f'<script type="application/json" id="report">{_script(report)}</script>',
        f'<script nonce="{nonce}" type="module">import "studio/js/app.js";</script>\n</body>\n</html>\n',
    ]
    return "\n".join(parts)


def _questions(app: StudioApp, run: str) -> Iterator[Question]:
    """What the page will ask about a run, the most important first."""
    about = {"run": run}
    yield "run", about
    figures = app.answer("run", Query(about))
    every = [*figures["steps"], *figures["evaluations"]]
    for phases in ("train", "held-out"):
        for change in ("", *run_queries.CHANGES):
            yield "rows", about | {"phases": phases, "limit": "50"} | ({"change": change} if change else {})
    yield "rollouts", about | {"limit": "50"}
    yield "rollouts", about | {"limit": "50", "failed": "true"}
    for one in thin(every, _MOST_STEPS):
        yield "groups", about | {"phase": one["phase"], "step": str(one["step"]), "limit": "40"}
    for one in (*figures["findings"], *figures["causes"][:20]):
        if one.get("example"):
            yield from _rollout(app, run, str(one["example"]))
    yield from _pairs(app, run)
    for one in [*figures["steps"][-1:], *figures["steps"][:1]]:
        yield from _groups(app, run, one["phase"], str(one["step"]))


def _pairs(app: StudioApp, run: str) -> Iterator[Question]:
    """Held-out rows before and after."""
    for change in ("learned", "forgotten", "never"):
        asked = Query(run=run, phases="held-out", change=change, limit=str(_MOST_PAIRS // 3))
        for row in app.answer("rows", asked)["rows"]:
            first, last = row["visits"][0]["example"], row["visits"][-1]["example"]
            yield "compare", {"run": run, "before": first, "after": last}
            yield "row", {"run": run, "row": row["row"]}
            for visit in row["visits"][:12]:
                yield from _rollout(app, run, visit["example"])


def _groups(app: StudioApp, run: str, phase: str, step: str) -> Iterator[Question]:
    where = {"run": run, "phase": phase, "step": step}
    for group in app.answer("groups", Query(where | {"limit": str(_MOST_GROUPS)}))["groups"]:
        yield "group", where | {"group": str(group["input_id"] if group["group"] is None else group["group"])}
        for sample in group["samples"][:16]:
            yield from _rollout(app, run, sample["key"])


def _rollout(app: StudioApp, run: str, key: str) -> Iterator[Question]:
    yield "rollout", {"run": run, "key": key}
    yield "tokens", {"run": run, "key": key, "row": "0", "start": "0"}


def _name(question: Question) -> str:
    """The question as the page writes it."""
    name, asked = question
    return json.dumps(
        [name, sorted([key, value] for key, value in asked.items())], separators=(",", ":"), ensure_ascii=False
    )


def _module(name: str, text: str) -> str:
    """A module whose imports are found by name, because it has no address of its own."""
    there = posixpath.dirname(name)
    named = _IMPORT.sub(lambda found: f"studio/{posixpath.normpath(posixpath.join(there, found[1]))}", text)
    return _data("text/javascript", named)


def _data(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _script(value: Any) -> str:
    """A value as JSON that no text in it can end."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
