"""Six turns with tools for every chat template at hand, each from a folder with a name that says nothing.

For each template: which renderer the gateway chooses, what it says it can bridge, and whether a session is one row
under everything that clients do to a history (the cases of `fidelity.py`). Where a template shows no tools, the session
is six turns of text, and the reason is printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from sessions import CASES, SCRIPT, TOOLS, Agent, Call, Message, Row, exact, parse
from template_folders import WRITTEN, shipped, write_folder

from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import RenderFault
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.record.reasons import MEANINGS
from agentcore_rl_toolkit.gateway.render.capabilities import Abilities, probe_abilities
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.template_reply import encode_template_reply
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer, load_tokenizer

_ASKED: Message = {"role": "user", "content": "When?"}


class Model:
    """Samples the script in the format of a template, and remembers it."""

    def __init__(self, renderer: ChatRenderer, known: Abilities) -> None:
        self.tokenizer: Tokenizer = renderer.tokenizer
        self.tools = "tools" not in known.problems
        self.system = "system prompts" not in known.problems
        self.calls: list[Call] = []
        self.made: dict[int, int] = {}
        """How many tools each call's reply calls."""
        self.notes: set[str] = set()
        self._renderer = renderer
        self._said: dict[str, tuple[list[int], int]] = {}

    def sample(self, request: SampleRequest) -> ScriptedLine:
        prompt = list(request.prompt)
        text = self.tokenizer.decode(prompt[-600:])
        marker = re.findall(r"\[(\w+)\]", text)[-1]
        if marker not in self._said:
            self._said[marker] = self._speak(marker)
        ids, made = self._said[marker]
        ids = self._after(ids, text)
        number = len(self.calls)
        logprobs = [-(1 + number * 1000 + n) / 2**20 for n in range(len(ids))]
        self.made[number] = made
        self.calls.append(Call(prompt, ids, logprobs))
        return ScriptedLine(ids, logprobs)

    def _after(self, ids: list[int], prompt: str) -> list[int]:
        """A thought is closed only where the prompt has opened it."""
        opened = prompt.rstrip().endswith("<think>")
        closing = self.tokenizer.encode("\n</think>\n\n")
        if not opened and ids[: len(closing)] == closing:
            return ids[len(closing) :]
        return closing + ids if opened and "</think>" not in self.tokenizer.decode(ids) else ids

    def _speak(self, marker: str) -> tuple[list[int], int]:
        message = parse(SCRIPT[marker], 0)
        message["content"] = message.get("content") or ""
        calls = message.pop("tool_calls", []) if not self.tools else message.get("tool_calls", [])
        if not self.tools and not message["content"]:
            message["content"] = "I would look that up."
        for call in calls:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        for note, fewer in (
            ("", {}),
            ("one call a reply", {"tool_calls": calls[:1]} if calls else {}),
            ("no text beside thought and call", {"content": ""}),
        ):
            message |= fewer
            try:
                ids = self._spoken(message)
                if len(message.get("tool_calls", ())) > 1 and ids == self._spoken(message | {"tool_calls": calls[:1]}):
                    continue  # the template leaves out the second call
                self.notes |= {note} - {""}
                break
            except RenderFault:
                continue
        if marker == "own":  # the same text in other tokens
            ids = [token for known in ids for token in self._letters(known)]
        return ids, len(message.get("tool_calls") or []) if self.tools else 0

    def _letters(self, token: int) -> list[int]:
        """The tokens of a token's letters."""
        text = self.tokenizer.decode([token])
        whole = token in self.tokenizer.get_added_vocab().values() or not text.isascii()
        return [token] if whole else [one for letter in text for one in self.tokenizer.encode(letter)]

    def _spoken(self, message: Message) -> list[int]:
        def prompt(messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
            return self._renderer.render(ChatCall(messages, tools)).tolist()

        tools = TOOLS if self.tools else []
        return encode_template_reply(self.tokenizer, prompt, self._renderer.stops, [_ASKED], message, tools)


@dataclass
class Local:
    """Our gateway, in this process."""

    gateway: Gateway
    name: str = "ours"

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    def sessions(self, count: int) -> list[list[str]]:
        opened = [self.gateway.open_session() for _ in range(count)]
        urls = [one["base_url"].split(f":{self.port}", 1)[1] for one in opened]
        return [[f"{url}/chat/completions", "x: y", one["session_id"]] for url, one in zip(urls, opened, strict=True)]


@dataclass
class TemplateAgent(Agent):
    """Leaves out what the template doesn't take."""

    engine: Model = field()

    def ask(self, messages: list[Message], again: bool = False) -> Message:
        sent = messages if self.engine.system else [m for m in messages if m["role"] != "system"]
        self.tools = TOOLS if self.engine.tools else None
        return super().ask(sent, again)

    def calls_in(self, call: Call) -> int:
        return self.engine.made[self.engine.calls.index(call)]

    def results(self, messages: list[Message], marker: str) -> None:
        if messages[-1].get("tool_calls"):
            super().results(messages, marker)
        else:
            messages.append({"role": "user", "content": f"And then? [{marker}]"})


def measure(folder: Path, cases: Iterable[str] = tuple(CASES)) -> dict[str, Any]:
    """One template under the cases."""
    tokenizer = load_tokenizer(folder)
    renderer = ChatRenderer(tokenizer)
    known = probe_abilities(renderer)
    model = Model(renderer, known)
    engine = ScriptedEngine(model.sample, context_length=32_768, models=("stub",), chunk=64)
    found: dict[str, Any] = {}
    with Gateway(engine, tokenizer=tokenizer) as gateway:
        for case in cases:
            found[case] = run(Local(gateway), model, case)
    return {
        "renderer": renderer.family.name,
        "read_as": renderer.family.format,
        "says": known.line,
        "problems": known.problems,
        "session": "tools" if model.tools else "text",
        "notes": sorted(model.notes),
        "cases": found,
    }


def run(gateway: Local, model: Model, case: str) -> dict[str, Any]:
    """One case: rows, and the share of sampled tokens trained as they were sampled."""
    conversation, change = CASES[case]
    model.calls.clear()
    agent = TemplateAgent(gateway, engine=model, change=change, retries=case.startswith("HTTP retry"))
    try:
        expected = conversation(agent)
    except HTTPError as error:
        return {"refused": json.loads(error.read())["error"]["message"][:200]}
    except SystemExit as wrong:
        return {"refused": str(wrong)[:2000]}
    folded = gateway.gateway.trajectories(agent.session)
    made = [Row(row.token_ids.tolist(), row.loss_mask.tolist(), row.logprobs.tolist()) for row in folded.rows]
    sampled = sum(len(turn.sampled) for turn in agent.taken)
    return {
        "rows": len(made),
        "rows_expected": expected,
        "exact_share": round(exact(agent.taken, made) / sampled, 3),
        "unbridged": folded.fidelity.split,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="templates (default: all)")
    logging.disable(logging.WARNING)  # the table says it
    parser.add_argument("--quick", action="store_true", help="write no file")
    args = parser.parse_args()
    found = {}
    for number, name in enumerate(args.names or [*shipped(), *WRITTEN]):
        with tempfile.TemporaryDirectory() as place:
            found[name] = measure(write_folder(name, Path(place) / f"checkpoint-{number}"))
    table = []
    for name, of in found.items():
        good = sum(is_good(case) for case in of["cases"].values())
        of |= {"as_expected": good, "why_not": why(of)}
        table.append([name, of["renderer"], of["session"], f"{good} of {len(of['cases'])}", of["why_not"][:160]])
    print(format_table(["template", "renderer", "six turns of", "one row each", "why not"], table))
    if not args.quick and not args.names:
        from report import write

        write("templates", {"templates": found})


def is_good(case: dict[str, Any]) -> bool:
    return bool(case.get("exact_share") == 1.0 and case["rows"] == case["rows_expected"])


def why(of: dict[str, Any]) -> str:
    """Why not all of it is as it should be."""
    said = [f"{about}: {problem}" for about, problem in of["problems"].items()] + of["notes"]
    for case in of["cases"].values():
        said += [case["refused"]] if "refused" in case else [MEANINGS[reason] for reason in case["unbridged"]]
    return "; ".join(dict.fromkeys(said))


if __name__ == "__main__":
    main()
