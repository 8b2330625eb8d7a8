"""The gateway against its peers, in one run: the same engine, the same load, each on one core, nginx as the floor.

Speed: 64 at once, an engine that answers at once; prompts all different (each the first turn of its session), shared by
groups of 8 sessions, or sessions of 20 turns. Calls: 2 s each. Streams: 50 tokens a second. Stored: does latency grow
with what is stored? Read: does reading a long session stall others? Memory: what is kept of a turn. Turns: late ones
against early ones, also without what their bytes cost a server that only reads them. Every gateway is started afresh
for every measurement, by turns, so that a noisy moment hits all. Without options all of it is measured three times.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import gateway_targets
from gateway_parts import ENGINE_CORE, GATEWAY_CORE, LOAD_CORE, engine, gateway
from report import ROOT, percentile, write

from agentcore_rl_toolkit.common.text_table import format_table

LOAD = Path(__file__).with_name("gateway_load.py")
GATEWAYS = ["ours", "rllm", "awslabs", "openenv", "nginx", "direct"]
BARE = ("bare-read", "bare-forward")
KINDS = ["different", "group", "turns"]
SESSIONS_PER_SECOND = {512: 2500, 8192: 1000}
"""By tokens of the prompt: sessions of ours made beforehand for each second measured; others make theirs on use."""


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.quick: bool = args.quick
        self.names: list[str] = args.gateways.split(",")
        self.repeats: int = args.repeats or (1 if args.quick else 3)
        self.seconds: float = args.seconds or (3.0 if args.quick else 6.0)

    def rounds(self, job: dict[str, Any], stores: bool = False, more: Sequence[str] = ()) -> dict[str, Any]:
        """Run a job for each gateway (that stores turns) by turns; medians, and the least and most of the repeats."""
        names = [name for name in self.names if not stores or name not in ("nginx", "direct")]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*names, *more)}
        for _ in range(self.repeats):
            for name, done in runs.items():
                done.append(run(name, job))
        return {name: summary(done) for name, done in runs.items()}

    def flood(self, kind: str, tokens: int, stream: bool, **more: Any) -> dict[str, Any]:
        job = {"do": "flood", "kind": kind, "tokens": tokens, "stream": stream, "concurrency": 64}
        sessions = int(SESSIONS_PER_SECOND[tokens] * (self.seconds + 1)) // (8 if kind == "turns" else 1)
        return job | {"seconds": self.seconds, "warm": 1.0, "sessions": sessions} | more

    # --- parts -----------------------------------------------------------------------------------------------------

    def speed(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for kind, tokens, stream in product(KINDS[:1] if self.quick else KINDS, (512, 8192), (False, True)):
            title = f"{tokens} {'stream' if stream else 'plain'} {kind}"
            figures[title] = self.rounds(self.flood(kind, tokens, stream))
            self.speed_table(title, figures[title])
        return figures

    def speed_table(self, title: str, cell: dict[str, Any]) -> None:
        best = max(gateway_targets.of_peers(cell, "per_second"), default=0)
        rows = []
        for name, f in cell.items():
            spread = "–".join(f"{end:.0f}" for end in f["spread"].get("per_second", ()))
            ratio = f"{f['per_second'] / best:.1f}×" if best and "per_second" in f else ""
            values = [*digits(f, per_second=0), spread, *digits(f, cpu_ms=3, p50_ms=1, p99_ms=1)]
            rows.append([name, *values, ratio, errors(f)])
        show([title, "req/s", "spread", "CPU ms", "p50 ms", "p99 ms", "÷ best peer", "errors"], rows)

    def calls(self) -> dict[str, Any]:
        """2 s a call."""
        figures: dict[str, Any] = {}
        for width in (64, 256) if self.quick else (64, 256, 1024):
            slow = {"delay": 2, "concurrency": width, "ramp": 2.0, "warm": 2.5, "seconds": 6.0, "sessions": width * 2}
            figures[str(width)] = cell = self.rounds(self.flood("turns", 512, False, **slow))
            rows = [
                [name, *digits(f, cpu_ms=2, p50_ms=0, p99_ms=0), over(f, cell), errors(f)] for name, f in cell.items()
            ]
            show([f"2 s a call, {width} at once", "CPU ms", "p50 ms", "p99 ms", "p99 ÷ direct", "errors"], rows)
        return figures

    def streams(self) -> dict[str, Any]:
        """50 tokens a second; a gateway carries so many if 99 % take no more than 5 % longer than without it."""
        figures: dict[str, Any] = {}
        for width in (50, 200) if self.quick else (50, 100, 200, 400, 600, 800):
            slow = {"rate": 50, "concurrency": width, "ramp": 5.0, "warm": 1.0, "seconds": 8.0, "sessions": width * 2}
            figures[str(width)] = cell = self.rounds(self.flood("turns", 512, True, **slow))
            rows = []
            for name, f in cell.items():
                values = [*digits(f, cores=2, p50_ms=0, p99_ms=0), over(f, cell)]
                rows.append([name, *values, *digits(f, first_p50_ms=0, gap_p99_ms=0), errors(f)])
            header = [f"{width} streams of 50 tokens/s", "cores", "p50 ms", "p99 ms", "p99 ÷ direct"]
            show([*header, "first ms", "gap p99 ms", "errors"], rows)
        return figures

    def stored(self) -> dict[str, Any]:
        """Latency under a light load (4 at once, 50 ms a call) with more and more turns stored."""
        figures: dict[str, Any] = {}
        light = {"delay": 0.05, "concurrency": 4, "seconds": 8.0, "sessions": 2000}
        for turns in (0, 1000) if self.quick else (0, 2000, 10_000):
            job = self.flood("different", 512, False, **light) | {"stored": turns}
            figures[str(turns)] = cell = self.rounds(job, stores=True)
            rows = [[n, *digits(f, p50_ms=1, p99_ms=1, max_ms=1), errors(f)] for n, f in cell.items()]
            show([f"{turns} turns stored", "p50 ms", "p99 ms", "max ms", "errors"], rows)
        return figures

    def read(self) -> dict[str, Any]:
        job = {"do": "read", "tokens": 512, "stream": False, "concurrency": 4}
        job |= {"reads": 5, "long": 50, "long_tokens": 8192}
        figures = self.rounds(job | {"seconds": 3.0, "sessions": 2000, "delay": 0.05}, stores=True)
        rows = [
            [n, *digits(f, quiet_p99_ms=1, reading_p99_ms=1, reading_max_ms=1, read_ms=1), errors(f)]
            for n, f in figures.items()
        ]
        show(["reading a 50-turn session", "p99 before ms", "p99 while ms", "max while ms", "read ms", "errors"], rows)
        return figures

    def memory(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for tokens in (512, 8192):
            job = {"do": "memory", "tokens": tokens, "stream": False, "sessions": 16 if self.quick else 64}
            figures[str(tokens)] = self.rounds(job, stores=True)
            rows = [
                [n, *kilobytes(f, "bytes_per_turn", "disk_bytes_per_turn"), *digits(f, turns=0), errors(f)]
                for n, f in figures[str(tokens)].items()
            ]
            show([f"20-turn sessions from {tokens} tokens", "KB a turn", "KB a turn on disk", "turns", "errors"], rows)
        return figures

    def turns(self) -> dict[str, Any]:
        """Late turns against early ones; also without what reading the longer request costs anybody, and without
        what sending the engine its longer prompt does, as servers that do only that show."""
        job = {"do": "turn_cost", "tokens": 512, "stream": False, "concurrency": 32, "turns": 30 if self.quick else 100}
        figures = self.rounds(job, more=BARE)
        read, forward = (growth(figures[name]) for name in BARE)
        rows = []
        for name, f in figures.items():
            if name == "direct" or not f["early"]["cpu_ms"]:  # it has ended, or spent nothing
                continue
            early, late = f["early"]["cpu_ms"], f["late"]["cpu_ms"]
            f["ratio"] = late / early
            ratios = [f"{f['ratio']:.2f}×"]
            if name not in (*BARE, "nginx"):
                f["beyond_request"], f["beyond_wires"] = ((late - own) / early for own in (read, forward))
                ratios += [f"{f['beyond_request']:.2f}×", f"{f['beyond_wires']:.2f}×"]
            sizes = f"{f['early']['request_bytes'] / 1000:.0f} → {f['late']['request_bytes'] / 1000:.0f}"
            ratios += [""] * (3 - len(ratios))
            rows.append([name, f"{early:.3f}", f"{late:.3f}", *ratios, sizes, errors(f)])
        header = [f"turns 2–6 and the last 5 of {job['turns']}", "early CPU ms", "late CPU ms", "late ÷ early"]
        show([*header, "beyond the request", "beyond both wires", "request KB", "errors"], rows)
        return figures


def growth(figures: dict[str, Any]) -> float:
    return float(figures["late"]["cpu_ms"] - figures["early"]["cpu_ms"])


# --- running one ---------------------------------------------------------------------------------------------------


def run(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """One gateway, one engine, one load; all fresh."""
    with engine(core=GATEWAY_CORE if name == "direct" else ENGINE_CORE) as port:
        text = ask(port, "/text")
        with gateway(name, port) as started:
            job = job | {"name": name, "port": started.port, "pid": started.pid, "text": text["text"]}
            job |= {"bytes_per_token": text["bytes"], "read": started.read_path("{}")}
            if turns := job.get("stored"):
                fill = {"kind": "turns", "count": turns, "concurrency": 16, "seconds": 600, "warm": 0}
                work(job | fill | {"sessions": turns // 20 + 16})
            ask(port, f"/mode?delay={job.get('delay', 0)}&rate={job.get('rate', 0)}")
            disk = on_disk(started.log)
            figures = work(job)
            if "turns" in figures and job["do"] == "memory":
                figures["disk_bytes_per_turn"] = (on_disk(started.log) - disk) / max(1, figures["turns"] + 160)
            return figures


def work(job: dict[str, Any]) -> dict[str, Any]:
    line = ["taskset", "-c", str(LOAD_CORE), sys.executable, str(LOAD)]
    done = subprocess.run(line, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout:
        raise SystemExit(f"the load failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def ask(port: int, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return json.loads(response.read())


def on_disk(folder: Path | None) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder else 0


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of numbers (also in nested figures), and the spread of those that vary."""
    figures: dict[str, Any] = {}
    spread: dict[str, list[float]] = {}
    for key, value in max(runs, key=len).items():  # one in which nothing was answered in time has hardly any
        values = [run.get(key) for run in runs]
        if isinstance(value, dict):
            found = [v for v in values if v]
            figures[key] = (found or [{}])[0] if key == "errors" else summary(found)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers = [float(v) for v in values if v is not None]
            figures[key] = round(percentile(numbers, 0.5), 4)
            spread[key] = [round(min(numbers), 4), round(max(numbers), 4)]
        else:
            figures[key] = value
    return figures | {"spread": spread}


def over(figures: dict[str, Any], cell: dict[str, Any]) -> str:
    direct = cell.get("direct", {})
    return f"{figures['p99_ms'] / direct['p99_ms']:.3f}" if "p99_ms" in direct and "p99_ms" in figures else ""


def digits(figures: dict[str, Any], **places: int) -> list[str]:
    """Figures with so many places; nothing where there is none."""
    return [f"{figures[key]:.{count}f}" if key in figures else "" for key, count in places.items()]


def kilobytes(figures: dict[str, Any], *keys: str) -> list[str]:
    return [f"{figures[key] / 1000:.1f}" if key in figures else "" for key in keys]


def errors(figures: dict[str, Any]) -> str:
    silent = ["none answered in time"] if figures.get("requests") == 0 else []
    return " ".join([*silent, *(f"{count}×{status}" for status, count in figures.get("errors", {}).items())])


def show(header: list[str], rows: list[list[str]]) -> None:
    print(format_table(header, rows) + "\n", flush=True)


def recorded() -> dict[str, Any]:
    """The parts on record: a run of some of them replaces those, and leaves the others."""
    path = ROOT / "benchmarks" / "results" / "gateway.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    return {part: known for part, known in figures.items() if part != "machine"}


def only(bench: Bench, cell: str) -> None:
    """One cell, once: gateway:tokens:plain|stream[:kind]."""
    name, tokens, mode, *rest = cell.split(":")
    kind = rest[0] if rest else "different"
    figures = run(name, bench.flood(kind, int(tokens), mode == "stream"))
    show([cell, "figure"], [[key, f"{v:.3f}" if isinstance(v, float) else str(v)] for key, v in figures.items()])


def main() -> None:
    parts = ["speed", "calls", "streams", "stored", "read", "memory", "turns"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements, and no file")
    parser.add_argument("--parts", help=f"of {', '.join(parts)} (default: all; with --quick: speed, memory)")
    parser.add_argument("--gateways", default=",".join(GATEWAYS), help="also: rllm-sqlite, awslabs-linear")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seconds", type=float, help="of each measurement of speed")
    parser.add_argument("--only", help="one cell of speed, once: gateway:tokens:plain|stream[:different|group|turns]")
    args = parser.parse_args()
    bench = Bench(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended on the way out
    if args.only:
        only(bench, args.only)
        return
    chosen = args.parts.split(",") if args.parts else parts if not args.quick else ["speed", "memory"]
    figures = {part: getattr(bench, part)() for part in chosen}
    if "ours" in bench.names:
        show(["against the targets", "figure", "target", ""], gateway_targets.rows(figures))
    if not set(GATEWAYS) <= set(bench.names):
        print("not recorded: some gateways were left out")
    elif not args.quick:
        write("gateway", (recorded() if args.parts else {}) | figures)


if __name__ == "__main__":
    main()
