"""The run folder and the page, on a made run of 100,000 rollouts: how long a run takes to open, and any one rollout.

Opening: from nothing in memory to the answer of the run's first view, over HTTP. A rollout: any of them, over HTTP,
each asked for once. Writing: CPU time to write a rollout of 32,000 tokens, against its arrays as plain JSON numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from report import percentile, write

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.record.conversation import Transcript
from agentcore_rl_toolkit.gateway.record.trajectory import Fidelity, Row, TurnSpan
from agentcore_rl_toolkit.rollout import Action, Rollout
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.types import Status

GROUP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--per-step", type=int, default=512)
    parser.add_argument("--asked", type=int, default=200, help="rollouts to ask for")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="studio-"))
    try:
        began = time.monotonic()
        make_run(folder / "run", args.rollouts, args.per_step)
        made = time.monotonic() - began
        figures = look(folder, args.rollouts, args.asked) | {"written_per_second": round(args.rollouts / made)}
    finally:
        shutil.rmtree(folder)
    figures |= {"rollouts": args.rollouts, "writing": writing(32_000)}
    for name, value in figures.items():
        print(f"{name:24} {value}")
    write("studio", figures)


def make_run(folder: Path, rollouts: int, per_step: int) -> None:
    dice = random.Random(0)
    one = make_rollout(400)
    with RunWriter(folder) as run:
        run.describe(kind="train", model="made", steps=rollouts // per_step)
        for step in range(-(-rollouts // per_step)):
            with run.part("train", step) as part:
                for number in range(min(per_step, rollouts - step * per_step)):
                    group, reward = number // GROUP, float(dice.random() < step * per_step / rollouts)
                    names: dict[str, Any] = {
                        "session_id": f"{step}-{number}-{dice.randrange(10**9)}",
                        "input_id": f"{group:06d}-{group:08x}",
                    }
                    failed = dice.random() < 0.02
                    status = Status.TIMEOUT if failed else Status.COMPLETED
                    error = f"no answer after {number} s" if failed else None
                    sample: dict[str, Any] = {
                        "group": group,
                        "sample": number % GROUP,
                        "rewards": None if failed else reward,
                    }
                    part.write(replace(one, status=status, error=error, **names, **sample))
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step + 1, "reward": step * per_step / rollouts, "fidelity": 1.0}) + "\n")


def make_rollout(tokens: int) -> Rollout:
    row = Row(
        token_ids=array(IDS, [number % 30_000 for number in range(tokens)]),
        loss_mask=np.ones(tokens, np.uint8),
        logprobs=np.linspace(-3, 0, tokens, dtype=np.float32),
        weight=1.0,
        prompt_length=0,
        spans=(TurnSpan(0, 0, tokens, True, "stop"),),
        versions=(("3", 0, tokens),),
    )
    turns: list[dict[str, Any]] = [
        {"turn": at, "before": at - 1 if at else None, "messages": [at], "tools": ["search"], "started": 1e9 + at}
        | {
            "seconds": 0.5,
            "waited": 0.0,
            "prompt_tokens": 50,
            "sampled_tokens": 50,
            "finish": "stop",
            "origin": "bridge",
        }
        | {"unbridged": "", "masked": None, "versions": [["3", 50]], "parse_failures": 0}
        | {"reply": {"content": "some words " * 20, "reasoning": "", "tool_calls": []}}
        for at in range(4)
    ]
    messages = [{"role": "tool" if at else "user", "content": f"{at} of these words " * 30} for at in range(4)]
    known = Fidelity(sampled=tokens, trained=tokens, masked={}, rows=1, turns=4, bridges=3, renders=0, parse_failures=0)
    return Rollout(
        input_id="row",
        session_id="session",
        sample=0,
        status=Status.COMPLETED,
        action=Action.TRAIN,
        why=None,
        payload={"prompt": "a question " * 10},
        result={"status_code": 200, "rewards": 1.0},
        error=None,
        rewards=1.0,
        rows=(row,),
        fidelity=known,
        seconds={"open": 0.1, "invoke": 0.1, "session": 4.0, "model": 2.0, "fold": 0.01},
        transcript=Transcript.from_fields({"messages": messages, "turns": turns, "left_out": 0}),
    )


def look(folder: Path, rollouts: int, asked: int) -> dict[str, Any]:
    """Seconds until the first view, and for each of some rollouts."""
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "ui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url, _, key = process.stdout.readline().strip().partition("/?key=")

            def ask(question: str) -> tuple[float, Any]:
                began = time.monotonic()
                with urlopen(Request(f"{url}/api/{question}", headers={"Authorization": f"Bearer {key}"})) as answer:
                    found = json.load(answer)
                return time.monotonic() - began, found

            cpu = cpu_seconds(process.pid)
            listed, _ = ask("runs")
            opened, run = ask("run?run=run")
            assert run["rollouts"] == rollouts
            cpu = cpu_seconds(process.pid) - cpu
            again, _ = ask("run?run=run")
            dice = random.Random(1)
            each = [ask(f"rollout?run=run&key=0.{dice.randrange(rollouts)}")[0] for _ in range(asked)]
            groups, _ = ask(f"groups?run=run&step={run['steps'][-1]['step']}")
            rows, _ = ask("rows?run=run")
            sort, _ = ask("rollouts?run=run&sort=-reward&failed=false")
        finally:
            process.terminate()
    seconds = {
        "list": listed,
        "open": listed + opened,
        "open_cpu": cpu,
        "open_again": again,
        "groups": groups,
        "rows": rows,
        "sort": sort,
    }
    seconds |= {"rollout_median": percentile(each, 0.5), "rollout_longest": max(each)}
    return {"seconds": {name: round(value, 4) for name, value in seconds.items()}}


def cpu_seconds(pid: int) -> float:
    """What a process has used of all cores: on a busy machine, seconds on the clock say little."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def writing(tokens: int) -> dict[str, float]:
    """Milliseconds of CPU to write one rollout, and to turn its arrays into JSON numbers."""
    one = make_rollout(tokens)
    with tempfile.TemporaryDirectory() as folder, RunWriter(folder) as run, run.part("train", 0) as part:
        began = time.process_time()
        for _ in range(20):
            part.write(one)
        ours = (time.process_time() - began) / 20
    row = one.rows[0]
    began = time.process_time()
    for _ in range(5):
        json.dumps([row.token_ids.tolist(), row.loss_mask.tolist(), row.logprobs.tolist()])
    plain = (time.process_time() - began) / 5
    return {"tokens": tokens, "ms": round(1000 * ours, 2), "as_numbers_ms": round(1000 * plain, 2)}


if __name__ == "__main__":
    main()
