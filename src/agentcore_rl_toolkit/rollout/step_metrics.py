"""The metrics of a training step. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..agent.reward import LARGEST_REWARD
from .rollout import Group, Rollout

_MOST_TOOLS, _MOST_COMPONENTS = 32, 32
"""Names that become figures of their own: agents and rewards choose them."""


def step_metrics(groups: Iterable[Group]) -> dict[str, float]:
    """The metrics of one step's groups; names are stable and the same in every backend."""
    groups = list(groups)
    kept = [group for group in groups if group.dropped is None]
    trained = [rollout for group in kept for rollout in group.trained]
    everything = [rollout for group in groups for rollout in (*group.rollouts, *group.others)]
    metrics: dict[str, float] = {
        "groups/kept": len(kept),
        "groups/dropped": len(groups) - len(kept),
        "groups/without_variance": sum(not group.has_variance for group in groups),
        "rollouts/run": len(everything),
        "rollouts/trained": len(trained),
        "rollouts/failed": sum(rollout.failed for rollout in everything),
    }
    rewards = [reward for group in kept for reward in group.rewards]
    if rewards:
        metrics["reward"] = statistics.fmean(rewards)
        spreads = [statistics.pstdev(group.rewards) for group in kept if group.rewards]
        metrics["reward/group_std"] = statistics.fmean(spreads)
    metrics |= _counted("dropped", Counter(group.dropped for group in groups if group.dropped))
    metrics |= _counted("left_out", Counter(rollout.why for rollout in everything if rollout.why))
    metrics |= _counted("failures", Counter(rollout.status.value for rollout in everything if rollout.failed))
    metrics |= _fidelity(everything) | _sizes(trained) | _means("seconds", (one.seconds for one in everything))
    metrics |= _conduct(groups, everything) | _means("reward/component", map(components_of, trained))
    return metrics | _derived(metrics)


def staleness_metrics(groups: Iterable[Group], step: int) -> dict[str, float]:
    """How many updates before step `step` its trained tokens were sampled. Versions are the numbers of updates."""
    ages: Counter[int] = Counter()
    mixed: list[bool] = []
    for rollout in (one for group in groups if group.dropped is None for one in group.trained):
        versions = [(step - int(name), row.loss_mask[a:b].sum()) for row in rollout.rows for name, a, b in row.versions]
        for age, tokens in versions:
            ages[age] += int(tokens)
        mixed.append(len({age for age, tokens in versions if tokens}) > 1)
    if not ages.total():
        return {}
    mean = sum(age * tokens for age, tokens in ages.items()) / ages.total()
    return {
        "staleness/mean": mean,
        "staleness/max": max(age for age, tokens in ages.items() if tokens),
        "staleness/mixed": statistics.fmean(mixed),
    }


_COUNTS = (
    *("groups/", "rollouts/", "dropped/", "left_out/", "failures/"),
    *("tools/offered/", "tools/called/", "tools/unknown_calls"),
    *("fidelity/renders", "fidelity/parse_failures", "fidelity/unbridged", "fidelity/omitted"),
)
_MAXIMA = ("length/tokens_max", "staleness/max")


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge one step's metrics of several processes: sum counts and speeds, average the rest."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name.startswith(_COUNTS) or name == "tokens_per_second":
            merged[name] = sum(values)
        elif name in _MAXIMA:
            merged[name] = max(values)
        else:
            merged[name] = statistics.fmean(values)
    return merged | _derived(merged)


def _derived(metrics: Mapping[str, float]) -> dict[str, float]:
    """The figures that follow from counts: the share of groups without variance, and how many tools none called."""
    found: dict[str, float] = {}
    if "groups/without_variance" in metrics:
        groups = metrics["groups/kept"] + metrics["groups/dropped"]
        found["groups/without_variance_share"] = metrics["groups/without_variance"] / max(1, groups)
    calls = [count for name, count in metrics.items() if name.startswith("tools/called/")]
    if calls:
        found["tools/never_called"] = sum(not count for count in calls)
    return found


def _counted(kind: str, counts: Counter[Any]) -> dict[str, float]:
    return {f"{kind}/{str(name).replace(' ', '_')}": count for name, count in sorted(counts.items(), key=str)}


def _fidelity(rollouts: Sequence[Rollout]) -> dict[str, float]:
    known = [rollout.fidelity for rollout in rollouts if rollout.fidelity.sampled]
    wanted = sum(fidelity.wanted for fidelity in known)
    if not wanted:
        return {}
    unbridged = Counter[str]()
    for fidelity in known:
        unbridged.update(fidelity.unbridged)
    return {
        "fidelity": sum(fidelity.trained for fidelity in known) / wanted,
        "fidelity/rows": sum(fidelity.rows for fidelity in known) / len(known),
        "fidelity/renders": sum(fidelity.renders for fidelity in known),
        "fidelity/parse_failures": sum(fidelity.parse_failures for fidelity in known),
        "fidelity/unbridged": sum(sum(fidelity.split.values()) for fidelity in known),
        "fidelity/omitted": sum(sum(fidelity.omitted.values()) for fidelity in known),
    } | _counted("fidelity/unbridged", unbridged)


def _sizes(rollouts: Sequence[Rollout]) -> dict[str, float]:
    if not rollouts:
        return {}
    known, tokens = [rollout.fidelity for rollout in rollouts], [rollout.tokens for rollout in rollouts]
    return {
        "length/turns": statistics.fmean(one.turns for one in known),
        "length/tool_calls": statistics.fmean(one.tool_calls for one in known),
        "length/sampled_tokens": statistics.fmean(one.sampled for one in known),
        "length/tokens": statistics.fmean(tokens),
        "length/tokens_max": max(tokens),
    }


def _conduct(groups: Sequence[Group], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What rollouts did: how many were cut, which tools they called, how many in a group sampled the same."""
    ran = [rollout for rollout in rollouts if rollout.transcript.turns]
    if not ran:
        return {}
    offered, called = Counter[str](), Counter[str]()
    for rollout in ran:
        turns = rollout.transcript.turns
        offered.update({_name(name) for turn in turns for name in turn.tools})
        called.update({_name(call.get("name")) for turn in turns for call in turn.reply.get("tool_calls") or ()})
    figures = {
        "length/truncated": statistics.fmean(rollout.truncated for rollout in ran),
        "tools/unknown_calls": sum(len(rollout.transcript.unknown_tools()) for rollout in ran),
        "answers/duplicates": statistics.fmean(_repeated(group) for group in groups),
    }
    for name, count in sorted(offered.items())[:_MOST_TOOLS]:
        figures |= {f"tools/offered/{name}": count, f"tools/called/{name}": called[name]}
    return figures


def _repeated(group: Group) -> float:
    """The share of a group's rollouts that sampled the same tokens as another one of it."""
    rollouts = [rollout for rollout in group.rollouts if rollout.rows]
    texts = [tuple(row.token_ids[row.prompt_length :].tobytes() for row in rollout.rows) for rollout in rollouts]
    counts = Counter(texts)
    return sum(counts[text] > 1 for text in texts) / max(1, len(texts))


def components_of(rollout: Rollout) -> dict[str, float]:
    """The parts of a rollout's reward: the numbers in the `components` of its result that could be rewards."""
    found = (rollout.result or {}).get("components")
    if not isinstance(found, Mapping):
        return {}
    numbers = {_name(name): value for name, value in found.items() if isinstance(value, (int, float))}
    first = [*numbers.items()][:_MOST_COMPONENTS]
    return {name: float(value) for name, value in first if abs(value) <= LARGEST_REWARD}


def _name(chosen: object) -> str:
    """A name that an agent chose, as part of a figure's: short, and without half characters, which trackers refuse."""
    return str(chosen)[:64].encode(errors="replace").decode()


def _means(kind: str, parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over the rollouts that have it."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {f"{kind}/{name}": statistics.fmean(known) for name, known in sorted(values.items())}
