"""The rules: each looks at a run's latest steps and says, in one sentence, what is wrong with it. Pure.

A rule is a function from `RunFacts` to a `Finding` or None, and its name is the function's. It speaks only on evidence:
the counts it takes are in its code, and a finding must be out of reach of chance for a healthy run. Bounds on rates are
Wilson bounds at three standard errors; differences count in standard errors over groups, because the rollouts of a row
resemble each other.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from .evidence import (
    agreement,
    are_copied,
    differing_components,
    example_of,
    excess_pairs,
    group_lengths,
    identical_pairs,
    is_binary,
    is_longer,
    is_on_policy,
    known_texts,
    latest_rollouts,
    lower_bound,
    scored_groups,
)
from .facts import RunFacts

_OUTCOME = re.compile(
    r"correct|success|solv|accura|exact|match|pass|answer|outcome|equivalen|tests?$|f1", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    """What is wrong, and a rollout that shows it."""

    problem: str
    """One sentence, without its full stop."""
    example: str | None = None
    """The key of a rollout."""


Rule = Callable[[RunFacts], Finding | None]


# --- what is trained on -----------------------------------------------------------------------------------------------


def fidelity(run: RunFacts) -> Finding | None:
    """Of what completed rollouts sampled, less than 99 % can be trained on exactly."""
    done = [one for one in run.rollouts if one.completed and one.wanted]
    short = [one for one in done if one.kept < one.wanted]
    wanted, kept = sum(one.wanted for one in done), sum(one.kept for one in done)
    if len(done) < 16 or len(short) < 3 or kept >= 0.99 * wanted:
        return None
    worst = min(short, key=lambda one: one.kept / one.wanted)
    return Finding(
        f"only {kept / wanted:.1%} of the tokens that completed rollouts sampled are trained on; the other tokens of "
        f"{len(short)} of {len(done)} rollouts are masked",
        worst.key,
    )


def edited_history(run: RunFacts) -> Finding | None:
    """The agent changes what the policy said before it asks again."""
    several = [one for one in run.rollouts if one.turns > 1]
    edited = [one for one in several if one.edited]
    if len(several) < 8 or lower_bound(len(edited), len(several)) < 0.2:
        return None
    return Finding(
        f"in {len(edited)} of {len(several)} rollouts with several turns, the agent's history has replies that the "
        "policy never gave, so later turns answer to words that are not trained on",
        edited[-1].key,
    )


def truncation(run: RunFacts) -> Finding | None:
    """Many rollouts are cut at the token limit or at the end of the context."""
    ran = latest_rollouts(run, 2)
    cut = [one for one in ran if one.truncated]
    if len(ran) < 16 or lower_bound(len(cut), len(ran)) < 0.2:
        return None
    return Finding(
        f"{len(cut)} of the latest {len(ran)} rollouts were cut at max_tokens or at the end of the context, and get "
        "their reward for half an answer",
        cut[-1].key,
    )


def length_explosion(run: RunFacts) -> Finding | None:
    """Rollouts sample three times as many tokens as a few steps ago."""
    if len(run.steps) < 2:
        return None
    *before, now = run.steps
    current = group_lengths(now)
    shortest = min(before[-3:], key=lambda step: statistics.fmean(group_lengths(step) or [math.inf]))
    earlier = group_lengths(shortest)
    if min(len(current), len(earlier)) < 2 or not is_longer(earlier, current):
        return None
    longest = max(now.rollouts, key=lambda one: one.sampled)
    return Finding(
        f"a rollout samples {statistics.fmean(current):.0f} tokens at step {now.number}, and sampled "
        f"{statistics.fmean(earlier):.0f} at step {shortest.number}",
        longest.key,
    )


# --- the sampler ------------------------------------------------------------------------------------------------------


def sampler_mismatch(run: RunFacts) -> Finding | None:
    """The sampler gives its tokens other probabilities than the trainer, with weights that should be the same."""
    known = [step for step in run.steps if is_on_policy(step)][-2:]
    apart = [step.metrics["sampler/kl"] for step in known]
    if len(apart) < 2 or min(apart) < 0.01:
        return None
    return Finding(
        f"sampler and trainer disagree about the sampled tokens (KL {apart[-1]:.2g}, largest ratio "
        f"{known[-1].metrics.get('sampler/ratio_max', math.nan):.3g}): they differ in temperature, weights, "
        "precision or chat template",
        example_of(known[-1]),
    )


def sampling_temperature(run: RunFacts) -> Finding | None:
    """Sampled tokens are likelier, or less likely, than draws from the policy would be."""
    known = [step.metrics for step in run.steps if is_on_policy(step) and "sampler/surprise_z" in step.metrics][-3:]
    if not known:
        return None
    errors = sum(one["sampler/surprise_z"] for one in known) / math.sqrt(len(known))
    excess = statistics.fmean(one["sampler/surprise"] for one in known)
    entropy = statistics.fmean(one["entropy"] for one in known)
    if abs(errors) < 6 or abs(excess) < 0.05 * entropy + 0.005 or are_copied(run):
        return None
    hotter = "more surprising" if excess > 0 else "likelier"
    return Finding(
        f"sampled tokens are {abs(excess):.2f} nats {hotter} on average than draws from the policy (entropy "
        f"{entropy:.2f}), so the sampler uses another temperature, top_p or top_k than the trainer",
        example_of(run.steps[-1]),
    )


def stale_weights(run: RunFacts) -> Finding | None:
    """The sampler agreed with the trainer at first and no longer does: it doesn't get the new weights."""
    known = [step for step in run.steps if is_on_policy(step)]
    if run.seen < 2 or not known or "sampler/kl" not in run.first:
        return None
    first, now = run.first["sampler/kl"], known[-1].metrics["sampler/kl"]
    if first > 0.01 or now < max(1e-6, 30 * first):
        return None
    return Finding(
        f"the sampler agreed with the trainer at the first step (KL {first:.1g}) and no longer does (KL {now:.1g}), "
        "although it says that it has the newest weights: the updates don't reach it",
        example_of(known[-1]),
    )


# --- tools ------------------------------------------------------------------------------------------------------------


def tools_never_called(run: RunFacts) -> Finding | None:
    """The policy is offered tools and calls none."""
    offered = [one for one in run.rollouts if one.offered]
    tried = sum(bool(one.calls or one.parse_failures or one.unparsed) for one in offered)
    if len(offered) < 20 or len(run.steps) < 2 or tried:
        return None
    names = ", ".join(sorted({name for one in offered for name in one.offered})[:5])
    return Finding(
        f"none of {len(offered)} rollouts called a tool, although they were offered {names}", offered[-1].key
    )


def unknown_tools(run: RunFacts) -> Finding | None:
    """The policy calls tools that don't exist."""
    ran = [one for one in run.rollouts if one.offered or one.unknown_calls]
    wrong = [one for one in ran if one.unknown_calls]
    if len(ran) < 16 or lower_bound(len(wrong), len(ran)) < 0.1:
        return None
    name = Counter(name for one in wrong for name in one.unknown_calls).most_common(1)[0][0]
    return Finding(
        f"{len(wrong)} of {len(ran)} rollouts call tools that don't exist, such as {name[:64]}", wrong[-1].key
    )


def tool_parser(run: RunFacts) -> Finding | None:
    """The policy tries to call tools and its calls are not understood."""
    ran = [one for one in run.rollouts if one.offered and not one.truncated]  # cut calls never parse
    failed = [one for one in ran if one.parse_failures or one.unparsed]
    tried = [one for one in ran if one.calls or one.parse_failures or one.unparsed]
    if len(tried) < 8 or lower_bound(len(failed), len(tried)) < 0.3:
        return None
    return Finding(
        f"the tool calls of {len(failed)} of {len(tried)} rollouts that tried could not be parsed: the model writes "
        "another format than its renderer reads, or broken calls",
        failed[-1].key,
    )


# --- rewards ----------------------------------------------------------------------------------------------------------


def constant_reward(run: RunFacts) -> Finding | None:
    """Every rollout since the start has the same reward."""
    scored = [one for one in run.rollouts if one.completed and one.reward is not None]
    if run.seen < 2 or len(scored) < 16 or run.lowest_reward != run.top_reward:
        return None
    return Finding(
        f"all {len(scored)} rollouts of the latest steps, and any before them, have reward {run.top_reward:g}: the "
        "reward ignores the answers, or the tasks are trivial or impossible for this model",
        scored[-1].key,
    )


def no_variance(run: RunFacts) -> Finding | None:
    """Most groups have equal rewards without being solved."""
    groups = [group for step in run.steps for group in scored_groups(step, equal=True)]
    equal = [group for group in groups if len({one.reward for one in group}) == 1]
    unsolved = [group for group in equal if (group[0].reward or 0.0) < run.top_reward]
    if len(run.steps) < 3 or len(groups) < 10 or lower_bound(len(unsolved), len(groups)) < 0.5:
        return None
    return Finding(
        f"in {len(unsolved)} of {len(groups)} groups all rollouts have the same reward, below the best one: they teach "
        "nothing, because the tasks are too hard or the reward is too coarse",
        unsolved[-1][0].key,
    )


def answer_in_prompt(run: RunFacts) -> Finding | None:
    """The model is told the answer that its reward checks."""
    rows = {one.row: one for one in run.rollouts if one.leak is not None}
    leaks = [one.leak for one in rows.values() if one.leak is not None]
    befores = Counter(leak.before for leak in leaks if leak.found and len(leak.before) > 3)
    usual = next((before for before, times in befores.most_common(1) if times >= 0.5 * len(leaks)), None)
    told = [
        one for one in rows.values() if (leak := one.leak) and leak.found and (leak.outside or leak.before == usual)
    ]
    if len(leaks) < 6 or len(told) < 0.9 * len(leaks):
        return None
    chance = (sum(leak.chance for leak in leaks) + 1) / (len(leaks) + 2)
    if chance ** len(told) > 1e-4:
        return None
    return Finding(
        f"the prompt contains the row's own answer in {len(told)} of {len(leaks)} rows (other rows' answers in "
        f"{statistics.fmean(leak.chance for leak in leaks):.0%}), so the reward checks reading, not solving",
        told[-1].key,
    )


def dominating_component(run: RunFacts) -> Finding | None:
    """One part of the reward decides it, and the part that says whether the answer is right doesn't count."""
    groups = [group for step in run.steps for group in scored_groups(step)]
    names = differing_components(groups)
    named = {name for name in names if _OUTCOME.search(name)}
    outcomes = named or {name for name in names if is_binary(groups, name)}
    shares = {name: agreement(groups, name) for name in names}
    if len(names) < 2 or sum(map(len, groups)) < 16 or not outcomes:
        return None
    top = max(names, key=lambda name: shares[name])
    ignored = [name for name in sorted(outcomes) if agreement(groups, name, top) < 0.8]
    if shares[top] < 0.95 or top in outcomes or not ignored:
        return None
    return Finding(
        f"the component {top} decides {shares[top]:.0%} of the differences in reward within groups, so {ignored[0]} "
        "hardly counts, although it differs too",
        max((one for group in groups for one in group), key=lambda one: one.components.get(top, -math.inf)).key,
    )


def copied_answers(run: RunFacts) -> Finding | None:
    """Rollouts repeat each other word by word, more than their probabilities explain."""
    groups = known_texts(run)
    excess = excess_pairs(groups)
    if len(excess) < 6:
        return None
    mean, error = statistics.fmean(excess), max(statistics.stdev(excess), 0.15) / math.sqrt(len(excess))
    if mean < 0.25 or mean < 6 * error:
        return None
    copied = next(group for group in reversed(groups) if identical_pairs(group) > 0.2)
    common = Counter(one.text for one in copied).most_common(1)[0][0]
    likely = statistics.fmean(one.probability for group in groups for one in group)
    seen = statistics.fmean(map(identical_pairs, groups))
    return Finding(
        f"{seen:.0%} of the pairs of rollouts of one row are identical, token by token, and {likely:.0%} would be by "
        "chance: answers are copied, cached, or sampled with a fixed seed",
        next(one.key for one in reversed(copied) if one.text == common),
    )


# --- held-out rows ----------------------------------------------------------------------------------------------------


def held_out_rows_trained(run: RunFacts) -> Finding | None:
    """Held-out rows are among the training rows."""
    shared, total = run.shared_rows
    if not shared:
        return None
    problem = f"{shared} of {total} held-out rows are training rows too, so held-out rewards flatter the model"
    return Finding(problem, run.shared_example)


def held_out_gap(run: RunFacts) -> Finding | None:
    """Training rewards rise and held-out rewards don't follow."""
    later = [step for step in run.held_out if step]
    scored = [group for step in list(run.steps)[-2:] for group in scored_groups(step)]
    if 0 not in run.held_out or not later or run.seen < 2 or len(scored) < 8 or run.first_reward is None:
        return None
    if run.steps[-1].number - max(later) > 1:
        return None
    means = [statistics.fmean(one.reward or 0.0 for one in group) for group in scored]
    (before, error_before), (after, error_after) = run.held_out[0], run.held_out[max(later)]
    gap = statistics.fmean(means) - run.first_reward - (after - before)
    error = math.hypot(error_before, error_after, math.sqrt(2 / len(means)) * statistics.stdev(means))
    if gap < 0.2 or gap < 5 * error:
        return None
    return Finding(
        f"training rewards rose by {gap:.2f} more than held-out rewards: the policy learns the training rows by "
        "heart, or something that only they reward",
        scored[-1][0].key,
    )


RULES: tuple[Rule, ...] = (
    *(fidelity, edited_history, truncation, length_explosion, sampler_mismatch, sampling_temperature, stale_weights),
    *(tools_never_called, unknown_tools, tool_parser, constant_reward, no_variance, answer_in_prompt),
    *(dominating_component, copied_answers, held_out_rows_trained, held_out_gap),
)
