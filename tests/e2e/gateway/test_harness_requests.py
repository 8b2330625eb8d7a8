"""What real harnesses sent, sent again: every one of their calls is served, and each session has the fewest rows.

`make test-harnesses` runs the harnesses themselves; with AGENTCORE_RL_RECORD_HARNESSES=1 it writes the requests again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from real_harnesses.harness import ANSWER, TASK
from support.gateway import gateway, ids

RECORDINGS = sorted((Path(__file__).parents[2] / "support" / "harness_requests").glob("*.jsonl"))
ROWS = {"opencode": 2}
"""One, but for a side call of its own."""
OMITTED = {
    "codex": {"web_search": 1},
    "codex-2": {"web_search": 1},
    "codex-4": {"web_search": 1, "image": 1},
}
_OURS = re.compile(r"(?:call|msg|resp|fc|ctc|chatcmpl|rs)[_-]([0-9a-f]{16})|\"responseId\": ?\"([0-9a-f]{16})")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def uid_of(answer: str) -> str:
    found = _OURS.search(answer)
    assert found is not None, answer
    return str(found[1] or found[2])


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_requests_are_served_in_the_fewest_rows(path: Path):
    asked = read(path)
    engine = ScriptedEngine(
        [ids(one["said"].removesuffix("<|im_end|>")) for one in asked], context_length=None, chunk=9
    )
    with gateway(engine) as running:
        session = running.open_session(model="scripted")
        uids: list[str] = []
        for one in asked:
            body = re.sub(r"UID(\d+)_", lambda known: uids[int(known[1])], json.dumps(one["body"]))
            url = f"{session['anthropic_base_url']}/{one['path']}"
            answer = httpx.post(url, content=body, headers={"anthropic-version": "2023-06-01"}, timeout=60)
            assert answer.status_code == 200, answer.text
            uids.append(uid_of(answer.text))
        fidelity = running.trajectories(session["session_id"]).fidelity
    assert (fidelity.turns, fidelity.trained) == (len(asked), fidelity.sampled)
    assert fidelity.rows == ROWS.get(path.stem, 1)
    assert fidelity.parse_failures == 0
    assert fidelity.omitted == OMITTED.get(path.stem, {})
    assert any(ANSWER in one["said"] for one in asked)


def test_ten_harnesses_are_recorded():
    names = {path.stem.partition("-")[0] for path in RECORDINGS}
    assert len(names) == 10


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recordings_have_no_texts_of_the_harness(path: Path):
    """Sentences are those of the task, of the calls the model made, or numbered ones."""
    own = letters(json.dumps([TASK, *(one["said"] for one in read(path))]))

    def check(value: Any) -> None:
        if isinstance(value, str):
            assert " " not in value[:64] or re.fullmatch(r"text \d+", value) or letters(json.dumps(value)) in own
        elif isinstance(value, list):
            for item in value:
                check(item)
        elif isinstance(value, dict) and value.get("role") != "assistant":
            for item in value.values():
                check(item)

    for one in read(path):
        check(one["body"])


def letters(text: str) -> str:
    """A text without what JSON escapes, be it once or twice."""
    return re.sub(r"\\+n|[^A-Za-z0-9]", "", text)
