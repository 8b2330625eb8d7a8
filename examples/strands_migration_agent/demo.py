"""Migrates a built-in project on this machine, by a script that knows how and by one that does not: no model, no cloud.

Every other part is real: sandboxed sessions on the local runtime, the Strands agent and its tools, a JDK, the gateway,
exact tokens, results through the store.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.render.tokenizer import load_tokenizer
from agentcore_rl_toolkit.rollout import Rollout, run_rollouts

Call = tuple[str, dict[str, Any]]

AGENT = Path(__file__).parent / "rl_app.py"
ROW = {"prompt": "Migrate this project from Java 8 to Java 17.", "project": "inventory"}
LABEL, STOCK = "src/main/java/shop/Label.java", "src/main/java/shop/Stock.java"
JAVA_17: Call = ("write_file", {"path": "javac.args", "content": "--release 17\n"})
REPLACED = {
    "import javax.xml.bind.DatatypeConverter;": "import java.util.Base64;",
    "DatatypeConverter.printBase64Binary(text)": "Base64.getEncoder().encodeToString(text)",
    "DatatypeConverter.parseBase64Binary(code)": "Base64.getDecoder().decode(code)",
}
RIGHT: list[Call] = [
    ("shell", {"command": "cat javac.args; grep -rn javax src"}),
    ("read_file", {"path": LABEL}),
    JAVA_17,
    ("build", {}),
    ("shell", {"command": f"sed -i 's/\\b_\\b/known/g' {STOCK}"}),
    *(("edit_file", {"path": LABEL, "old": old, "new": new}) for old, new in REPLACED.items()),
    ("build", {}),
]
WRONG: list[Call] = [JAVA_17]


def following(plan: Sequence[Call]) -> Callable[[SampleRequest], Sequence[int]]:
    """A policy that makes the calls of its plan, one a turn, and then says that it is done."""
    tokenizer = load_tokenizer(tiny.path())

    def say(request: SampleRequest) -> Sequence[int]:
        step = tokenizer.decode(list(request.prompt)).count("<tool_response>")
        said = "Done."
        if step < len(plan):
            name, arguments = plan[step]
            said = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        return tokenizer.encode(said + "<|im_end|>")

    return say


def play(client: RolloutClient, plan: Sequence[Call]) -> Rollout:
    """One rollout by the plan."""
    engine = ScriptedEngine(following(plan), models=("script",), context_length=65_536)
    with Gateway(engine, tokenizer=tiny.path()) as gateway:
        (group,) = run_rollouts([ROW], 1, client=client, gateway=gateway, timeout=300, keep_dropped=True)
    return (*group.rollouts, *group.others)[0]


def main() -> int:
    with tempfile.TemporaryDirectory() as results, RolloutClient(AGENT, results, "demo") as client:
        played = [play(client, RIGHT), play(client, WRONG)]
    lines = []
    for name, rollout in zip(("knows how", "says it is done"), played, strict=True):
        checks: dict[str, bool] = (rollout.result or {}).get("checks", {"rollout": False})
        failed = [check for check, holds in checks.items() if not holds]
        lines.append([name, str(rollout.fidelity.turns), f"{rollout.reward}", ", ".join(failed) or "none"])
    print(format_table(["policy", "turns", "reward", "failed checks"], lines))
    return 0 if [rollout.reward for rollout in played] == [1.0, 0.0] else 1


if __name__ == "__main__":
    sys.exit(main())
