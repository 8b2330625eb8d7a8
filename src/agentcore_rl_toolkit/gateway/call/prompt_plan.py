"""From a call to its prompt: which turn it continues, how many of that turn's tokens, and what is new.

A prompt bridges from the recorded turn that the call continues, or is rendered from scratch, with the reason.
Constraints on the reply (a tool that must be called, a JSON schema) are part of the plan.
"""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ...engine.base import IDS, PromptImage, Sampling
from ...engine.reply_form import THINK, THOUGHT, Form
from ...errors import GatewayFault, PromptTooLong, RenderFault
from ..images.session_images import list_hashes
from ..images.vision_processor import VisionProcessor
from ..record.reasons import CHANGED
from ..record.session import Session
from ..record.tree import TurnMatch
from ..record.turn import PlacedImage, Turn
from ..render.renderer import ChatRenderer
from .chat import ChatCall, Message, TextCall
from .fingerprint import Fingerprints, hash_prompt, hash_text

_END = 4  # ids of the prompt's end that tell whether it opens or closes a thought
_TIMES, _FREE = 8, 1 << 18
"""A plan may encode `_TIMES` the context limit, or `_FREE` tokens if that is more: it may encode a text repeatedly."""


@dataclass(slots=True)
class PromptPlan:
    call: ChatCall | TextCall
    sampling: Sampling
    prompt: array[int]
    parent: Turn | None
    """The turn that the prompt shares its first `keep` tokens with."""
    keep: int
    origin: str
    unbridged: str = ""
    fingerprints: Fingerprints | None = None
    match: TurnMatch = field(default_factory=TurnMatch)
    """The turn that the conversation continues, even if the prompt was rendered from scratch."""
    forced: list[int] = field(default_factory=list)
    """Ids at the prompt's end that begin the reply."""
    side: bool = False
    """A side call, which is not trained on."""
    sibling: Turn | None = None
    """A recorded choice of the same call, which shares the prompt."""
    images: tuple[PlacedImage, ...] = ()
    """The images among the tokens after those shared with the parent."""
    prepared: tuple[PromptImage, ...] = ()
    """All images of the prompt, for the engine."""

    @property
    def delta(self) -> array[int]:
        """The tokens after those shared with the parent."""
        return self.prompt[self.keep :]

    @property
    def used(self) -> int:
        """How many messages the bridged turn has seen."""
        return self.match.messages if self.origin == "bridge" else 0

    def new_messages(self) -> list[Message]:
        """The messages that the bridged turn has not seen."""
        return self.call.messages[self.used :] if isinstance(self.call, ChatCall) else []

    def said_since(self) -> list[Message]:
        """The messages after the turn that the conversation continues; a raw prompt counts as one."""
        if isinstance(self.call, ChatCall):
            return self.call.messages[self.match.messages :] if self.match.turn is not None else self.call.messages
        return [{"role": "text", "content": self.call.prompt if isinstance(self.call.prompt, str) else "(token ids)"}]

    def tool_names(self) -> list[str]:
        tools = self.call.known_tools if isinstance(self.call, ChatCall) else []
        return [str(tool.get("function", tool).get("name", "")) for tool in tools]

    def count_omitted(self) -> dict[str, int]:
        """Count the new parts of messages, and the API's own tools, that the model doesn't see, by kind."""
        kinds: Counter[str] = Counter()
        if isinstance(self.call, ChatCall):
            kinds.update(self.call.omitted if self.origin != "bridge" else ())
            for message in self.new_messages():
                kinds.update(message.get("omitted", {}))
        return dict(kinds)


class PromptPlanner:
    def __init__(self, renderer: ChatRenderer, *, forms: Callable[[], bool] = lambda: False) -> None:
        """`forms`: whether the engine can constrain the form of a reply."""
        self._renderer = renderer
        self._forms = forms

    def plan(self, session: Session, call: ChatCall | TextCall, context_length: int | None) -> PromptPlan:
        """The call's prompt, checked against the context limit."""
        limit = _find_limit(session, context_length)
        plan = self._plan_bounded(session, call, limit)
        sampling = plan.sampling
        if limit is not None:
            left = limit - len(plan.prompt)
            if left < 1:
                raise _too_long(limit, f"{len(plan.prompt)} tokens: {1 - left} too many to sample one more")
            if sampling.max_tokens is None or sampling.max_tokens > left:
                sampling = dataclasses.replace(sampling, max_tokens=left)
        stop_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *self._renderer.stop_ids)))
        plan.sampling = dataclasses.replace(sampling, stop_token_ids=stop_ids)
        return plan

    def count(self, session: Session, call: ChatCall | TextCall, context_length: int | None) -> int:
        """The length of the call's prompt, which may exceed the context limit."""
        return len(self._plan_bounded(session, call, _find_limit(session, context_length)).prompt)

    def _plan_bounded(self, session: Session, call: ChatCall | TextCall, limit: int | None) -> PromptPlan:
        """The call's prompt, whose length may be a few times the limit."""
        if limit is None:
            return self._plan_unbounded(session, call)
        most = max(_TIMES * limit, _FREE)
        try:
            with self._renderer.tokenizer.bound(most):
                return self._plan_unbounded(session, call)
        except PromptTooLong:
            raise _too_long(limit, f"{most} tokens or more") from None

    def _plan_unbounded(self, session: Session, call: ChatCall | TextCall) -> PromptPlan:
        sampling = session.sampling(call.sampling)
        try:
            if isinstance(call, TextCall):
                return self._plan_text(session, call, sampling)
            return self._plan_chat(session, call, sampling)
        except PromptTooLong:
            raise
        except RenderFault as error:
            raise GatewayFault.invalid(str(error), param="messages", code="cannot_render") from error

    def _plan_chat(self, session: Session, call: ChatCall, sampling: Sampling) -> PromptPlan:
        tree = session.tree
        self._renderer.take_images(call, session.images)
        vision = self._renderer.vision if session.images else None
        session.made_calls.restore(call.messages)
        match, fingerprints = tree.find(call)
        turn = match.turn
        bridged = self._renderer.bridge(turn, call, match.messages, match.appended) if turn is not None else CHANGED
        if turn is not None and not isinstance(bridged, str):
            keep, delta = bridged
            prompt = turn.tokens(keep)
            prompt.extend(delta)
            plan = PromptPlan(call, sampling, prompt, turn, keep, "bridge")
            images = _place(vision, call.messages[match.messages :], delta, keep)
        else:
            prompt = self._renderer.render(call, hash_prompt(call))
            images = _place(vision, call.messages, prompt)
            parent, keep = tree.share(prompt, images) if tree.turns else (None, 0)
            origin, reason = ("render", str(bridged)) if tree.turns else ("first", "")
            plan = PromptPlan(call, sampling, prompt, parent, keep, origin, reason)
        plan.fingerprints, plan.match = fingerprints, match
        if vision is not None:
            plan.images = tuple(image for image in images if image.start >= plan.keep)
            before = plan.parent.placed_images(plan.keep) if plan.parent is not None else []
            plan.prepared = vision.prepare([*before, *plan.images], session.images)
        self._constrain(plan, call)
        return plan

    def _constrain(self, plan: PromptPlan, call: ChatCall) -> None:
        """Have the model call the tool that it must call, or write text that fits the schema.

        Both come after a thought. For an engine without forms, the prompt contains the beginning of the call.
        """
        must_call = call.tool_choice not in ("auto", "none")
        if must_call:
            plan.sampling = dataclasses.replace(plan.sampling, json_schema=None)
        form = choose_form(self._renderer, call, plan.prompt, plan.sampling.json_schema) if self._forms() else None
        if form is not None:
            plan.sampling = dataclasses.replace(plan.sampling, json_schema=None, form=form)
        elif must_call:
            plan.forced = self._renderer.encode_forced_call(call)
            plan.prompt = plan.prompt + array(IDS, plan.forced)

    def _plan_text(self, session: Session, call: TextCall, sampling: Sampling) -> PromptPlan:
        tokenizer = self._renderer.tokenizer
        if isinstance(call.prompt, list):
            if max(call.prompt, default=0) >= tokenizer.size:
                raise GatewayFault.invalid("prompt has token ids beyond the tokenizer's vocabulary", param="prompt")
            prompt = array(IDS, call.prompt)
            turn, keep = session.tree.share(prompt) if session.tree.turns else (None, 0)
        else:
            turn, keep, rest = self._find_text(session, call.prompt)
            start = turn.tokens(keep) if turn is not None else array(IDS)
            prompt = start + tokenizer.encode_packed(rest, add_special_tokens=turn is None)
        if not prompt:
            raise GatewayFault.invalid("prompt is empty", param="prompt")
        bridged = turn is not None and keep > turn.prompt_length
        origin = "bridge" if bridged else "render" if session.tree.turns else "first"
        return PromptPlan(call, sampling, prompt, turn, keep, origin, CHANGED if origin == "render" else "")

    def _find_text(self, session: Session, prompt: str) -> tuple[Turn | None, int, str]:
        """The turn whose text a prompt continues, how many of its tokens, and the text after them."""
        for length, digest, shown, turn in reversed(session.texts):
            if length <= len(prompt) and hash_text(prompt[:length]) == digest:
                return turn, *self._continue_text(turn, shown, prompt[length:])
        return None, 0, prompt

    def _continue_text(self, turn: Turn, shown: int, rest: str) -> tuple[int, str]:
        """How many of a turn's tokens a text continues, and the text after them.

        A client sees the first `shown` characters of what was sampled. The others, a stop string or the end, are part
        of its next prompt only if it writes them there.
        """
        decode, sampled = self._renderer.tokenizer.decode, turn.sampled.tolist()
        text = decode(sampled)
        if rest.startswith(text[shown:]):
            return turn.length, rest[len(text) - shown :]
        kept = bisect_right(range(len(sampled) + 1), shown, key=lambda count: len(decode(sampled[:count]))) - 1
        return turn.prompt_length + kept, text[len(decode(sampled[:kept])) : shown] + rest


def _find_limit(session: Session, context_length: int | None) -> int | None:
    limits = [limit for limit in (session.settings.context_limit, context_length) if limit is not None]
    return min(limits, default=None)


def _too_long(limit: int, length: str) -> GatewayFault:
    return GatewayFault(
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {length}.",
        status=400,
        code="context_length_exceeded",
        param="messages",
    )


def _place(
    vision: VisionProcessor | None, messages: list[Message], ids: array[int], start: int = 0
) -> tuple[PlacedImage, ...]:
    return vision.place(ids, list(list_hashes(messages)), start) if vision is not None else ()


def choose_form(
    renderer: ChatRenderer, call: ChatCall, prompt: array[int], schema: dict[str, Any] | None
) -> Form | None:
    """The form of a reply with a `schema`, or with a call that must be made.

    None if the reply needs no form, because its first token begins the call or the text anyway.
    """
    thought = _find_thought(renderer, prompt)
    if call.tool_choice not in ("auto", "none"):
        return Form(thought, _begin_call(renderer, call)) if thought else None
    if schema is None:
        return None
    mark = _find_call_mark(renderer, call) if call.known_tools and call.tool_choice == "auto" else ""
    return Form(thought, mark, schema) if thought or mark else None


def _find_thought(renderer: ChatRenderer, prompt: array[int]) -> Literal["", "optional", "open"]:
    end = renderer.tokenizer.decode(prompt[-_END:].tolist()).rstrip()
    if end.endswith(THINK):
        return "open"
    thinks = THINK in renderer.tokenizer.get_added_vocab()
    return "optional" if thinks and not end.endswith(THOUGHT) else ""


def _begin_call(renderer: ChatRenderer, call: ChatCall) -> str:
    """The beginning of the call that must be made, without a thought before it."""
    return renderer.tokenizer.decode(renderer.encode_forced_call(call)).rpartition(THOUGHT)[2].lstrip()


def _find_call_mark(renderer: ChatRenderer, call: ChatCall) -> str:
    """The mark that distinguishes a call from text: the token that begins calls, or `{"name":` without one."""
    try:
        begin = _begin_call(renderer, dataclasses.replace(call, tool_choice="required"))
    except RenderFault:  # a format without calls
        return ""
    marks = renderer.tokenizer.get_added_vocab()
    return max((mark for mark in marks if begin.startswith(mark)), key=len, default=begin.rstrip(' "'))
