"""How far a reward agrees with gold rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.deploy.doctor.check_judge import check_judge
from support.fake_judge import FakeJudge

REWARDS = """
from agentcore_rl_toolkit.errors import JudgeFault
from agentcore_rl_toolkit.rewards import LLMJudge

def length(response_text): return len(response_text)
def shortness(response_text): return -len(response_text)
def ranked(responses): return [len(text) for text in responses]
def broken(response_text): raise JudgeFault("HTTP 500")
judge = LLMJudge("openai:j", rubric="r", base_url="URL", price=(1e4, 0), retries=0)
"""


def gold(folder: Path, *rows: dict[str, Any], url: str = "") -> tuple[str, str]:
    (folder / "rewards.py").write_text(REWARDS.replace("URL", url))
    (folder / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{folder}/rewards.py", f"{folder}/gold.jsonl"


ROWS = [{"response_text": "a" * length, "reward": reward} for length, reward in ((1, 0.0), (2, 0.5), (4, 1.0), (3, 1))]


@pytest.mark.parametrize(
    ("name", "state", "text"),
    [
        ("length", "ok", "agrees with gold in 100% of 5 pairs, mean distance 1.88"),
        ("shortness", "failed", "agrees with gold in 0% of 5 pairs, mean distance 3.12: no better than chance"),
        ("broken", "failed", "4 of 4 gold rows got no score; the first: HTTP 500"),
        ("nowhere", "failed", "can't be loaded"),
    ],
)
def test_one_reward_for_each_row(tmp_path: Path, name: str, state: str, text: str) -> None:
    file, rows = gold(tmp_path, *ROWS)
    check = check_judge(f"{file}:{name}", rows)
    assert check.state == state
    assert text in check.text


def test_a_ranking_is_compared_within_its_row(tmp_path: Path) -> None:
    file, rows = gold(
        tmp_path,
        {"responses": ["a", "aa", "aaa"], "rewards": [0, 1, 2]},
        {"responses": ["aaaa", "aaaaa"], "rewards": [9, 0]},
    )
    assert "agrees with gold in 75% of 4 pairs" in check_judge(f"{file}:ranked", rows).text


def test_the_doctor_prints_the_agreement_and_the_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rl_app.py").write_text("")
    fake = FakeJudge({"reason": "", "score": 1}, {"reason": "", "score": 9})
    with fake.serving() as url:
        file, rows = gold(tmp_path, *ROWS[:2], url=url)
        assert main(["doctor", str(tmp_path), "--only", "judge", "--reward", f"{file}:judge", "--gold", rows]) == 0
    assert capsys.readouterr().out == (
        "✓ judge: agrees with gold in 100% of 1 pairs, mean distance 0.25; 2 calls, 0 from the cache, 220 tokens, "
        "$2.0000\n"
    )


def test_rows_without_a_gold_reward_are_refused(tmp_path: Path) -> None:
    file, rows = gold(tmp_path, {"response_text": "a"})
    check = check_judge(f"{file}:length", rows)
    assert (check.state, check.text) == ("failed", "a gold row has no reward")
