"""Whatever a rollout says, an answer is bounded, and can be parsed by a browser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.studio.server.clipped_values import Clipper, find_text


def test_long_texts_are_cut_and_say_where_the_rest_is() -> None:
    given = {"result": {"output": ["short", "x" * 50]}}
    cut = Clipper(longest=10).clip(given)["result"]["output"][1]
    assert cut == {"$clipped": "x" * 10, "length": 50, "at": ["result", "output", 1]}
    assert find_text(given, cut["at"]) == "x" * 50


def test_all_texts_together_are_bounded() -> None:
    cut = Clipper(longest=100, budget=250).clip(["y" * 100] * 50)
    assert sum(len(one if isinstance(one, str) else one["$clipped"]) for one in cut) == 250
    assert len(json.dumps(Clipper().clip({"k" * 10_000: ["z" * 1000] * 10_000}))) < 2_600_000


def test_lists_and_depths_are_bounded() -> None:
    deep: Any = "end"
    for _ in range(2000):
        deep = [deep]
    assert "end" not in json.dumps(Clipper().clip(deep))
    assert Clipper().clip(list(range(5000)))[-1] == "… and 3000 more"


def test_values_that_json_or_javascript_cannot_hold_become_texts() -> None:
    given = {"big": 2**60, "nan": float("nan"), "inf": float("-inf"), "half": "\ud800", "yes": True, "none": None}
    assert json.loads(json.dumps(Clipper().clip(given), allow_nan=False)) == {
        **given,
        "big": str(2**60),
        "nan": "nan",
        "inf": "-inf",
    }


def test_a_value_cannot_pose_as_a_cut_text() -> None:
    assert Clipper().clip({"$clipped": "no", "length": 3, "at": []}) == {"$$clipped": "no", "length": 3, "at": []}


@pytest.mark.parametrize("at", [["nothing"], [0], ["result", "x"], ["result"], ["text", {"a": 1}]])
def test_a_wrong_path_is_refused(at: list[Any]) -> None:
    with pytest.raises(ConfigError, match="text"):
        find_text({"result": {}, "text": "here"}, at)
