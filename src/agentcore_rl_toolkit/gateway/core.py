"""The gateway without HTTP: sessions, and one model call from canonical messages to a recorded turn and a reply.

    match the call to a turn → bridge or render its prompt → sample → parse → record → reply

Nothing is sampled before the call is known to be in order, and nothing is answered before it is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import logging
import math
import secrets
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

from .chat import ChatCall, Message, Prints, Reply, TextCall, after, exact, fingerprint, render_key
from .engine.base import (
    IDS,
    ChatEngine,
    Engine,
    EngineError,
    EngineInfo,
    Routes,
    Sampled,
    SampleRequest,
    Sampling,
)
from .faults import Fault, invalid
from .log import Log
from .proxy import Gathered, chat_body
from .render import ChatRenderer, RenderFault
from .session import Answer, Outcome, Session, SessionSettings
from .stream import ReplyStream, streams
from .trajectory import Trajectories, fold
from .turn import ABORTED, ENGINE_ERROR, LOGPROBS, UNDELIVERED, Turn

logger = logging.getLogger(__name__)

_MOST_RESUMPTIONS = 64
_LARGE = 200_000  # bytes
_PROMPT_END = 64  # ids of the prompt's end that parsing a reply may look at
_GONE_REMEMBERED = 10_000
_TEXTS_REMEMBERED = 8


@dataclass(slots=True)
class Tokens:
    """Some sampled tokens, as clients that ask for logprobs get them."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    tops: Sequence[dict[int, float]]


Piece = Callable[[int, str, str, Tokens], Awaitable[None]]
"""Called with a choice's number, reasoning, text, and the tokens since the last piece."""


@dataclass(frozen=True)
class Limits:
    """When to say no instead of queueing."""

    max_in_flight: int = 4096
    max_sessions: int = 100_000
    max_body_bytes: int = 64 << 20
    sweep_seconds: float = 30.0


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
    forced: list[int] = field(default_factory=list)
    sibling: Turn | None = None
    """Another choice of the same call that is recorded: the prompt need not be kept twice."""


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
        self.info = EngineInfo(models=())
        self.weight_version: str | None = None
        self.in_flight = 0
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._sessions: dict[str, Session] = {}
        self._gone: OrderedDict[str, str] = OrderedDict(log.removed if log is not None else {})
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

    # Sessions

    def open(self, settings: SessionSettings) -> Session:
        """Open a session."""
        if len(self._sessions) >= self.limits.max_sessions:
            raise Fault(503, "too_many_sessions", f"{len(self._sessions)} sessions are open", retry_after=10)
        if self.log is not None and self.log.full:
            self.log.make_room(self._disposable())
            if self.log.full:
                raise Fault(503, "log_full", "the log has no room for another session", retry_after=60)
        if settings.session_id in self._sessions or (self.log is not None and self.log.has(settings.session_id)):
            raise Fault(409, "session_exists", f"there is a session {settings.session_id!r} already")
        session = Session(settings, secrets.token_urlsafe(24), time.time())
        if self.log is not None:
            self.log.write_session(session)
        self._sessions[session.id] = session
        self._gone.pop(session.id, None)
        self.totals["sessions"] += 1
        return session

    def session(self, session_id: str) -> Session:
        """A session by its id, closed ones included; from the log, if this process is not the one that opened it."""
        session = self._sessions.get(session_id)
        if session is None and session_id not in self._gone and self.log is not None and self.log.has(session_id):
            session = self.log.load(session_id)
            if session is not None:
                self._sessions[session_id] = session
        if session is None:
            reason = self._gone.get(session_id)
            if reason == "expired":
                raise Fault(410, "session_expired", f"session {session_id!r} has expired")
            if reason == "deleted":
                raise Fault(410, "session_closed", f"session {session_id!r} was closed")
            raise Fault(404, "session_unknown", f"there is no session {session_id!r}", hint="was it opened here?")
        if time.time() > session.expires and not session.in_flight:
            self._forget(session, "expired")
            raise Fault(410, "session_expired", f"session {session_id!r} has expired")
        return session

    def agent_session(self, session_id: str, key: str) -> Session:
        """A session that an agent with the right key may use."""
        session = self.session(session_id)
        if not hmac.compare_digest(session.key.encode(), key.encode("utf-8", "surrogatepass")):
            raise Fault(401, "invalid_key", f"the key in the URL is not that of session {session_id!r}")
        if session.closed:
            raise Fault(410, "session_closed", f"session {session_id!r} is closed")
        session.used = time.time()
        return session

    def delete(self, session_id: str) -> None:
        """Close a session and forget its turns. Calls still in flight end as they would, and are recorded nowhere."""
        self._forget(self.session(session_id), "deleted")

    def end(self, session: Session) -> None:
        """Take no more calls; turns stay readable."""
        if not session.closed:
            session.closed = True
            if self.log is not None:
                self.log.write(session.id, "closed")

    def put_result(self, session: Session, result: Any) -> None:
        if session.gone:  # while the result was read
            raise Fault(410, "session_closed", f"session {session.id!r} was closed")
        session.result = result
        session.used = time.time()
        if self.log is not None:
            self.log.write(session.id, "result", result=result)

    def trajectories(self, session: Session) -> Trajectories:
        """The session's turns so far, folded."""
        return fold(session.tree.turns, mask_truncated=session.settings.mask_truncated)

    def sweep(self) -> None:
        """Forget what has expired."""
        now = time.time()
        for session in [s for s in self._sessions.values() if now > s.expires and not s.in_flight]:
            self._forget(session, "expired")

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    def _forget(self, session: Session, reason: str) -> None:
        session.closed = session.gone = True
        self._sessions.pop(session.id, None)
        self._gone[session.id] = reason
        while len(self._gone) > _GONE_REMEMBERED:
            self._gone.popitem(last=False)
        if self.log is not None:
            self.log.remove(session.id, reason)

    def _disposable(self) -> Iterator[str]:
        assert self.log is not None
        live = {session.id for session in self._sessions.values() if not session.closed}
        for session_id in self.log.sessions():
            if session_id not in live:
                stored = self._sessions.pop(session_id, None) or self.log.load(session_id)
                if stored is None or stored.closed or time.time() > stored.expires:
                    self._gone[session_id] = "expired"
                    yield session_id

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
        answer = Answer(int(time.time()), secrets.token_hex(8), "")
        self.in_flight += 1
        session.in_flight += 1
        self._idle.clear()
        try:
            answer.model = await self.model(call.model, session) or ""
            session.remember(request, answer)
            if size > _LARGE:  # tokenizing it takes a while, and others are waiting
                plan = await asyncio.to_thread(self.plan, session, call)
            else:
                plan = self.plan(session, call)
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

    def plan(self, session: Session, call: ChatCall | TextCall) -> Plan:
        """The call's prompt, checked against the context limit."""
        sampling = session.sampling(call.sampling)
        try:
            if isinstance(call, ChatCall) and self.renders:
                return Plan(call, sampling, None, 0, array(IDS), "first", array(IDS), fingerprint(call), 0)
            if isinstance(call, TextCall):
                plan = self._plan_text(session, call, sampling)
            else:
                plan = self._plan_chat(session, call, sampling)
        except RenderFault as error:
            raise invalid(str(error), param="messages", code="cannot_render") from error
        limits = [limit for limit in (session.settings.context_limit, self.info.context_length) if limit is not None]
        if limits:
            left = min(limits) - len(plan.prompt)
            if left < 1:
                over = 1 - left
                raise Fault(
                    400,
                    "context_length_exceeded",
                    f"This model's maximum context length is {min(limits)} tokens. However, your messages resulted in "
                    f"{len(plan.prompt)} tokens: {over} too many to sample one more.",
                    param="messages",
                )
            if sampling.max_tokens is None or sampling.max_tokens > left:
                sampling = dataclasses.replace(sampling, max_tokens=left)
        plan.sampling = dataclasses.replace(
            sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *self.renderer.stop_ids)))
        )
        return plan

    def _plan_chat(self, session: Session, call: ChatCall, sampling: Sampling) -> Plan:
        prints = fingerprint(call)
        tree = session.tree
        turn, used = tree.match(prints)
        bridged = self.renderer.bridge(turn, call, used) if turn is not None else None
        if turn is not None and bridged is not None:
            keep, delta = bridged
            origin, parent = "bridge", turn
            prompt = turn.tokens(keep)
            prompt.extend(delta)
        else:
            prompt = self.renderer.render(call, render_key(call))
            origin, parent, used = ("render" if tree.turns else "first"), None, 0
            parent, keep = tree.share(prompt) if tree.turns else (None, 0)
            delta = prompt[keep:]
        plan = Plan(call, sampling, parent, keep, delta, origin, prompt, prints, used)
        if call.tool_choice not in ("auto", "none"):
            plan.forced = self.renderer.forced(call)
            plan.delta = plan.delta + array(IDS, plan.forced)
            plan.prompt = plan.prompt + array(IDS, plan.forced)
        return plan

    def _plan_text(self, session: Session, call: TextCall, sampling: Sampling) -> Plan:
        if isinstance(call.prompt, list):
            if max(call.prompt) >= self.renderer.tokenizer.size:
                raise invalid("prompt has token ids that the tokenizer doesn't know", param="prompt")
            prompt = array(IDS, call.prompt)
            parent, keep = session.tree.share(prompt) if session.tree.turns else (None, 0)
        else:
            parent, keep = None, 0
            for length, digest, turn in reversed(session.texts):
                if length <= len(call.prompt) and _text_print(call.prompt[:length]) == digest:
                    parent, keep = turn, turn.length
                    break
            start = parent.tokens() if parent is not None else array(IDS)
            rest = call.prompt[length:] if parent is not None else call.prompt
            prompt = start + array(IDS, self.renderer.tokenizer.encode(rest, add_special_tokens=parent is None))
        if not prompt:
            raise invalid("prompt is empty", param="prompt")
        goes_on = parent is not None and keep > parent.prompt_length
        origin = "bridge" if goes_on else "render" if session.tree.turns else "first"
        return Plan(call, sampling, parent, keep, prompt[keep:], origin, prompt, None, 0)

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
        draft = _Draft(time.time())
        passed_on = isinstance(plan.call, ChatCall) and self.renders
        reading = self._reading(plan, piece) if not passed_on else None
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
            self._record(session, plan, draft, Reply(), uid, "abort", masked=ABORTED)
            raise
        except Exception as error:
            self.faults["engine"] += 1
            if draft.sampled:
                self._record(session, plan, draft, Reply(), uid, "error", masked=ENGINE_ERROR)
            if isinstance(error, EngineError):
                raise engine_fault(error) from error
            raise
        reply = gathered.reply if passed_on else self._parse(plan, draft, uid, reading)
        turn = self._record(session, plan, draft, reply, uid, finish, masked=None)
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
        draft: _Draft,
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
                    self._place(session, plan, chunk.prompt)
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

    def _place(self, session: Session, plan: Plan, prompt: array[int]) -> None:
        """Where a prompt that somebody else rendered goes on from."""
        tree = session.tree
        plan.prompt = prompt
        plan.parent, plan.keep = tree.share(prompt) if tree.turns else (None, 0)
        plan.delta = prompt[plan.keep :]
        goes_on = plan.parent is not None and plan.keep >= plan.parent.length
        plan.origin = "bridge" if goes_on else "render" if tree.turns else "first"

    async def _run(
        self,
        session: Session,
        plan: Plan,
        draft: _Draft,
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
        routes_from = _covered(plan.parent, plan.keep) if self.routes else None
        stream = stream or bool(reading)
        request = SampleRequest(prompt, sampling, answer.model or None, session.id, choice, stream, routes_from)
        chunks = self.engine.sample(request)
        finish = None
        versions = [list(known) for known in draft.versions]
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
                    reasoning, content = reading.feed(chunk.token_ids)
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

    def _reading(self, plan: Plan, piece: Piece | None) -> ReplyStream | None:
        """What watches the text as it comes, where anybody has to."""
        if piece is None and not plan.sampling.stop:
            return None
        call = plan.call
        chat = isinstance(call, ChatCall)
        end = self.renderer.tokenizer.decode(plan.prompt[-4:].tolist()).rstrip() if chat else ""
        return ReplyStream(
            self.renderer.tokenizer,
            stop_ids=self.renderer.stop_ids,
            stop=plan.sampling.stop,
            calls=isinstance(call, ChatCall) and bool(call.tools) and call.tool_choice != "none",
            thinking=end.endswith("<think>"),
            plain=not chat,
            live=not plan.forced and streams(self.renderer.name),
        )

    def _parse(self, plan: Plan, draft: _Draft, uid: str, reading: ReplyStream | None) -> Reply:
        if isinstance(plan.call, TextCall):
            ids = draft.sampled.tolist()
            while ids and ids[-1] in self.renderer.stop_ids:
                ids.pop()
            reply = Reply(content=self.renderer.tokenizer.decode(ids))
        else:
            end = plan.prompt[: len(plan.prompt) - len(plan.forced)][-_PROMPT_END:]
            try:
                reply = self.renderer.parse([*plan.forced, *draft.sampled], end, plan.call, uid)
            except Exception as error:  # whatever the model says is data
                logger.warning("a reply could not be parsed: %s", type(error).__name__)
                reply = Reply(content=self.renderer.tokenizer.decode(draft.sampled), parse_failures=1)
        if reading is not None and reading.stopped:
            _cut(reply, plan.sampling.stop)
        return reply

    def _record(
        self, session: Session, plan: Plan, draft: _Draft, reply: Reply, uid: str, finish: str, *, masked: str | None
    ) -> Turn:
        """Make the turn, and put it on record before anybody sees it."""
        parent, keep, delta = plan.parent, plan.keep, plan.delta
        if plan.sibling is not None:
            parent, keep, delta = plan.sibling, plan.sibling.prompt_length, array(IDS)
        turn = Turn(
            index=len(session.tree.turns),
            parent=parent,
            keep=keep,
            delta=delta,
            sampled=draft.sampled,
            logprobs=draft.logprobs,
            finish=finish,
            versions=tuple((version, count) for version, count in draft.versions),
            masked=masked,
            origin=plan.origin,
            routes=_new_routes(draft.routes, parent, keep),
            parse_failures=reply.parse_failures,
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
            text = (len(whole), _text_print(whole))
            session.texts = [*session.texts[-_TEXTS_REMEMBERED:], (*text, turn)]
        session.tree.add(turn, end, ends)
        if self.log is not None and not session.gone:
            known = {"messages": _new_messages(plan), "reply": _shown(reply), "text": text}
            self.log.write_turn(session, turn, end=end, exact=ends, **known)
        return turn


@dataclass(slots=True)
class _Draft:
    """Tokens sampled so far."""

    started: float
    sampled: array[int] = field(default_factory=lambda: array(IDS))
    logprobs: array[float] = field(default_factory=lambda: array(LOGPROBS))
    versions: list[list[Any]] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    routes: Routes | None = None
    sent: int = 0

    def take(self, sampled: Sampled, weight_version: str | None) -> None:
        self.add(sampled.token_ids, sampled.logprobs, sampled.weight_version or weight_version)
        if sampled.top_logprobs is not None:
            self.tops.extend(sampled.top_logprobs)
        if sampled.routes is not None:
            self.routes = sampled.routes

    def add(self, ids: Sequence[int], logprobs: Sequence[float | None], version: str | None) -> None:
        if not ids:
            return
        self.sampled.extend(ids)
        try:
            self.logprobs.extend(logprobs)  # type: ignore[arg-type]
        except TypeError:  # some are missing; what was taken in before the first of them is taken back
            del self.logprobs[len(self.sampled) - len(ids) :]
            self.logprobs.extend([math.nan if value is None else value for value in logprobs])
        missing = len(self.sampled) - len(self.logprobs)
        if missing > 0:
            self.logprobs.extend([math.nan] * missing)
        elif missing < 0:
            del self.logprobs[missing:]
        if version is not None:
            if self.versions and self.versions[-1][0] == version:
                self.versions[-1][1] += len(ids)
            else:
                self.versions.append([version, len(ids)])

    def unsent(self) -> Tokens:
        start, self.sent = self.sent, len(self.sampled)
        return Tokens(self.sampled[start:], self.logprobs[start:], self.tops[start:])


def _new_routes(routes: Routes | None, parent: Turn | None, keep: int) -> Routes | None:
    """The part of an engine's routes that the turns before don't have."""
    return routes.since(_covered(parent, keep)) if routes is not None else None


def _covered(parent: Turn | None, keep: int) -> int:
    """Up to where the routes of a prompt's tokens are known, from the turns before."""
    turn = parent
    while turn is not None and turn.routes is None:
        keep, turn = min(keep, turn.keep), turn.parent
    return min(keep, turn.routes.start + turn.routes.count) if turn is not None and turn.routes is not None else 0


def _new_messages(plan: Plan) -> list[Message]:
    return plan.call.messages[plan.used :] if isinstance(plan.call, ChatCall) else []


def _shown(reply: Reply) -> dict[str, Any]:
    shown: dict[str, Any] = {"content": reply.content}
    if reply.reasoning:
        shown["reasoning"] = reply.reasoning
    if reply.tool_calls:
        shown["tool_calls"] = [[call.name, call.arguments] for call in reply.tool_calls]
    return shown


def _cut(reply: Reply, stops: Sequence[str]) -> None:
    """Leave out what comes after the first stop string."""
    for name in ("reasoning", "content"):
        text = getattr(reply, name)
        places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
        if places:
            setattr(reply, name, text[: min(places)])
            reply.tool_calls = []
            if name == "reasoning":
                reply.content = ""
            return


def engine_fault(error: EngineError) -> Fault:
    """An engine's error as the agent sees it."""
    code = {400: "invalid_request", 404: "model_not_found", 429: "overloaded", 503: "engine_unavailable"}
    return Fault(error.status, code.get(error.status, "engine_error"), str(error), retry_after=error.retry_after)


def _text_print(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
