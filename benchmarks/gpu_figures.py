"""The figures page's section about GPUs. Pure.

Each case says on which GPU, with which versions and when it was measured, as only some of them may run again. One that
failed is a row that says so; one that was left out has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Table = Callable[[Sequence[str], Iterable[Iterable[str]]], str]
Case = dict[str, Any]

_VERL = ("verl", "vllm", "transformers", "torch")
_TRL = ("trl", "vllm", "transformers", "torch")
_SAMPLING = ("vllm", "transformers", "torch")
_STEPS = {
    "steps-trl": "TRL alone, with Transformers' `generate`",
    "steps-trl_vllm": "TRL alone, with vLLM in its process",
    "steps-colocate": "ours, `--vllm colocate`",
    "steps-engine": "ours, the engine in this process",
}
_TINY = {
    "tiny-colocate": "`--vllm colocate`",
    "tiny-colocate-workers": "`--vllm colocate`, `--gateway workers=2`",
    "tiny-engine": "the engine in this process",
    "tiny-engine-workers": "the engine in this process, `--gateway workers=2`",
}
_SAMPLERS = {
    "sample-vllm": "vLLM",
    "sample-vllm_seeded": "vLLM, a seed with each request",
    "sample-generate": "Transformers' `generate`",
    "sample-engine": "our engine for Transformers",
    "sample-generate_batch": "Transformers' `generate_batch` (continuous batching)",
}


def gpu_section(found: dict[str, Any], asynchronous: dict[str, Any], table: Table) -> list[str]:
    """What `gpu.json` and `gpu_async.json` say."""
    cases: dict[str, Case] = found["cases"]
    return [
        "## On a GPU",
        "`make bench-gpu`, one case after the other. Those that ran beside something else say so.",
        *_verl(cases, table),
        *_smollm2(cases, table),
        *_contracts(cases),
        *_steps(cases, table),
        *_tiny(cases, table),
        *_sampling(cases, table),
        *_asynchronous(asynchronous, table),
    ]


def _verl(cases: dict[str, Case], table: Table) -> Iterator[str]:
    known = _known(cases, _VERL_ROWS)
    rows: list[tuple[str, ...]] = []
    for name, show in _VERL_ROWS.items():
        if (case := cases.get(name)) is not None:
            shown = [(f"`{name}`", "failed")] if "error" in case else show(case)
            measured = [_when(case, known, _VERL), *["in the same run"] * (len(shown) - 1)]
            rows += ((*row, when) for row, when in zip(shown, measured, strict=True))
    if rows:
        yield (
            "The math agent with the built-in policy through verl: 8 rows × 8 rollouts a step, each of two\n"
            f"conversations. {_measured(known, _VERL)}"
        )
        yield table(["", "", "measured"], rows)


def _sync(case: Case) -> list[tuple[str, str]]:
    return [
        (f"held-out reward before and after {case['steps']} steps", _learned(case)),
        (
            "rows of a rollout; trained ÷ sampled tokens",
            f"{case['rows_per_rollout']:.0f}; {_f(case['fidelity'], '.1f')}",
        ),
        ("groups of each rollout worker", ", ".join(map(str, case["groups_of_workers"].values()))),
        ("seconds of a step; of its sampling", f"{_f(case['step_s'], '.1f')}; {_f(case['generate_s'], '.1f')}"),
        ("largest mean difference of probabilities, sampler and trainer", _f(case["probability_difference"], ".4f")),
    ]


def _resumed(case: Case) -> list[tuple[str, str]]:
    return [("resumed until step; loaded by Transformers as", f"{case['steps']}; {case['transformers_loads']}")]


def _ended(case: Case) -> list[tuple[str, str]]:
    before, after = case["gpu_mib_before_and_after"]
    left = f"{case['seconds_to_end']:.0f}; {len(case['processes_left'])}; {after - before}"
    return [
        ("`colocate_async`, seconds of a step", _f(case["step_s"], ".1f")),
        ("Ctrl-C there: seconds to end; processes left; MiB left on the GPU", left),
    ]


def _lora(case: Case) -> list[tuple[str, str]]:
    return [("LoRA, seconds of a step", _f(case["step_s"], ".1f"))]


_VERL_ROWS: dict[str, Callable[[Case], list[tuple[str, str]]]] = {
    "verl-sync": _sync,
    "verl-resume": _resumed,
    "verl-async": _ended,
    "verl-lora": _lora,
}


def _smollm2(cases: dict[str, Case], table: Table) -> Iterator[str]:
    titles = {"smollm2-colocate": "TRL, `--vllm colocate`", "smollm2-verl": "verl"}
    known = _known(cases, titles)
    weights = " or ".join(sorted({case["weights"] for case in known if "weights" in case})) or "of unknown origin"
    rows = _rows(
        cases,
        titles,
        ("trl", *_VERL),
        lambda it: (
            _learned(it),
            str(it["rollouts"]),
            _f(it.get("step_seconds", it.get("step_s")), ".1f"),
            _f(it["fidelity"], ".1f"),
        ),
    )
    if rows:
        yield (
            f"The math agent with SmolLM2-135M-Instruct ({weights}), after 60 batches of\nexample conversations. "
            f"{_measured(known, ('trl', *_VERL))}"
        )
        columns = ["held out, before → after", "rollouts", "seconds of a step", "trained ÷ sampled", "measured"]
        yield table(["", *columns], rows)


def _contracts(cases: dict[str, Case]) -> Iterator[str]:
    """What the suite said of each engine; without an error it ended with 0."""
    said = []
    for name, engine, package in (("contract-vllm", "vLLM", "vllm"), ("contract-sglang", "SGLang", "sglang")):
        case = cases.get(name)
        if case is not None:
            passed = re.match(r"\d+ passed", case.get("said", ""))
            how = "failed" if "error" in case else passed[0] if passed else "no failure"
            version = case["versions"].get(package, "")
            said.append(f"{engine} {version}: {how} ({_gpu(case)}, {case['date']})".replace("  ", " "))
    if said:
        yield "The engines' contract suite in float32. " + ";\n".join(said) + "."


def _steps(cases: dict[str, Case], table: Table) -> Iterator[str]:
    rows = _rows(cases, _STEPS, _TRL, lambda it: (f"{it['step_s']:.1f}", f"{it['tokens_per_rollout']:.0f}"))
    cpu = cases.get("steps-colocate", {}).get("session_cpu_s")
    took = f", which took about {cpu} s of CPU each" if cpu else ""
    if rows:
        yield (
            "A step of 128 rollouts with up to 128 tokens each, and a model of Qwen3-0.6B's shape with made weights.\n"
            f"Ours runs 128 sessions of the agent beside it{took}; TRL alone has no agent.\n"
            f"{_measured(_known(cases, _STEPS), _TRL)}"
        )
        yield table(["", "seconds", "tokens of a rollout", "measured"], rows)


def _tiny(cases: dict[str, Case], table: Table) -> Iterator[str]:
    cores = "cores_of_rollouts_in_the_trainer"
    rows = _rows(cases, _TINY, _TRL, lambda it: (f"{it['step_s']:.2f}", f"{it[cores]:.2f}"))
    if rows:
        yield (
            "A step of 128 rollouts of the built-in policy, with 128 sessions, and how much of a core the trainer's\n"
            f"process spends on rollouts, sampling not counted.\n{_measured(_known(cases, _TINY), _TRL)}"
        )
        yield table(["", "seconds", "cores", "measured"], rows)


def _sampling(cases: dict[str, Case], table: Table) -> Iterator[str]:
    rows = _rows(cases, _SAMPLERS, _SAMPLING, lambda it: (f"{it['seconds']:.2f}", str(it["tokens_per_s"])))
    if rows:
        yield (
            "The model of Qwen3-0.6B's shape, sampling alone: 128 sequences of 128 tokens.\n"
            f"{_measured(_known(cases, _SAMPLERS), _SAMPLING)}"
        )
        yield table(["", "seconds", "tokens/s", "measured"], rows)


def _asynchronous(found: dict[str, Any], table: Table) -> Iterator[str]:
    of = found["settings"]
    rows = [
        (name, *(("failed", "–", "–") if "error" in it else _asynchronous_cells(it)))
        for name, it in found["runs"].items()
    ]
    beside = f" {found['beside']}." if "beside" in found else ""
    yield (
        f"`python benchmarks/gpu_async.py`: {found['model']}, {of['max_tokens']} tokens each, and a wait before each\n"
        f"rollout, log-normal with a mean of {of['sleep']:g} s. `engine` samples in the trainer's process.\n"
        f"{_measured([found], _TRL)}\nMeasured on {found['date']}.{beside}"
    )
    yield table(["engine, `--async-steps`", "seconds of a step", "GPU in use", "tokens/s"], rows)


def _asynchronous_cells(it: Case) -> tuple[str, str, str]:
    used = it["gpu_utilization"]
    return f"{it['step_seconds']:.1f}", "–" if used is None else f"{used:.0f}%", f"{it['tokens_per_second']:.0f}"


def _rows(
    cases: dict[str, Case], titles: dict[str, str], packages: Sequence[str], cells: Callable[[Case], tuple[str, ...]]
) -> list[tuple[str, ...]]:
    known = _known(cases, titles)
    empty = next((len(cells(case)) - 1 for case in known if "error" not in case), 0)
    return [
        (
            title,
            *(("failed", *["–"] * empty) if "error" in cases[name] else cells(cases[name])),
            _when(cases[name], known, packages),
        )
        for name, title in titles.items()
        if name in cases
    ]


def _known(cases: dict[str, Case], titles: Iterable[str]) -> list[Case]:
    return [cases[name] for name in titles if name in cases]


def _measured(cases: Sequence[Case], packages: Sequence[str]) -> str:
    """The machines and versions of these cases."""
    machines = " or ".join(sorted({f"{_gpu(case)} and {case['machine']['cores']} CPU cores" for case in cases}))
    found = {name: sorted({case["versions"][name] for case in cases if name in case["versions"]}) for name in packages}
    told = ", ".join(f"{name} {' or '.join(known)}" for name, known in found.items() if known)
    return f"On one {machines}" + (f" with {told}." if told else "; versions not recorded.")


def _when(case: Case, others: Sequence[Case], packages: Sequence[str]) -> str:
    """When a case was measured, beside what, and where it differs from the table's other cases, on what."""
    parts = [case["date"]]
    if len({_gpu(one) for one in others}) > 1:
        parts.append(_gpu(case))
    for name in packages:
        if len({one["versions"].get(name) for one in others}) > 1:
            parts.append(f"{name} {case['versions'].get(name, 'unknown')}")
    return ", ".join(parts) + (f", beside {case['beside']}" if "beside" in case else "")


def _learned(case: Case) -> str:
    return f"{_f(case['before'], '.2f')} → {_f(case['after'], '.2f')}"


def _f(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _gpu(case: Case) -> str:
    return str(case["gpu"].partition(",")[0])
