"""The form of a reply: a thought, then a tool call or text of a JSON schema. The schema applies to the text alone.

Engines follow it as a grammar; `structural_tag` writes it for xgrammar, which vLLM and SGLang use.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

THINK, THOUGHT = "<think>", "</think>"
GAP = r"[ \n]{0,4}"
"""The white space between a thought and the rest, as a regular expression."""


@dataclass(frozen=True)
class Form:
    """The form that a reply must have. `call`, `schema` or both are set; with both, either will do."""

    thought: Literal["", "optional", "open"] = ""
    """Whether a thought may come first; `open` if the prompt has begun it."""
    call: str = ""
    """How a tool call begins. The rest of it is free."""
    schema: dict[str, Any] | None = None
    """The schema of the text; `{}` is any JSON object."""

    def remaining(self, text: str) -> Form | None:
        """The form of the rest of a reply that begins with `text`; a call or text that was begun continues freely."""
        thought = self.thought
        if thought:
            before, closed, rest = text.partition(THOUGHT)
            if closed:
                text, thought = rest, ""
            elif thought == "open" or before.lstrip().startswith(THINK):
                return dataclasses.replace(self, thought="open")
        return None if text.strip() else dataclasses.replace(self, thought=thought)


def structural_tag(form: Form) -> str:
    """The form for xgrammar.

    A thought that the prompt has opened is optional here: a server with a reasoning parser applies the grammar only
    after it.
    """
    ways: list[dict[str, Any]] = []
    if form.call:
        ways.append(_sequence({"type": "const_string", "value": form.call}, {"type": "any_text"}))
    if form.schema is not None:
        ways.append({"type": "json_schema", "json_schema": form.schema or {"type": "object"}})
    content = ways[0] if len(ways) == 1 else {"type": "or", "elements": ways}
    if form.thought:
        begin = THINK if form.thought == "optional" else ""
        thought = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": THOUGHT}
        gap = {"type": "regex", "pattern": GAP}
        content = {"type": "or", "elements": [_sequence(thought, gap, content), _sequence(gap, content)]}
    return json.dumps({"type": "structural_tag", "format": content})


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}
