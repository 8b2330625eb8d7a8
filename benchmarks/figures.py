"""The page of measured figures, docs/reference/figures.md, made of the files that the benchmarks write.

python benchmarks/figures.py            writes it (as every benchmark does)
python benchmarks/figures.py --check    fails if it is out of date
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu_figures import gpu_section
from scale_targets import client_section, faults_section, gateway_section, sixteen_section

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "figures.md"
MADE = "<!-- made by benchmarks/figures.py -->"
PEERS = ("rllm", "awslabs")
GATEWAY_PEERS = (*PEERS, "openenv")
INTRO = """\
Measured by the scripts in [benchmarks](../../benchmarks/gateway.py), each against a peer or a floor in the same run, on
shared and noisy machines: read the ratios before the numbers. What was measured is in
[benchmarks/results](../../benchmarks/results/gateway.json), with the least and the most of what was repeated."""


def page() -> str:
    """All sections."""
    trained = [gpu_section(_read("gpu"), _read("gpu_async"), _table), turn_credit(), asynchronous(), studio(), guards()]
    sections = [gateway(), fidelity(), templates(), *trained, runtime(), client(), install()]
    return "\n\n".join(["# Figures", MADE, INTRO, *(part for section in sections for part in section)]) + "\n"


def gateway() -> list[str]:
    found = _read("gateway")
    cells = found["speed"]
    peers = [name for name in GATEWAY_PEERS if all(name in cell for cell in cells.values())]
    names = ("ours", *peers)
    speed = _table(
        ["prompt", "ours, requests/s", *peers, "nginx", "÷ better peer", "CPU ms", "better peer's"],
        ([title, *_speed(cell, peers)] for title, cell in cells.items()),
    )
    calls = [(f"{width} calls of 2 s at once", cell) for width, cell in found["calls"].items()]
    streams = [(f"{width} streams of 50 tokens/s", cell) for width, cell in found["streams"].items()]
    late = _table(
        ["", *names],
        [
            (what, *(_late(cell[name], cell["direct"]) if name in cell else "–" for name in names))
            for what, cell in (*calls, *streams)
        ],
    )
    memory = [(f"KB kept of a turn, sessions from {tokens} tokens", cell) for tokens, cell in found["memory"].items()]
    turns, read, stored = found["turns"], found["read"], found["stored"]
    rest = _table(
        ["", *names],
        [
            *((what, *(_figure(cell, name, "bytes_per_turn", ".1f", 1000) for name in names)) for what, cell in memory),
            ("CPU of turns 96–100 ÷ that of turns 2–6", *(_figure(turns, name, "ratio", ".2f×") for name in names)),
            (
                "others' p99 while a 50-turn session is read, ms",
                *(_figure(read, name, "reading_p99_ms", ".0f") for name in names),
            ),
            *(
                (
                    f"p99 of calls of 50 ms with {count} turns stored, ms",
                    *(_figure(cell, name, "p99_ms", ".0f") for name in names),
                )
                for count, cell in stored.items()
            ),
        ],
    )
    return [
        "## The gateway",
        "`python benchmarks/gateway.py`, with everything on: keys, exact tokens, the log on disk. `rllm` is\n"
        "rllm-model-gateway 0.1.0, `awslabs` is agentcore-rl-toolkit 0.2.0, `openenv` is the capture server of\n"
        "openenv 0.10.0, each in its own environment; nginx only passes on. 64 at a time on one core, 256 sampled\n"
        "tokens from an engine that answers at once. Prompts are all different, or those of groups, or of\n"
        "conversations (turns).",
        speed,
        "The slowest of a hundred (p99), against the engine without a gateway. awslabs answers a stream when it has\n"
        "ended.",
        late,
        "What is kept, and what it costs later.",
        rest,
    ]


def _figure(cell: dict[str, Any], name: str, key: str, form: str, unit: float = 1) -> str:
    """One figure; nothing for a peer that answered nothing. `form` is a format, and what comes after the number."""
    value = cell.get(name, {}).get(key)
    return f"{value / unit:{form.rstrip('×')}}{'×' * form.endswith('×')}" if value is not None else "–"


def _speed(cell: dict[str, Any], peers: Sequence[str]) -> Iterable[str]:
    ours = cell["ours"]
    low, high = ours["spread"]["per_second"]
    yield f"{ours['per_second']:.0f} ({low:.0f}–{high:.0f})"
    yield from (_figure(cell, name, "per_second", ".0f") for name in (*peers, "nginx"))
    answered = [cell[name] for name in peers if "per_second" in cell[name]]
    yield f"**{ours['per_second'] / max(peer['per_second'] for peer in answered):.1f}×**" if answered else "–"
    yield f"{ours['cpu_ms']:.2f}"
    yield f"{min(peer['cpu_ms'] for peer in answered):.2f}" if answered else "–"


def _late(figures: dict[str, Any], direct: dict[str, Any]) -> str:
    return f"{figures['p99_ms'] / direct['p99_ms']:.3f}×" if "p99_ms" in figures else "none in time"


def fidelity() -> list[str]:
    cases = _read("fidelity")["cases"]
    rows = [(case, *(_fidelity(found[name]) for name in _all())) for case, found in cases.items()]
    return [
        "## Exact tokens",
        "`python benchmarks/fidelity.py`: a session of six turns with tools, whose client does to the history what\n"
        "clients do. Each sampled token is to be trained once (1.0), in as few rows as can be.",
        _table(["what the client does", "ours", *PEERS], rows),
    ]


def turn_credit() -> list[str]:
    found = _read("turn_credit")
    task, bias = found["task"], found["bias"]
    rows = [
        (
            name,
            _steps(statistics.median(steps), task["most_steps"]),
            ", ".join(_steps(one, task["most_steps"]) for one in steps),
        )
        for name, steps in task["steps"].items()
    ]
    return [
        "## Credit by turn",
        "`python benchmarks/turn_credit.py`: six turns with a reward for each right action. The policy is a table of\n"
        "logits, not a model; advantages and loss are those of the Tinker backend. Steps until "
        f"{task['target']:.0%} of actions\nare right, for each seed. `rollout` gets the sum of the rewards, "
        "`outcome only` a list without `credit=turn`.",
        _table(["credit", "median", "seeds"], rows),
        f"The gradient that {bias['rollouts']:,} rollouts estimate is at most {bias['largest']:.1f} standard errors\n"
        f"from the one that listing every trajectory gives ({bias['rms']:.1f} in the root mean square over weights).",
    ]


def _steps(count: float, most: int) -> str:
    return f"{count:g}" if count <= most else "never"


def templates() -> list[str]:
    found = _read("templates")["templates"]
    rows = [
        (
            name,
            "the template itself" if of["renderer"] == "default" else of["renderer"],
            of["session"],
            f"{of['as_expected']} of {len(of['cases'])}",
            of["why_not"].replace("|", "\\|").replace("<", "&lt;"),
        )
        for name, of in found.items()
    ]
    return [
        "## Chat templates",
        "`python benchmarks/templates.py`: the 41 chat templates that TRL ships and six in the formats of other\n"
        "families, each as a checkpoint's folder with a name that says nothing, on a small vocabulary made here with\n"
        "the family's special tokens. Six turns under each of the cases above are to be one row (two after a\n"
        "compaction, or with a sub-agent), all of it exact. Where a template has no place for tools, they are six\n"
        "turns of text.",
        _table(["template", "renderer", "six turns of", "as expected", "why not with tools, or not at all"], rows),
    ]


def _fidelity(found: dict[str, Any]) -> str:
    rows = f"{found['rows']} row{'s' if found['rows'] != 1 else ''}"
    told = rows if found["rows"] == found["rows_expected"] else f"{rows} ({found['rows_expected']} expected)"
    return f"{found['trained_share']:.1f}, {told}"


def asynchronous() -> list[str]:
    """Training that never waits."""
    found = _read("async_training")
    steps, scale = found["schedule"]["steps"], found["schedule"]["scale"]
    runs = {ahead: of for ahead, of in found["schedule"].items() if ahead.isdigit()}
    schedule = [
        (f"K = {ahead}", f"{of['seconds']:.0f}", f"{of['ratio']:.2f}×", f"{of['least']:.0f}" if "least" in of else "–")
        for ahead, of in runs.items()
    ]
    return [
        "## Training that never waits",
        f"`python benchmarks/async_training.py`: {steps} steps of 64 rollouts on 64 slots, each with a tool\n"
        f"that sleeps (log-normal, mean 2 s, 99th percentile 20 s, all seconds times {scale:g}). Training sleeps as\n"
        "long as a mean tool; everything but the model and the agent's process is real.",
        _table(["`--async-steps`", "seconds", "steps per hour ÷ K = 0", "least seconds possible"], schedule),
        *_possible(found),
        *_slots(found),
        *_bound(found),
        *_distribution(found["distribution"]),
        *_stragglers(found["straggler"]),
        *_demo(),
        *_kills(),
    ]


def _distribution(found: dict[str, Any]) -> list[str]:
    known = (("mean_ratio", ".2f"), ("distance", ".3f"), ("p", ".2g"))
    rows = [
        (
            name,
            str(of["sampled"]),
            str(of["trained"]),
            *(format(part[key], form) for part in (of, of["tokens"]) for key, form in known),
        )
        for name, of in found.items()
        if "tokens" in of
    ]
    if not rows:
        return []
    return [
        "How long rollouts took that were trained on, and how many tokens they sampled, against 20,000 lengths drawn\n"
        "from the tools' distribution apart from any run (Kolmogorov-Smirnov). One rollout in twenty fails, whatever\n"
        "its length.",
        _table(["", "sampled", "trained", "mean ÷", "distance", "p", "tokens: mean ÷", "distance", "p"], rows),
    ]


def _stragglers(found: dict[str, Any]) -> list[str]:
    rows = [
        (f"K = {ahead}", f"{of['none']:.2f}", f"{of['one']:.2f}", f"{of['each']:.2f}", f"{of['least']:.0f}")
        for ahead, of in found.items()
        if ahead.isdigit() and "each" in of
    ]
    if not rows:
        return []
    return [
        f"{found['steps']} quick steps: how many timeouts they take without a straggler, if one rollout of one step\n"
        "never ends, and if one of each step never ends. Steps are trained on in order, so each waits for its own\n"
        "straggler; those of K + 1 steps wait at the same time.",
        _table(["", "no straggler", "one", "one in each step", "least for these"], rows),
    ]


def _slots(found: dict[str, Any]) -> list[str]:
    rows = [
        (name, str(of["rollouts"]), f"{of['in_use']:.1%}", f"{of['seconds']:.1f}", f"{of['ratio']:.2f}×")
        for name, of in found.get("slots", {}).items()
    ]
    if not rows:
        return []
    return [
        "One synchronous step: the slots in use until its last group starts, and its seconds against the least\n"
        "possible (the longest rollout, or all of them spread over the slots). Log-normal steps end with a straggler\n"
        "that began late, which no order avoids that doesn't know how long rollouts take.",
        _table(["lengths", "rollouts", "slots in use", "seconds", "÷ least"], rows),
    ]


def _possible(found: dict[str, Any]) -> list[str]:
    rows = [(count, *(f"{of[ahead]:.2f}×" for ahead in "13")) for count, of in found.get("possible", {}).items()]
    if not rows:
        return []
    return [
        "How much more steps per hour these tools allow with any number of slots and cores, over 10,000 steps: a step\n"
        "isn't trained on before its longest rollout has ended, which starts at most K updates earlier. The most\n"
        "is K + 1, if all lengths are the same.",
        _table(["rollouts a step", "K = 1", "K = 3"], rows),
    ]


def _bound(found: dict[str, Any]) -> list[str]:
    shown = "{mean:.2f}× ({least:.2f}–{most:.2f}), {within:.0%}"
    rows = [(name, *(shown.format(**one) for one in of.values())) for name, of in found.get("bound", {}).items()]
    if not rows:
        return []
    return [
        "The seconds of a synchronous step ÷ the least possible, with the scheduler on a fake clock, by how many\n"
        "rollouts there are for each slot: mean (least–most), and the share of steps within 1.15×. 256 groups of 8\n"
        "are 64 rollouts for each of 32 slots, or 16 for each of 128. Exponential steps stay within 1.15× with many\n"
        "rollouts for each slot; with few, the last ones run beside empty slots for a large part of the step.\n"
        "Log-normal steps stay within it while the longest rollout alone takes as long as the step, and not where it\n"
        "is only a large part of it and starts late. An order avoids that only if it knows how long rollouts will\n"
        "take; `--async-steps` fills the slots meanwhile.",
        _table(["lengths", "8 a slot", "16 a slot", "64 a slot"], rows),
    ]


def _demo() -> list[str]:
    found = _read("async_demo").get("demo") if (ROOT / "benchmarks" / "results" / "async_demo.json").exists() else None
    if not found:
        return []
    steps, seeds, of, cores = found["steps"], found["seeds"], found["together"], _read("async_demo")["machine"]["cores"]
    means = ("longest rollout, s", "training, s", "busy cores")
    speed = [
        (
            f"K = {ahead}",
            f"{one['seconds']:.0f}",
            f"{one['ratio']:.2f}×",
            ", ".join(f"{ratio:.2f}" for ratio in one["ratios"]),
            f"{one['possible']:.2f}×",
            f"{one['over_floor']:.2f}",
            f"{one['longest']:.1f}",
            f"{one['training']:.1f}",
            f"{one['busy_cores']:.1f}",
        )
        for ahead, one in of.items()
    ]
    reward = [
        (
            f"K = {ahead}",
            f"{one['held_out']:.2f}",
            "{:.2f} to {:.2f}".format(*one["interval"]),
            f"{one['difference']['difference']:+.2f}" if "difference" in one else "–",
            "{:+.2f} to {:+.2f}".format(*one["difference"]["interval"]) if "difference" in one else "–",
        )
        for ahead, one in of.items()
    ]
    return [
        f"`python benchmarks/async_demo.py`: the math agent with such a calculator, {seeds} seeds of {steps} steps of\n"
        f"{found['rollouts']} rollouts, on {found['slots']} slots and {cores} cores, which sampling, training and\n"
        f"sessions share, {found['at_once']} seeds at a time. Seconds are those of all steps. *Possible* is the ratio\n"
        "that the synchronous runs' rollouts allow at this K with any number of slots and cores: a step isn't trained\n"
        "on before its longest rollout has ended, which starts at most K updates earlier. *÷ floor* compares a run\n"
        "with that bound for its own rollouts. The last three are means over steps and runs: if K lengthens rollouts\n"
        "or training, they wait for a core.",
        _table(["", "seconds", "÷ K = 0", "by seed", "possible", "÷ floor", *means], speed),
        f"Held-out reward after the same {steps * found['rollouts']} rollouts, and its difference from K = 0, paired\n"
        "by seed and row (bootstrap).",
        _table(["", "held-out reward", "95 %", "difference", "95 %"], reward),
    ]


def _kills() -> list[str]:
    of = _read("async_demo").get("kills") if (ROOT / "benchmarks" / "results" / "async_demo.json").exists() else None
    if not of:
        return []
    return [
        f"{of['kills']} kills (−9) at random moments in {of['runs']} runs of the math agent at K = 2, each resumed:\n"
        f"{of['wrong']} steps lost or doubled, with other rows or sessions, or with tokens older than K."
    ]


def studio() -> list[str]:
    found = _read("studio")
    seconds, writing = found["seconds"], found["writing"]
    sampled = max(case.get("tokens_per_s", 0) for case in _read("gpu")["cases"].values())
    share = writing["ms"] / 1000 / writing["tokens"] * sampled
    one = f"{seconds['rollout_median']:.3f}, {seconds['rollout_longest']:.2f}"
    rows = [
        ("CPU seconds of the server until the run's first view", f"{seconds['open_cpu']:.2f}"),
        ("seconds until then, this time", f"{seconds['open']:.2f}"),
        ("any one rollout, seconds: median, longest of 200", one),
        (f"CPU milliseconds to write a rollout of {writing['tokens']:,} tokens", f"{writing['ms']:.1f}"),
        (f"share of the time in which an engine samples them at {sampled:,} tokens/s", f"{share:.2%}"),
    ]  # fmt: skip
    lines = [f"`python benchmarks/studio.py`: `agentcore-rl ui` on a run of {found['rollouts']:,} rollouts, over HTTP."]
    if drawn := found["drawn"]:
        for at, (run, what) in enumerate((("run", "has drawn it"), ("small", "has drawn a run of one step"))):
            shown = ", ".join(f"{one:.2f}" for one in drawn[run]["seconds"])
            rows.insert(2 + at, (f"seconds until Chromium {what}: least, median, most", shown))
        least, most = drawn["load"]
        cores = found["machine"]["cores"]
        lines.append(f"Chromium and the server shared {cores} cores, under a load of {least} to {most}.")
    return ["## Seeing a run", "\n".join(lines), _table(["", ""], rows)]


def guards() -> list[str]:
    found = _read("guards")
    late = {name: of["named"].get(of["wanted"]) for name, of in found["flaws"].items()}
    rows = [(name, found["flaws"][name]["wanted"], str(step or "not named")) for name, step in late.items()]
    runs = {"short runs of the demo's problems and policy": found["healthy"], "runs of `make demo`": found["demo"]}
    quiet = [[what, str(len(of)), str(sum(not one["named"] for one in of.values()))] for what, of in runs.items()]
    after = sorted(one["after"] for one in found["demo"].values())
    return [
        "## Guards",
        "`python benchmarks/guards.py --healthy 16 --demo 20 --flaws`. Healthy runs with different seeds:",
        _table(["", "runs", "without a finding"], quiet),
        f"The demos ended between {after[0]:.0%} and {after[-1]:.0%} of their held-out problems, "
        f"median {statistics.median(after):.0%}.\n"
        "These flaws were put into runs of three steps.",
        _table(["flaw", "guard", "named at step"], rows),
    ]


def runtime() -> list[str]:
    found = _read("runtime")
    start, live, churn, over = (found[part] for part in ("start", "live", "churn", "overhead"))
    rows = [
        ("a new session until the agent's first line, ms", f"{start['session_ms']['p50']:.0f}"),
        ("the same in a fresh process, ms", f"{start['fresh_ms']['p50']:.0f}"),
        (f"MB a session, {live['live']} of them alive", f"{live['megabytes_per_session']:.0f}"),
        (f"sessions/s, {churn['sessions']} of them, 16 at a time", f"{churn['per_second']:.0f}"),
        (
            "its memory before and after them, MB",
            " → ".join(str(churn[w]["runtime's memory MB"]) for w in ("before", "after")),
        ),
        (
            "a request, directly and through the runtime, ms",
            f"{over['direct']['p50_ms']:.1f}, {over['routed, over HTTP']['p50_ms']:.1f}",
        ),
    ]
    scale = _read("scale")
    costs = _session_costs(scale.get("local_runtime", {})) + _phases(scale.get("supervisor_us", {}))
    costs += _costs_at_once(scale.get("agent_sessions", {}))
    return ["## The local runtime", "`python benchmarks/runtime.py`, on two cores.", _table(["", ""], rows), *costs]


def _session_costs(found: dict[str, Any]) -> list[str]:
    """What a session costs each process of the local runtime, and how many a second two cores run."""
    rows = [
        [
            kind if tree == "now" else f"{kind}, {tree}",
            *(f"{ms:.1f}" for ms in one["cpu_ms"].values()),
            f"{one['per_second']:.0f}",
            f"{one['start_ms_p50']:.1f}" if "start_ms_p50" in one else "–",
        ]
        for kind, trees in found.items()
        for tree, one in trees.items()
    ]
    header = ["CPU ms", "program", "supervisor", "template", "session", "all", "sessions/s", "p50 of a start, ms"]
    text = (
        "`python benchmarks/scale_local.py`, on two cores: the CPU time of a session that is started, invoked and\n"
        "stopped (`echo`), and of a rollout of `RolloutClient` (`rollout`), with eight at a time."
    )
    return [text, _table(header, rows)] if rows else []


def _phases(found: dict[str, int]) -> list[str]:
    """Where a session's CPU time in the supervisor goes."""
    names = {
        "prepare": "prepare it: control groups, log, socket, fork",
        "start": "start it: its id, variables and addresses",
        "request": "send its first request",
        "end": "end it, and remove all of it",
    }
    text = (
        "`python benchmarks/scale_local.py --measure phases`: what of it the supervisor takes, with a hundred\n"
        "sessions at a time in each phase. The rest are the program's two requests, and what it costs to turn from\n"
        "one session to another."
    )
    rows = [[name, str(found[phase])] for phase, name in names.items() if phase in found]
    return [text, _table(["a session's CPU time in the supervisor", "µs"], rows)] if rows else []


def _costs_at_once(found: dict[str, dict[str, float]]) -> list[str]:
    """What a session of a real agent costs, by how many run at once."""
    rows = [[at_once, *(f"{ms:.1f}" for ms in cpu.values())] for at_once, cpu in found.items()]
    text = (
        "`python benchmarks/scale_sessions.py`: the CPU time of a rollout of the math agent (Strands and the OpenAI\n"
        "SDK), with two model calls and one of its tool, by how many run at once. The program holds the client and\n"
        "the gateway."
    )
    return [text, _table(["at once: CPU ms", "program", "supervisor", "template", "session"], rows)] if rows else []


def client() -> list[str]:
    delivery = _read("client")["delivery"]
    rows = [
        (title, f"{f['p50_ms'] / 1000:.2f}", f"{f['p99_ms'] / 1000:.2f}", f"{f['store_requests_per_rollout']:.2f}")
        for title, f in (("ours", delivery["polling"]), ("the peer's", delivery["peer's polling"]))
    ]
    return [
        "## The client",
        f"`python benchmarks/client.py`: {delivery['polling']['results']} results on S3 without a queue, from when\n"
        "they are stored until they are in the trainer's hands. The peer is agentcore-rl-toolkit 0.2.0, which only\n"
        "polls.",
        _table(["client", "p50, s", "p99, s", "requests to the store each"], rows),
        *client_section(_read("scale")["client"], _table),
        *gateway_section(_read("scale")["gateway"], _table),
        *faults_section(_read("scale")["faults"], _table),
        *sixteen_section(_read("scale_16"), _table),
    ]


def install() -> list[str]:
    found = _read("install")
    sizes, imports = found["sizes"], found["import"]
    base, ours = imports["import bedrock_agentcore"], imports["from agentcore_rl_toolkit import AgentCoreRLApp"]
    rows = [
        ("packages", str(sizes["base"]["packages"]), str(sizes["ours"]["packages"])),
        ("MB", f"{sizes['base']['megabytes']:.0f}", f"{sizes['ours']['megabytes']:.0f}"),
        ("import, ms", f"{base['median_ms']:.0f}", f"{ours['median_ms']:.0f}"),
    ]
    text = "`python benchmarks/install.py`: what it adds to an agent's container."
    return ["## Installation", text, _table(["", "bedrock-agentcore", "and ours"], rows)]


def _all() -> Sequence[str]:
    return ("ours", *PEERS)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def _table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write() -> None:
    PAGE.write_text(page())


def main() -> int:
    if "--check" not in sys.argv:
        write()
    elif not PAGE.exists() or PAGE.read_text() != page():
        print("docs/reference/figures.md is out of date\nhint: python benchmarks/figures.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
