"""The gateway without HTTP: sessions, and one model call from canonical messages to a recorded turn and a reply.

    match the call to a turn → bridge or render its prompt → sample → parse → record → reply

The core samples only calls that it can answer, and answers only what it has recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...engine.base import Engine, EngineInfo
from ...engine.replicas import Replicas
from ...errors import EngineError, GatewayFault
from ..images.session_images import has_media
from ..record.log import Log
from ..record.reasons import ABORTED, ENGINE_ERROR, UNDELIVERED
from ..record.session import CallAnswer, ChoiceOutcome, Session
from ..record.session_table import SessionTable
from ..record.trajectory import Trajectories, fold, mask_reasons
from ..render.capabilities import Abilities, probe_abilities, warn_of_rows
from ..render.renderer import ChatRenderer
from .chat import ChatCall, Reply, TextCall
from .choice import Choice, ChoiceRequest, Piece, engine_fault
from .prompt_plan import PromptPlan, PromptPlanner
from .recorder import TurnRecorder
from .reply import ReplyReader
from .side_calls import read_rules
from .weight_gate import WeightGate

_LARGE = 200_000  # bytes of a request that is tokenized on a thread
_ASK_EVERY, _ASK_SECONDS = 5.0, 2.0  # how often an engine is asked how it is, and how long it may take to answer


@dataclass(frozen=True)
class GatewayLimits:
    """When the gateway refuses instead of queueing, and how long it waits."""

    max_in_flight: int = 4096
    max_sessions: int = 100_000
    max_body_bytes: int = 64 << 20
    """Of a request's body, as it arrives and decompressed."""
    body_seconds: float = 60.0
    """The gateway refuses a request after this time without a byte of its body."""
    sweep_seconds: float = 30.0
    keep_alive_seconds: float = 10.0
    """A stream that sent nothing for this time sends a keep-alive; with 0, it sends none."""
    stalled_seconds: float = 60.0
    """A client that reads nothing of its stream for this time counts as gone."""


class Core:
    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        *,
        log: Log | None = None,
        limits: GatewayLimits | None = None,
        routes: bool = False,
        side_calls: Mapping[str, Any] | None = None,
        images: bool = True,
    ) -> None:
        """`routes` asks the engine for expert routes, where it doesn't give them anyway; `side_calls` are the rules of
        sessions without their own. Without `images`, a vision model reads placeholders too."""
        self.engine = engine
        self.renderer = renderer
        renderer.open_eyes(_find_obstacle(engine, images))
        self.log = log
        self.limits = limits or GatewayLimits()
        self.gate = WeightGate(engine, log)
        self.planner = PromptPlanner(renderer, forms=lambda: getattr(engine, "forms", False))
        self.reader = ReplyReader(renderer)
        self.sessions = SessionTable(log, most=self.limits.max_sessions)
        self.info = EngineInfo(models=())
        self.in_flight = 0
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.recorder = TurnRecorder(log, self.totals)
        self.routes = routes
        self._side_calls = read_rules(side_calls or {})
        self._warned_of_rows = False
        self._well, self._asked = True, -math.inf
        self.idle = asyncio.Event()
        """Set while no call is in flight."""
        self.idle.set()

    @cached_property
    def abilities(self) -> Abilities:
        return probe_abilities(self.renderer)

    async def start(self) -> None:
        """Get the engine ready. An engine that can't be reached yet is asked again with the first call."""
        await self.engine.start()
        await self.gate.start()
        await self.refresh_info()

    async def refresh_info(self) -> None:
        """Ask the engine again what it serves."""
        with contextlib.suppress(EngineError):
            self.info = await self.engine.info()

    async def close(self) -> None:
        await self.engine.close()
        if self.log is not None:
            self.log.close()

    async def health(self) -> dict[str, Any]:
        log = self.log
        well, replicas = await self._count_replicas()
        log_error, log_damaged = (log.error, log.damaged) if log is not None else ("", 0)
        degraded = not well or log_error or log_damaged or (log is not None and log.is_full)
        return {
            "status": "paused" if self.gate.paused else "degraded" if degraded else "ok",
            "sessions": len(self.sessions),
            "in_flight": self.in_flight,
            "weight_version": self.gate.version,
            "models": self.info.models,
            "replicas": replicas,
            "replicas_well": well,
            "log_error": log_error or None,
            "log_failures": log.failures if log is not None else 0,
            "log_damaged": log_damaged,
        }

    def metrics(self) -> dict[str, int]:
        counts = {"in_flight": self.in_flight, "sessions_open": len(self.sessions)}
        counts["sessions_total"] = self.sessions.opened
        counts |= {f"{name}_total": value for name, value in sorted(self.totals.items())}
        counts |= {f'faults_total{{code="{code}"}}': value for code, value in sorted(self.faults.items())}
        if self.log is not None:
            log = self.log
            counts |= {"log_bytes": log.size, "log_failures_total": log.failures, "log_damaged": log.damaged}
        return counts

    async def _count_replicas(self) -> tuple[int, int]:
        """How many of the engine's replicas are well, of how many. A single one is asked, every few seconds."""
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
                self._well = isinstance(error, EngineError) and not error.is_unhealthy
        return int(self._well), 1

    def trajectories(self, session: Session) -> Trajectories:
        truncated = session.settings.mask_truncated
        folded = fold(session.tree.turns, mask_truncated=truncated, damaged=session.damaged)
        files = {name: image.data for name, image in session.images.items()}
        if not self._warned_of_rows:
            self._warned_of_rows = warn_of_rows(session.id, folded.fidelity)
        reasons = mask_reasons(session.tree.turns, mask_truncated=truncated)
        said = session.transcript.transcript(session.tree.turns, reasons)
        return replace(folded, transcript=said, images=files)

    async def resolve_model(self, asked: str | None, session: Session) -> str | None:
        """The engine's name for the model that a call asks for."""
        if session.settings.model is not None:
            return session.settings.model
        if not self.info.models:
            try:
                self.info = await self.engine.info()
            except EngineError as error:
                raise engine_fault(error) from error
        if asked is None or not self.info.models:
            return self.info.models[0] if self.info.models else asked
        if asked not in self.info.models:  # an adapter may have been loaded since
            with contextlib.suppress(EngineError):
                self.info = await self.engine.info()
        if asked not in self.info.models:
            raise GatewayFault(
                f"the model {asked!r} does not exist",
                status=404,
                code="model_not_found",
                param="model",
                hint=f"use one of: {', '.join(self.info.models[:8])}",
            )
        return asked

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
        begin: Callable[[CallAnswer], None] | None = None,
    ) -> CallAnswer:
        """Answer one request of an agent. `request` is a hash of its bytes, which identifies it, `size` their number.

        A request that is sent again (the client says so, or never received the answer) gets the recorded turn.
        """
        recorded = await self._find_recorded(session, request, retried)
        if recorded is not None:
            self.totals["replayed"] += 1
            if begin is not None:
                begin(recorded)
            return recorded
        if self.in_flight >= self.limits.max_in_flight:
            raise GatewayFault(f"{self.in_flight} calls are in flight", status=429, code="overloaded", retry_after=1)
        if self.log is not None:
            self.log.check_call()
        answer = CallAnswer(int(time.time()), secrets.token_hex(8), "", request, call.n)
        self._enter(session)
        try:
            answer.model = await self.resolve_model(call.model, session) or ""
            session.remember_answer(answer)
            plan = await self._plan(session, call, size)
            answer.prompt_tokens = len(plan.prompt)
            if begin is not None:
                begin(answer)
            answer.outcomes = await self._sample(session, plan, answer, stream, piece)
        finally:
            answer.done.set()
            self._leave(session)
        return answer

    async def count(self, session: Session, call: ChatCall | TextCall, *, size: int = 0) -> int:
        """The length of the call's prompt, without sampling or recording."""
        await self.resolve_model(call.model, session)
        if self._is_heavy(session, call, size):
            return await asyncio.to_thread(self.planner.count, session, call, self.info.context_length)
        return self.planner.count(session, call, self.info.context_length)

    async def _find_recorded(self, session: Session, request: bytes, retried: bool) -> CallAnswer | None:
        """The answer to a request that is sent again, once it is complete."""
        while (known := session.answers.get(request)) is not None and (retried or known.lost):
            await known.done.wait()
            if known.whole:
                return known
            if known is session.answers.get(request):
                break
        return None

    def _enter(self, session: Session) -> None:
        self.in_flight += 1
        session.in_flight += 1
        self.idle.clear()

    def _leave(self, session: Session) -> None:
        self.in_flight -= 1
        session.in_flight -= 1
        session.used = time.monotonic()
        if not self.in_flight:
            self.idle.set()

    def _is_heavy(self, session: Session, call: ChatCall | TextCall, size: int) -> bool:
        """Whether planning the call would hold up the others: it then runs on a thread."""
        if size > _LARGE or self.renderer.vision is None:
            return size > _LARGE
        return bool(session.images) or (isinstance(call, ChatCall) and has_media(call.messages))

    async def _plan(self, session: Session, call: ChatCall | TextCall, size: int) -> PromptPlan:
        if self._is_heavy(session, call, size):
            plan = await asyncio.to_thread(self.planner.plan, session, call, self.info.context_length)
        else:
            plan = self.planner.plan(session, call, self.info.context_length)
        plan.side = (self._side_calls if session.side_calls is None else session.side_calls).match(call)
        return plan

    async def _sample(
        self, session: Session, plan: PromptPlan, answer: CallAnswer, stream: bool, piece: Piece | None
    ) -> list[ChoiceOutcome]:
        """Sample all choices of a call at the same time; the first failure ends the others."""
        model = answer.model or None
        seed = session.next_seed(plan.prompt)
        if seed is not None:
            plan.sampling = replace(plan.sampling, seed=seed)
        requests = [
            ChoiceRequest(plan, session.id, model, f"{answer.uid}{n or ''}", n, stream, piece, self.routes)
            for n in range(plan.call.n)
        ]
        if len(requests) == 1:
            return [await self._sample_choice(session, answer, requests[0])]
        tasks = [asyncio.ensure_future(self._sample_choice(session, answer, request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, ChoiceOutcome):
                    self.recorder.mask(session, ended.turn, UNDELIVERED)
            raise

    async def _sample_choice(self, session: Session, answer: CallAnswer, request: ChoiceRequest) -> ChoiceOutcome:
        """Sample one choice and record it. One that fails, or that its client left, is recorded and masked."""
        choice = Choice(request, self.engine, self.gate, self.reader)
        try:
            finish = await choice.sample()
        except (asyncio.CancelledError, ConnectionError):  # the client went away
            self.recorder.record(session, answer, choice, Reply(), "abort", ABORTED)
            raise
        except Exception as error:
            self.faults["engine"] += 1
            if choice.draft.sampled:
                self.recorder.record(session, answer, choice, Reply(), "error", ENGINE_ERROR)
            if isinstance(error, EngineError):
                raise engine_fault(error) from error
            raise
        reply = choice.parse()
        turn = self.recorder.record(session, answer, choice, reply, finish)
        return ChoiceOutcome(turn, reply, choice.draft.tops, choice.take_rest(reply))


def _find_obstacle(engine: Engine, images: bool) -> str:
    """The reason why even a vision model can't be shown images; empty if it can."""
    if not images:
        return "the trainer trains on text (images=False)"
    return "" if getattr(engine, "images", False) else "only vLLM takes images beside token ids"
