"""Guards name what is wrong with a real run of the built-in policy within three steps, and nothing in a healthy one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl")

from agentcore_rl_toolkit.errors import RolloutsStopped
from agentcore_rl_toolkit.rollout.run_folder import open_run
from agentcore_rl_toolkit.studio.guards.guards import FILE, read_findings
from support.flawed_runs import FLAWS, HEALTHY, train_with, write_agent
from support.runtime import shared_runtime

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared_runtime(write_agent(tmp_path_factory.mktemp("agent")), tmp_path_factory.getbasetemp()) as arn:
        yield arn


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_named_within_three_steps(name: str, agent: str, tmp_path: Path) -> None:
    flaw = FLAWS[name]
    ending = replace(flaw, settings=flaw.settings | {"guard": {flaw.guard: "stop"}})  # what follows shows no more
    with suppress(RolloutsStopped):
        train_with(ending, tmp_path, agent=agent)
    folder = tmp_path / "run"
    found = {one["guard"]: one for one in read_findings(folder / FILE)}
    assert flaw.guard in found, (found, open_run(folder).metrics())
    finding = found[flaw.guard]
    assert finding["step"] <= 3
    assert found.keys() <= {flaw.guard, *flaw.also}, found
    run = open_run(folder)
    run.find(finding["example"])


def test_nothing_is_said_about_a_healthy_run(agent: str, tmp_path: Path) -> None:
    folder = train_with(HEALTHY, tmp_path, agent=agent)
    assert read_findings(folder / FILE) == []
