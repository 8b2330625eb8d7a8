"""The gateway without HTTP: sessions, and one model call from canonical messages to a recorded turn and a reply.

    match the call to a turn → bridge or render its prompt → sample → parse → record → reply

Nothing is sampled before the call is known to be in order, and nothing is answered before it is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from .chat import ChatCall, Reply, TextCall, after, exact
from .engine.base import (
    IDS,
    ChatEngine,
    Engine,
    EngineError,
    EngineInfo,
    SampleRequest,
)
from .faults import Fault
from .history import remember
from .log import Log
from .plan import Plan, Planner, text_print
from .proxy import Gathered, chat_body
from .render import ChatRenderer
from .session import Answer, Outcome, Session
from .sessions import Sessions
from .stream import ReplyStream
from .trajectory import Trajectories, fold
from .turn import ABORTED, ENGINE_ERROR, UNDELIVERED, Draft, Tokens, Turn, covered, new_routes

logger = logging.getLogger(__name__)

_MOST_RESUMPTIONS = 64
_LARGE = 200_000  # bytes
_CROWD = 100  # with more calls than this at a time, each stream passes on its tokens …
_PACE = 0.05  # … so many seconds apart, so that one core carries hundreds of them
_PROMPT_END = 64  # ids of the prompt's end that parsing a reply may look at
_GONE_REMEMBERED = 10_000
_TEXTS_REMEMBERED = 8


Piece = Callable[[int, str, str, Tokens], Awaitable[None]]
"""Called with a choice's number, reasoning, text, and the tokens since the last piece."""


@dataclass(frozen=True)
class Limits:
    """When to say no instead of queueing."""

    max_in_flight: int = 4096
    max_sessions: int = 100_000
    max_body_bytes: int = 64 << 20
    sweep_seconds: float = 30.0


class Core:
    """Sessions and calls."""

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        *,
        log: Log | None = None,
        limits: Limits | None = None,
        routes: bool = False,
    ) -> None:
        """`routes` asks the engine for expert routes, where it doesn't tell them anyway."""
        self.engine = engine
        self.renders: bool = getattr(engine, "renders", False)
        """The engine's server renders and parses chats by itself."""
        self.renderer = renderer
        self.log = log
        self.routes = routes
        self.limits = limits or Limits()
        self.planner = Planner(renderer, passed_on=self.renders)
        self.sessions = Sessions(log, most=self.limits.max_sessions)
        self.info = EngineInfo(models=())
        self.weight_version: str | None = None
        self.in_flight = 0
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._going = asyncio.Event()
        self._going.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sampling = 0
        self._still = asyncio.Event()
        self._still.set()

    async def start(self) -> None:
        """Get the engine ready. One that can't be reached yet is asked again with the first call."""
        await self.engine.start()
        with contextlib.suppress(EngineError):
            self.info = await self.engine.info()

    async def close(self) -> None:
        await self.engine.close()
        if self.log is not None:
            self.log.close()

    def trajectories(self, session: Session) -> Trajectories:
        """The session's turns so far, folded."""
        return fold(session.tree.turns, mask_truncated=session.settings.mask_truncated)

    # Weight updates

    async def pause(self) -> None:
        """Let no new call sample until `resume`; agents wait, and notice nothing but the time."""
        self._going.clear()
        try:
            await self.engine.pause()
        except BaseException:
            self._going.set()
            raise

    async def resume(self) -> None:
        await self.engine.resume()
        self._going.set()

    async def drain(self) -> None:
        """Wait until nothing is being sampled; `pause` first. Calls that it holds back are none of that."""
        await self._still.wait()

    async def ended(self) -> None:
        """Wait until no call is in flight."""
        await self._idle.wait()

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    # Calls

    async def model(self, asked: str | None, session: Session) -> str | None:
        """The engine's name for the model a call asks for."""
        if session.settings.model is not None:
            return session.settings.model
        if not self.info.models:
            try:
                self.info = await self.engine.info()
            except EngineError as error:
                raise engine_fault(error) from error
        if asked is None or not self.info.models:
            return self.info.models[0] if self.info.models else asked
        if asked not in self.info.models:
            self.info = await self._ask_again()
        if asked not in self.info.models:
            known = ", ".join(self.info.models[:8])
            raise Fault(
                404, "model_not_found", f"the model {asked!r} does not exist", param="model", hint=f"there is: {known}"
            )
        return asked

    async def _ask_again(self) -> EngineInfo:
        """An adapter may have been loaded since."""
        try:
            return await self.engine.info()
        except EngineError:
            return self.info

    async def answer(
        self,
        session: Session,
        call: ChatCall | TextCall,
        request: bytes,
        *,
        size: int = 0,
        retried: bool = False,
        stream: bool = False,
        piece: Piece | None = None,
        begin: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Answer one request of an agent. `request` is a print of its bytes, to know it again, `size` their number.

        A request that is sent again (the client says so, or never received the answer) gets the recorded turn.
        """
        while (known := session.answers.get(request)) is not None and (retried or known.lost):
            await known.done.wait()
            if known.whole:
                self.totals["replayed"] += 1
                if begin is not None:
                    begin(known)
                return known
            if known is session.answers.get(request):
                break
        if self.in_flight >= self.limits.max_in_flight:
            raise Fault(429, "overloaded", f"{self.in_flight} calls are in flight", retry_after=1)
        answer = Answer(int(time.time()), secrets.token_hex(8), "", request, call.n)
        self.in_flight += 1
        session.in_flight += 1
        self._idle.clear()
        try:
            answer.model = await self.model(call.model, session) or ""
            session.remember(answer)
            if size > _LARGE:  # tokenizing it takes a while, and others are waiting
                plan = await asyncio.to_thread(self.planner.plan, session, call, self.info.context_length)
            else:
                plan = self.planner.plan(session, call, self.info.context_length)
            answer.prompt_tokens = len(plan.prompt)
            if begin is not None:
                begin(answer)
            if call.n == 1:
                answer.outcomes = [await self._sample(session, plan, answer, 0, stream, piece)]
            else:
                answer.outcomes = await self._sample_all(session, plan, answer, stream, piece)
        finally:
            answer.done.set()
            self.in_flight -= 1
            session.in_flight -= 1
            session.used = time.time()
            if not self.in_flight:
                self._idle.set()
        return answer

    async def count(self, session: Session, call: ChatCall | TextCall, *, size: int = 0) -> int:
        """How many tokens the call's prompt would have; nothing is sampled, and nothing recorded."""
        await self.model(call.model, session)
        if size > _LARGE:
            return await asyncio.to_thread(self.planner.count, session, call)
        return self.planner.count(session, call)

    def undelivered(self, session: Session, answer: Answer) -> None:
        """The client went away before it had the whole answer."""
        answer.lost = True
        for outcome in answer.outcomes:
            self._mask(session, outcome.turn, UNDELIVERED)

    def delivered(self, session: Session, answer: Answer) -> None:
        """The whole answer was written to the client."""
        answer.lost = False
        for outcome in answer.outcomes:
            if outcome.turn.masked == UNDELIVERED:  # this was the second try
                self._mask(session, outcome.turn, None)

    def _mask(self, session: Session, turn: Turn, reason: str | None) -> None:
        turn.masked = reason
        if self.log is not None and not session.gone:
            self.log.write(session.id, "masked", index=turn.index, reason=reason)

    async def _sample_all(
        self, session: Session, plan: Plan, answer: Answer, stream: bool, piece: Piece | None
    ) -> list[Outcome]:
        """All choices of a call, at the same time; the first failure ends the others."""
        tasks = [
            asyncio.ensure_future(self._sample(session, plan, answer, choice, stream, piece))
            for choice in range(plan.call.n)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Outcome):
                    self._mask(session, ended.turn, UNDELIVERED)
            raise

    async def _sample(
        self, session: Session, plan: Plan, answer: Answer, choice: int, stream: bool, piece: Piece | None
    ) -> Outcome:
        """One choice: sampled, parsed, recorded."""
        draft = Draft(time.time())
        passed_on = isinstance(plan.call, ChatCall) and self.renders
        reading = self.planner.watch(plan, streamed=piece is not None) if not passed_on else None
        gathered = Gathered()
        uid = answer.uid if choice == 0 else f"{answer.uid}{choice}"
        try:
            for _ in range(_MOST_RESUMPTIONS):
                while self.paused:
                    await self._going.wait()
                if passed_on:
                    finish = await self._pass_on(session, plan, draft, answer, choice, stream, gathered, piece)
                    break
                finish = await self._run(session, plan, draft, answer, choice, stream, reading, piece)
                if finish != "abort":
                    break
            else:
                raise EngineError("the engine gave up on this call again and again", status=503, sampled_any=True)
        except (asyncio.CancelledError, ConnectionError):  # nobody is listening any more
            if plan.prompt:  # a server that renders by itself may not have said yet what it was asked
                self._record(session, plan, draft, Reply(), answer, uid, "abort", masked=ABORTED)
            raise
        except Exception as error:
            self.faults["engine"] += 1
            if draft.sampled:
                self._record(session, plan, draft, Reply(), answer, uid, "error", masked=ENGINE_ERROR)
            if isinstance(error, EngineError):
                raise engine_fault(error) from error
            raise
        stopped = reading is not None and reading.stopped
        reply = gathered.reply if passed_on else self.planner.parse(plan, draft.sampled, uid, stopped=stopped)
        turn = self._record(session, plan, draft, reply, answer, uid, finish, masked=None)
        outcome = Outcome(turn, reply, draft.tops)
        if reading is not None and piece is not None:
            outcome.rest = (*reading.finish(reply), draft.unsent())
        elif passed_on:
            outcome.rest = (*gathered.unsent(), draft.unsent())
        return outcome

    async def _pass_on(
        self,
        session: Session,
        plan: Plan,
        draft: Draft,
        answer: Answer,
        choice: int,
        stream: bool,
        gathered: Gathered,
        piece: Piece | None,
    ) -> str:
        """Have the engine's server render, sample and parse."""
        assert isinstance(plan.call, ChatCall)
        body = chat_body(plan.call, plan.sampling, answer.model, stream)
        chunks = cast(ChatEngine, self.engine).chat(body, session.id)
        finish = None
        self._sampling += 1
        self._still.clear()
        try:
            async for chunk in chunks:
                if chunk.prompt is not None and not plan.prompt:
                    self.planner.place(session, plan, chunk.prompt)
                sampled = chunk.sampled
                draft.take(sampled, self.weight_version)
                gathered.add(chunk.message)
                finish = sampled.finish
                if finish is not None:
                    break
                reasoning, content = gathered.unsent()
                if piece is not None and (reasoning or content):
                    await piece(choice, reasoning, content, draft.unsent())
        finally:
            self._sampling -= 1
            if not self._sampling:
                self._still.set()
            await chunks.aclose()  # type: ignore[attr-defined]
        if finish is None or finish == "abort" or not plan.prompt:
            raise EngineError("the engine's answer ended before it was whole", sampled_any=bool(draft.sampled))
        return finish

    async def _run(
        self,
        session: Session,
        plan: Plan,
        draft: Draft,
        answer: Answer,
        choice: int,
        stream: bool,
        reading: ReplyStream | None,
        piece: Piece | None,
    ) -> str:
        """Sample until the engine stops; `abort` if it gave up and should be asked to go on."""
        sampling = plan.sampling
        prompt = plan.prompt
        if draft.sampled:
            prompt = prompt + draft.sampled
            if sampling.max_tokens is not None:
                sampling = dataclasses.replace(sampling, max_tokens=sampling.max_tokens - len(draft.sampled))
        routes_from = covered(plan.parent, plan.keep) if self.routes else None
        stream = stream or bool(reading)
        request = SampleRequest(prompt, sampling, answer.model or None, session.id, choice, stream, routes_from)
        chunks = self.engine.sample(request)
        finish = None
        versions = [list(known) for known in draft.versions]
        waiting: list[int] = []
        passed_on = 0.0
        self._sampling += 1
        self._still.clear()
        try:
            async for chunk in chunks:
                draft.take(chunk, self.weight_version)
                if chunk.versions:  # the engine tells which tokens were sampled with which
                    draft.versions = versions + [list(known) for known in chunk.versions]
                finish = chunk.finish
                # What comes with the end goes out with the end.
                if reading is not None and (finish in (None, "abort") or sampling.stop):
                    waiting.extend(chunk.token_ids)
                    now = time.monotonic()
                    if finish is not None or self._sampling <= _CROWD or now - passed_on >= _PACE:
                        reasoning, content = reading.feed(waiting)
                        passed_on = now
                        waiting.clear()
                        if piece is not None and (reasoning or content):
                            await piece(choice, reasoning, content, draft.unsent())
                        if reading.stopped and finish is None:
                            finish = "stop"
                if finish is not None:
                    break
        finally:
            self._sampling -= 1
            if not self._sampling:
                self._still.set()
            await chunks.aclose()  # type: ignore[attr-defined]
        if finish is None:
            raise EngineError("the engine's answer ended before it was whole", sampled_any=bool(draft.sampled))
        longest = plan.sampling.max_tokens
        if finish == "abort" and longest is not None and len(draft.sampled) >= longest:
            return "length"
        return finish

    def _record(
        self,
        session: Session,
        plan: Plan,
        draft: Draft,
        reply: Reply,
        answer: Answer,
        uid: str,
        finish: str,
        *,
        masked: str | None,
    ) -> Turn:
        """Make the turn, and put it on record before anybody sees it."""
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
            masked=masked,
            origin=plan.origin,
            routes=new_routes(draft.routes, parent, keep),
            parse_failures=reply.parse_failures,
            tool_calls=len(reply.tool_calls),
            started=draft.started,
            seconds=time.time() - draft.started,
            uid=uid,
        )
        plan.sibling = plan.sibling or turn
        self.totals["turns"] += 1
        self.totals["sampled_tokens"] += len(draft.sampled)
        self.totals["prompt_tokens"] += turn.prompt_length
        self.totals[f"turns_{turn.origin}"] += 1
        self.totals["parse_failures"] += reply.parse_failures
        message = reply.message()
        end = ends = b""
        text = None
        if masked is None and plan.prints is not None:
            end, ends = after(plan.prints.whole, message), exact(message)
        elif masked is None and isinstance(plan.call, TextCall) and isinstance(plan.call.prompt, str):
            whole = plan.call.prompt + reply.content
            text = (len(whole), text_print(whole))
            session.texts = [*session.texts[-_TEXTS_REMEMBERED:], (*text, turn)]
        kept = remember(session, plan, uid, reply) if masked is None else None
        session.tree.add(turn, end, ends)
        if self.log is not None and not session.gone:
            known = {"messages": plan.new_messages(), "text": text, "end": end, "exact": ends, "kept": kept}
            self.log.write_turn(session, turn, reply, answer, **known)
        return turn


def engine_fault(error: EngineError) -> Fault:
    """An engine's error as the agent sees it."""
    code = {400: "invalid_request", 404: "model_not_found", 429: "overloaded", 503: "engine_unavailable"}
    return Fault(error.status, code.get(error.status, "engine_error"), str(error), retry_after=error.retry_after)
