"""The ids that a model samples for a given reply: its text in the chat template, up to the end of the turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import RenderFault
from ..call.chat import Message

Prompt = Callable[[list[Message], list[dict[str, Any]]], Sequence[int]]
"""Renders the prompt for a reply to a conversation with these tools."""


def template_reply_ids(
    tokenizer: Any,
    prompt: Prompt,
    stops: Mapping[str, int],
    before: Sequence[Message],
    said: Message,
    tools: list[dict[str, Any]],
) -> list[int]:
    """The ids that a model samples for the reply `said` after `before`; `stops` maps the marks that end a turn to ids.

    In some formats a turn ends where the next one begins, so the template renders a next message too.
    """
    decode = tokenizer.decode
    start = list(prompt(list(before), tools))
    whole = list(prompt([*before, said, next_message(said)], tools))
    begun, rest = _after(decode(start), decode(whole), list(stops)) or _parted(decode, start, whole)
    opened = "<think>" in begun and "</think>" not in begun
    sampled = [text for text, stop in stops.items() if text in rest and decode([stop]) == text]
    ends = [(rest.find(text), text) for text in sampled or stops if text in rest]
    if not ends:
        raise RenderFault("the model's chat template doesn't end an assistant's turn with a token that stops the model")
    place, end = min(ends)
    thought = "\n</think>\n\n" if opened and "</think>" not in rest[:place] else ""
    return [*tokenizer.encode(thought + rest[:place]), stops[end]]


def next_message(said: Message, content: str | None = None) -> Message:
    """A message that may follow a reply: the first tool's result, or a user's message."""
    calls = said.get("tool_calls")
    if not calls:
        return {"role": "user", "content": content or "Go on."}
    return {
        "role": "tool",
        "tool_call_id": calls[0].get("id", "0"),
        "name": calls[0]["function"]["name"],
        "content": content or "1",
    }


def _after(start: str, whole: str, ends: list[str]) -> tuple[str, str] | None:
    """The words that end every prompt, and what `whole` says after them; None if it has written them otherwise."""
    prompt = start[max((start.rfind(end) + len(end) for end in ends if end in start), default=0) :]
    if whole.startswith(start):
        return prompt, whole[len(start) :]
    body = whole.removesuffix(prompt)
    return (prompt, body.rpartition(prompt)[2]) if prompt.strip() and prompt in body else None


def _parted(decode: Callable[[list[int]], str], start: list[int], whole: list[int]) -> tuple[str, str]:
    """What each of the two says after what they have in common."""
    pairs = zip(start, whole, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(start), len(whole)))
    return decode(start[common:]), decode(whole[common:])
