"""A harness's requests in a form to keep: their shape, and none of its texts.

Prompts, descriptions and results are replaced by short texts of ours, the same text by the same one. Only words of the
task and of the model's own calls stay, and the ids that the gateway gave are marked, for a replay to put its own there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from real_harnesses.harness import ANSWER, TASK

_SCHEMAS = ("input_schema", "parameters", "parametersJsonSchema", "inputSchema")
_DROPPED = ("client_metadata", "metadata", "prompt_cache_key", "user_id", "cache_control", "safety_identifier")
_NAME = re.compile(r"[A-Za-z0-9_.:/@+-]{1,64}")
_MOST_TOOLS = 3  # of those that the task doesn't need


class Trimmer:
    """Trims the requests of one run."""

    def __init__(self, steps: Sequence[str], uids: Sequence[str], folders: dict[str, str]) -> None:
        """`uids` are those of the run's turns in their order, `folders` what to write in place of its paths."""
        self._folders = folders
        self._own = {
            TASK,
            ANSWER,
            *steps,
            *(self._moved(text) for step in steps for text in _strings(_arguments(step))),
        }
        self._used = set(re.findall(r'"name": "([^"]+)"', "".join(steps)))
        self._uids = list(uids)
        self._texts: dict[str, str] = {}

    def request(self, body: Any) -> Any:
        """One request's body."""
        text = self._moved(json.dumps(body, ensure_ascii=False))
        for number, uid in enumerate(self._uids):
            text = text.replace(uid, f"UID{number}_")
        return self._value(json.loads(text))

    def _moved(self, text: str) -> str:
        for folder, name in self._folders.items():
            text = text.replace(folder, name)
        return text

    def _value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            return [self._value(item, name) for item in (self._tools(value) if name == "tools" else value)]
        return self._text(value) if isinstance(value, str) else value

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("role") == "assistant":  # the model's own words, and what a client makes of its calls
            return value
        trimmed = {}
        for name, item in value.items():
            if name in _SCHEMAS and isinstance(item, dict) and item.get("type") in ("object", "OBJECT"):
                trimmed[name] = _shallow(item)
            elif name not in _DROPPED:
                trimmed[name] = self._value(item, name)
        return trimmed

    def _tools(self, tools: list[Any]) -> list[Any]:
        """Those that the task needs, those of another kind than functions, and a few more."""
        kept, more = [], 0
        for tool in tools:
            plain = isinstance(tool, dict) and tool.get("type") in (None, "function") and "defer_loading" not in tool
            declared = plain and any(isinstance(item, list) for item in tool.values())  # Google's list within its tool
            named = tool.get("name") or tool.get("function", {}).get("name") if plain else None
            if plain and not declared and named not in self._used:
                more += 1
                if more > _MOST_TOOLS:
                    continue
            kept.append(tool)
        return kept

    def _text(self, text: str) -> str:
        if text in self._own or text == "" or _NAME.fullmatch(text) or self._is_call(text):
            return text
        return self._texts.setdefault(text, f"text {len(self._texts)}")

    def _is_call(self, text: str) -> bool:
        """Whether it is a call's arguments as JSON."""
        try:
            made = json.loads(text)
        except ValueError:
            return False
        return isinstance(made, dict) and all(said in self._own or _NAME.fullmatch(said) for said in _strings(made))


def _arguments(step: str) -> list[Any]:
    return [json.loads(made)["arguments"] for made in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", step, re.DOTALL)]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema's properties and their types."""
    properties = schema.get("properties") or {}
    types = {
        name: {"type": known.get("type", "string")} for name, known in properties.items() if isinstance(known, dict)
    }
    return {"type": schema["type"], "properties": types} | (
        {"required": schema["required"]} if "required" in schema else {}
    )
