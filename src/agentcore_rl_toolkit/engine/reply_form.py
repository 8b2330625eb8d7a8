"""The form of a reply: a thought, then a tool call or text of a JSON schema. A schema is meant for the text alone.

Engines take it as a grammar: `structural_tag` is what xgrammar reads, which vLLM and SGLang constrain with.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

THINK, THOUGHT = "<think>", "</think>"
GAP = r"[ \n]{0,4}"
"""What may stand between a thought and what follows, as a regular expression."""


@dataclass(frozen=True)
class Form:
    """What a reply has to look like. One of `call` and `schema` is set, or both are: then either will do."""

    thought: Literal["", "optional", "open"] = ""
    """Whether a thought may come first; `open` if the prompt has begun it."""
    call: str = ""
    """How a tool call begins. Whatever follows is free."""
    schema: dict[str, Any] | None = None
    """What text has to be; `{}` is any JSON object."""

    def after(self, text: str) -> Form | None:
        """The form of what is left when `text` was sampled. Calls and text that were begun go on freely."""
        thought = self.thought
        if thought:
            said, closed, rest = text.partition(THOUGHT)
            if closed:
                text, thought = rest, ""
            elif thought == "open" or said.lstrip().startswith(THINK):
                return dataclasses.replace(self, thought="open")
        return None if text.strip() else dataclasses.replace(self, thought=thought)


def structural_tag(form: Form) -> str:
    """The form for engines that constrain with xgrammar.

    A thought that the prompt has opened need not be there: a server with a reasoning parser constrains what comes
    after it.
    """
    ways: list[dict[str, Any]] = []
    if form.call:
        ways.append(_sequence({"type": "const_string", "value": form.call}, {"type": "any_text"}))
    if form.schema is not None:
        ways.append({"type": "json_schema", "json_schema": form.schema or {"type": "object"}})
    said = ways[0] if len(ways) == 1 else {"type": "or", "elements": ways}
    if form.thought:
        begin = THINK if form.thought == "optional" else ""
        thought = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": THOUGHT}
        gap = {"type": "regex", "pattern": GAP}
        said = {"type": "or", "elements": [_sequence(thought, gap, said), _sequence(gap, said)]}
    return json.dumps({"type": "structural_tag", "format": said})


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}
