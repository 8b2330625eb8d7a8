"""Parses tool calls and reasoning in formats that `renderers` parses only with its own vocabulary, or not at all.

A reader parses the text of a reply, including special tokens. `families` chooses the reader for a template by letting
each one read replies that the template itself writes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..call.chat import parse_arguments


@dataclass
class CallAttempt:
    """A tool call as the model wrote it, in the shape that `renderers` returns."""

    raw: str
    name: str | None = None
    arguments: Any = None
    token_span: tuple[int, int] | None = None

    @property
    def status(self) -> str:
        return "ok" if self.name else "invalid"


@dataclass
class ParsedText:
    """A parsed reply, in the shape that `renderers` returns."""

    content: str = ""
    reasoning_content: str | None = None
    tool_calls: list[CallAttempt] = field(default_factory=list)


class TextReader:
    def __init__(self, tokenizer: Any, read: Callable[[str], ParsedText]) -> None:
        self._tokenizer, self._read = tokenizer, read

    def parse_response(self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None) -> ParsedText:
        text = self._tokenizer.decode(token_ids)
        opened = self._tokenizer.decode(list(prompt_ids or ())[-4:]).rstrip().endswith("<think>")
        thought, closed, rest = text.partition("</think>")
        if not closed or not (opened or thought.lstrip().startswith("<think>")):
            return self._read(text)
        reading = self._read(rest)
        reading.reasoning_content = thought.replace("<think>", "").strip()
        return reading


def read_pythonic(text: str) -> ParsedText:
    """`<|tool_call_start|>[look(at='Paris', days=2)]<|tool_call_end|>`, the format of LFM2.

    >>> read_pythonic("So: <|tool_call_start|>[look(at='Paris', days=2)]<|tool_call_end|>").tool_calls[0].arguments
    {'at': 'Paris', 'days': 2}
    """
    reading = ParsedText(_PYTHONIC.sub("", text))
    for found in _PYTHONIC.finditer(text):
        try:
            listed = ast.parse(found[1].strip(), mode="eval").body
            calls = listed.elts if isinstance(listed, ast.List) else [listed]
            reading.tool_calls += [_read_python_call(call, found[0]) for call in calls]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            reading.tool_calls.append(CallAttempt(found[0]))
    return reading


_PYTHONIC = re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


def _read_python_call(call: ast.expr, raw: str) -> CallAttempt:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        return CallAttempt(raw)
    values = {str(one.arg): _read_python_value(one.value) for one in call.keywords if one.arg}
    return CallAttempt(raw, call.func.id, values)


def _read_python_value(node: ast.expr) -> Any:
    """Evaluate a Python literal, which may contain the JSON words `true`, `false` and `null`."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_read_python_value, node.values), strict=True))
    if isinstance(node, ast.List):
        return [_read_python_value(item) for item in node.elts]
    return ast.literal_eval(node)


def read_harmony(text: str) -> ParsedText:
    """Messages on channels, the format of gpt-oss.

    >>> thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    >>> read_harmony(thought + "<|start|>assistant<|channel|>final<|message|>Yes.").content
    'Yes.'
    """
    reading = ParsedText()
    for block in text.split("<|start|>assistant"):
        head, _, body = block.partition("<|message|>")
        body = re.split(r"<\|(?:end|call|return)\|>", body, maxsplit=1)[0]
        called = re.search(r"to=functions\.([^\s<]+)", head)
        if called is not None:
            arguments = parse_arguments(body)
            name = called[1] if isinstance(arguments, dict) else None
            reading.tool_calls.append(CallAttempt(block, name, arguments))
        elif "analysis" in head:
            reading.reasoning_content = (reading.reasoning_content or "") + body
        else:
            reading.content += body or head
    return reading


def read_atem(text: str) -> ParsedText:
    """Blocks with a recipient, and calls as elements, the format of Muse."""
    reading = ParsedText()
    for block in re.split(r"<\|(?:eom|eot)\|>(?:<\|start\|>assistant)?", text):
        head, marked, body = block.partition("<|message|>")
        recipient = re.search(r"to=(\S+)", head)
        if not marked or recipient is None:
            reading.content += body or head
        elif recipient[1] == "self":
            reading.reasoning_content = (reading.reasoning_content or "") + body
        elif "<atem:invoke" in body:
            for raw, name, inner in ((found[0], found[1], found[2]) for found in _INVOKED.finditer(body)):
                values = {found[1]: _read_json_or_text(found[2]) for found in _PARAMETER.finditer(inner)}
                reading.tool_calls.append(CallAttempt(raw, name, values))
        else:
            reading.content += body
    return reading


_INVOKED = re.compile(r'<atem:invoke name="([^"]*)">(.*?)</atem:invoke>', re.DOTALL)
_PARAMETER = re.compile(r'<atem:parameter name="([^"]*)"[^>]*>(.*?)</atem:parameter>', re.DOTALL)


def _read_json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_mistral(text: str) -> ParsedText:
    """`[TOOL_CALLS]` and JSON, the format of Mistral: a list of calls, or a name and `[ARGS]` for each call.

    >>> read_mistral('[TOOL_CALLS] [{"name": "look", "arguments": {"at": "Paris"}}]').tool_calls[0].name
    'look'
    >>> read_mistral('[TOOL_CALLS]look[ARGS]{"at": "Paris"}').tool_calls[0].arguments
    {'at': 'Paris'}
    """
    content, *calls = text.split("[TOOL_CALLS]")
    reading = ParsedText(content)
    for written in calls:
        name, marked, arguments = written.partition("[ARGS]")
        found = _read_json_or_text(arguments if marked else written.strip())
        made = [{"name": name.strip(), "arguments": found}] if marked else found if isinstance(found, list) else [found]
        reading.tool_calls += [_read_json_call(one, written) for one in made]
    return reading


def _read_json_call(found: Any, raw: str) -> CallAttempt:
    if not isinstance(found, dict) or not isinstance(found.get("arguments"), dict):
        return CallAttempt(raw)
    return CallAttempt(raw, found.get("name"), found["arguments"])


READERS: dict[str, tuple[str, Callable[[str], ParsedText]]] = {
    "pythonic": ("<|tool_call_start|>", read_pythonic),
    "harmony": ("<|channel|>", read_harmony),
    "atem": ("<atem:", read_atem),
    "mistral": ("[TOOL_CALLS]", read_mistral),
}
"""For each format: a mark by which its templates are recognized, and the function that reads its replies."""
