"""Runs the agents of this folder end to end on this machine: `python examples/frameworks/run.py strands`, or `all`.

The sessions are sandboxed, the gateway is real and records the tokens. The policy is a script, which asks the
calculator and answers with what it said; `--policy tiny` samples from the built-in model instead, and not well.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import Engine, SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer, load_tokenizer
from agentcore_rl_toolkit.rollout import Rollout, run_rollouts

WIRES = {
    "strands": "Bedrock Converse",
    "langgraph": "OpenAI Chat Completions",
    "openai_agents": "OpenAI Responses",
    "pydantic_ai": "OpenAI Responses",
    "openai": "OpenAI Chat Completions",
    "anthropic": "Anthropic Messages",
}
"""What each agent speaks."""
ROWS = [
    {"prompt": "Ada has 6 boxes with 7 pears in each. How many pears does Ada have?", "answer": "42"},
    {"prompt": "A bag holds 12 red and 15 blue marbles. How many marbles are in 4 such bags?", "answer": "108"},
]
EXPRESSIONS = dict(zip((row["prompt"] for row in ROWS), ("6*7", "(12+15)*4"), strict=True))


def script(tokenizer: Tokenizer) -> Callable[[SampleRequest], Sequence[int]]:
    """A policy that solves each of the rows in two turns."""

    def say(request: SampleRequest) -> Sequence[int]:
        seen = tokenizer.decode(list(request.prompt))
        _, responded, result = seen.rpartition("<tool_response>\n")
        expression = next(expression for prompt, expression in EXPRESSIONS.items() if prompt in seen)
        call = f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
        said = f"The answer is {result.splitlines()[0]}." if responded else call
        return tokenizer.encode(said + "<|im_end|>")

    return say


def engine(policy: str, tokenizer: Tokenizer) -> Engine:
    """What samples tokens: a script, or the built-in model."""
    if policy == "script":
        return ScriptedEngine(script(tokenizer), models=(policy,))
    from agentcore_rl_toolkit.engine.transformers import TransformersEngine

    return TransformersEngine(tiny.path(), name=policy)


def rollouts(framework: str, gateway: Gateway, *, n: int = 2, **options: Any) -> list[Rollout]:
    """`n` rollouts of every row, each in its own session."""
    agent = Path(__file__).parent / f"{framework}_agent.py"
    with tempfile.TemporaryDirectory() as results, RolloutClient(agent, results, framework) as client:
        running = run_rollouts(ROWS, n, client=client, gateway=gateway, timeout=120, keep_dropped=True, **options)
        groups = sorted(running, key=lambda group: group.index)
    return [rollout for group in groups for rollout in (*group.rollouts, *group.others)]


def show(rollout: Rollout, tokenizer: Tokenizer) -> None:
    """A rollout, and what the policy saw and said: what it said, and is trained on, is in «»."""
    known = rollout.fidelity
    print(
        f"── {rollout.input_id} #{rollout.sample}: {rollout.status.value}, reward {rollout.reward}, "
        f"{known.turns} turns, {known.tool_calls} tool calls, {known.rows} rows, "
        f"{known.trained} of {known.sampled} sampled tokens trained ──"
    )
    if rollout.error:
        print(rollout.error)
    for row in rollout.rows:
        at = 0
        for span in row.spans:
            before, said = row.token_ids[at : span.start], row.token_ids[span.start : span.end]
            print(f"{tokenizer.decode(before)}«{tokenizer.decode(said)}»", end="")
            at = span.end
        print("\n")


def figures(framework: str, found: Sequence[Rollout]) -> list[str]:
    """A line of the table."""
    rewards = [rollout.reward or 0.0 for rollout in found]
    sampled = sum(rollout.fidelity.sampled for rollout in found)
    trained = sum(rollout.fidelity.trained for rollout in found)
    return [
        framework,
        WIRES[framework],
        str(len(found)),
        f"{sum(rewards) / len(rewards):.2f}",
        *(_each(getattr(rollout.fidelity, name) for rollout in found) for name in ("turns", "tool_calls", "rows")),
        f"{trained / sampled:.2f}" if sampled else "-",
    ]


def _each(counts: Any) -> str:
    """One number if it is the same for all, else from the least to the most."""
    known = sorted(set(counts))
    return "–".join(str(count) for count in known[:: max(1, len(known) - 1)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=[*WIRES, "all"])
    parser.add_argument("--policy", choices=["script", "tiny"], default="script")
    parser.add_argument("-n", type=int, default=2, help="rollouts of each row (default: 2)")
    args = parser.parse_args()
    frameworks = list(WIRES) if args.framework == "all" else [args.framework]
    tokenizer = load_tokenizer(tiny.path())
    lines, failed = [], 0
    with Gateway(engine(args.policy, tokenizer), tokenizer=tiny.path()) as gateway:
        for framework in frameworks:
            found = rollouts(framework, gateway, n=args.n, model=args.policy)
            failed += sum(rollout.error is not None for rollout in found)
            for rollout in found if args.framework != "all" else []:
                show(rollout, tokenizer)
            lines.append(figures(framework, found))
    print(format_table(["framework", "wire", "rollouts", "reward", "turns", "tool calls", "rows", "fidelity"], lines))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
