"""The run folder and the page, on a made run of 100,000 rollouts: how long a run takes to open, and any one rollout.

One rollout of a hundred has 32,000 tokens, and each has a second record in the index, with its advantage.

Opening: from nothing in memory to the answer of the run's first view, over HTTP. With Playwright and Chromium, also
until that view is drawn, by turns with a run of one step: the least, the median and the most of several times, and how
busy the machine was. A rollout: any of them, over HTTP, each asked for once, long ones among them. Writing: CPU time to
write a rollout of 32,000 tokens, against its arrays as plain JSON numbers.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from report import cpu_of, percentile, write

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.record.conversation import Transcript
from agentcore_rl_toolkit.gateway.record.trajectory import Fidelity, Row, TurnSpan
from agentcore_rl_toolkit.rollout import Action, Rollout
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.types import Status

GROUP = 8
TOKENS, LONG, EVERY = 400, 32_000, 100
"""Tokens of a rollout, and of one among so many."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--per-step", type=int, default=512)
    parser.add_argument("--asked", type=int, default=200, help="rollouts to ask for")
    parser.add_argument("--times", type=int, default=7, help="how often to draw each first view")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="studio-"))
    try:
        began = time.monotonic()
        make_run(folder / "run", args.rollouts, args.per_step)
        made = time.monotonic() - began
        make_run(folder / "small", args.per_step, args.per_step)
        figures: dict[str, Any] = {"drawn": draw(folder, args.times)}
        seconds = look(folder, args.rollouts, args.asked)
        figures |= {"seconds": {name: round(value, 4) for name, value in seconds.items()}}
        figures |= {"written_per_second": round(args.rollouts / made)}
    finally:
        shutil.rmtree(folder)
    figures |= {"rollouts": args.rollouts, "writing": writing(LONG)}
    for name, value in figures.items():
        print(f"{name:24} {value}")
    write("studio", figures)


def make_run(folder: Path, rollouts: int, per_step: int) -> None:
    dice, short, long = random.Random(0), make_rollout(TOKENS), make_rollout(LONG)
    with RunWriter(folder) as run:
        run.describe(kind="train", model="made", steps=rollouts // per_step)
        for step in range(-(-rollouts // per_step)):
            mean, advantages = step * per_step / rollouts, {}
            with run.part("train", step) as part:
                for number in range(min(per_step, rollouts - step * per_step)):
                    reward, failed = float(dice.random() < mean), dice.random() < 0.02
                    session, group = f"{step}-{number}-{dice.randrange(10**9)}", number // GROUP
                    sample: dict[str, Any] = {
                        "session_id": session,
                        "input_id": f"{group:06d}-{group:08x}",
                        "group": group,
                        "sample": number % GROUP,
                        "status": Status.TIMEOUT if failed else Status.COMPLETED,
                        "error": f"no answer after {number} s" if failed else None,
                        "rewards": None if failed else reward,
                    }
                    part.write(replace(short if (step * per_step + number) % EVERY else long, **sample))
                    if not failed:
                        advantages[session] = reward - mean
                part.add_advantages(advantages)
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step + 1, "reward": mean, "fidelity": 1.0}) + "\n")


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
        | {"reply": {"content": "some words " * (tokens // 20), "reasoning": "", "tool_calls": []}}
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


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, str]]:
    """`agentcore-rl ui`: its process, and the address that it prints."""
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "ui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


def draw(folder: Path, times: int) -> dict[str, Any]:
    """How long Chromium takes until it has drawn a run's first view, each time from a new server."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        return {}
    drawn: dict[str, list[tuple[float, float]]] = {"small": [], "run": []}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        busy = [os.getloadavg()[0]]
        for run in [*drawn] * times:
            drawn[run].append(draw_once(browser, folder, run))
            busy.append(os.getloadavg()[0])
        browser.close()
    return {run: spread(one) for run, one in drawn.items()} | {"load": [round(min(busy), 1), round(max(busy), 1)]}


def draw_once(browser: Any, folder: Path, run: str) -> tuple[float, float]:
    """Seconds until a run's first view is drawn, and the CPU seconds that its server spent on it."""
    with serving(folder) as (process, address):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        before, began = cpu_of(process), time.monotonic()
        page.goto(f"{address}#/run/{run}")
        page.wait_for_selector("[data-chart=Reward] canvas")
        page.wait_for_selector(f"main[data-ready='#/run/{run}']")
        taken = time.monotonic() - began, cpu_of(process) - before
        page.close()
    return taken


def spread(drawn: list[tuple[float, float]]) -> dict[str, Any]:
    seconds, cpu = map(list, zip(*drawn, strict=True))
    some = [round(one, 3) for one in (min(seconds), percentile(seconds, 0.5), max(seconds))]
    return {"seconds": some, "server_cpu": round(percentile(cpu, 0.5), 2), "times": len(drawn)}


def look(folder: Path, rollouts: int, asked: int) -> dict[str, float]:
    """Seconds until the first view, and for each of some rollouts."""
    with serving(folder) as (process, address):
        url, _, key = address.partition("/?key=")

        def ask(question: str) -> tuple[float, Any]:
            began = time.monotonic()
            with urlopen(Request(f"{url}/api/{question}", headers={"Authorization": f"Bearer {key}"})) as answer:
                found = json.load(answer)
            return time.monotonic() - began, found

        cpu = cpu_of(process)
        listed, _ = ask("runs")
        opened, run = ask("run?run=run")
        assert run["rollouts"] == rollouts
        cpu = cpu_of(process) - cpu
        again, _ = ask("run?run=run")
        dice = random.Random(1)
        some = [
            *(dice.randrange(rollouts) for _ in range(asked)),
            *range(0, rollouts, max(EVERY, rollouts // 20 // EVERY * EVERY)),
        ]
        each = [ask(f"rollout?run=run&key=0.{number}")[0] for number in some]
        groups, _ = ask(f"groups?run=run&step={run['steps'][-1]['step']}")
        rows, _ = ask("rows?run=run")
        sort, _ = ask("rollouts?run=run&sort=-reward&failed=false")
    seconds = {"list": listed, "open": listed + opened, "open_cpu": cpu, "open_again": again}
    seconds |= {"groups": groups, "rows": rows, "sort": sort}
    return seconds | {"rollout_median": percentile(each, 0.5), "rollout_longest": max(each)}


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
