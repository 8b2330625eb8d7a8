"""What the base package adds to an agent's container: size, packages, import time, against `bedrock-agentcore` alone.

Makes two empty virtual environments with plain pip, one with `bedrock-agentcore`, one with this package (built as a
wheel), and starts fresh interpreters in them by turns. Prints a table, writes `benchmarks/results/install.json`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import venv
from pathlib import Path

from report import ROOT, write

from agentcore_rl_toolkit.common.text_table import format_table

STATEMENTS = {
    "nothing": ("base", "pass"),
    "import bedrock_agentcore": ("base", "import bedrock_agentcore"),
    "import agentcore_rl_toolkit": ("ours", "import agentcore_rl_toolkit"),
    "from agentcore_rl_toolkit import AgentCoreRLApp": ("ours", "from agentcore_rl_toolkit import AgentCoreRLApp"),
}
TIMER = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15, help="interpreter starts per statement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        homes = {
            "base": make(Path(folder) / "base", "bedrock-agentcore"),
            "ours": make(Path(folder) / "ours", str(ROOT)),
        }
        sizes = {name: measure(home) for name, home in homes.items()}
        times: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
        for _ in range(args.repeat):  # by turns, so that a noisy moment hits all of them
            for statement, (home, code) in STATEMENTS.items():
                out = subprocess.run(
                    [homes[home], "-c", TIMER.format(code)], capture_output=True, text=True, check=True
                )
                times[statement].append(float(out.stdout) * 1000)
    report(sizes, times)


def make(home: Path, package: str) -> str:
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    constraints = str(ROOT / "constraints.txt")
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", constraints, package]
    subprocess.run(command, check=True)
    return python


def measure(python: str) -> dict[str, float]:
    site = next(Path(python).parents[1].glob("lib/python*/site-packages"))
    packages = [p for p in site.glob("*.dist-info") if not p.name.startswith(("pip-", "setuptools-"))]
    files = [
        f for f in site.rglob("*") if f.is_file() and not f.relative_to(site).parts[0].startswith(("pip", "setuptools"))
    ]
    return {"packages": len(packages), "megabytes": round(sum(f.stat().st_size for f in files) / 1e6, 2)}


def report(sizes: dict[str, dict[str, float]], times: dict[str, list[float]]) -> None:
    names = {"base": "bedrock-agentcore", "ours": "agentcore-rl-toolkit"}
    rows = [[names[n], f"{s['packages']:g}", f"{s['megabytes']:.2f}"] for n, s in sizes.items()]
    rows.append(["ours ÷ theirs", "", f"{sizes['ours']['megabytes'] / sizes['base']['megabytes']:.3f}"])
    print(format_table(["installed", "packages", "MB"], rows), end="\n\n")
    reference = statistics.median(times["import bedrock_agentcore"])
    summary = {
        statement: {
            "median_ms": round(statistics.median(values), 2),
            "min_ms": round(min(values), 2),
            "max_ms": round(max(values), 2),
            "ratio": round(statistics.median(values) / reference, 3),
        }
        for statement, values in times.items()
    }
    rows = [
        [statement, f"{row['median_ms']:.1f}", f"{row['min_ms']:.1f} to {row['max_ms']:.1f}", f"{row['ratio']:.2f}"]
        for statement, row in summary.items()
    ]
    print(format_table(["statement", "ms", "spread", "÷ bedrock_agentcore"], rows))
    write("install", {"sizes": sizes, "import": summary})


if __name__ == "__main__":
    main()
