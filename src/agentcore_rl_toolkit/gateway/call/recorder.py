"""Recording turns: into the session's tree and the log, before the client sees them."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from typing import Any

from ...engine.base import IDS
from ..record.conversation import store_conversation
from ..record.log import Log
from ..record.reasons import SIDE_CALL, UNDELIVERED
from ..record.session import CallAnswer, Session
from ..record.turn import Turn, count_routed
from .chat import ChatCall, Reply, TextCall
from .choice import Choice
from .fingerprint import extend_fingerprint, hash_text
from .prompt_plan import PromptPlan

_TEXTS_REMEMBERED = 8
_MODEL_CHARACTERS = 200


class TurnRecorder:
    def __init__(self, log: Log | None, totals: Counter[str]) -> None:
        self._log = log
        self._totals = totals

    def record(
        self, session: Session, answer: CallAnswer, choice: Choice, reply: Reply, finish: str, masked: str | None = None
    ) -> Turn:
        """Record a choice as a turn; `masked` is why no call can continue it and nothing is trained on it."""
        plan = choice.plan
        turn = self._make_turn(session, choice, reply, finish, masked)
        if plan.call.model and plan.call.model != answer.model:
            turn.asked_model = plan.call.model[:_MODEL_CHARACTERS]
        plan.sibling = plan.sibling or turn
        self._count(turn)
        new, tools = plan.new_messages(), plan.tool_names()
        known: dict[str, Any] = {"messages": new, "text": None, "end": b"", "asked": b"", "kept": None, "tools": tools}
        if masked is None:
            known |= _remember(session, plan, turn, reply)
        session.tree.add(turn, known["end"], known["asked"], reply if known["end"] else None)
        session.made_calls.add(reply.tool_calls)
        session.transcript.add(turn, plan.match.turn, plan.said_since(), reply, tools)
        if self._log is not None and not session.gone:
            tops = {"tops": choice.draft.tops} if choice.draft.tops else {}
            self._log.write_turn(session, turn, reply, answer, **known, **tops)
        return turn

    def mark_undelivered(self, session: Session, answer: CallAnswer) -> None:
        """The client went away before it had the whole answer."""
        answer.lost = True
        for outcome in answer.outcomes:
            if outcome.turn.masked != SIDE_CALL:
                self.mask(session, outcome.turn, UNDELIVERED)

    def mark_delivered(self, session: Session, answer: CallAnswer) -> None:
        """The gateway has written the whole answer to the client."""
        answer.lost = False
        for outcome in answer.outcomes:
            if outcome.turn.masked == UNDELIVERED:  # this was the second try
                self.mask(session, outcome.turn, None)

    def mask(self, session: Session, turn: Turn, reason: str | None) -> None:
        turn.masked = reason
        if self._log is not None and not session.gone:
            self._log.write(session.id, "masked", index=turn.index, reason=reason)

    def _make_turn(self, session: Session, choice: Choice, reply: Reply, finish: str, masked: str | None) -> Turn:
        plan, draft = choice.plan, choice.draft
        parent, keep, delta = plan.parent, plan.keep, plan.delta
        if plan.sibling is not None:
            parent, keep, delta = plan.sibling, plan.sibling.prompt_length, array(IDS)
        return Turn(
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
            routes=draft.routes.starting_at(count_routed(parent, keep)) if draft.routes is not None else None,
            parse_failures=reply.parse_failures,
            tool_calls=len(reply.tool_calls),
            omitted=plan.count_omitted() if plan.sibling is None else {},
            images=plan.images if plan.sibling is None else (),
            started=draft.started,
            seconds=time.monotonic() - choice.began,
            waited=choice.waited,
            uid=choice.request.uid,
        )

    def _count(self, turn: Turn) -> None:
        totals = self._totals
        totals["turns"] += 1
        totals["sampled_tokens"] += turn.length - turn.prompt_length
        totals["prompt_tokens"] += turn.prompt_length
        totals[f"turns_{turn.origin}"] += 1
        if turn.unbridged:
            totals[f"unbridged_{turn.unbridged}"] += 1
        totals["parse_failures"] += turn.parse_failures


def _remember(session: Session, plan: PromptPlan, turn: Turn, reply: Reply) -> dict[str, Any]:
    """Remember what later calls may continue; gives the fields for the log."""
    call = plan.call
    if isinstance(call, ChatCall) and plan.fingerprints is not None:
        whole = plan.fingerprints.whole
        kept = store_conversation(session.conversations, turn.uid, call, reply, plan.match, plan.used)
        return {"asked": whole.digest(), "end": extend_fingerprint(whole, reply.message()), "kept": kept}
    if isinstance(call, TextCall) and isinstance(call.prompt, str):
        whole = call.prompt + reply.content
        text = (len(whole), hash_text(whole), len(reply.content))
        session.texts = [*session.texts[-_TEXTS_REMEMBERED:], (*text, turn)]
        return {"text": text}
    return {}
