"""One choice of a model call: sampled, parsed, and recorded as a turn before anybody sees it.

A choice that the engine gives up on, for a weight update, is asked for again from where it was. One that nobody is
listening to any more, or that fails half-way, is recorded with what there was, and masked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from ...engine.base import IDS, Sampled, SampleRequest, Sampling
from ...engine.reply_form import Form
from ...errors import EngineError, GatewayFault
from ..record.session import Answer, Outcome, Session
from ..record.turn import ABORTED, ENGINE_ERROR, SIDE_CALL, Draft, Tokens, Turn, covered, new_routes
from .chat import Reply, TextCall, after
from .history import remember
from .plan import Plan, text_print

if TYPE_CHECKING:
    from .core import Core

_MOST_RESUMPTIONS = 64
_CROWD = 100  # with more choices than this at a time, each stream passes on its tokens …
_PACE = 0.05  # … so many seconds apart, so that one core carries hundreds of them
_TEXTS_REMEMBERED = 8

Piece = Callable[[int, str, str, Tokens], Awaitable[None]]
"""Called with a choice's number, reasoning, text, and the tokens since the last piece."""


class Choice:
    """One of a call's `n`."""

    def __init__(
        self, core: Core, session: Session, plan: Plan, answer: Answer, number: int, stream: bool, piece: Piece | None
    ) -> None:
        self._core, self._session, self._plan, self._answer = core, session, plan, answer
        self._number, self._stream, self._piece = number, stream, piece
        self._reading = core.planner.watch(plan, streamed=piece is not None)
        self._draft, self._began = Draft(time.time()), time.monotonic()
        self._uid = answer.uid if number == 0 else f"{answer.uid}{number}"

    async def run(self) -> Outcome:
        core, plan, draft = self._core, self._plan, self._draft
        try:
            finish = await self._sample()
        except (asyncio.CancelledError, ConnectionError):  # nobody is listening any more
            self._record(Reply(), "abort", masked=ABORTED)
            raise
        except Exception as error:
            core.faults["engine"] += 1
            if draft.sampled:
                self._record(Reply(), "error", masked=ENGINE_ERROR)
            if isinstance(error, EngineError):
                raise engine_fault(error) from error
            raise
        reading = self._reading
        stopped = reading is not None and reading.stopped
        told = reading.content if reading is not None and self._piece is not None else ""
        reply = core.planner.parse(plan, draft.sampled, self._uid, stopped=stopped, told=told)
        outcome = Outcome(self._record(reply, finish, masked=None), reply, draft.tops)
        if reading is not None and self._piece is not None:
            outcome.rest = (*reading.finish(reply), draft.unsent())
        return outcome

    async def _sample(self) -> str:
        """Sample to the end; why it ended."""
        for _ in range(_MOST_RESUMPTIONS):
            await self._core.going()
            finish = await self._ask()
            if finish != "abort":
                return finish
        raise EngineError("the engine gave up on this call again and again", status=503, sampled_any=True)

    async def _ask(self) -> str:
        """Sample until the engine stops; `abort` if it gave up and should be asked to go on."""
        core, draft = self._core, self._draft
        request = self._request()
        versions = [list(known) for known in draft.versions]
        waiting: list[int] = []
        finish, told = None, -math.inf
        with core.sampling():
            async with aclosing(cast(Any, core.engine.sample(request))) as chunks:
                async for chunk in chunks:
                    finish = self._take(chunk, versions)
                    # What comes with the end goes out with the end.
                    if self._reading is not None and (finish in (None, "abort") or request.sampling.stop):
                        waiting.extend(chunk.token_ids)
                        now = time.monotonic()
                        if finish is not None or core.sampled_now <= _CROWD or now - told >= _PACE:
                            piece, told = self._reading.feed(waiting), now
                            waiting.clear()
                            await self._tell(*piece)
                            if self._reading.stopped:  # also where the limit came in the same stretch
                                finish = "stop"
                    if finish is not None:
                        break
        if finish is None:
            raise EngineError("the engine's answer ended before it was whole", sampled_any=bool(draft.sampled))
        longest = self._plan.sampling.max_tokens
        if finish == "abort" and longest is not None and len(draft.sampled) >= longest:
            return "length"
        return finish

    def _request(self) -> SampleRequest:
        """What the engine is asked for: all of it, or what is missing still."""
        plan, draft = self._plan, self._draft
        prompt, sampling = plan.prompt, plan.sampling
        if draft.sampled:
            prompt = prompt + draft.sampled
            sampling = self._left(sampling)
            if sampling.max_tokens is not None:
                left: Sampling = dataclasses.replace(sampling, max_tokens=sampling.max_tokens - len(draft.sampled))
                sampling = left
        routes_from = covered(plan.parent, plan.keep) if self._core.routes else None
        stream = self._stream or bool(self._reading)
        model = self._answer.model or None
        return SampleRequest(prompt, sampling, model, self._session.id, self._number, stream, routes_from)

    def _left(self, sampling: Sampling) -> Sampling:
        """The constraints on what is missing still. Text that was begun goes on freely: no engine takes half of it."""
        form, schema = sampling.form, sampling.json_schema
        if form is None and schema is None:
            return sampling
        said = self._core.renderer.tokenizer.decode(self._draft.sampled.tolist())
        rest = (form or Form(schema=schema)).remaining(said)
        return dataclasses.replace(sampling, form=rest if form else None, json_schema=schema if rest else None)

    def _take(self, chunk: Sampled, versions: list[list[Any]]) -> str | None:
        self._draft.take(chunk, self._core.weight_version)
        if chunk.versions:  # the engine tells which tokens were sampled with which
            self._draft.versions = versions + [list(known) for known in chunk.versions]
        return chunk.finish

    async def _tell(self, reasoning: str, content: str) -> None:
        """Hand on what was said since the last time."""
        if self._piece is not None and (reasoning or content):
            await self._piece(self._number, reasoning, content, self._draft.unsent())

    def _record(self, reply: Reply, finish: str, *, masked: str | None) -> Turn:
        """Make the turn, and put it on record before anybody sees it."""
        core, session, plan, draft = self._core, self._session, self._plan, self._draft
        parent, keep, delta = plan.parent, plan.keep, plan.delta
        if plan.sibling is not None:
            parent, keep, delta = plan.sibling, plan.sibling.prompt_length, array(IDS)
        turn = Turn(
            index=len(session.tree.turns),
            parent=parent,
            keep=keep,
            delta_ids=delta,
            sampled_ids=draft.sampled,
            logprobs=draft.logprobs,
            finish=finish,
            versions=draft.known_versions(),
            masked=masked or (SIDE_CALL if plan.side else None),
            origin=plan.origin,
            unbridged=plan.unbridged,
            routes=new_routes(draft.routes, parent, keep),
            parse_failures=reply.parse_failures,
            tool_calls=len(reply.tool_calls),
            omitted=plan.omitted() if plan.sibling is None else {},
            started=draft.started,
            seconds=time.monotonic() - self._began,
            uid=self._uid,
        )
        plan.sibling = plan.sibling or turn
        self._count(turn)
        asked = end = b""
        text = None
        if masked is None and plan.prints is not None:
            asked, end = plan.prints.whole.digest(), after(plan.prints.whole, reply.message())
        elif masked is None and isinstance(plan.call, TextCall) and isinstance(plan.call.prompt, str):
            whole = plan.call.prompt + reply.content
            text = (len(whole), text_print(whole), len(reply.content))
            session.texts = [*session.texts[-_TEXTS_REMEMBERED:], (*text, turn)]
        kept = remember(session, plan, self._uid, reply) if masked is None else None
        session.tree.add(turn, end, asked, reply if end else None)
        session.made_calls.add(reply.tool_calls)
        if core.log is not None and not session.gone:
            known = {"messages": plan.new_messages(), "text": text, "end": end, "asked": asked, "kept": kept}
            tops = {"tops": draft.tops} if draft.tops else {}
            core.log.write_turn(session, turn, reply, self._answer, **known, **tops)
        return turn

    def _count(self, turn: Turn) -> None:
        totals = self._core.totals
        totals["turns"] += 1
        totals["sampled_tokens"] += turn.length - turn.prompt_length
        totals["prompt_tokens"] += turn.prompt_length
        totals[f"turns_{turn.origin}"] += 1
        if turn.unbridged:
            totals[f"unbridged_{turn.unbridged}"] += 1
        totals["parse_failures"] += turn.parse_failures


def engine_fault(error: EngineError) -> GatewayFault:
    """An engine's error as the agent sees it."""
    code = {400: "invalid_request", 404: "model_not_found", 429: "overloaded", 503: "engine_unavailable"}
    wait = error.retry_after or (1 if error.status == 503 else None)
    return GatewayFault(str(error), status=error.status, code=code.get(error.status, "engine_error"), retry_after=wait)
