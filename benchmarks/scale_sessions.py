"""What a session of a real agent costs when many of them run at once: CPU, by part, from the kernel's counts.

    python benchmarks/scale_sessions.py

The math agent of the examples (Strands and the OpenAI SDK), with a scripted engine behind a gateway in this process:
two model calls and one of its calculator. The cost should not grow with the number of sessions; if it does, they
wait for each other, or each imports what its template could have.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from report import ROOT, add
from scale_local import PARTS, cpu_seconds

sys.path.insert(0, str(ROOT / "tests"))

from agentcore_rl_toolkit.client import RolloutClient
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.runtime.local import AgentSource, SessionPolicy
from support.gateway import call_text, gateway_tokenizer, ids, text_of

AGENT = ROOT / "examples" / "strands_math_agent" / "rl_app.py"
QUESTION = {"prompt": "What is 645+830?", "answer": "1475"}
IMPORT_SECONDS = 600
"""For a loaded machine, where the agent's packages may take minutes the first time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 64, 128])
    parser.add_argument("--least", type=int, default=32, help="sessions in each turn, if fewer run at once")
    parser.add_argument("--output", default="scale", help="file of benchmarks/results (default: scale)")
    args = parser.parse_args()
    found = measure(args.at_once, args.least)
    rows = [[one, *(f"{ms:.1f}" for ms in cpu.values())] for one, cpu in found.items()]
    print(format_table(["at once", *PARTS], rows))
    add(args.output, {"agent_sessions": found})


def measure(at_once: list[int], least: int) -> dict[str, Any]:
    """CPU milliseconds of a session in each process, by how many run at once."""
    calls: list[int] = ids(call_text("calculator", expression="645+830"))
    answers: list[int] = ids("It is 1475.")

    def reply(request: SampleRequest) -> list[int]:
        return answers if "<tool_response>" in text_of(request.prompt) else calls

    source = AgentSource.parse(AGENT, policy=SessionPolicy(start_timeout=IMPORT_SECONDS))
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Gateway(ScriptedEngine(reply, chunk=8), tokenizer=gateway_tokenizer()) as gateway,
        RolloutClient(source, f"{folder}/results", "exp") as client,
    ):
        run(client, gateway, 8, 4)
        for width in at_once:
            count = max(least, width)
            before = cpu_seconds()
            begun = time.perf_counter()
            run(client, gateway, count, width)
            seconds, after = time.perf_counter() - begun, cpu_seconds()
            found[str(width)] = {part: round((after[part] - before[part]) / count * 1000, 1) for part in PARTS}
            print(f"{width} at once: {found[str(width)]}, {count / seconds:.1f} a second", flush=True)
    return found


def run(client: RolloutClient, gateway: Gateway, count: int, at_once: int) -> None:
    def one(_: int) -> None:
        url = gateway.open_session()["base_url"]
        result = client.invoke(QUESTION, base_url=url, model_id="scripted").result(timeout=IMPORT_SECONDS)
        assert result["rewards"] == 1.0, result

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(count)))


if __name__ == "__main__":
    main()
