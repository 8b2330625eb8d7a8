"""The form that a call asks its reply to have, in the marks that the model has for thoughts and tool calls."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any, Literal

from ...engine.reply_form import THINK, THOUGHT, Form
from ...errors import RenderFault
from ..render.renderer import ChatRenderer
from .chat import ChatCall

_END = 4  # ids of the prompt's end in which a thought is opened or closed


def reply_form(
    renderer: ChatRenderer, call: ChatCall, prompt: array[int], schema: dict[str, Any] | None
) -> Form | None:
    """The form of a reply with a `schema`, or with a call that has to be made; None where there is nothing to form.

    That is, where the first token is the beginning of the call, or of the text, anyway.
    """
    thought = _thought(renderer, prompt)
    if call.tool_choice not in ("auto", "none"):
        return Form(thought, _begin(renderer, call)) if thought else None
    if schema is None:
        return None
    mark = _mark(renderer, call) if call.known_tools and call.tool_choice == "auto" else ""
    return Form(thought, mark, schema) if thought or mark else None


def _thought(renderer: ChatRenderer, prompt: array[int]) -> Literal["", "optional", "open"]:
    end = renderer.tokenizer.decode(prompt[-_END:].tolist()).rstrip()
    if end.endswith(THINK):
        return "open"
    thinks = THINK in renderer.tokenizer.get_added_vocab()
    return "optional" if thinks and not end.endswith(THOUGHT) else ""


def _begin(renderer: ChatRenderer, call: ChatCall) -> str:
    """How the call that has to be made begins, without a thought before it."""
    return renderer.tokenizer.decode(renderer.forced(call)).rpartition(THOUGHT)[2].lstrip()


def _mark(renderer: ChatRenderer, call: ChatCall) -> str:
    """What tells a call from text: the token that calls begin with, or `{"name":` where there is none."""
    try:
        begin = _begin(renderer, dataclasses.replace(call, tool_choice="required"))
    except RenderFault:  # a format without calls
        return ""
    marks = renderer.tokenizer.get_added_vocab()
    return max((mark for mark in marks if begin.startswith(mark)), key=len, default=begin.rstrip(' "'))
