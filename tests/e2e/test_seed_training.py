"""The first toolkit's agent, unchanged, in sessions and in training: it reads BASE_URL and MODEL_ID on import."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rollout import read_rollouts, run_rollouts
from agentcore_rl_toolkit.runtime.local import AgentSource
from support.gateway import call_text, gateway, ids, text_of

SEED = Path(__file__).parents[1] / "compat" / "seed_agents"
ROWS = [{"prompt": f"What is six times {n}?", "answer": str(6 * n)} for n in (7, 8)]


def uses_the_calculator(request: SampleRequest) -> Sequence[int]:
    said = text_of(request.prompt)
    number = said.split("six times ")[1][0]
    if "<tool_response>" not in said:
        return ids(call_text("calculator", expression=f"6*{number}"))
    return ids(f"The answer is {6 * int(number)}.")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    shutil.copy(SEED / "first_generation.py", folder / "rl_app.py")
    shutil.copy(SEED / "reward.py", folder)
    return folder


def test_each_session_finds_its_own_model_on_import_and_what_the_agent_collected_is_kept(
    agent: Path, tmp_path: Path
) -> None:
    source = AgentSource.parse(
        agent / "rl_app.py", env={"STRANDS_NON_INTERACTIVE": "true", "BASE_URL": "http://not/v1"}
    )
    with (
        gateway(ScriptedEngine(uses_the_calculator, context_length=100_000)) as running,
        RolloutClient(source, str(tmp_path / "results"), "seed") as client,
    ):
        groups = list(run_rollouts(ROWS, 2, client=client, gateway=running, timeout=120))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert [(r.reward, r.error) for r in rollouts] == [(1.0, None)] * 4
    for group in groups:
        for rollout in group.rollouts:
            assert (rollout.fidelity.turns, rollout.fidelity.rows) == (2, 1)
            (row,) = rollout.rows
            assert group.payload["prompt"] in text_of(row.token_ids)  # its own turns, not another session's
            collected = (rollout.result or {})["rollout_data"]
            assert [call["stop_reason"] for call in collected] == ["tool_use", "end_turn"]
            stored = json.loads((tmp_path / "results" / str((rollout.result or {})["result_key"])).read_bytes())
            assert stored["rollout_data"] == collected


@pytest.mark.filterwarnings("ignore")
def test_it_trains_with_trl(agent: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from agentcore_rl_toolkit.backends.trl import train
    from agentcore_rl_toolkit.backends.trl.backend import TrlSettings

    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    model = shutil.copytree(tiny.path(), tmp_path / "model")
    config = json.loads((model / "config.json").read_text())  # the tool's description alone is longer than its context
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16_384}))
    settings: dict[str, Any] = {"rows_per_step": 2, "n": 2, "steps": 1, "max_tokens": 24, "device": "cpu"}
    summary = train(
        TrlSettings(
            agent=str(agent / "rl_app.py"),
            data=str(tmp_path / "rows.jsonl"),
            output=str(tmp_path / "run"),
            model=str(model),
            env={"STRANDS_NON_INTERACTIVE": "true"},
            failures={"truncated": "train"},
            **settings,
        )
    )
    assert (summary["steps"], summary["fidelity"], summary["trained"]) == (1, 1.0, 4)
    (file,) = (tmp_path / "run" / "rollouts").iterdir()
    assert [(r.status.value in ("completed", "truncated"), r.trained) for r in read_rollouts(file)] == [
        (True, True)
    ] * 4


READS = "import os\nbase_url = {}\nfrom agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n" + (
    "@app.rollout_entrypoint\ndef invoke_agent(payload):\n    return {'response': str(base_url)}\n"
)


@pytest.fixture
def sessions(tmp_path: Path) -> Callable[[str], list[str]]:
    def run(how: str) -> list[str]:
        (tmp_path / "agent").mkdir()
        (tmp_path / "agent" / "rl_app.py").write_text(READS.replace("{}", how))
        with (
            gateway(ScriptedEngine([])) as running,
            RolloutClient(str(tmp_path / "agent"), str(tmp_path / "results"), "reads") as client,
        ):
            groups = list(run_rollouts([{}], 2, client=client, gateway=running, keep_dropped=True, timeout=60))
        return [(r.result or {}).get("response", r.error) for group in groups for r in group.rollouts]

    return run


@pytest.mark.parametrize(
    "how",
    [
        "os.environ['BASE_URL']",
        "'BASE_URL' in os.environ and os.environ['BASE_URL']",
        "os.getenv('BASE_URL')",
        "os.environ.get('BASE_URL', 'none')",
    ],
)
def test_whatever_reads_the_variable_on_import_gets_the_sessions_own(sessions: Any, how: str) -> None:
    found = sessions(how)
    assert len(set(found)) == 2
    assert all("/sessions/" in url and url.endswith("/v1") for url in found)


def test_an_agent_that_reads_no_variable_is_imported_before_its_session_is_known(sessions: Any) -> None:
    assert sessions("os.environ._data.get(b'BASE_URL')") == ["None", "None"]  # a look that the runtime can't notice
