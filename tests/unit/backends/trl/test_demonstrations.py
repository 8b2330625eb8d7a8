"""Which stored rollouts are imitated: the best of each data row, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.trl.demonstrations import ChosenRollouts, check_tokens, choose_demonstrations
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.record.conversation import ReadableTurn, Transcript
from agentcore_rl_toolkit.gateway.record.turn import PlacedImage
from agentcore_rl_toolkit.rollout import Rollout
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_rollout, make_row
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer


def made(reward: float | None, tokens: tuple[int, ...], row: str = "a", **fields: Any) -> Rollout:
    return make_rollout(reward, make_row(completion=tokens), input_id=row, **fields)


def write(folder: Path, *rollouts: Rollout, phase: str = "train", step: int = 0) -> str:
    with RunWriter(folder) as run, run.part(phase, step) as part:
        for number, rollout in enumerate(rollouts):
            part.write(replace(rollout, session_id=f"{folder.name}-{phase}-{step}-{number}"))
    return str(folder)


def tokens(choice: ChosenRollouts) -> list[list[int]]:
    return [one.rollout.rows[0].token_ids.tolist()[3:] for one in choice.demonstrations]


def test_the_best_of_each_row_if_it_is_at_least_as_good_as_the_mean(tmp_path: Path) -> None:
    worse, better = made(0.0, (4,)), made(1.0, (5,))
    others = made(0.4, (6,), "b"), made(0.2, (7,), "b"), made(0.6, (8,), "c")
    source = write(tmp_path / "run", worse, better, *others)
    choice = choose_demonstrations([source])
    assert tokens(choice) == [[5], [8]]  # the mean is 0.44
    assert (choice.rollouts, choice.rows, choice.min_reward) == (5, 3, pytest.approx(0.44))
    assert [one.to_dict()["row"] for one in choice.demonstrations] == ["a", "c"]
    assert tokens(choose_demonstrations([source], min_reward=0.3, best=2)) == [[5], [6], [8]]
    assert tokens(choose_demonstrations([source], min_reward=0.0, best=2)) == [[5], [4], [6], [7], [8]]


def test_a_row_is_the_same_in_every_step_and_run(tmp_path: Path) -> None:
    first = write(tmp_path / "one", made(0.5, (4,), "000000-0123abcd"))
    second = write(tmp_path / "two", made(0.9, (5,), "000007-0123abcd"), step=3)
    assert tokens(choose_demonstrations([first, second], min_reward=0.0)) == [[5]]


def test_failed_unrewarded_empty_and_held_out_rollouts_are_none(tmp_path: Path) -> None:
    nothing = made(1.0, (5,), "e")
    nothing = replace(nothing, rows=(), fidelity=replace(nothing.fidelity, trained=0))
    source = write(
        tmp_path / "run",
        made(0.1, (4,)),
        failed(Status.AGENT_ERROR, input_id="b"),
        made(None, (6,), "c"),
        made(1.0, (7,), "d", status=Status.TRUNCATED),
        nothing,
    )
    write(tmp_path / "run", made(1.0, (8,), "f"), phase="before")
    assert tokens(choose_demonstrations([source])) == [[4]]
    held_out = tmp_path / "run" / "evaluations" / "step-000000.jsonl"
    assert tokens(choose_demonstrations([str(held_out)])) == [[8]]  # named itself


def test_a_file_and_rollouts_of_the_command_line_are_sources(tmp_path: Path) -> None:
    source = write(tmp_path / "run", made(0.3, (4,)), phase="rollout")
    for named in (source, str(Path(source, "rollouts", "step-000000.jsonl"))):
        assert tokens(choose_demonstrations([named])) == [[4]]


def test_long_ones_copies_and_images_make_room_for_the_next(tmp_path: Path) -> None:
    twice, seen = made(1.0, (4, 5)), made(0.9, (7,))
    seen = replace(seen, rows=(replace(seen.rows[0], images=(PlacedImage(0, 1, "0" * 64),)),))
    source = write(tmp_path / "run", made(1.0, (4, 5, 6)), twice, twice, seen, made(0.5, (6,)))
    chosen = choose_demonstrations([source], best=3, min_reward=0.0, max_rollout_tokens=5)
    assert tokens(chosen) == [[4, 5], [6]]


def test_the_seed_decides_among_equals(tmp_path: Path) -> None:
    source = write(tmp_path / "run", *(made(1.0, (n,)) for n in range(4, 20)))
    chosen = [tokens(choose_demonstrations([source], seed=seed)) for seed in range(8)]
    assert chosen == [tokens(choose_demonstrations([source], seed=seed)) for seed in range(8)]
    assert len({str(one) for one in chosen}) > 1


def test_nothing_to_choose_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no completed rollout has a reward"):
        choose_demonstrations([write(tmp_path / "run", failed())])
    with pytest.raises(ConfigError, match=r"none of 1 rollouts has a reward of at least 2(.|\n)*the best reward is 1"):
        choose_demonstrations([write(tmp_path / "good", made(1.0, (4,)))], min_reward=2.0)
    with pytest.raises(ConfigError, match="is not a folder of a run"):
        choose_demonstrations([str(tmp_path / "nowhere")])


def said(text: str, ids: list[int], calls: tuple[str, ...] = ()) -> Rollout:
    reply = {"content": text, "tool_calls": [{"id": "1", "name": name, "arguments": "{}"} for name in calls]}
    known = {"messages": (), "tools": (), "started": 0.0, "seconds": 0.0, "waited": 0.0, "prompt_tokens": 3}
    known |= {"sampled_tokens": len(ids), "finish": "stop", "origin": "root", "unbridged": "", "masked": None}
    turn = ReadableTurn(turn=0, before=None, reply=reply, versions=(), parse_failures=0, **known)
    return make_rollout(1.0, make_row(completion=ids), input_id="a", transcript=Transcript((), (turn,)))


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(template=PLAIN_TEMPLATE)
    ids = tokenizer("the answer is four")["input_ids"]
    call = tokenizer('<tool_call>{"name": "get_weather"}</tool_call>')["input_ids"]
    right = [said("the answer is four", ids), said("", call, ("get_weather",))]
    for rollout in right:
        source = write(tmp_path / f"run-{len(rollout.rows[0].token_ids)}", rollout)
        check_tokens(choose_demonstrations([source]).demonstrations, tokenizer, len(tokenizer), "small")
    shifted = write(tmp_path / "shifted", said("the answer is four", [one + 1 for one in ids]))
    with pytest.raises(ConfigError, match="1 of 1 recorded replies decode differently with the tokenizer of small"):
        check_tokens(choose_demonstrations([shifted]).demonstrations, tokenizer, len(tokenizer), "small")
    with pytest.raises(ConfigError, match="small has 5 tokens, and the rollouts have token"):
        check_tokens(choose_demonstrations([shifted]).demonstrations, tokenizer, 5, "small")
