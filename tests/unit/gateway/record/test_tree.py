"""Where a call belongs among a session's turns, and what a new prompt shares with older ones."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.call.chat import ChatCall, Message, Reply, ToolCall
from agentcore_rl_toolkit.gateway.call.fingerprint import Echo, Fingerprints, extend_fingerprint
from agentcore_rl_toolkit.gateway.record.tree import MadeCalls, Tree, TurnMatch, common_prefix
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Turn


class Talk:
    """A tree, and the conversations it was made from."""

    def __init__(self) -> None:
        self.tree = Tree()

    def add(self, messages: list[Message], reply: Reply, prompt: list[int] | None = None, sampled: int = 2) -> Turn:
        ids = array(IDS, [100] if prompt is None else prompt)
        parent, keep = self.tree.share(ids)
        turn = Turn(
            index=len(self.tree.turns),
            parent=parent,
            keep=keep,
            delta_ids=ids[keep:],
            sampled_ids=array(IDS, range(sampled)),
            logprobs=array(LOGPROBS, [0.0] * sampled),
            finish="stop",
        )
        whole = self.tree.find(ChatCall(messages))[1].whole
        self.tree.add(turn, extend_fingerprint(whole, reply.message()), whole.digest(), reply)
        return turn

    def match(self, messages: list[Message]) -> tuple[Turn | None, int]:
        return self.tree.find(ChatCall(messages))[0][:2]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Reply:
    return Reply(text)


def calls(text: str, name: str = "look") -> Reply:
    return Reply(text, tool_calls=[ToolCall("", name, "{}")])


def test_a_call_continues_the_deepest_turn_it_agrees_with() -> None:
    talk = Talk()
    one = talk.add([user("a")], says("A"))
    history = [user("a"), says("A").message(), user("b")]
    two = talk.add(history, says("B"))
    assert talk.match([*history, says("B").message(), user("c")]) == (two, 4)
    assert talk.match([*history, says("edited").message(), user("c")]) == (one, 2)
    assert talk.match([user("a"), says("A").message(), user("other"), says("B").message(), user("c")]) == (one, 2)
    assert talk.match([user("a")]) == (None, 0)
    assert talk.match([user("z"), says("A").message(), user("b")]) == (None, 0)
    assert Talk().match(history) == (None, 0)


def test_of_replies_with_the_same_calls_the_text_decides_then_the_latest() -> None:
    talk = Talk()
    asked = [user("a")]
    first, second, third = (talk.add(asked, calls(text)) for text in ("One.", "Two.", "Two."))
    result = {"role": "tool", "content": "r"}

    def echo(text: str, name: str = "look") -> tuple[Turn | None, int]:
        return talk.match([*asked, calls(text, name).message(), result])

    assert echo("One.") == (first, 2)
    assert echo("Two.") == (third, 2)
    assert echo("rewritten") == (None, 0)
    assert echo("") == (third, 2)
    assert echo("One.", "other") == (None, 0)
    assert second.index == 1


def test_no_call_continues_an_undelivered_turn() -> None:
    tree = Tree()
    tree.add(Turn(0, None, 0, array(IDS, [1]), array(IDS), array(LOGPROBS), "abort"))
    assert len(tree.turns) == 1
    assert tree.find(ChatCall([user("a")]))[0] == TurnMatch()
    assert tree.match(Fingerprints(None, [Echo(1, b"", user("a"), b"")])) == TurnMatch()


def conversation(turns: int) -> list[Message]:
    said = (message for n in range(turns) for message in (user(f"q{n}"), says(f"a{n}").message()))
    return [*said, user("last")]


def test_an_edit_anywhere_in_the_history_is_seen() -> None:
    talk, history = Talk(), conversation(3)
    before = talk.add(history[:-1], says("x"))
    talk.add(history, says("next"))
    more = [says("next").message(), user("more")]
    for place, message in enumerate(history):
        edited = [*history[:place], {**message, "content": "edited"}, *history[place + 1 :]]
        assert talk.tree.find(ChatCall([*edited, *more]))[0][:2] == (None, 0)
        assert talk.tree.find(ChatCall([*history, *more]))[0][:2] == (talk.tree.turns[-1], len(history) + 1)
    assert talk.tree.find(ChatCall([*history, *more], [{"name": "look"}]))[0][:2] == (None, 0)
    assert talk.tree.find(ChatCall([*history, *more], template={"a": 1}))[0][:2] == (None, 0)
    assert talk.match([*history[:-1], says("x").message(), user("more")]) == (before, len(history))


def test_an_older_reply_is_found_where_the_newest_was_changed() -> None:
    talk, history = Talk(), conversation(2)
    first = talk.add(history[:1], says("a0"))
    talk.add(history[:3], says("a1"))
    assert talk.match([*history[:3], says("edited").message(), user("x")]) == (first, 2)
    assert talk.match([*history[:3], says("edited").message(), user("x"), user("y")]) == (first, 2)


# What prompts share

ids = st.lists(st.integers(0, 2**32 - 1), max_size=8)


@given(ids, ids, ids)
def test_the_common_prefix_is_as_long_as_it_can_be(start: list[int], one: list[int], other: list[int]) -> None:
    left, right = array(IDS, start + one), array(IDS, start + other)
    common = common_prefix(left, right)
    assert left[:common] == right[:common]
    assert common in (len(left), len(right)) or left[common] != right[common]


def prompt(*parts: int, each: int = 20) -> list[int]:
    """`each` ids of every part, all of them the part's own."""
    return [part * 1000 + i for part in parts for i in range(each)]


def test_a_prompt_shares_the_longest_beginning_with_the_turn_it_belongs_to() -> None:
    talk = Talk()
    root = talk.add([user("a")], says("A"), prompt(1, 2))
    branch = talk.add([user("b")], says("B"), prompt(1, 3, 4))
    assert (branch.parent, branch.keep) == (root, 20)
    share = talk.tree.share
    assert share(array(IDS, prompt(1, 3, 4, 5))) == (branch, 60)
    assert share(array(IDS, prompt(1, 3, 5))) == (branch, 40)
    assert share(array(IDS, prompt(1, 2, 5))) == (root, 40)
    assert share(array(IDS, prompt(1, 9))) == (root, 20)  # of the ids that both have, the root is the owner
    assert share(array(IDS, prompt(1))) == (root, 20)
    assert share(array(IDS, prompt(7))) == (None, 0)
    assert share(array(IDS)) == (None, 0)


def test_sampled_tokens_are_shared_like_others() -> None:
    talk = Talk()
    root = talk.add([user("a")], says("A"), prompt(2, 3), sampled=5)
    assert talk.tree.share(root.tokens() + array(IDS, prompt(4))) == (root, 45)
    assert talk.tree.share(root.tokens(42) + array(IDS, prompt(4))) == (root, 42)


def test_a_few_tokens_are_not_worth_sharing() -> None:
    talk = Talk()
    root = talk.add([user("a")], says("A"), prompt(1))
    assert talk.tree.share(array(IDS, prompt(1)[:16] + prompt(2))) == (None, 0)
    assert talk.tree.share(array(IDS, prompt(1)[:17] + prompt(2))) == (root, 17)


def test_a_shared_beginning_is_found_behind_many_other_turns() -> None:
    talk = Talk()
    root = talk.add([user("a")], says("A"), prompt(1))
    for number in range(30):
        talk.add([user(str(number))], says("x"), prompt(100 + number))
    latest = talk.tree.turns[-1]
    assert talk.tree.share(array(IDS, prompt(1, 2))) == (root, 20)
    assert talk.tree.share(array(IDS, prompt(129, 2))) == (latest, 20)


def test_the_owner_is_found_through_its_branches() -> None:
    talk = Talk()
    talk.add([user("other")], says("x"), prompt(9))
    owner = talk.add([user("a")], says("A"), prompt(1, 2))
    for number in range(12):
        talk.add([user(str(number))], says("x"), prompt(1, 2, 100 + number))
    assert talk.tree.share(array(IDS, prompt(1, 2, 99))) == (owner, 40)
    assert talk.tree.share(array(IDS, prompt(1, 99))) == (owner, 20)


def test_histories_that_are_rendered_anew_are_kept_once() -> None:
    """However often a growing prompt comes as a whole, a session keeps each token once."""
    talk = Talk()
    longest: list[int] = []
    for number in range(40):
        longest = prompt(*range(1, number + 2))
        talk.add([user(str(number))], says("x"), longest)
    turns = talk.tree.turns
    assert turns[-1].tokens(turns[-1].prompt_length) == array(IDS, longest)
    assert sum(len(turn.delta) for turn in turns) == len(longest)


@given(st.lists(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4), min_size=1, max_size=7))
def test_what_is_shared_is_what_the_prompt_begins_with(prompts: list[list[int]]) -> None:
    talk = Talk()
    for parts in prompts:
        whole = prompt(*parts)
        turn = talk.add([user("a")], says("A"), whole)
        assert turn.tokens(turn.prompt_length) == array(IDS, whole)
        assert turn.parent is None or turn.parent.keep < turn.keep <= turn.parent.length
        seen = [prompt(*other) for other in prompts[: turn.index]]
        assert turn.keep == max((common_prefix(array(IDS, whole), array(IDS, other)) for other in seen), default=0)


def test_each_branch_of_identical_replies_continues_its_own_turn() -> None:
    """However long the conversation is."""
    tree, branches = Tree(), []
    for first in ("a b", "a  b"):
        history, turn = [user("q")], None
        for n in range(400):
            reply, whole = says("same" if n else first), tree.find(ChatCall(history))[1].whole
            ids = array(IDS, [1]), array(IDS, [2]), array(LOGPROBS, [0.0])
            turn = Turn(len(tree.turns), turn, turn.length if turn is not None else 0, *ids, "stop")
            tree.add(turn, extend_fingerprint(whole, reply.message()), whole.digest(), reply)
            history += [reply.message(), user("on")]
        branches.append((turn, history))
    for turn, history in branches:
        assert tree.find(ChatCall(history))[0][:2] == (turn, len(history) - 1)


# Echoed tool calls in which a client has filled in defaults

MADE = {"path": "a", "edits": [{"old": "x", "n": 1}]}


def restored(echoed: Any, *, name: str = "edit", call_id: str = "call_1") -> Any:
    made = MadeCalls()
    made.add([ToolCall("call_1", "edit", json.dumps(MADE))])
    message = {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": name, "arguments": echoed}}]}
    made.restore([{"role": "user", "content": "x"}, message])
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    "echoed", [MADE, MADE | {"all": False}, {"edits": [{"old": "x", "n": 1, "all": None}], "path": "a", "k": {}}]
)
def test_what_a_client_adds_is_taken_back(echoed: Any):
    assert restored(echoed) == MADE


@pytest.mark.parametrize(
    "echoed",
    [
        {"path": "a"},
        MADE | {"path": "b"},
        MADE | {"path": None},
        MADE | {"edits": []},
        MADE | {"edits": [{"old": "x", "n": 1}, {}]},
        MADE | {"edits": [{"old": "x", "n": True}]},
        "text",
    ],
)
def test_what_a_client_changes_stays_changed(echoed: Any):
    assert restored(echoed) == echoed


def test_only_the_call_itself_is_restored():
    more = MADE | {"all": False}
    assert restored(more, name="other") == more
    assert restored(more, call_id="call_2") == more
