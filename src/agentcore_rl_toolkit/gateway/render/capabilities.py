"""What a gateway says of its renderer when it starts: which one it is, what can go on from exact tokens, what can't.

Each ability is tried as a session would use it: a prompt, a reply in the model's own format, and the next prompt.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.base import IDS
from ...errors import RenderFault
from ..call.chat import ChatCall, Message, Reply, parse_arguments
from ..record.reasons import MEANINGS
from ..record.trajectory import Fidelity
from ..record.turn import LOGPROBS, Turn
from .chat_template import ChatTemplate
from .probes import SYSTEM, TEXT, THOUGHT, TOOL, USER, calling
from .renderer import ChatRenderer
from .template_reply import next_message, template_reply_ids

logger = logging.getLogger(__name__)

_CALL = calling(arguments={"at": "Paris", "days": 2})
_NEXT = "Go on from here."


@dataclass(frozen=True)
class Abilities:
    """A renderer, in words."""

    line: str
    """Which one it is, and what it bridges."""
    problems: dict[str, str]
    """What can't be had, and why: `text`, `tools`, `reasoning`, `system prompts`."""

    def say(self) -> None:
        """To the log, at the start."""
        logger.info("%s", self.line)
        for about, why in self.problems.items():
            logger.warning("%s can't be had exactly with this chat template: %s", about, why)


def abilities(renderer: ChatRenderer) -> Abilities:
    """Try what the renderer can do."""
    template = renderer.template()
    thinks = template is not None and (template.shows_thoughts() or "<think>" in str(renderer.tokenizer.chat_template))
    tried: list[tuple[str, Message, list[dict[str, Any]]]] = [("text", TEXT, []), ("tools", _CALL, [TOOL])]
    if thinks:
        tried.append(("reasoning", THOUGHT, []))
    problems = {about: why for about, said, tools in tried if (why := _problem(renderer, said, tools, template))}
    problems |= dict(_unseen(template)) if template is not None else {}
    if renderer.family.later is not None:
        problems["the template's own history"] = str(renderer.family.later)
    bridged = [about for about, _, _ in tried if about not in problems]
    return Abilities(f"{_which(renderer)}; bridges {', '.join(bridged) or 'nothing'}", problems)


def warn_of_rows(session_id: str, known: Fidelity) -> bool:
    """Warn of a session that folds into more rows than its conversation has branches; whether it is one."""
    split = sum(known.split.values())
    branches = max(1, known.rows - split)
    if not split or known.rows <= branches:
        return False
    reasons = "; ".join(f"{count} turns: {MEANINGS[reason]}" for reason, count in known.split.items())
    logger.warning(
        "session %s folds into %d rows where its conversation has %d: %s. Later sessions are only counted, under "
        "`unbridged` of their fidelity",
        session_id,
        known.rows,
        branches,
        reasons,
    )
    return True


def _which(renderer: ChatRenderer) -> str:
    family = renderer.family
    if family.name != "default":
        checked = "renders as the chat template does" if family.checked else "chosen by name, without a chat template"
        return f"renderer {family.name}: {checked}"
    read = f", replies are read as {family.format}'s" if family.format != "default" else ""
    line = f"renderer: the chat template itself{read}"
    if family.nearest is not None:
        name, difference = family.nearest
        line += f" (nearest is {name}, but {difference})"
    return line


def _unseen(template: ChatTemplate) -> Iterator[tuple[str, str]]:
    """What the template doesn't show the model at all."""
    if not template.shows_tools():
        yield "the definition of tools", "it doesn't show the model any"
    if not template.shows_calls():
        yield "tools", "it leaves out the tool calls of earlier replies"
    elif not template.shows_results():
        yield "tools", "it leaves out the results of tools"
    if not template.takes_system():
        yield "system prompts", f"it refuses or leaves out {SYSTEM['content']!r}"


def _problem(
    renderer: ChatRenderer, said: Message, tools: list[dict[str, Any]], template: ChatTemplate | None
) -> str | None:
    """Why a reply can't be gone on from exactly, if it can't."""
    messages = [USER, said, next_message(said, _NEXT)]
    try:
        prompt = renderer.render(ChatCall([USER], tools))
        if renderer.family.name == "default":  # whatever was sampled, the first time and the second
            plain = _turn(prompt, [*renderer.tokenizer.encode("Yes."), renderer.stop_ids[0]])
            for asked in (messages, [*messages, *messages[1:]]):
                if isinstance(reason := renderer.bridge(plain, ChatCall(asked, tools), len(asked) - 1), str):
                    return MEANINGS[reason]
        ids = template_reply_ids(renderer.tokenizer, _prompt(renderer), renderer.stops, [USER], said, tools)
        reply = renderer.parse(ids, prompt[-64:], ChatCall([USER], tools), "probe")
        if not _said(reply, said):
            return f"replies like {renderer.tokenizer.decode(ids)[:100]!r} are not read as what they are"
        found = renderer.bridge(_turn(prompt, ids), ChatCall(messages, tools), 2)
    except RenderFault as fault:
        return str(fault)
    if isinstance(found, str):
        return MEANINGS[found]
    added = renderer.tokenizer.decode(found[1].tolist())
    if template is not None and not template.text(messages, tools or None, True).endswith(added):
        return f"the next prompt would go on with {added[:60]!r}, which the chat template doesn't have"
    return None


def _turn(prompt: array[int], ids: list[int]) -> Turn:
    return Turn(0, None, 0, prompt, array(IDS, ids), array(LOGPROBS, [0.0] * len(ids)), "stop")


def _prompt(renderer: ChatRenderer) -> Any:
    def prompt(messages: list[Message], tools: list[dict[str, Any]]) -> Sequence[int]:
        return renderer.render(ChatCall(messages, tools))

    return prompt


def _said(reply: Reply, said: Message) -> bool:
    calls = [(call.name, parse_arguments(call.arguments)) for call in reply.tool_calls]
    wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in said.get("tool_calls", ())]
    thought = reply.reasoning in ("", said.get("reasoning_content", ""))
    return thought and (reply.content, json.dumps(calls)) == (said["content"], json.dumps(wanted))
