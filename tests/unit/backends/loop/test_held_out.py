"""What guards learn from the held-out rows of a run of several processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit.backends.loop.held_out import HeldOut
from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.rollout.run_folder import RunWriter, open_run
from agentcore_rl_toolkit.studio.guards import RunFacts
from support.rollouts import make_rollout


def test_the_first_process_finds_the_example_that_another_one_ran(tmp_path: Path) -> None:
    held_out = [{"prompt": "only held out"}, {"prompt": "trained too"}]
    settings = LoopSettings(agent="rl_app.py", data="rows.jsonl", output=str(tmp_path))
    known = [RunFacts(), RunFacts()]

    def run(rows: Any, *, on_rollout: Any, **_: Any) -> None:
        for row in rows:
            on_rollout(replace(make_rollout(), payload=row))

    processes = [
        HeldOut(settings, held_out, held_out[1:], Report(settings, quiet=True), facts, place, 2, lambda one: [one])
        for place, facts in enumerate(known)
    ]
    for place, process in enumerate(processes):
        with RunWriter(tmp_path, process=place) as writer, writer.part("before", 0) as part:
            process.evaluate(0, part, run)
    for process, facts in zip(processes, known, strict=True):
        process.find_shared_example()
        assert facts.shared_example is not None
        found = open_run(tmp_path)
        assert found.rollout(found.find(facts.shared_example)).payload == held_out[1]
