"""Harnesses as npm and PyPI have them, against a gateway over a scripted policy: `make test-harnesses`.

Each does the task with its default settings. The file has to be edited, every sampled token trained once after its
exact prompt, and the session folded into the fewest rows that the harness allows.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.record.trajectory import Trajectories
from real_harnesses.harness import ANSWER, MODEL, Harness, Place, task
from real_harnesses.policy import load_tokenizer, policy
from real_harnesses.record import Recorder, recorded
from real_harnesses.trim import Trimmer

FOLDER = Path(os.environ.get("AGENTCORE_RL_TEST_HARNESSES", ".venv/harnesses")).absolute()
NAMES = sorted(path.stem for path in Path(__file__).with_name("harnesses").glob("*.py"))
RECORDINGS = Path(__file__).parents[1] / "support" / "harness_requests"
SECONDS = 300


def harnesses() -> Iterator[Any]:
    for name in NAMES:
        known: list[Harness] = importlib.import_module(f"real_harnesses.harnesses.{name}").HARNESSES
        for number, harness in enumerate(known):
            yield pytest.param(harness, id=name if number == 0 else f"{name}-{number + 1}")


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("harness", list(harnesses()))
def test_a_harness_does_the_task(harness: Harness, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tokenizer = load_tokenizer(FOLDER / "tokenizer.json")
    work, home = tmp_path / "work", tmp_path / "home"
    for directory in (work, home):
        directory.mkdir()
    task(work)
    engine = ScriptedEngine(lambda asked: sample(asked), context_length=None, chunk=7)
    fault: list[str] = []
    with Gateway(engine, tokenizer=tokenizer) as running, recorded(running.url) as recorder:
        opened = running.open_session(model=MODEL)
        urls = {key: recorder.moved(value) for key, value in opened.items()}
        place = Place(FOLDER / harness.name, work, home, urls)
        sample = policy(tokenizer, harness.steps(place), harness.mark, fault)
        said = run(harness, place)
        trajectories = running.trajectories(opened["session_id"])
        turns = running.core.sessions.get(opened["session_id"]).tree.turns
        said_by = {turn.uid: tokenizer.decode(turn.sampled.tolist()) for turn in turns}
    if "AGENTCORE_RL_RECORD_HARNESSES" in os.environ:
        kept = recording(recorder, harness, place, said_by)
        lines = [json.dumps(asked, ensure_ascii=False) for asked in kept]
        (RECORDINGS / f"{request.node.callspec.id}.jsonl").write_text("\n".join(lines) + "\n")
    print(f"\n{request.node.callspec.id}: {trajectories.fidelity}")  # noqa: T201
    refused = [(asked["path"], asked["status"], asked["answer"][:500]) for asked in recorder.refused()]
    assert not fault, (fault[0], refused, said[-3000:])
    assert (work / "todo.txt").read_text() == "buy milk\nbuy tea\n", (refused, said[-3000:])
    assert ANSWER in said
    check_tokens(engine, trajectories)
    assert trajectories.fidelity.rows == harness.rows


def recording(recorder: Recorder, harness: Harness, place: Place, said: dict[str, str]) -> list[dict[str, Any]]:
    """What the default suite sends again: each model call's path and body, and what the model said to it."""
    calls = [asked for asked in recorder.requests if asked["status"] == 200 and _uid(asked, said)]
    uids = [_uid(asked, said) for asked in calls]
    folders = {str(place.work): "/project", str(place.home): "/home"}
    trimmer = Trimmer(harness.steps(place), uids, folders)
    requests = []
    for asked, uid in zip(calls, uids, strict=True):
        spoken = said[uid].replace(str(place.work), "/project")
        path = asked["path"].split("/", 3)[3]  # after the session and its key
        requests.append({"path": path, "body": trimmer.request(json.loads(asked["body"])), "said": spoken})
    return requests


def _uid(asked: dict[str, Any], said: dict[str, str]) -> str:
    return next((uid for uid in said if uid in asked["answer"]), "")


def run(harness: Harness, place: Place) -> str:
    """What the harness prints."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    own = {"HOME": str(place.home), "XDG_CONFIG_HOME": str(place.home / ".config"), "CI": "1", "NO_COLOR": "1"}
    env = kept | own | {"PYTHONPATH": str(Path(__file__).parents[1])} | dict(harness.env(place))
    done = subprocess.run(
        list(harness.command(place)),
        cwd=place.work,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout


def check_tokens(engine: ScriptedEngine, trajectories: Trajectories) -> None:
    """Every sampled token is trained once, after the exact prompt that it was sampled for."""
    fidelity = trajectories.fidelity
    assert fidelity.sampled == fidelity.trained > 0
    assert fidelity.turns == len(engine.requests)
    trained = [
        (tuple(row.token_ids[: span.start]), span.end - span.start)
        for row in trajectories.rows
        for span in row.spans
        if span.trained and row.loss_mask[span.start : span.end].all()
    ]
    prompts = [tuple(request.prompt) for request in engine.requests]
    assert sorted(prompt for prompt, _ in trained) == sorted(prompts)
    assert sum(row.trained for row in trajectories.rows) == sum(length for _, length in trained) == fidelity.sampled
