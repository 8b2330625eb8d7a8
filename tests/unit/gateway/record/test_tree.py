"""Where a call belongs among a session's turns, and what a new prompt shares with older ones."""

from __future__ import annotations

import gc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.call.chat import (
    ChatCall,
    Echo,
    Grown,
    Message,
    Prints,
    Reply,
    ToolCall,
    after,
    fingerprint,
)
from agentcore_rl_toolkit.gateway.record.tree import Tree, common_prefix
from agentcore_rl_toolkit.gateway.record.turn import LOGPROBS, Turn
from support.steps import steps


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
        whole = self.tree.fingerprint(ChatCall(messages)).whole
        self.tree.add(turn, after(whole, reply.message()), whole.digest(), reply)
        return turn

    def match(self, messages: list[Message]) -> tuple[Turn | None, int]:
        return self.tree.match(self.tree.fingerprint(ChatCall(messages)))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Reply:
    return Reply(text)


def calls(text: str, name: str = "look") -> Reply:
    return Reply(text, tool_calls=[ToolCall("", name, "{}")])


def test_a_call_goes_on_from_the_deepest_turn_it_agrees_with() -> None:
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


def test_no_call_goes_on_from_a_turn_that_nobody_saw() -> None:
    tree = Tree()
    tree.add(Turn(0, None, 0, array(IDS, [1]), array(IDS), array(LOGPROBS), "abort"))
    assert len(tree.turns) == 1
    assert tree.match(fingerprint(ChatCall([user("a")]))) == (None, 0)
    assert tree.match(Prints(None, [Echo(1, b"", user("a"), b"")])) == (None, 0)


# Conversations that were seen before


def conversation(turns: int) -> list[Message]:
    said = (message for n in range(turns) for message in (user(f"q{n}"), says(f"a{n}").message()))
    return [*said, user("last")]


def found(tree: Tree, call: ChatCall) -> tuple[Turn | None, int]:
    """What a tree finds, which is what it would have found if it had never seen a call before."""
    turn, used, prints = tree.find(call)
    assert (turn, used) == tree.match(tree.fingerprint(call))
    assert prints.whole.digest() == tree.fingerprint(call).whole.digest()
    return turn, used


messages = st.lists(
    st.one_of(
        st.sampled_from(["a", "b", "b "]).map(user),
        st.sampled_from(["A", "B", " B"]).map(lambda text: says(text).message()),
        st.just(calls("", "look").message()),
    ),
    min_size=1,
    max_size=6,
)


@given(st.lists(st.tuples(messages, st.booleans()), min_size=1, max_size=6), st.data())
def test_a_call_is_found_as_if_it_were_the_first(asked: list[tuple[list[Message], bool]], data: st.DataObject) -> None:
    talk, last = Talk(), []
    for more, goes_on in asked:
        last = [*last, *more] if goes_on else more
        if last and data.draw(st.booleans()):  # what was there is changed
            last = [*last]
            last[data.draw(st.integers(0, len(last) - 1))] = data.draw(messages)[0]
        tools = data.draw(st.sampled_from([[], [{"name": "look"}]]))
        found(talk.tree, ChatCall(last, tools))
        talk.add(last, says("A"))
        last = [*last, says("A").message()]


def test_a_conversation_that_was_seen_is_not_read_again() -> None:
    """Reading takes a few steps for each message, comparing takes none."""

    def calls(turns: int) -> int:
        talk, history = Talk(), conversation(turns)
        talk.tree.find(ChatCall(history[:-2]))
        talk.tree.find(ChatCall(history))
        talk.add(history, says("next"))
        call = ChatCall([*history, says("next").message(), user("more")])
        found = []
        count = steps(lambda: found.append(talk.tree.find(call)[:2]), of="call")
        assert found == [(talk.tree.turns[-1], len(call.messages) - 1)]
        return count

    assert calls(200) == calls(2)


def test_what_was_seen_is_known_to_the_letter_or_not_at_all() -> None:
    talk, history = Talk(), conversation(3)
    before = talk.add(history[:-1], says("x"))
    talk.add(history, says("next"))
    talk.tree.find(ChatCall(history))
    more = [says("next").message(), user("more")]
    for place, message in enumerate(history):
        edited = [*history[:place], {**message, "content": "edited"}, *history[place + 1 :]]
        assert found(talk.tree, ChatCall([*edited, *more])) == (None, 0)
        assert found(talk.tree, ChatCall([*history, *more])) == (talk.tree.turns[-1], len(history) + 1)
    assert found(talk.tree, ChatCall([*history, *more], [{"name": "look"}])) == (None, 0)
    assert found(talk.tree, ChatCall([*history, *more], template={"a": 1})) == (None, 0)
    assert found(talk.tree, ChatCall([*history[:-1], says("x").message(), user("more")])) == (before, len(history))


def test_a_request_that_begins_with_the_last_ones_bytes_is_read_from_there() -> None:
    """Unless it was asked with other tools, or the last call that was placed was another."""
    talk, history = Talk(), conversation(3)
    more, tools = [says("next").message(), user("more")], [{"name": "look"}]
    read: list[Message] = []

    def grown(follows: bytes, tools: list[dict[str, str]], first: str = "q0") -> ChatCall:
        messages = Grown(len(history), more, lambda: read.append({}) or [user(first), *history[1:], *more])
        return ChatCall(messages, tools, request=b"next", follows=follows)

    def seen() -> Tree:
        talk.tree.find(ChatCall(history, request=b"this"))
        return talk.tree

    turn = talk.add(history, says("next"))
    assert seen().find(grown(b"this", []))[:2] == (turn, len(history) + 1)
    assert not read
    assert found(talk.tree, ChatCall([*history, *more, *more], request=b"later", follows=b"next"))[0] is turn
    assert found(seen(), grown(b"this", tools)) == (None, 0)
    assert found(seen(), grown(b"that", [], first="other")) == (None, 0)
    assert read == [{}, {}]
    talk.tree.find(ChatCall(conversation(1)))
    assert found(talk.tree, grown(b"", [])) == (turn, len(history) + 1), "two calls without a print have none in common"


def test_an_older_reply_is_found_where_the_newest_was_changed() -> None:
    talk, history = Talk(), conversation(2)
    talk.tree.find(ChatCall(history[:1]))
    first = talk.add(history[:1], says("a0"))
    talk.add(history[:3], says("a1"))
    talk.tree.find(ChatCall(history))
    assert found(talk.tree, ChatCall([*history[:3], says("edited").message(), user("x")])) == (first, 2)
    assert found(talk.tree, ChatCall([*history[:3], says("edited").message(), user("x"), user("y")])) == (first, 2)


def test_only_the_print_of_one_conversation_is_kept() -> None:
    talk, history = Talk(), conversation(50)
    for count in range(1, len(history), 2):
        talk.tree.find(ChatCall(history[:count]))
    seen = talk.tree._seen
    assert seen is not None
    assert (seen.count, len(seen.letters.digest())) == (99, 16)
    assert gc.get_referrers(history[0]) == [history]


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
    assert turns[-1].prompt() == array(IDS, longest)
    assert sum(len(turn.delta) for turn in turns) == len(longest)


@given(st.lists(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4), min_size=1, max_size=7))
def test_what_is_shared_is_what_the_prompt_begins_with(prompts: list[list[int]]) -> None:
    talk = Talk()
    for parts in prompts:
        whole = prompt(*parts)
        turn = talk.add([user("a")], says("A"), whole)
        assert turn.prompt() == array(IDS, whole)
        assert turn.parent is None or turn.parent.keep < turn.keep <= turn.parent.length
        seen = [prompt(*other) for other in prompts[: turn.index]]
        assert turn.keep == max((common_prefix(array(IDS, whole), array(IDS, other)) for other in seen), default=0)


def test_many_replies_that_are_all_alike_are_told_apart_by_the_first() -> None:
    """However long the conversation is."""
    tree, branches = Tree(), []
    for first in ("a b", "a  b"):
        history, turn = [user("q")], None
        for n in range(400):
            reply, whole = says("same" if n else first), tree.fingerprint(ChatCall(history)).whole
            ids = array(IDS, [1]), array(IDS, [2]), array(LOGPROBS, [0.0])
            turn = Turn(len(tree.turns), turn, turn.length if turn is not None else 0, *ids, "stop")
            tree.add(turn, after(whole, reply.message()), whole.digest(), reply)
            history += [reply.message(), user("on")]
        branches.append((turn, history))
    for turn, history in branches:
        assert tree.match(tree.fingerprint(ChatCall(history))) == (turn, len(history) - 1)
