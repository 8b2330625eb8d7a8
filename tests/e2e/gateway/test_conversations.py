"""One suite of conversations over every wire, streaming and not, by the real SDKs: the same token rows on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.record.trajectory import Trajectories
from support.gateway import WEATHER, call_text, gateway, ids
from support.speakers import SPEAKERS, Setup, Speaker

TOOLS = (WEATHER["function"],)
STRANGE = "ünïcödé 😀👩‍👩‍👧 مرحبا שלום 你好 é \u2028 \u2029 \x85 \t \\ \" ' <b> &amp; \u200b x"

Talk = Callable[[Speaker], None]
TALKS: dict[str, tuple[Setup, list[Any], Talk]] = {}


def talk(setup: Setup, *script: Any) -> Callable[[Talk], Talk]:
    """A conversation, and what the model says in it."""

    def keep(held: Talk) -> Talk:
        TALKS[held.__name__] = (setup, list(script), held)
        return held

    return keep


@talk(Setup(), ids("hello"), ids("fine, thanks"))
def text(speaker: Speaker) -> None:
    heard = speaker.say("hi")
    assert (heard.text, heard.calls, heard.reason) == ("hello", [], "stop")
    assert heard.tokens[1] == len(ids("hello"))
    assert speaker.say("how are you?").text == "fine, thanks"


@talk(Setup(system="Be short.\nAlways."), ids("ok"), ids("still ok"))
def system(speaker: Speaker) -> None:
    assert speaker.say("ok?").text == "ok"
    assert speaker.say("and now?").text == "still ok"


@talk(
    Setup(system="Use the tool.", tools=TOOLS),
    ids(
        "let me see\n" + call_text("get_weather", city="Paris") + "\n" + call_text("get_weather", city="Rome", unit="c")
    ),
    ids(call_text("get_weather", city="Oslo")),
    ids("sunny, warm, cold"),
    ids("bye"),
)
def parallel_tools(speaker: Speaker) -> None:
    heard = speaker.say("the weather in Paris, Rome and Oslo?")
    assert [(call.name, call.arguments) for call in heard.calls] == [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome", "unit": "c"}),
    ]
    assert (heard.text.strip(), heard.reason) == ("let me see", "calls")
    assert len({call.id for call in heard.calls}) == 2
    first, second = heard.calls
    heard = speaker.results((first, "sunny", False), (second, "warm", False))
    assert heard.text == ""
    assert speaker.results((heard.calls[0], "cold", False)).text == "sunny, warm, cold"
    assert speaker.say("thanks").text == "bye"


@talk(Setup(tools=TOOLS), ids(call_text("get_weather", city="Atlantis")), ids("there is no such city"))
def tool_errors(speaker: Speaker) -> None:
    (call,) = speaker.say("the weather in Atlantis?").calls
    assert speaker.results((call, "KeyError: 'Atlantis'", True)).text == "there is no such city"


@talk(
    Setup(tools=TOOLS),
    ids("<think>\nParis first\n</think>\n\n" + call_text("get_weather", city="Paris")),
    ids("<think>\nthat is\nit\n</think>\n\nsunny"),
    ids("<think>\nhm\n</think>\n\nbye"),
)
def reasoning(speaker: Speaker) -> None:
    heard = speaker.say("the weather in Paris?")
    assert (heard.reasoning.strip(), heard.text, heard.reason) == ("Paris first", "", "calls")
    heard = speaker.results((heard.calls[0], "sunny", False))
    assert (heard.reasoning.strip(), heard.text) == ("that is\nit", "sunny")
    assert speaker.say("thanks").text == "bye"


@talk(Setup(tools=TOOLS, max_tokens=50), *(ids(f"answer {n}") for n in range(25)))
def long(speaker: Speaker) -> None:
    for n in range(25):
        assert speaker.say(f"question {n} " + "and more " * n).text == f"answer {n}"


@talk(
    Setup(system=STRANGE, tools=TOOLS, max_tokens=800),
    ids(STRANGE),
    ids(call_text("get_weather", city=STRANGE, unit="")),
    ids("done 😀"),
)
def unicode(speaker: Speaker) -> None:
    assert speaker.say(STRANGE).text == STRANGE
    (call,) = speaker.say("and now?").calls
    assert call.arguments == {"city": STRANGE, "unit": ""}
    assert speaker.results((call, STRANGE, False)).text == "done 😀"


@talk(Setup(tools=TOOLS), ids(""), ids("something"), ids(call_text("get_weather", city="Rome")), ids("none"))
def empty(speaker: Speaker) -> None:
    heard = speaker.say("say nothing")
    assert (heard.text, heard.calls, heard.reason) == ("", [], "stop")
    assert speaker.say("say something").text == "something"
    (call,) = speaker.say("the weather in Rome?").calls
    assert speaker.results((call, "", False)).text == "none"


HUGE = 10**400
NUMBERS = '{"city": "Rome", "unit": [%s]}'


def odd_numbers(*numbers: str) -> list[int]:
    call = NUMBERS % ", ".join(numbers)
    return ids(f'<tool_call>\n{{"name": "get_weather", "arguments": {call}}}\n</tool_call>')


@talk(
    Setup(tools=TOOLS, max_tokens=900),
    odd_numbers("NaN", "1e999", "-Infinity", str(HUGE)),
    odd_numbers("-1e999", str(-HUGE), str(2**70)),
    ids("fine"),
)
def numbers_that_json_has_not(speaker: Speaker) -> None:
    (call,) = speaker.say("the weather in Rome?").calls
    assert call.arguments == {"city": "Rome", "unit": [None, None, None, HUGE]}
    (call,) = speaker.results((call, "warm", False)).calls
    assert call.arguments == {"city": "Rome", "unit": [None, -HUGE, 2**70]}
    assert speaker.results((call, "warm", False)).text == "fine"


@talk(
    Setup(tools=TOOLS),
    ids("<think>\nhm"),
    ids("<think>\nand again"),
    ids(call_text("get_weather", city="Rome")),
    ids("<think>\nso"),
    ids("fine"),
)
def thoughts_without_their_end(speaker: Speaker) -> None:
    heard = speaker.say("the weather in Rome?")
    assert (heard.reasoning.strip(), heard.text, heard.reason) == ("hm", "", "stop")
    speaker.say("please?")
    (call,) = speaker.say("the weather?").calls
    assert speaker.results((call, "warm", False)).reasoning.strip() == "so"
    assert speaker.say("well?").text == "fine"


@talk(Setup(), ids("one two three four five six seven"), ids("eight"))
def truncated(speaker: Speaker) -> None:
    heard = speaker.say("count", max_tokens=4)
    assert heard.reason == "length"
    assert heard.tokens[1] == 4
    assert "one two three four five six seven".startswith(heard.text)
    assert speaker.say("go on").text == "eight"


@talk(Setup(stop=("STOP", "END")), ScriptedLine(ids("first END second", end=False)), ids("third"))
def stopped(speaker: Speaker) -> None:
    heard = speaker.say("go")
    assert heard.text.strip() == "first"
    assert heard.reason in ("stop", "stop_string")
    assert speaker.say("on").text == "third"


@talk(Setup(), ids("I can't help with that."), ids("Of course."))
def refusal(speaker: Speaker) -> None:
    assert speaker.say("do something bad").text == "I can't help with that."
    assert speaker.say("then something good").text == "Of course."


@talk(Setup(), ids("show me"), ids("I see nothing"), ids("still nothing"))
def images(speaker: Speaker) -> None:
    """A placeholder takes their place, once counted, and the agent goes on."""
    assert speaker.say("what do you see?").text == "show me"
    assert speaker.show_image().text == "I see nothing"
    assert speaker.say("and now?").text == "still nothing"


def hold(name: str, wire: str, stream: bool) -> Trajectories:
    """Have a conversation, and give what there is to train on."""
    setup, script, held = TALKS[name]
    with gateway(ScriptedEngine(script, context_length=None)) as running:
        session = running.open_session()
        speaker = SPEAKERS[wire](session, setup, stream=stream)
        try:
            held(speaker)
        finally:
            speaker.close()
        return running.trajectories(session["session_id"])


@cache
def reference(name: str) -> Trajectories:
    return hold(name, "openai", False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", SPEAKERS)
@pytest.mark.parametrize("name", TALKS)
def test_the_same_rows_on_every_wire(name: str, wire: str, stream: bool):
    known, wanted = hold(name, wire, stream), reference(name)
    turns = len(TALKS[name][1])
    assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (turns, 1, turns - 1)
    assert known.fidelity.trained == known.fidelity.sampled
    assert known.fidelity.omitted == ({"image": 1} if name == "images" else {})
    (row,), (same,) = known.rows, wanted.rows
    assert row.token_ids == same.token_ids
    assert row.loss_mask.tolist() == same.loss_mask.tolist()
    assert row.logprobs.tobytes() == same.logprobs.tobytes()
    assert row.weight == same.weight == 1


@pytest.fixture
def mixed() -> Iterator[Gateway]:
    said = [ids(f"answer {n}") for n in range(len(SPEAKERS))]
    with gateway(said) as running:
        yield running


def test_one_session_may_be_spoken_to_over_several_wires(mixed: Gateway):
    session = mixed.open_session()
    for n, kind in enumerate(SPEAKERS.values()):
        speaker = kind(session, Setup(), stream=False)
        try:
            assert speaker.say("the same question").text == f"answer {n}"
        finally:
            speaker.close()
    known = mixed.trajectories(session["session_id"])
    assert known.fidelity.rows == len(SPEAKERS)  # the same prompt, sampled once for each
    assert len({bytes(row.token_ids[: row.prompt_length]) for row in known.rows}) == 1
