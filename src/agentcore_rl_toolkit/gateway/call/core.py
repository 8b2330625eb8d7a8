"""The gateway without HTTP: sessions, and one model call from canonical messages to a recorded turn and a reply.

    match the call to a turn → bridge or render its prompt → sample → parse → record → reply

Nothing is sampled before the call is known to be in order, and nothing is answered before it is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...engine.base import Engine, EngineInfo
from ...engine.replicas import Replicas
from ...errors import EngineError, GatewayFault
from ..record.log import Log
from ..record.log_folder import Weights
from ..record.session import Answer, Outcome, Session
from ..record.sessions import Sessions
from ..record.trajectory import Trajectories, fold
from ..record.turn import SIDE_CALL, UNDELIVERED, Turn
from ..render.capabilities import Abilities, abilities, warn_of_rows
from ..render.renderer import ChatRenderer
from .chat import ChatCall, TextCall
from .choice import Choice, Piece, engine_fault
from .plan import Plan, Planner
from .side_calls import read_rules

logger = logging.getLogger(__name__)

_LARGE = 200_000  # bytes
_ASK_EVERY, _ASK_SECONDS = 5.0, 2.0  # how often an engine is asked how it is, and how long it has to answer
_PAUSE_SECONDS = 10.0  # given to an engine at the start; calls are held back anyway


@dataclass(frozen=True)
class Limits:
    """When to say no instead of queueing."""

    max_in_flight: int = 4096
    max_sessions: int = 100_000
    max_body_bytes: int = 64 << 20
    """Of a request's body, as it arrives and decompressed."""
    body_seconds: float = 60.0
    """After so long without a byte of its body, a request is refused."""
    sweep_seconds: float = 30.0
    stalled_seconds: float = 60.0
    """After so long, a client that reads nothing of its stream counts as one that has left."""


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
        side_calls: Mapping[str, Any] | None = None,
    ) -> None:
        """`routes` asks the engine for expert routes, where it doesn't tell them anyway; `side_calls` are the rules of
        sessions that have none of their own."""
        self.engine = engine
        self.renderer = renderer
        self.log = log
        self.routes = routes
        self.side_calls = read_rules(side_calls or {})
        self.limits = limits or Limits()
        self.planner = Planner(renderer, forms=lambda: getattr(engine, "forms", False))
        self.sessions = Sessions(log, most=self.limits.max_sessions)
        self.info = EngineInfo(models=())
        self.weight_version: str | None = None
        self.told = 0
        """How often it was told to pause, to resume, or what the weights are."""
        self.in_flight = 0
        self.totals: Counter[str] = Counter()
        self._warned_of_rows = False
        self.faults: Counter[str] = Counter()
        self._well, self._asked = True, -math.inf
        self._going = asyncio.Event()
        self._going.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.sampled_now = 0
        """How many choices are being sampled."""
        self._still = asyncio.Event()
        self._still.set()

    @cached_property
    def abilities(self) -> Abilities:
        """Which renderer renders, and what it can bridge."""
        return abilities(self.renderer)

    async def start(self) -> None:
        """Get the engine ready. One that can't be reached yet is asked again with the first call."""
        await self.engine.start()
        if self.paused:  # as it was when it ended
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await self.engine.pause()
        with contextlib.suppress(EngineError):
            self.info = await self.engine.info()

    async def close(self) -> None:
        await self.engine.close()
        if self.log is not None:
            self.log.close()

    async def health(self) -> dict[str, Any]:
        """How it is, as `/health` tells it."""
        log = self.log
        log_failures, log_damaged = (log.failures, log.damaged) if log is not None else (0, 0)
        well, replicas = await self._replicas()
        log_error = log.error if log is not None else ""
        degraded = not well or log_error or log_damaged or (log is not None and log.crowded)
        return {
            "status": "paused" if self.paused else "degraded" if degraded else "ok",
            "sessions": len(self.sessions),
            "in_flight": self.in_flight,
            "weight_version": self.weight_version,
            "models": self.info.models,
            "replicas": replicas,
            "replicas_well": well,
            "log_error": log_error or None,
            "log_failures": log_failures,
            "log_damaged": log_damaged,
        }

    async def _replicas(self) -> tuple[int, int]:
        """How many of the engine's replicas are well, of how many. One alone is asked, and not by everyone."""
        if isinstance(self.engine, Replicas):
            return self.engine.healthy, len(self.engine.replicas)
        now = time.monotonic()
        if now - self._asked >= _ASK_EVERY:
            self._asked = now
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    await self.engine.info()
                self._well = True
            except (EngineError, TimeoutError) as error:
                self._well = isinstance(error, EngineError) and not error.ill
        return int(self._well), 1

    def trajectories(self, session: Session) -> Trajectories:
        """The session's turns so far, folded."""
        truncated = session.settings.mask_truncated
        folded = fold(session.tree.turns, mask_truncated=truncated, damaged=session.damaged)
        if not self._warned_of_rows:
            self._warned_of_rows = warn_of_rows(session.id, folded.fidelity)
        return folded

    # Weight updates

    async def pause(self) -> None:
        """Let no new call sample until `resume`; agents wait, and notice nothing but the time."""
        before = self.paused
        self.told += 1
        self._going.clear()
        try:
            await self.engine.pause()
        except BaseException:  # cancelled, too: whoever asked has gone away, and would never resume
            if not before:
                self._going.set()
                await asyncio.shield(self._undo_engine_pause())
            raise
        self._note_weights()

    async def _undo_engine_pause(self) -> None:
        """The engine may have paused all the same."""
        try:
            await self.engine.resume()
        except EngineError as error:
            logger.warning("the engine may be paused still: %s", error)

    async def resume(self) -> None:
        self.told += 1
        await self.engine.resume()
        self._going.set()
        self._note_weights()

    def name_weights(self, version: str) -> None:
        """What is sampled from now on is of this version, unless the engine says another."""
        self.told += 1
        self.weight_version = version
        self._note_weights()

    def recall_weights(self) -> None:
        """Go on with the version that was named last, and paused if it was: whoever paused it knows when to resume."""
        if self.log is not None:
            self.begin_with(self.log.read_weights())

    def begin_with(self, weights: Weights) -> None:
        """Take over which weights are sampled, and whether they are being changed; before `start`."""
        if weights.version is not None:
            self.weight_version = weights.version
        if weights.paused:
            self._going.clear()
        else:
            self._going.set()

    async def catch_up(self, weights: Weights) -> None:
        """Do what the others were told meanwhile."""
        if weights.version is not None and weights.version != self.weight_version:
            self.name_weights(weights.version)
        if weights.paused != self.paused:
            await (self.pause() if weights.paused else self.resume())

    def _note_weights(self) -> None:
        if self.log is not None:
            self.log.write_weights(self.weight_version, paused=self.paused)

    async def drain(self) -> None:
        """Wait until nothing is being sampled; `pause` first. Calls that it holds back are none of that."""
        await self._still.wait()

    async def ended(self) -> None:
        """Wait until no call is in flight."""
        await self._idle.wait()

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    async def going(self) -> None:
        """Wait while it is paused."""
        while self.paused:
            await self._going.wait()

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Something is being sampled."""
        self.sampled_now += 1
        self._still.clear()
        try:
            yield
        finally:
            self.sampled_now -= 1
            if not self.sampled_now:
                self._still.set()

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
            raise GatewayFault(
                f"the model {asked!r} does not exist",
                status=404,
                code="model_not_found",
                param="model",
                hint=f"there is: {known}",
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
            raise GatewayFault(f"{self.in_flight} calls are in flight", status=429, code="overloaded", retry_after=1)
        if self.log is not None:
            self.log.check()
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
            plan.side = (self.side_calls if session.side_calls is None else session.side_calls).match(call)
            answer.prompt_tokens = len(plan.prompt)
            if begin is not None:
                begin(answer)
            if call.n == 1:
                answer.outcomes = [await Choice(self, session, plan, answer, 0, stream, piece).run()]
            else:
                answer.outcomes = await self._sample_all(session, plan, answer, stream, piece)
        finally:
            answer.done.set()
            self.in_flight -= 1
            session.in_flight -= 1
            session.used = time.monotonic()
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
            if outcome.turn.masked != SIDE_CALL:
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
            asyncio.ensure_future(Choice(self, session, plan, answer, number, stream, piece).run())
            for number in range(plan.call.n)
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
