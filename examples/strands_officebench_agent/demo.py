"""Plays the built-in tasks on this machine, each done right and done wrong: no model, no cloud account, no download.

Every other part is real: sandboxed sessions on the local runtime, the Strands agent and its tools, the gateway, exact
tokens, results through the store. The policy is a script that follows the tasks' own ways to go about them.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from office.tasks import Call, Task, tasks

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer, load_tokenizer
from agentcore_rl_toolkit.rollout import Rollout, run_rollouts

AGENT = Path(__file__).parent / "rl_app.py"


def following(plans: dict[str, list[Call]], tokenizer: Tokenizer) -> Callable[[SampleRequest], Sequence[int]]:
    """A policy that makes the calls of a prompt's plan, one a turn, and then says that it is done."""

    def say(request: SampleRequest) -> Sequence[int]:
        seen = tokenizer.decode(list(request.prompt))
        plan = next(plan for prompt, plan in plans.items() if prompt in seen)
        step = seen.count("<tool_response>")
        said = "Done."
        if step < len(plan):
            name, arguments = plan[step]
            said = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        return tokenizer.encode(said + "<|im_end|>")

    return say


def play(client: RolloutClient, played: Sequence[Task], plans: Sequence[list[Call]]) -> list[Rollout]:
    """One rollout of each task by its plan, in their order."""
    known = {task.prompt: plan for task, plan in zip(played, plans, strict=True)}
    engine = ScriptedEngine(following(known, load_tokenizer(tiny.path())), models=("script",))
    with Gateway(engine, tokenizer=tiny.path()) as gateway:
        rows = [task.row for task in played]
        running = run_rollouts(rows, 1, client=client, gateway=gateway, timeout=120, keep_dropped=True)
        groups = sorted(running, key=lambda group: group.index)
    return [rollout for group in groups for rollout in (*group.rollouts, *group.others)]


def main() -> int:
    played = list(islice(tasks("held-out"), 10))
    with tempfile.TemporaryDirectory() as results, RolloutClient(AGENT, results, "demo") as client:
        right = play(client, played, [task.solution for task in played])
        wrong = play(client, played, [task.wrong for task in played])
    lines = [
        [" ".join(task.apps), str(good.fidelity.turns), f"{good.reward}", f"{bad.reward}", task.prompt[:60]]
        for task, good, bad in zip(played, right, wrong, strict=True)
    ]
    print(format_table(["apps", "turns", "done right", "done wrong", "task"], lines))
    expected = all(rollout.reward == 1.0 for rollout in right) and all(rollout.reward == 0.0 for rollout in wrong)
    return 0 if expected else 1


if __name__ == "__main__":
    sys.exit(main())
