"""Plays tasks of the built-in world on this machine, each done right and done wrong: no model, no account, no download.

Every other part is real: sandboxed sessions on the local runtime, the Strands agent, code that runs, the gateway,
exact tokens, results through the store. The policy is a script that follows the tasks' own ways to go about them.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from worlds.tasks import Task, tasks

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer, load_tokenizer
from agentcore_rl_toolkit.rollout import Rollout, run_rollouts

AGENT = Path(__file__).parent / "rl_app.py"


def writing(plans: dict[str, Sequence[str]], tokenizer: Tokenizer) -> Callable[[SampleRequest], Sequence[int]]:
    """A policy that writes the code of a prompt's plan, a part each turn, and then says that it is done."""

    def say(request: SampleRequest) -> Sequence[int]:
        seen = tokenizer.decode(list(request.prompt))
        plan = next(plan for prompt, plan in plans.items() if prompt in seen)
        step = seen.count("<tool_response>")
        said = "Done."
        if step < len(plan):
            call = {"name": "run_code", "arguments": {"code": plan[step]}}
            said = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        return tokenizer.encode(said + "<|im_end|>")

    return say


def play(client: RolloutClient, rows: Sequence[dict[str, str]], plans: Sequence[Sequence[str]]) -> list[Rollout]:
    """One rollout of each row by its plan, in their order."""
    known = {row["prompt"]: plan for row, plan in zip(rows, plans, strict=True)}
    engine = ScriptedEngine(writing(known, load_tokenizer(tiny.path())), models=("script",))
    with Gateway(engine, tokenizer=tiny.path()) as gateway:
        running = run_rollouts(rows, 1, client=client, gateway=gateway, timeout=300, keep_dropped=True)
        groups = sorted(running, key=lambda group: group.index)
    return [rollout for group in groups for rollout in (*group.rollouts, *group.others)]


def main() -> int:
    played: list[Task] = list(islice(tasks("held-out"), 5))
    rows = [task.row for task in played]
    with tempfile.TemporaryDirectory() as results, RolloutClient(AGENT, results, "demo") as client:
        right = play(client, rows, [task.solution for task in played])
        wrong = play(client, rows, [task.wrong for task in played])
    lines = [
        [task.task_id, str(good.fidelity.turns), f"{good.reward}", f"{bad.reward}", task.instruction[:70]]
        for task, good, bad in zip(played, right, wrong, strict=True)
    ]
    print(format_table(["task", "turns", "done right", "done wrong", "instruction"], lines))
    expected = all(rollout.reward == 1.0 for rollout in right) and all(rollout.reward == 0.0 for rollout in wrong)
    return 0 if expected else 1


if __name__ == "__main__":
    sys.exit(main())
