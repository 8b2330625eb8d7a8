"""Which steps may start, by the number of updates: that alone bounds how old a token can become."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.loop.steps_ahead import StepsAhead
from agentcore_rl_toolkit.rollout import RolloutRunner, RolloutStream
from agentcore_rl_toolkit.rollout.run_folder import RunWriter


@pytest.fixture
def stream() -> Iterator[RolloutStream]:
    nobody: Any = None  # no rollout is started
    runner = RolloutRunner(nobody, nobody)
    made = RolloutStream(runner)
    yield made
    made.close()
    runner.close()


@pytest.mark.parametrize(
    ("ahead", "start", "expected"),
    [
        (1, 0, [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
        (3, 0, [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
        (1, 2, [[2, 3], [2, 3, 4], [2, 3, 4]]),  # resumed
    ],
)
def test_a_step_starts_when_it_can_not_become_older_than_it_may(
    stream: RolloutStream, tmp_path: Path, ahead: int, start: int, expected: list[list[int]]
) -> None:
    opened: list[int] = []
    with RunWriter(tmp_path) as writer:

        def open_step(stream: RolloutStream, step: int) -> Any:
            opened.append(step)
            return writer.open_part("train", step), stream.add([])

        steps = StepsAhead(stream, open_step, ahead=ahead, start=start, steps=5)
        for version, known in enumerate(expected, start):
            steps.advance(version)
            assert opened == known
            assert steps.take(version)[1] == []
        steps.advance(version)
        assert opened == expected[-1]
        assert steps.measure()[1] == 0.0
        steps.close()
