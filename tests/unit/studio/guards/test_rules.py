"""Every rule speaks on enough evidence of its flaw, and neither on less of it nor on a healthy run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentcore_rl_toolkit.studio.guards import RULES, RolloutFacts, RunFacts, StepFacts
from agentcore_rl_toolkit.studio.guards.facts import Leak

Change = Callable[[int, RolloutFacts], RolloutFacts]
METRICS = {
    "reward": 0.5, "sampler/kl": 1e-4, "sampler/ratio_max": 1.2, "sampler/surprise": 0.001, "sampler/surprise_z": 0.5,
    "entropy": 0.5,
}  # fmt: skip


def healthy(step: int, place: int, group: int) -> RolloutFacts:
    """A rollout of a run that is as it should be: rewards, texts and lengths differ."""
    right = float((step + place + group) % 2)
    return RolloutFacts(
        key=f"0.{step}{group}{place}",
        row=f"{step}/{group}",
        group=group,
        reward=right,
        components={"correct": right, "short": (place % 3) / 10},
        sampled=20 + place,
        wanted=20 + place,
        kept=20 + place,
        turns=2,
        offered=("calculator",),
        calls=("calculator",) if place % 2 else (),
        text=f"{step}/{group}/{place}",
        leak=Leak(found=False, before="", outside=True, chance=0.0),
    )


def make_run(
    change: Change = lambda step, one: one,
    metrics: Callable[[int], dict[str, Any]] = lambda step: {},
    *,
    steps: int = 3,
    groups: int = 4,
    n: int = 4,
) -> RunFacts:
    run = RunFacts()
    for step in range(1, steps + 1):
        rollouts = [change(step, healthy(step, place, group)) for group in range(groups) for place in range(n)]
        run.add(StepFacts(step, METRICS | metrics(step), rollouts))
    return run


def named(run: RunFacts) -> set[str]:
    return {rule.__name__ for rule in RULES if rule(run) is not None}


def changed(**values: Any) -> Change:
    return lambda step, one: replace(one, **values)


TOLD = Leak(found=True, before="answer is ", outside=True, chance=0.1)
FLAWS: dict[str, tuple[Change, Callable[[int], dict[str, Any]]]] = {
    "fidelity": (changed(kept=10), lambda step: {}),
    "edited_history": (changed(edited=1), lambda step: {}),
    "truncation": (changed(truncated=True), lambda step: {}),
    "length_explosion": (
        lambda step, one: replace(one, sampled=one.sampled * (5 if step == 3 else 1)), lambda step: {}
    ),
    "sampler_mismatch": (lambda step, one: one, lambda step: {"sampler/kl": 0.05}),
    "sampling_temperature": (
        lambda step, one: one, lambda step: {"sampler/surprise": -0.2, "sampler/surprise_z": -5.0}
    ),
    "stale_weights": (lambda step, one: one, lambda step: {"sampler/kl": 1e-9 if step == 1 else 1e-5}),
    "tools_never_called": (changed(calls=()), lambda step: {}),
    "unknown_tools": (changed(unknown_calls=("search",)), lambda step: {}),
    "tool_parser": (changed(parse_failures=1), lambda step: {}),
    "constant_reward": (changed(reward=1.0), lambda step: {}),
    "no_variance": (lambda step, one: replace(one, reward=float(one.group == 0 and step == 1)), lambda step: {}),
    "answer_in_prompt": (changed(leak=TOLD), lambda step: {}),
    "dominating_component": (
        lambda step, one: replace(one, reward=one.components["short"] * 9 + 0.01 * (one.reward or 0.0)),
        lambda step: {},
    ),
    "copied_answers": (lambda step, one: replace(one, text=one.row, probability=0.1), lambda step: {}),
}  # fmt: skip


def test_nothing_is_wrong_with_a_healthy_run() -> None:
    assert named(make_run(steps=5)) == set()
    assert named(RunFacts()) == set()


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_named_with_an_example(name: str) -> None:
    run = make_run(*FLAWS[name], groups=6)
    rule = next(rule for rule in RULES if rule.__name__ == name)
    finding = rule(run)
    assert finding is not None
    assert finding.example in {one.key for one in run.rollouts}
    assert not finding.problem.endswith(".")


@pytest.mark.parametrize("name", FLAWS)
def test_little_evidence_is_not_enough(name: str) -> None:
    """One step of two groups of two rollouts. Two rules measure something else."""
    if name not in ("sampling_temperature", "length_explosion"):
        assert name not in named(make_run(*FLAWS[name], steps=1, groups=2, n=2))


@pytest.mark.parametrize("name", sorted(FLAWS.keys() - {"length_explosion", "constant_reward", "no_variance"}))
def test_a_flaw_of_few_rollouts_is_not_a_flaw_of_the_run(name: str) -> None:
    change, _ = FLAWS[name]
    run = make_run(lambda step, one: change(step, one) if one.key in ("0.200", "0.311") else one)
    assert name not in named(run)


def test_stale_tokens_may_differ_from_the_trainers() -> None:
    for name in ("sampler_mismatch", "stale_weights", "sampling_temperature"):
        change, metrics = FLAWS[name]
        assert name not in named(make_run(change, lambda step, known=metrics: known(step) | {"staleness/max": 2}))


def test_identical_answers_that_are_likely_are_not_copied() -> None:
    assert "copied_answers" not in named(make_run(lambda step, one: replace(one, text=one.row, probability=0.95)))


def test_a_group_that_is_solved_is_not_without_variance() -> None:
    """A policy that has learned everything has nothing wrong with it."""
    run = make_run(lambda step, one: replace(one, reward=0.0 if step == 1 and one.group == 0 else 1.0))
    assert not named(run) & {"no_variance", "constant_reward"}


def test_an_answer_that_any_prompt_contains_is_no_leak() -> None:
    usual = Leak(found=True, before="options: ", outside=True, chance=1.0)
    assert "answer_in_prompt" not in named(make_run(changed(leak=usual)))


def test_an_answer_in_the_rows_own_text_is_a_leak_only_at_the_same_words() -> None:
    def leak(before: str) -> Change:
        return lambda step, one: replace(
            one, leak=Leak(found=True, before=before or f"{one.row} has ", outside=False, chance=0.0)
        )

    assert "answer_in_prompt" in named(make_run(leak("(answer: ")))
    assert "answer_in_prompt" not in named(make_run(leak("")))


def test_the_outcome_may_decide_the_reward() -> None:
    assert "dominating_component" not in named(make_run(lambda step, one: one))


@pytest.mark.parametrize(("first", "said"), [(0.1, {"held_out_gap"}), (0.9, set())])
def test_a_resumed_run_goes_on_from_the_rewards_of_before(first: float, said: set[str]) -> None:
    resumed = RunFacts()
    resumed.add_rewards(first, [0.0, 1.0])
    for step in make_run(changed(reward=0.95), lambda step: {"reward": 0.95}).steps:
        resumed.add(step)
    resumed.held_out = {0: (0.1, 0.02), 3: (0.1, 0.02)}
    assert named(resumed) & {"held_out_gap", "constant_reward"} == said


def test_shared_rows() -> None:
    run = make_run()
    run.shared_rows, run.shared_example = (2, 8), "0.7"
    assert named(run) == {"held_out_rows_trained"}


@pytest.mark.parametrize(
    ("after", "error", "at", "said"),
    [(0.1, 0.02, 3, True), (0.9, 0.02, 3, False), (0.1, 0.2, 3, False), (0.1, 0.02, 1, False)],
    ids=["a gap", "no gap", "few held-out rows", "an evaluation of earlier weights"],
)
def test_a_gap_between_training_and_held_out_rewards(after: float, error: float, at: int, said: bool) -> None:
    run = make_run(changed(reward=0.95), lambda step: {"reward": 0.1 if step == 1 else 0.95})
    run.held_out = {0: (0.1, error), at: (after, error)}
    assert ("held_out_gap" in named(run)) is said


@pytest.mark.parametrize(("kept", "said"), [(197, True), (199, False)])
def test_fidelity_may_be_99_percent(kept: int, said: bool) -> None:
    assert ("fidelity" in named(make_run(changed(wanted=200, kept=kept)))) is said


def test_one_long_group_is_not_an_explosion() -> None:
    run = make_run(lambda step, one: replace(one, sampled=one.sampled * (50 if step == 3 and one.group == 0 else 1)))
    assert "length_explosion" not in named(run)


def test_two_identical_groups_of_six_may_be_chance() -> None:
    run = make_run(lambda step, one: replace(one, text=one.row if one.group < 2 else one.text), steps=1, groups=6)
    assert "copied_answers" not in named(run)


def test_a_component_that_agrees_with_the_outcome_may_decide_the_reward() -> None:
    def change(step: int, one: RolloutFacts) -> RolloutFacts:
        quality = (one.reward or 0.0) + 0.01 * one.sampled
        return replace(one, reward=quality, components={"correct": one.reward or 0.0, "quality": quality})

    assert "dominating_component" not in named(make_run(change))


def test_surprise_within_six_standard_errors_may_be_chance() -> None:
    large = {"sampler/surprise": -0.2, "sampler/surprise_z": -3.0}
    assert "sampling_temperature" not in named(make_run(metrics=lambda step: large))


def test_copies_of_one_draw_are_not_surprising_together_and_cut_calls_are_not_broken() -> None:
    """The guard of the cause speaks, and not those of what follows from it."""

    def copied(step: int, one: RolloutFacts) -> RolloutFacts:
        return replace(one, text=one.row, probability=0.1)

    assert named(make_run(copied, FLAWS["sampling_temperature"][1])) == {"copied_answers"}
    assert named(make_run(changed(truncated=True, parse_failures=1))) == {"truncation"}


def test_two_rows_a_step_are_enough_for_groups_without_variance_also_with_dynamic_sampling() -> None:
    def dropped(step: int, one: RolloutFacts) -> RolloutFacts:
        return replace(one, reward=0.0, trained=False, equal_rewards=True)

    for change in (changed(reward=0.0), dropped):
        run = make_run(change, steps=5, groups=2)
        assert "no_variance" not in named(run), "0 may be the best reward there is"
        run.add_rewards(None, [1.0])
        assert "no_variance" in named(run)


def test_five_rows_are_too_few_for_a_leak_and_two_steps_for_groups_without_variance() -> None:
    told = Leak(found=True, before="answer is ", outside=True, chance=0.0)
    assert "answer_in_prompt" not in named(make_run(changed(leak=told), steps=1, groups=5))
    assert "answer_in_prompt" in named(make_run(changed(leak=told), steps=1, groups=6))
    assert "no_variance" not in named(make_run(*FLAWS["no_variance"], steps=2, groups=10))


def test_one_of_two_outcomes_may_decide_the_reward() -> None:
    def change(step: int, one: RolloutFacts) -> RolloutFacts:
        return replace(one, components={"correct": one.reward or 0.0, "tests": one.components["short"]})

    assert "dominating_component" not in named(make_run(change))
