"""Probes a renderer when the gateway starts: which replies it can bridge with exact tokens, and which it can't.

Each probe follows a session: it renders a prompt, parses a reply in the model's own format, and bridges to the next
prompt.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...engine.base import IDS
from ...errors import RenderFault
from ..call.chat import ChatCall, Message
from ..record.reasons import MEANINGS
from ..record.trajectory import Fidelity
from ..record.turn import LOGPROBS, Turn
from .chat_template import ChatTemplate
from .probes import SYSTEM, TEXT, THOUGHT, TOOL, USER, make_calls
from .renderer import ChatRenderer
from .template_reply import encode_template_reply, make_next_message, matches_reply

logger = logging.getLogger(__name__)

_CALL = make_calls(arguments={"at": "Paris", "days": 2})
_NEXT = "Go on from here."


@dataclass(frozen=True)
class Abilities:
    """A renderer's abilities, described for the log."""

    line: str
    """Names the renderer and what it bridges."""
    problems: dict[str, str]
    """What does not work exactly (`text`, `tools`, `reasoning`, `system prompts`, …), and why."""
    blind: str = ""
    """Why a vision model reads placeholders for images."""

    def log(self) -> None:
        """Log the line, one warning for each problem, and one if a vision model is not shown images."""
        logger.info("%s", self.line)
        for subject, why in self.problems.items():
            logger.warning("this chat template does not allow exact tokens for %s: %s", subject, why)
        if self.blind:
            logger.warning("this vision model reads placeholders for images, which are counted: %s", self.blind)


def probe_abilities(renderer: ChatRenderer) -> Abilities:
    """Probe the renderer with text, a tool call and, if the model thinks, reasoning."""
    template = renderer.template()
    thinks = template is not None and (template.shows_thoughts() or "<think>" in str(renderer.tokenizer.chat_template))
    tried: list[tuple[str, Message, list[dict[str, Any]]]] = [("text", TEXT, []), ("tools", _CALL, [TOOL])]
    if thinks:
        tried.append(("reasoning", THOUGHT, []))
    problems = {name: why for name, reply, tools in tried if (why := _find_problem(renderer, reply, tools, template))}
    problems |= dict(_find_unshown(template)) if template is not None else {}
    if renderer.family.later is not None:
        problems["the template's own history"] = str(renderer.family.later)
    bridged = [name for name, _, _ in tried if name not in problems]
    images = "; shows images" if renderer.vision is not None else ""
    line = f"{_describe_renderer(renderer)}; bridges {', '.join(bridged) or 'nothing'}{images}"
    return Abilities(line, problems, renderer.blind)


def warn_of_rows(session_id: str, fidelity: Fidelity) -> bool:
    """Warn if a session folds into more rows than its conversation has branches; return whether it does."""
    split = sum(fidelity.split.values())
    branches = max(1, fidelity.rows - split)
    if not split or fidelity.rows <= branches:
        return False
    reasons = "; ".join(f"{count} turns: {MEANINGS[reason]}" for reason, count in fidelity.split.items())
    logger.warning(
        "session %s folds into %d rows instead of %d: %s. The gateway warns once; for later sessions, see "
        "`unbridged` in their fidelity",
        session_id,
        fidelity.rows,
        branches,
        reasons,
    )
    return True


def _describe_renderer(renderer: ChatRenderer) -> str:
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


def _find_unshown(template: ChatTemplate) -> Iterator[tuple[str, str]]:
    """Find the inputs that the template never shows to the model."""
    if not template.shows_tools():
        yield "the definition of tools", "it doesn't show the model any"
    if not template.shows_calls():
        yield "tools", "it leaves out the tool calls of earlier replies"
    elif not template.shows_results():
        yield "tools", "it leaves out the results of tools"
    if not template.shows_system():
        yield "system prompts", f"it refuses or leaves out {SYSTEM['content']!r}"


def _find_problem(
    renderer: ChatRenderer, sampled: Message, tools: list[dict[str, Any]], template: ChatTemplate | None
) -> str | None:
    """The reason why the renderer can't bridge from the reply `sampled`; None if it can."""
    messages = [USER, sampled, make_next_message(sampled, _NEXT)]
    try:
        prompt = renderer.render(ChatCall([USER], tools))
        if renderer.family.name == "default":  # the bridge must not depend on the sampled text, after one reply or two
            plain = _make_turn(prompt, [*renderer.tokenizer.encode("Yes."), renderer.stop_ids[0]])
            for asked in (messages, [*messages, *messages[1:]]):
                if isinstance(reason := renderer.bridge(plain, ChatCall(asked, tools), len(asked) - 1), str):
                    return MEANINGS[reason]
        ids = encode_template_reply(
            renderer.tokenizer, lambda *asked: renderer.render(ChatCall(*asked)), renderer.stops, [USER], sampled, tools
        )
        reply = renderer.parse(ids, prompt[-64:], ChatCall([USER], tools), "probe")
        if not matches_reply(reply, sampled):
            return f"replies like {renderer.tokenizer.decode(ids)[:100]!r} are not parsed correctly"
        found = renderer.bridge(_make_turn(prompt, ids), ChatCall(messages, tools), 2)
    except RenderFault as fault:
        return str(fault)
    if isinstance(found, str):
        return MEANINGS[found]
    added = renderer.tokenizer.decode(found[1].tolist())
    if template is not None and not template.render_text(messages, tools or None, True).endswith(added):
        return f"the bridge adds {added[:60]!r}, which the chat template does not write"
    return None


def _make_turn(prompt: array[int], ids: list[int]) -> Turn:
    return Turn(0, None, 0, prompt, array(IDS, ids), array(LOGPROBS, [0.0] * len(ids)), "stop")
