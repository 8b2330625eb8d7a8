"""From a call to its prompt, and from what was sampled back to a reply: all that a call needs besides sampling.

A plan says where a prompt goes on from (a turn of the session, and how many of its tokens) and what is new in it.
"""

from __future__ import annotations

import dataclasses
import logging
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from xxhash import xxh3_128

from ...engine.base import IDS, Sampling
from ...errors import GatewayFault, RenderFault
from ..record.session import Session
from ..record.turn import Turn
from ..render.renderer import ChatRenderer
from . import unbridged
from .chat import ChatCall, Message, Prints, Reply, TextCall, render_key
from .constraint import reply_form
from .reply_stream import ReplyStream, streams

logger = logging.getLogger(__name__)

_PROMPT_END = 64  # ids of the prompt's end that parsing a reply may look at


@dataclass(slots=True)
class Plan:
    """A call with its prompt: where it goes on from, and what is new."""

    call: ChatCall | TextCall
    sampling: Sampling
    parent: Turn | None
    keep: int
    delta: array[int]
    origin: str
    prompt: array[int]
    prints: Prints | None
    used: int
    """Messages that the parent turn has seen already."""
    unbridged: str = ""
    """Why the prompt was rendered anew, if the session had turns: one of `unbridged`."""
    forced: list[int] = field(default_factory=list)
    side: bool = False
    """A side call, which is not trained on."""
    sibling: Turn | None = None
    """Another choice of the same call that is recorded: the prompt need not be kept twice."""

    def new_messages(self) -> list[Message]:
        """Those that the turns before have not seen."""
        return self.call.messages[self.used :] if isinstance(self.call, ChatCall) else []

    def omitted(self) -> dict[str, int]:
        """What is new in the prompt and not shown to the model, by kind: parts of messages, and the API's own tools."""
        kinds: Counter[str] = Counter()
        if isinstance(self.call, ChatCall):
            kinds.update(self.call.omitted if self.origin != "bridge" else ())
            for message in self.new_messages():
                kinds.update(message.get("omitted", {}))
        return dict(kinds)


class Planner:
    """Plans calls for one model."""

    def __init__(self, renderer: ChatRenderer, *, forms: Callable[[], bool] = lambda: False) -> None:
        """`forms`: whether the engine takes the form of a reply."""
        self._renderer = renderer
        self._forms = forms

    def plan(self, session: Session, call: ChatCall | TextCall, context_length: int | None) -> Plan:
        """The call's prompt, checked against the context limit."""
        sampling = session.sampling(call.sampling)
        plan = self._unbounded(session, call, sampling)
        sampling = plan.sampling
        limits = [limit for limit in (session.settings.context_limit, context_length) if limit is not None]
        if limits:
            left = min(limits) - len(plan.prompt)
            if left < 1:
                over = 1 - left
                raise GatewayFault(
                    f"This model's maximum context length is {min(limits)} tokens. However, your messages resulted in "
                    f"{len(plan.prompt)} tokens: {over} too many to sample one more.",
                    status=400,
                    code="context_length_exceeded",
                    param="messages",
                )
            if sampling.max_tokens is None or sampling.max_tokens > left:
                sampling = dataclasses.replace(sampling, max_tokens=left)
        plan.sampling = dataclasses.replace(
            sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *self._renderer.stop_ids)))
        )
        return plan

    def count(self, session: Session, call: ChatCall | TextCall) -> int:
        """How long the call's prompt would be, whatever the limit."""
        return len(self._unbounded(session, call, session.sampling(call.sampling)).prompt)

    def _unbounded(self, session: Session, call: ChatCall | TextCall, sampling: Sampling) -> Plan:
        try:
            if isinstance(call, TextCall):
                return self._plan_text(session, call, sampling)
            return self._plan_chat(session, call, sampling)
        except RenderFault as error:
            raise GatewayFault.invalid(str(error), param="messages", code="cannot_render") from error

    def _plan_chat(self, session: Session, call: ChatCall, sampling: Sampling) -> Plan:
        tree = session.tree
        session.made_calls.restore(call.messages)
        turn, used, prints = tree.find(call)
        bridged = self._renderer.bridge(turn, call, used, prints.appended) if turn is not None else unbridged.CHANGED
        if turn is not None and not isinstance(bridged, str):
            keep, delta = bridged
            origin, parent, reason = "bridge", turn, ""
            prompt = turn.tokens(keep)
            prompt.extend(delta)
        else:
            prompt = self._renderer.render(call, render_key(call))
            origin, parent, used = ("render" if tree.turns else "first"), None, 0
            reason = bridged if tree.turns and isinstance(bridged, str) else ""
            parent, keep = tree.share(prompt) if tree.turns else (None, 0)
            delta = prompt[keep:]
        plan = Plan(call, sampling, parent, keep, delta, origin, prompt, prints, used, reason)
        self._constrain(plan, call)
        return plan

    def _constrain(self, plan: Plan, call: ChatCall) -> None:
        """Have the model call the tool that it has to call, and write the text that it has to write.

        Both come after a thought. An engine that takes no forms begins with the call, or with the text.
        """
        if call.tool_choice not in ("auto", "none"):
            plan.sampling = dataclasses.replace(plan.sampling, json_schema=None)
        form = reply_form(self._renderer, call, plan.prompt, plan.sampling.json_schema) if self._forms() else None
        if form is not None:
            plan.sampling = dataclasses.replace(plan.sampling, json_schema=None, form=form)
        elif call.tool_choice not in ("auto", "none"):
            plan.forced = self._renderer.forced(call)
            plan.delta = plan.delta + array(IDS, plan.forced)
            plan.prompt = plan.prompt + array(IDS, plan.forced)

    def _plan_text(self, session: Session, call: TextCall, sampling: Sampling) -> Plan:
        if isinstance(call.prompt, list):
            if max(call.prompt) >= self._renderer.tokenizer.size:
                raise GatewayFault.invalid("prompt has token ids that the tokenizer doesn't know", param="prompt")
            prompt = array(IDS, call.prompt)
            parent, keep = session.tree.share(prompt) if session.tree.turns else (None, 0)
        else:
            parent, keep = None, 0
            rest = call.prompt
            for length, digest, said, turn in reversed(session.texts):
                if length <= len(call.prompt) and text_print(call.prompt[:length]) == digest:
                    parent = turn
                    keep, rest = self._going_on(turn, said, call.prompt[length:])
                    break
            start = parent.tokens(keep) if parent is not None else array(IDS)
            prompt = start + self._renderer.tokenizer.packed(rest, add_special_tokens=parent is None)
        if not prompt:
            raise GatewayFault.invalid("prompt is empty", param="prompt")
        goes_on = parent is not None and keep > parent.prompt_length
        origin = "bridge" if goes_on else "render" if session.tree.turns else "first"
        reason = unbridged.CHANGED if origin == "render" else ""
        return Plan(call, sampling, parent, keep, prompt[keep:], origin, prompt, None, 0, reason)

    def _going_on(self, turn: Turn, said: int, rest: str) -> tuple[int, str]:
        """How many of a turn's tokens a text goes on from, and what comes after them.

        A client is told the first `said` characters of what was sampled. The others, a stop string or the end, are part
        of its next prompt only if it writes them there.
        """
        decode, sampled = self._renderer.tokenizer.decode, turn.sampled.tolist()
        text = decode(sampled)
        if rest.startswith(text[said:]):
            return turn.length, rest[len(text) - said :]
        kept = bisect_right(range(len(sampled) + 1), said, key=lambda count: len(decode(sampled[:count]))) - 1
        return turn.prompt_length + kept, text[len(decode(sampled[:kept])) : said] + rest

    def watch(self, plan: Plan, *, streamed: bool) -> ReplyStream | None:
        """What watches the text as it comes, where anybody has to."""
        if not streamed and not plan.sampling.stop:
            return None
        call = plan.call
        chat = isinstance(call, ChatCall)
        end = self._renderer.tokenizer.decode(plan.prompt[-4:].tolist()).rstrip() if chat else ""
        return ReplyStream(
            self._renderer.tokenizer,
            stop_ids=self._renderer.stop_ids,
            stop=plan.sampling.stop,
            calls=isinstance(call, ChatCall) and bool(call.known_tools) and call.tool_choice != "none",
            thinking=end.endswith("<think>"),
            plain=not chat,
            live=not plan.forced and streams(self._renderer.family.format),
        )

    def parse(self, plan: Plan, sampled: array[int], uid: str, *, stopped: bool, told: str = "") -> Reply:
        """What was sampled says; if it was `stopped` by a stop string, what comes before that says.

        `told` was passed on as content. That can't be taken back: a reply that doesn't begin with it is only text.
        """
        tokenizer = self._renderer.tokenizer
        ids, stop = sampled.tolist(), None
        if stopped:
            text = tokenizer.decode([token for token in ids if token not in self._renderer.stop_ids])
            places = [(text.find(known), known) for known in plan.sampling.stop if known in text]
            if places:
                place, stop = min(places)
                ids = tokenizer.encode(text[:place])
        reply = self._read(plan, ids, uid)
        if not reply.content.startswith(told) and not reply.tool_calls:
            text = tokenizer.decode([token for token in ids if token not in self._renderer.stop_ids]).strip()
            reply = Reply(text) if text.startswith(told) else reply
        reply.stop = stop
        return reply

    def _read(self, plan: Plan, ids: list[int], uid: str) -> Reply:
        tokenizer = self._renderer.tokenizer
        if isinstance(plan.call, TextCall):
            while ids and ids[-1] in self._renderer.stop_ids:
                ids.pop()
            return Reply(content=tokenizer.decode(ids))
        end = plan.prompt[: len(plan.prompt) - len(plan.forced)][-_PROMPT_END:]
        try:
            return self._renderer.parse([*plan.forced, *ids], end, plan.call, uid)
        except Exception as error:  # whatever the model says is data
            logger.warning("a reply could not be parsed: %s", type(error).__name__)
            return Reply(content=tokenizer.decode(ids), parse_failures=1)


def text_print(text: str) -> bytes:
    return xxh3_128(text.encode("utf-8", "surrogatepass")).digest()
