"""Finds the ids that a model would sample for a given reply: its text in the chat template, up to the turn's end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import RenderFault
from ..call.chat import Message, Reply, parse_arguments
from .probes import count_common

Prompt = Callable[[list[Message], list[dict[str, Any]]], Sequence[int]]
"""Renders the prompt for a reply, given the messages and the tools."""


def encode_template_reply(
    tokenizer: Any,
    prompt: Prompt,
    stops: Mapping[str, int],
    before: Sequence[Message],
    reply: Message,
    tools: list[dict[str, Any]],
) -> list[int]:
    """The ids that a model samples for `reply` after `before`; `stops` maps the marks that end a turn to ids.

    In some formats a turn ends where the next one begins, so the template also renders a next message.
    """
    decode = tokenizer.decode
    start = list(prompt(list(before), tools))
    whole = list(prompt([*before, reply, make_next_message(reply)], tools))
    begun, rest = _split_at_prompt(decode(start), decode(whole), list(stops)) or _split_at_difference(
        decode, start, whole
    )
    opened = "<think>" in begun and "</think>" not in begun
    sampled = [text for text, stop in stops.items() if text in rest and decode([stop]) == text]
    ends = [(rest.find(text), text) for text in sampled or stops if text in rest]
    if not ends:
        raise RenderFault("the model's chat template doesn't end an assistant's turn with a token that stops the model")
    place, end = min(ends)
    thought = "\n</think>\n\n" if opened and "</think>" not in rest[:place] else ""
    return [*tokenizer.encode(thought + rest[:place]), stops[end]]


def make_next_message(reply: Message, content: str | None = None) -> Message:
    """A message that can follow the reply: the first tool's result, or a user's message."""
    calls = reply.get("tool_calls")
    if not calls:
        return {"role": "user", "content": content or "Go on."}
    return {
        "role": "tool",
        "tool_call_id": calls[0].get("id", "0"),
        "name": calls[0]["function"]["name"],
        "content": content or "1",
    }


def matches_reply(parsed: Reply, sampled: Message) -> bool:
    """Whether a parser found what was sampled; it may leave out the reasoning."""
    calls = [(call.name, parse_arguments(call.arguments)) for call in parsed.tool_calls]
    wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in sampled.get("tool_calls", ())]
    thought = parsed.reasoning in ("", sampled.get("reasoning_content", ""))
    return thought and (parsed.content, json.dumps(calls)) == (sampled["content"], json.dumps(wanted))


def _split_at_prompt(start: str, whole: str, ends: list[str]) -> tuple[str, str] | None:
    """The text that ends every prompt, and the rest of `whole` after it; None if `whole` does not contain it."""
    prompt = start[max((start.rfind(end) + len(end) for end in ends if end in start), default=0) :]
    if whole.startswith(start):
        return prompt, whole[len(start) :]
    body = whole.removesuffix(prompt)
    return (prompt, body.rpartition(prompt)[2]) if prompt.strip() and prompt in body else None


def _split_at_difference(decode: Callable[[list[int]], str], start: list[int], whole: list[int]) -> tuple[str, str]:
    """The rest of each text after the tokens that both share."""
    common = count_common(start, whole)
    return decode(start[common:]), decode(whole[common:])
