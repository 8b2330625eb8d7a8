"""What a run does with findings: says each once, writes them, stops, resumes; and the facts that rules judge."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import ConfigError, RolloutsStopped
from agentcore_rl_toolkit.gateway.record.conversation import ReadableTurn, Transcript
from agentcore_rl_toolkit.rollout import Judge
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.rollout.run_folder.run_text import metrics_by_step
from agentcore_rl_toolkit.rollout.run_folder.run_writer import write_metrics
from agentcore_rl_toolkit.studio.guards import Guards, RolloutFacts, StepFacts, observe
from agentcore_rl_toolkit.studio.guards.guards import FILE, Warned, load_rules, read_findings, stop_run, write_findings
from support.rollouts import make_fidelity, make_group, make_rollout, make_row


def constant_step(number: int) -> StepFacts:
    """Every rollout has reward 1."""
    return StepFacts(number, {}, [RolloutFacts(key=f"0.{i}", sampled=4, reward=1.0, group=i // 4) for i in range(16)])


def test_a_finding_is_said_once(tmp_path: Path) -> None:
    guards = Guards()
    found = [guards.judge(constant_step(number)) for number in (1, 2, 3)]
    assert [[one.guard for one in step] for step in found] == [[], ["constant_reward"], []]
    (one,) = found[1]
    assert one.text(tmp_path).endswith(f"agentcore-rl show {tmp_path} --rollout 0.15")
    write_findings(tmp_path, found[1])
    stop_run(found[1], tmp_path)
    assert read_findings(tmp_path / FILE) == [vars(one)]


def test_a_guard_may_stop_a_run_and_be_turned_off(tmp_path: Path) -> None:
    stopping, silent = Guards({"constant-reward": "stop"}), Guards({"constant_reward": "off"})
    for number in (1, 2):
        found, nothing = stopping.judge(constant_step(number)), silent.judge(constant_step(number))
    assert nothing == []
    with pytest.raises(RolloutsStopped, match=r"guard constant_reward: all 32 rollouts .*\n.*\nhint: --guard"):
        stop_run(found, tmp_path)


def test_fidelity_stops_by_default() -> None:
    assert [name for name, action in Guards().actions.items() if action == "stop"] == ["fidelity"]


@pytest.mark.parametrize(
    ("actions", "said"),
    [({"nonsense": "warn"}, "no guard is named"), ({"fidelity": "pause"}, "unknown action 'pause'")],
)
def test_settings_that_make_no_sense_are_refused(actions: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Guards(actions)


def test_rules_of_ones_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from agentcore_rl_toolkit.studio.guards import Finding\n"
        "def mine(run):\n    return Finding(f'{run.seen} steps', None)\n"
        "def broken(run):\n    return 1 / 0\n"
        "def odd(run):\n    return 'text'\n"
        "def odd_problem(run):\n    return Finding({1})\n"
        "def odd_example(run):\n    return Finding('text', object())\n"
        "def leaves(run):\n    raise SystemExit(3)\n"
        "def _helper(run): ...\ndef two(a, b): ...\n"
    )
    guards = Guards({"mine": "stop"}, [str(path)])
    with caplog.at_level(logging.WARNING):
        found = [guards.judge(StepFacts(number, {})) for number in (1, 2)]
    assert [[(one.guard, one.action) for one in step] for step in found] == [[("mine", "stop")], []]
    assert sorted(record.getMessage().split()[1] for record in caplog.records) == [
        *("broken", "leaves", "odd", "odd_example", "odd_problem")
    ]


def test_a_file_with_rules_may_have_dataclasses(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Limit:\n    turns: int = 3\n"
        "def mine(run): ...\n"
    )
    assert [rule.__name__ for rule in load_rules(str(path))] == ["mine"]


def test_a_finding_cannot_move_the_cursor(tmp_path: Path) -> None:
    text = Warned("unknown_tools", 1, "warn", "a tool \x1b[2J", "0.1\u202e").text(tmp_path)
    assert text.splitlines()[0] == "guard unknown_tools: a tool \\x1b[2J."
    assert text.endswith("--rollout 0.1\\u202e")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no guards"),
        ("1/0", "ZeroDivisionError"),
        ("raise SystemExit", "SystemExit"),
        (None, "is not a Python file"),
    ],
)
def test_files_without_rules_are_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_rules(str(path))


def solved_step(folder: Path, number: int, reward: float) -> StepFacts:
    """A step whose rollouts are in the run's folder, too."""
    with RunWriter(folder) as run, run.part("train", number - 1) as part:
        for place in range(16):
            part.write(make_rollout(reward * (place % 2), session_id=f"{number}-{place}"))
    write_metrics(folder, metrics_by_step(folder) | {number: {"step": number, "reward": reward / 2}})
    rollouts = [RolloutFacts(key=f"0.{i}", sampled=4, reward=reward * (i % 2), group=i // 4) for i in range(16)]
    return StepFacts(number, {"reward": reward / 2}, rollouts)


def test_a_resumed_run_knows_the_rewards_from_before(tmp_path: Path) -> None:
    guards = Guards()
    guards.judge(solved_step(tmp_path, 1, 0.5))
    guards.judge(solved_step(tmp_path, 2, 1.0))
    solved_step(tmp_path, 3, 5.0)  # after the checkpoint
    again = Guards()
    again.resume(tmp_path, 2)
    known = [(run.first_reward, run.lowest_reward, run.top_reward) for run in (guards.facts, again.facts)]
    assert known == [(0.25, 0.0, 1.0)] * 2
    assert [one.guard for number in (3, 4) for one in again.judge(constant_step(number))] == []


def test_what_ended_a_run_is_said_again_only_if_it_is_still_so(tmp_path: Path) -> None:
    stopping = Guards({"constant_reward": "stop"})
    for number in (1, 2):
        write_findings(tmp_path, stopping.judge(constant_step(number)))
    assert [one["action"] for one in read_findings(tmp_path / FILE)] == ["stop"]
    for action in ("stop", "warn", "off"):
        again = Guards({"constant_reward": action})
        again.resume(tmp_path, 2)
        assert read_findings(tmp_path / FILE) == []
        found = [one.action for number in (3, 4) for one in again.judge(constant_step(number))]
        assert found == ([action] if action != "off" else [])


def test_a_resumed_run_repeats_nothing_that_it_said_before_its_checkpoint(tmp_path: Path) -> None:
    guards = Guards()
    for number in (1, 2):
        write_findings(tmp_path, guards.judge(constant_step(number)))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"guard": "cut off')
    for step, said in ((2, []), (1, ["constant_reward"]), (None, ["constant_reward"])):
        again = Guards()
        again.resume(tmp_path, step)
        found = [one.guard for number in (1, 2) for one in again.judge(constant_step(number))]
        assert found == said
    assert read_findings(tmp_path / FILE) == []


# --- facts ------------------------------------------------------------------------------------------------------------


def turn(number: int, before: int | None, messages: tuple[int, ...], content: str, **more: Any) -> ReadableTurn:
    known: dict[str, Any] = {
        "tools": ("calculator",), "started": 0.0, "seconds": 0.0, "waited": 0.0,
        "prompt_tokens": 3, "sampled_tokens": 2,
        "finish": "stop", "origin": "first", "unbridged": "", "masked": None, "versions": (), "parse_failures": 0,
    }  # fmt: skip
    reply = {"content": content, "tool_calls": []}
    return ReadableTurn(turn=number, before=before, messages=messages, reply=reply, **known | more)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def facts_of(transcript: Transcript, **fields: Any) -> RolloutFacts:
    rollout = replace(make_rollout(), transcript=transcript)
    return observe([make_group(replace(rollout, **fields))], lambda one: "0.1")[0]


def test_an_edited_reply_is_found_and_an_echoed_one_is_none() -> None:
    def said(reply: str) -> RolloutFacts:
        messages = (user("hi"), {"role": "assistant", "content": reply}, user("go on"))
        turns = (turn(0, None, (0,), "yes"), turn(1, None, (0, 1, 2), "done", origin="render"))
        return facts_of(Transcript(messages, turns))

    assert said("no").edited == 1
    assert said("  yes ").edited == 0


def test_examples_in_a_conversation_of_its_own_are_not_edits() -> None:
    messages = (user("hi"), user("sub-task"), {"role": "assistant", "content": "an example"})
    turns = (turn(0, None, (0,), "yes"), turn(1, None, (1, 2), "done", origin="render"))
    assert facts_of(Transcript(messages, turns)).edited == 0


def test_marks_of_a_call_in_the_text_are_found() -> None:
    text = '<tool_call>{"name": "calculator"}'
    assert facts_of(Transcript((user("hi"),), (turn(0, None, (0,), text),))).unparsed == 1
    assert facts_of(Transcript((user("hi"),), (turn(0, None, (0,), text, parse_failures=1),))).unparsed == 0
    assert facts_of(Transcript((user("hi"),), (turn(0, None, (0,), text, tools=()),))).unparsed == 0


def test_the_answer_of_the_row_is_looked_for_in_its_prompt() -> None:
    def group(number: int, prompt: str) -> Any:
        rollout = replace(make_rollout(), transcript=Transcript((user(prompt),), (turn(0, None, (0,), "?"),)))
        payload = {"prompt": f"6 times {number}?", "answer": str(6 * number)}
        return replace(make_group(rollout), payload=payload, index=number)

    told = observe([group(2, "6 times 2? It is 12."), group(3, "6 times 3? It is 18.")], lambda one: "")
    assert [(one.leak and one.leak.found, one.leak and one.leak.outside) for one in told] == [(True, True)] * 2
    assert [one.leak and one.leak.before for one in told] == ["es 2? It is ", "es 3? It is "]
    fair = observe([group(2, "6 times 2?"), group(3, "6 times 3?")], lambda one: "")
    assert [one.leak and one.leak.found for one in fair] == [False, False]


def test_prompts_are_not_searched_for_a_guard_that_is_off() -> None:
    rollout = replace(make_rollout(), transcript=Transcript((user("It is 12."),), ()))
    groups = [replace(make_group(rollout, index=n), payload={"prompt": "?", "answer": str(n)}) for n in (12, 18)]
    for action, searched in (("warn", True), ("off", False)):
        found = Guards({"answer_in_prompt": action}).observe(groups, lambda one: "")
        assert [one.leak is not None for one in found] == [searched] * 2


def test_a_group_that_dynamic_sampling_drops_has_equal_rewards() -> None:
    group = Judge(dynamic_sampling=True).group(make_group(make_rollout(0.5), make_rollout(0.5)), 2)
    assert [(one.trained, one.equal_rewards) for one in observe([group], lambda one: "")] == [(False, True)] * 2


def test_what_was_sampled_has_a_hash_and_a_probability() -> None:
    row = make_row([1], [2, 3])
    known = observe([make_group(make_rollout(1.0, row), make_rollout(1.0, row))], lambda one: "")
    assert known[0].text == known[1].text
    assert known[0].probability == pytest.approx(2.718281828**-1)
    lost = make_rollout(1.0, row, fidelity=make_fidelity([row], sampled=5))
    assert observe([make_group(lost)], lambda one: "")[0].text == ""


def test_components_are_the_numbers_in_the_result() -> None:
    result: dict[str, Any] = {
        "rewards": 1.0,
        "components": {"correct": 1, "note": "x", "length": 0.5, "broken": float("nan")},
    }
    result["components"] |= {"huge": 10**400, "large": -1e308}
    assert facts_of(Transcript(), result=result).components == {"correct": 1.0, "length": 0.5}
    assert facts_of(Transcript(), result={"components": "none"}).components == {}
