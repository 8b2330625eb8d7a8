"""The figures page's sections about what runs at scale. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Table = Callable[[Sequence[str], Iterable[Iterable[str]]], str]


def client_section(found: dict[str, Any], table: Table) -> list[str]:
    """What was measured of the client at scale, beside what it is to be."""
    rows = [row for part, show in _PARTS.items() if part in found for row in show(found[part])]
    return [
        "### The client at scale",
        "`python benchmarks/scale_client.py`: each client in a separate process, against a scripted runtime on\n"
        "AWS's wire, with S3 and SQS in its memory. In miniature: sessions wait, or call a gateway with a scripted\n"
        "engine, and everything shares the machine's two cores. A floor is boto3 without a client, or a poll of\n"
        "files whose names are known.",
        table(["", "measured", "to be"], rows),
    ]


def gateway_section(found: dict[str, Any], table: Table) -> list[str]:
    """What a gateway costs where it runs."""
    here, one, two, steps = (found[name] for name in ("here", "workers_1", "workers_2", "step"))
    calls = [
        (place, f"{it['calls_s']:.0f}", f"{it['trainer_cpu_ms']:.2f}", f"{it['worker_cpu_ms']:.2f}")
        for place, it in (("in the trainer's process", here), ("one worker", one), ("two workers", two))
    ]
    added = "of a core that {calls_s:.0f} calls/s take from a training step, gateway"
    alone, beside = steps["here"], steps["workers_2"]
    rows = [
        (
            "two workers to one, by CPU a call, 48 agents in all",
            f"{found['two_workers_to_one_by_cpu']:.2f} times",
            "≥ 1.7",
        ),
        (
            "the same, 48 agents each" + found["each_was"],
            f"{found['two_workers_to_one_each_by_cpu']:.2f} times",
            "≥ 1.7",
        ),
        ("two workers to one, by calls/s on these cores", f"{found['two_workers_to_one']:.2f} times", "–"),
        (f"{added.format(**alone)} in its process", f"{alone['added_cpu']:.1%}", "–"),
        (f"{added.format(**beside)} in two workers", f"{beside['added_cpu']:.1%}", "≤ 2 %"),
        ("all workers killed: until a session that was open is folded, s", f"{found['recovery_s']:.1f}", "–"),
    ]
    return [
        "### Where the gateway runs",
        "`python benchmarks/scale_gateway.py`: 48 agents, a scripted engine in the trainer's process, and all of it\n"
        "on the machine's two cores. The bars are of CPU time, which is each process's own: it says\n"
        "what two workers do of what one does if each has a core. Calls/s say how long processes waited for a core.\n"
        "A call costs a process less, the more of them it finds whenever it looks. So two workers need as many agents\n"
        "each for a call to cost what it costs one; finding the owner of its session is 2 % of it.\n"
        "Linux shares busy cores among sessions of processes (`sched_autogroup_enabled`). Each worker is one; the\n"
        "trainer's process is in one with whatever its shell runs, so it waits longest.",
        table(["the gateway", "calls/s", "CPU ms a call, trainer", "worker"], calls),
        table(["", "measured", "to be"], rows),
    ]


def faults_section(found: dict[str, Any], table: Table) -> list[str]:
    """What became of rollouts whose gateway or replica was killed."""
    names = {"gateway": "the gateway", "worker": "the same with `--restart`", "replica": "one of two replicas"}
    rows = [
        (
            names[kind],
            f"{it['completed']:,} of {it['rollouts']:,}{'' if it['once_each'] else ', NOT each once'}",
            f"{it['with_every_token_once']:,}",
            f"{it['ran_again']:,}",
            f"{it['longest_silence_s']:.1f}",
        )
        for kind, it in found.items()
    ]
    return [
        "### Killed under load",
        "`python benchmarks/scale_faults.py`: a gateway with a log and two engine replicas, in processes; what is\n"
        "killed starts again at once. Agents try a call twice more, as SDKs do by default, so calls to a gateway that\n"
        "is away for longer fail, and their rollouts run again.",
        table(["killed", "completed, each once", "with every token once", "ran again", "longest silence, s"], rows),
    ]


def sixteen_section(found: dict[str, Any], table: Table) -> list[str]:
    """What a quiet machine with 16 cores does."""
    echo, two, latency = found["echo"], found["echo_on_two_cores"], found["client"]["latency"]
    gateway, killed, in_flight = found["gateway"], found["faults"]["worker"], found["client"]["in_flight"]
    step = gateway["step"]["workers_2"]
    workers = [f"{gateway[f'workers_{number}']['calls_s']:,.0f}" for number in (1, 2)]
    rows = [
        (f"echo sessions/s, {', '.join(echo)} at a time", _list(echo.values(), "per_second"), "≥ 300"),
        ("echo sessions/s on two of its cores", _list(two, "per_second"), "≥ 60"),
        ("p50 of a start, ms", _list([*echo.values(), *two], "start_ms_p50", ".1f"), "≤ 8"),
        ("rollouts/s of one client, 64 at a time", _list(found["rollouts"].values(), "per_second"), "–"),
        *(
            (f"{name}: stored to in hand, p99 of 200, ms", f"{latency[name]['p99_ms']:.0f}", bound)
            for name, bound in (("directory", "≤ 100"), ("SQS", "≤ 1,000"))
        ),
        ("the client's CPU for one of 10,000 rollouts at once, ms", f"{in_flight['client_cpu_ms_each']:.2f}", "≤ 3"),
        ("two gateway workers to one, by CPU a call", f"{gateway['two_workers_to_one_by_cpu']:.2f} times", "≥ 1.7"),
        ("calls/s of one gateway worker, and of two", ", ".join(workers), "–"),
        (
            f"of a core that {step['calls_s']:.0f} calls/s take from a training step, gateway in two workers",
            f"{step['added_cpu']:.2%}",
            "≤ 2 %",
        ),
        (
            "2,000 rollouts, a worker with `--restart` killed: completed, once each; run again",
            f"{killed['completed']:,}; {killed['ran_again']}",
            "all; –",
        ),
    ]
    return [
        "### On sixteen cores",
        f"The same scripts on a machine with 16 cores, {found['date']}. Sessions and starts had all of them, or two;\n"
        "client and gateway had six, beside training runs on the others. One process made all calls of the workers.",
        table(["", "measured", "to be"], rows),
    ]


def _list(of: Iterable[dict[str, float]], name: str, form: str = ".0f") -> str:
    return ", ".join(f"{one[name]:{form}}" for one in of)


def _in_flight(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    accounted = f"{it['results']:,} results, {'each once' if it['once_each'] else 'NOT each once'}"
    turns = it["model_calls"] // it["rollouts"]
    title = f"{it['rollouts']:,} rollouts of {turns} turns, {it['most_at_once']:,} at the same time"
    yield title + (f" ({it['beside']})" if "beside" in it else ""), accounted, "each once"
    yield "memory of a rollout in flight, KB", f"{it['kb_each']:.1f}", "≤ 25"
    yield "the client's CPU for a rollout, ms", f"{it['client_cpu_ms_each']:.2f}", "≤ 3"
    if "gateway_cpu_ms_a_call" in it:
        yield "the gateway's CPU for a call of them, ms", f"{it['gateway_cpu_ms_a_call']:.2f}", "–"


def _flat(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    sizes = [mb for number, mb in it["mb_after"].items() if int(number)]
    each = f"each fifth of {it['rollouts']:,} rollouts" + (" with `MALLOC_ARENA_MAX=1`" if "arenas" in it else "")
    yield f"memory after {each}, MB", " → ".join(f"{mb:.1f}" for mb in sizes), "flat"


def _latency(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, bound in (("directory", "≤ 100"), ("SQS", "≤ 1,000")):
        ours, floor = it[name], it[f"{name}, floor"]
        figure = f"{ours['p50_ms']:.0f}; {ours['p99_ms']:.0f} (floor {floor['p50_ms']:.0f}; {floor['p99_ms']:.0f})"
        yield f"{name}: stored to in hand, p50 and p99 of {ours['results']}, ms", figure, bound


def _old(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    without, among = it["0 old"], it["200000 old"]
    figure = (
        f"{without['seconds']:.1f} s, {without['requests']} requests; {among['seconds']:.1f} s, {among['requests']}"
    )
    yield "60 rollouts of 3 s without old results, and among 200,000", figure, "the same"


def _quota(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "use of 25 requests a second with starts of 5 s", f"{it['quota_used']:.1%}", "≥ 98 %"


def _outage(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    figure = f"{it['results']:,} results of {it['sessions']:,} sessions; all in hand {_after(it)}"
    yield "2,000 rollouts, 30 s without the store", figure, "none lost, none doubled"


def _after(it: dict[str, Any]) -> str:
    return f"{it['seconds_until_all_were_in_hand']:.0f} s after it was back"


def _killed(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    figure = f"{it['results']:,} results, {it['resumed']:,} of them from before, in {it['seconds_to_all']:.0f} s"
    yield "2,000 rollouts, the client killed and resumed", figure, "none lost, none doubled"


def _shared(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    figure = f"{' and '.join(map(str, it['results']))} results; p99 {it['p99_ms'] / 1000:.1f} s"
    yield "two clients with one experiment on one queue, 100 rollouts each", figure, "to whoever asked"


def _requests(it: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, one in it.items():
        figure = f"{one['runtime']:.2f}; {one['s3']:.2f}; {one['sqs']:.2f}"
        yield f"requests for a rollout {name}: runtime; S3 reads; SQS", figure, "–"


_PARTS: dict[str, Callable[[dict[str, Any]], Iterator[tuple[str, str, str]]]] = {
    "in_flight": _in_flight,
    "twenty_turns": _in_flight,
    "flat": _flat,
    "flat_in_one_arena": _flat,
    "latency": _latency,
    "quota": _quota,
    "old_results": _old,
    "shared_queue": _shared,
    "requests": _requests,
    "store_outage": _outage,
    "killed": _killed,
}
