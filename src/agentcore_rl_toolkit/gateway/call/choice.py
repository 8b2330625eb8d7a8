"""One choice of a model call: sampled, with pieces passed on as they come, and parsed.

If an engine gives a choice up for a weight update, the choice asks it to continue from the tokens there are. A choice
records nothing: its caller records `draft`, even when sampling failed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from ...common.seeds import mix_seed
from ...engine.base import Engine, Sampled, SampleRequest, Sampling
from ...engine.reply_form import Form
from ...errors import EngineError, GatewayFault
from ..record.turn import Draft, Tokens, count_routed
from .chat import Reply
from .prompt_plan import PromptPlan
from .reply import ReplyReader
from .weight_gate import WeightGate

_MOST_RESUMPTIONS = 64

Piece = Callable[[int, str, str, Tokens], Awaitable[None]]
"""Called with a choice's number, reasoning, text, and the tokens since the last piece."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceRequest:
    plan: PromptPlan
    session_id: str
    model: str | None
    uid: str
    """The id of the turn it becomes."""
    number: int = 0
    stream: bool = False
    piece: Piece | None = None
    routes: bool = False
    """Ask the engine for expert routes."""


class Choice:
    crowd = 100
    """With more choices than this at a time, each stream passes on its tokens `pace` seconds apart."""
    pace = 0.05
    """This pace halves the cost of streams: one core carries 400, each of 50 tokens a second."""

    def __init__(self, request: ChoiceRequest, engine: Engine, gate: WeightGate, reader: ReplyReader) -> None:
        self.request, self.plan = request, request.plan
        self.draft, self.began = Draft(time.time()), time.monotonic()
        self.waited = 0.0
        """Seconds in which the gate was closed."""
        self._engine, self._gate, self._reader = engine, gate, reader
        self._stream = reader.open_stream(self.plan, streamed=request.piece is not None)

    async def sample(self) -> str:
        """Sample to the end; gives the reason why it ended."""
        for _ in range(_MOST_RESUMPTIONS):
            asked = time.monotonic()
            await self._gate.wait_open()
            self.waited += time.monotonic() - asked
            finish = await self._sample_once()
            if finish != "abort":
                return finish
        raise EngineError("the engine aborted this call again and again", status=503, sampled_any=True)

    def parse(self) -> Reply:
        stopped = self._stream is not None and self._stream.stopped
        passed_on = self._stream.content if self._stream is not None and self.request.piece is not None else ""
        return self._reader.parse(self.plan, self.draft.sampled, self.request.uid, stopped=stopped, passed_on=passed_on)

    def take_rest(self, reply: Reply) -> tuple[str, str, Any]:
        """The reasoning, text and tokens that were not passed on yet."""
        if self._stream is None or self.request.piece is None:
            return "", "", None
        return *self._stream.finish(reply), self.draft.take_unsent()

    async def _sample_once(self) -> str:
        """Sample until the engine stops; `abort` if it gave up and should be asked to continue."""
        request = self._build_request()
        versions = [*self.draft.versions]
        finish = None
        waiting: list[int] = []
        last = -math.inf
        with self._gate.count_sampling():
            async with aclosing(cast(Any, self._engine.sample(request))) as chunks:
                async for chunk in chunks:
                    finish = self._add(chunk, versions)
                    # Tokens that arrive with the end are passed on with the end.
                    if self._stream is not None and (finish in (None, "abort") or request.sampling.stop):
                        waiting.extend(chunk.token_ids)
                        now = time.monotonic()
                        if finish is not None or self._gate.sampling <= self.crowd or now - last >= self.pace:
                            last = now
                            finish = await self._pass_on(waiting) or finish
                            waiting.clear()
                    if finish is not None:
                        break
        if finish is None:
            raise EngineError("the engine's answer ended early", sampled_any=bool(self.draft.sampled))
        longest = self.plan.sampling.max_tokens
        if finish == "abort" and longest is not None and len(self.draft.sampled) >= longest:
            return "length"
        return finish

    async def _pass_on(self, ids: list[int]) -> str | None:
        """Pass on the text that is certain now; `stop` after a stop string, even one that came with the limit."""
        assert self._stream is not None
        reasoning, content = self._stream.feed(ids)
        if self.request.piece is not None and (reasoning or content):
            await self.request.piece(self.request.number, reasoning, content, self.draft.take_unsent())
        return "stop" if self._stream.stopped else None

    def _build_request(self) -> SampleRequest:
        """The request for all of the choice, or for the tokens that are missing."""
        plan, sampled, asked = self.plan, self.draft.sampled, self.request
        prompt, sampling = plan.prompt, plan.sampling
        if sampled:
            prompt, sampling = prompt + sampled, self._constrain_rest(sampling)
            if sampling.max_tokens is not None:
                sampling = dataclasses.replace(sampling, max_tokens=sampling.max_tokens - len(sampled))
        if sampling.seed is not None and (sampled or asked.number):  # the same seed would repeat its first draws
            sampling = dataclasses.replace(sampling, seed=mix_seed(sampling.seed, asked.number, len(sampled)))
        routes_from = count_routed(plan.parent, plan.keep) if asked.routes else None
        stream = asked.stream or self._stream is not None
        return SampleRequest(
            prompt, sampling, asked.model, asked.session_id, asked.number, stream, routes_from, plan.prepared
        )

    def _constrain_rest(self, sampling: Sampling) -> Sampling:
        """The constraints on the missing tokens. A text that has begun continues unconstrained: engines can't
        constrain the rest of one."""
        form, schema = sampling.form, sampling.json_schema
        if form is None and schema is None:
            return sampling
        rest = (form or Form(schema=schema)).remaining(self._reader.decode(self.draft.sampled.tolist()))
        return dataclasses.replace(sampling, form=rest if form else None, json_schema=schema if rest else None)

    def _add(self, chunk: Sampled, versions: list[tuple[str, int]]) -> str | None:
        self.draft.add_chunk(chunk, self._gate.version)
        if chunk.versions:  # the engine gives the version of each token
            self.draft.versions = [*versions, *chunk.versions]
        return chunk.finish


def engine_fault(error: EngineError) -> GatewayFault:
    """An engine's error as the agent sees it."""
    code = {400: "invalid_request", 404: "model_not_found", 429: "overloaded", 503: "engine_unavailable"}
    wait = error.retry_after or (1 if error.status == 503 else None)
    return GatewayFault(str(error), status=error.status, code=code.get(error.status, "engine_error"), retry_after=wait)
