"""One stream to a client, in OpenAI's events: pieces as they come, comments while the engine is silent, one end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .chat import ChatCall, TextCall
from .faults import Fault
from .session import Answer, Outcome, Session
from .turn import Tokens
from .wire import openai

if TYPE_CHECKING:
    from .app import App

_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def usage(outcomes: list[Outcome]) -> dict[str, Any]:
    """Tokens that an answer took."""
    turns = [outcome.turn for outcome in outcomes]
    return openai.usage(turns[0].prompt_length, sum(len(turn.sampled) for turn in turns), turns[0].keep)


class Sender:
    """One stream to a client. Nothing is sent before the engine has said something: its errors keep their status."""

    def __init__(
        self, app: App, request: web.BaseRequest, session: Session, call: ChatCall | TextCall, with_usage: bool
    ) -> None:
        self._app = app
        self._request = request
        self._session = session
        self._call = call
        self._with_usage = with_usage
        self._response = _Stream(headers=_SSE)
        self._chunks: openai.Chunks | None = None
        self._begun: set[int] = set()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def run(self, known: bytes, size: int, retried: bool) -> web.StreamResponse:
        core = self._app.core
        answer: Answer | None = None
        self._wait()
        try:
            answer = await core.answer(
                self._session,
                self._call,
                known,
                size=size,
                retried=retried,
                stream=True,
                piece=self._piece,
                begin=self._begin,
            )
            assert self._chunks is not None
            rest = [self._finish(choice, outcome) for choice, outcome in enumerate(answer.outcomes)]
            last = self._chunks.usage(usage(answer.outcomes)) if self._with_usage else b""
            await self._end(b"".join(rest) + last + openai.DONE)
            core.delivered(self._session, answer)
        except Fault as fault:
            if not self._response.prepared:
                raise
            core.faults[fault.code] += 1
            await self._fail(fault)
        except (asyncio.CancelledError, ConnectionError):
            if answer is not None:
                core.undelivered(self._session, answer)
            raise
        except Exception as error:
            if not self._response.prepared:
                raise
            await self._fail(self._app.failed(self._request, error))
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self._response

    async def _fail(self, fault: Fault) -> None:
        await self._end(openai.error_event(fault))

    def _begin(self, answer: Answer) -> None:
        chat = isinstance(self._call, ChatCall)
        self._chunks = openai.Chunks(answer.uid, answer.created, answer.model, chat=chat)

    async def _piece(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> None:
        await self._send(self._said(choice, reasoning, content, tokens))

    def _said(self, choice: int, reasoning: str, content: str, tokens: Tokens) -> bytes:
        assert self._chunks is not None
        data = b""
        if choice not in self._begun:
            self._begun.add(choice)
            data = self._chunks.begin(choice)
        logprobs = self._app.logprobs(self._call, tokens) if self._call.logprobs and tokens.ids else None
        if reasoning or content or logprobs:
            data += self._chunks.piece(choice, reasoning, content, logprobs)
        return data

    def _finish(self, choice: int, outcome: Outcome) -> bytes:
        assert self._chunks is not None
        turn, reply = outcome.turn, outcome.reply
        if choice in self._begun:
            data = self._said(choice, *outcome.rest)
        else:  # all at once, or a recorded answer given again
            tokens = Tokens(turn.sampled, turn.logprobs, outcome.tops)
            data = self._said(choice, reply.reasoning, reply.content, tokens)
        if reply.tool_calls:
            data += self._chunks.calls(choice, reply.tool_calls)
        return data + self._chunks.finish(choice, openai.finish_reason(turn.finish, reply))

    async def _send(self, data: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        self._last = time.monotonic()
        await self._response.write(data)

    async def _end(self, data: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._response.write_eof(data)

    def _wait(self) -> None:
        """Tell the client that we are still here, while the engine is busy."""
        seconds = self._app.keep_alive_seconds
        if seconds:
            if self._timer is not None and time.monotonic() - self._last >= seconds:
                self._comment = asyncio.ensure_future(self._say_nothing())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wait)

    async def _say_nothing(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._send(openai.KEEP_ALIVE)


class _Stream(web.StreamResponse):
    """Headers go out with the first piece, not in a packet of their own."""

    _send_headers_immediately = False
