"""Everything at scale, one part after the other. Each is a module that may be run alone, with options of its own.

python benchmarks/scale.py                  on two cores: scale.json
python benchmarks/scale.py --sixteen        on a quiet machine with sixteen: scale_16.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report

PARTS = ("scale_client", "scale_gateway", "scale_faults", "scale_local")
SIXTEEN = "scale_16"
TWO_CORES = ("taskset", "--cpu-list", "0,1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sixteen", action="store_true", help="measure what the page shows of sixteen cores")
    if parser.parse_args().sixteen:
        measure_sixteen()
        return
    for part in PARTS:
        run(part)


def measure_sixteen() -> None:
    figures = {
        "date": time.strftime("%Y-%m-%d"),
        "echo": {str(width): sessions("echo", width) for width in (16, 64, 128)},
        "rollouts": {"64": sessions("rollout", 64)},
        "echo_on_two_cores": [sessions("echo", 8, *TWO_CORES) for _ in range(2)],
    }
    report.add(SIXTEEN, figures)
    run("scale_sessions", "--at-once", "1", "16", "64", "--output", SIXTEEN)
    run("scale_client", "latency", "in_flight", "quota", "--output", SIXTEEN)
    run("scale_gateway", "--output", SIXTEEN)
    run("scale_faults", "worker", "--output", SIXTEEN)


def run(part: str, *options: str) -> None:
    subprocess.run([*command(part), *options], check=True)


def sessions(kind: str, at_once: int, *on: str) -> dict[str, Any]:
    """What `scale_local.py` measures of so many sessions at once."""
    line = [*on, *command("scale_local"), "--measure", kind, "--sessions", str(20 * at_once), "--at-once", str(at_once)]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    kept = {name: found[name] for name in ("per_second", "start_ms_p50") if name in found}
    return kept | {"program_cpu_ms": found["cpu_ms"]["program"]}


def command(part: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name(f"{part}.py"))]


if __name__ == "__main__":
    main()
