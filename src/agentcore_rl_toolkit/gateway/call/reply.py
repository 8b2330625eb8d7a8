"""From sampled ids to a reply: as a stream while they come, and parsed once they are complete."""

from __future__ import annotations

import logging
from array import array

from ..render.renderer import ChatRenderer
from .chat import ChatCall, Reply, TextCall
from .prompt_plan import PromptPlan
from .reply_stream import ReplyStream, can_stream

logger = logging.getLogger(__name__)

_PROMPT_END = 64  # ids of the prompt's end that parsing a reply may look at


class ReplyReader:
    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self.decode = renderer.tokenizer.decode

    def open_stream(self, plan: PromptPlan, *, streamed: bool) -> ReplyStream | None:
        """A stream that turns ids into text as they come; None if neither the client nor a stop string needs it."""
        if not streamed and not plan.sampling.stop:
            return None
        call = plan.call
        chat = isinstance(call, ChatCall)
        end = self.decode(plan.prompt[-4:].tolist()).rstrip() if chat else ""
        return ReplyStream(
            self._renderer.tokenizer,
            stop_ids=self._renderer.stop_ids,
            stop=plan.sampling.stop,
            calls=isinstance(call, ChatCall) and bool(call.known_tools) and call.tool_choice != "none",
            thinking=end.endswith("<think>"),
            plain=not chat,
            live=not plan.forced and can_stream(self._renderer.family.format),
        )

    def parse(self, plan: PromptPlan, sampled: array[int], uid: str, *, stopped: bool, passed_on: str = "") -> Reply:
        """The reply that was sampled; if a stop string ended it (`stopped`), the part before the stop string.

        A client that streams has `passed_on` as content already: a reply that doesn't begin with it is only text.
        """
        ids, stop = sampled.tolist(), None
        if stopped:
            text = self._decode_text(ids)
            places = [(text.find(known), known) for known in plan.sampling.stop if known in text]
            if places:
                place, stop = min(places)
                ids = self._renderer.tokenizer.encode(text[:place])
        reply = self._parse_ids(plan, ids, uid)
        if not reply.content.startswith(passed_on) and not reply.tool_calls:
            text = self._decode_text(ids).strip()
            reply = Reply(text) if text.startswith(passed_on) else reply
        reply.stop = stop
        return reply

    def _decode_text(self, ids: list[int]) -> str:
        return self.decode([token for token in ids if token not in self._renderer.stop_ids])

    def _parse_ids(self, plan: PromptPlan, ids: list[int], uid: str) -> Reply:
        if isinstance(plan.call, TextCall):
            while ids and ids[-1] in self._renderer.stop_ids:
                ids.pop()
            return Reply(content=self.decode(ids))
        end = plan.prompt[: len(plan.prompt) - len(plan.forced)][-_PROMPT_END:]
        try:
            return self._renderer.parse([*plan.forced, *ids], end, plan.call, uid)
        except Exception as error:  # whatever the model samples is data
            logger.warning("a reply could not be parsed: %s", type(error).__name__)
            return Reply(content=self.decode(ids), parse_failures=1)
