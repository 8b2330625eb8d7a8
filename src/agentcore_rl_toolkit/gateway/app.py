"""The gateway's HTTP: the control API under the admin key, and what agents call under their session's own URL.

    POST   /sessions                                   open one                                            admin
    GET    /sessions/{id}[/turns|/trajectories]        read it                                             admin
    PUT    /sessions/{id}/result                       attach a result        admin, or the session's key
    POST   /sessions/{id}/close, DELETE /sessions/{id}                                                     admin
    POST   /pause, /resume, /drain, PUT /weights       around a weight update                              admin
    GET    /health, /metrics, /openapi.json
    *      /sessions/{id}.{key}/v1/…                   what the agent's client calls          the session's key

Anything that is not an agent's call is rare; an agent's call is on the fast path: one task, no middleware.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import orjson
from aiohttp import web

from .chat import ChatCall, TextCall
from .core import Core, Tokens, engine_fault
from .engine.base import EngineError
from .faults import Fault, invalid
from .openapi import openapi
from .session import Answer, Outcome, Session, read_settings
from .trajectory import Row, Trajectories
from .turn import Turn
from .wire import openai

logger = logging.getLogger(__name__)

_JSON = "application/json"
_PACKED = "application/msgpack"
_KEEP_ALIVE_SECONDS = 10.0
_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class App:
    """Routes requests to a `Core`."""

    def __init__(
        self, core: Core, *, admin_key: str, url: Callable[[], str], keep_alive_seconds: float = _KEEP_ALIVE_SECONDS
    ) -> None:
        """`url` says where the gateway is reached, for the URLs given to agents."""
        self.core = core
        self._admin = f"Bearer {admin_key}".encode()
        self._url = url
        self.keep_alive_seconds = keep_alive_seconds
        self._started = time.time()
        self._plain: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._openapi,
        }
        self._control: dict[tuple[str, str], Handler] = {
            ("POST", "/sessions"): self._open,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/drain"): self._drain,
            ("PUT", "/weights"): self._weights,
        }
        self._of_session: dict[tuple[str, str], Callable[[web.BaseRequest, Session], Awaitable[web.StreamResponse]]] = {
            ("GET", ""): self._describe,
            ("DELETE", ""): self._delete,
            ("POST", "close"): self._close,
            ("GET", "turns"): self._turns,
            ("GET", "trajectories"): self._trajectories,
            ("PUT", "result"): self._result,
        }
        self._of_agent: dict[tuple[str, str], Callable[[web.BaseRequest, Session], Awaitable[web.StreamResponse]]] = {
            ("POST", "v1/chat/completions"): self._chat,
            ("POST", "v1/completions"): self._completion,
            ("GET", "v1/models"): self._models,
            ("PUT", "result"): self._result,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request; every failure is an answer in OpenAI's shape."""
        try:
            return await self._route(request)
        except Fault as fault:
            self.core.faults[fault.code] += 1
            return _refusal(fault)
        except EngineError as error:
            self.core.faults["engine"] += 1
            return _refusal(engine_fault(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except web.HTTPException as refused:  # aiohttp's own, e.g. a body that is too large
            return _refusal(Fault(refused.status, "invalid_request", refused.reason))
        except Exception as error:
            return _refusal(self.failed(request, error))

    def failed(self, request: web.BaseRequest, error: Exception) -> Fault:
        """What to say of an exception that nobody expected."""
        logger.error("a request failed: %s %s", request.method, _hidden(request.path), exc_info=error)
        self.core.faults["internal"] += 1
        return Fault(500, "internal_error", "the gateway failed on this request; its log says how")

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        method, path = request.method, request.path
        if path.startswith("/sessions/"):
            name, _, rest = path[len("/sessions/") :].partition("/")
            session_id, dot, key = name.partition(".")
            table = self._of_agent if dot else self._of_session
            action = table.get((method, rest.rstrip("/")))
            if action is None:
                if dot:
                    self.core.agent_session(session_id, key)
                raise _no_route(method, _hidden(path), {m for m, p in table if p == rest.rstrip("/")})
            if dot:
                return await action(request, self.core.agent_session(session_id, key))
            self._check_admin(request)
            return await action(request, self.core.session(session_id))
        at = (method, path.rstrip("/") or "/")
        if at in self._plain:
            return await self._plain[at](request)
        if at in self._control:
            self._check_admin(request)
            return await self._control[at](request)
        raise _no_route(method, path, {m for m, p in (*self._plain, *self._control) if p == at[1]})

    def _check_admin(self, request: web.BaseRequest) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._admin):
            raise Fault(401, "invalid_admin_key", "this needs the gateway's admin key", hint="Authorization: Bearer …")

    # Agents

    async def _chat(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        raw = await self._body(request)
        body = openai.read_json(raw)
        stream, with_usage = openai.read_stream(body)
        call = openai.read_chat(body)
        return await self._answer(request, session, call, raw, stream, with_usage)

    async def _completion(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        raw = await self._body(request)
        body = openai.read_json(raw)
        stream, with_usage = openai.read_stream(body)
        call = openai.read_completion(body)
        return await self._answer(request, session, call, raw, stream, with_usage)

    async def _models(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        await self.core.model(None, session)
        info = self.core.info
        names = (session.settings.model,) if session.settings.model else info.models
        limits = [limit for limit in (session.settings.context_limit, info.context_length) if limit]
        return _json(openai.models(names, int(self._started), min(limits, default=None)))

    async def _answer(
        self,
        request: web.BaseRequest,
        session: Session,
        call: ChatCall | TextCall,
        raw: bytes,
        stream: bool,
        with_usage: bool,
    ) -> web.StreamResponse:
        own = request.headers.get("Idempotency-Key", "")
        known = blake2b(raw, digest_size=16, key=own.encode("utf-8", "surrogateescape")[:64]).digest()
        retried = bool(own) or request.headers.get("x-stainless-retry-count", "0") != "0"
        if stream:
            sender = _Sender(self, request, session, call, with_usage)
            return await sender.run(known, len(raw), retried)
        answer = await self.core.answer(session, call, known, size=len(raw), retried=retried)
        response = _json(self._whole(answer, call))
        try:
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            self.core.undelivered(session, answer)
            raise
        self.core.delivered(session, answer)
        return response

    def _whole(self, answer: Answer, call: ChatCall | TextCall) -> bytes:
        chat = isinstance(call, ChatCall)
        choices = []
        for place, outcome in enumerate(answer.outcomes):
            turn, reply = outcome.turn, outcome.reply
            choice: dict[str, Any] = {"index": place}
            if chat:
                choice["message"] = openai.message(reply)
            else:
                choice["text"] = reply.content
            tokens = Tokens(turn.sampled, turn.logprobs, outcome.tops)
            choice["logprobs"] = self.logprobs(call, tokens) if call.logprobs else None
            choice["finish_reason"] = openai.finish_reason(turn.finish, reply)
            choices.append(choice)
        encode = openai.completion if chat else openai.text_completion
        return encode(answer.uid, answer.created, answer.model, choices, _usage(answer.outcomes))

    def logprobs(self, call: ChatCall | TextCall, tokens: Tokens) -> dict[str, Any]:
        """Logprobs for the client."""
        decode = self.core.renderer.tokenizer.decode
        texts = [decode([token]) for token in tokens.ids]
        tops = [{decode([token]): value for token, value in top.items()} for top in tokens.tops]
        padded = [*tops, *([None] * (len(texts) - len(tops)))]
        if isinstance(call, ChatCall):
            return openai.chat_logprobs(texts, list(tokens.logprobs), padded)
        return openai.text_logprobs(texts, list(tokens.logprobs), padded)

    async def _body(self, request: web.BaseRequest) -> bytes:
        size = request.content_length
        most = self.core.limits.max_body_bytes
        if size is not None and size > most:
            raise Fault(413, "body_too_large", f"the body has {size} bytes; at most {most} are read")
        return await request.read()

    # Control

    async def _open(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await self._body(request)
        session = self.core.open(read_settings(openai.read_json(raw) if raw.strip() else {}))
        return _json(openai.dump(self.urls(session)), status=201)

    def urls(self, session: Session) -> dict[str, Any]:
        base = f"{self._url()}/sessions/{session.id}.{session.key}"
        return {
            "session_id": session.id,
            "base_url": f"{base}/v1",
            "anthropic_base_url": base,
            "bedrock_endpoint_url": base,
            "result_url": f"{base}/result",
            "expires_at": session.expires,
        }

    async def _describe(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        settings = msgspec.to_builtins(session.settings)
        return _json(
            openai.dump(
                self.urls(session)
                | settings
                | {
                    "created_at": session.created,
                    "closed": session.closed,
                    "turns": len(session.tree.turns),
                    "in_flight": session.in_flight,
                    "result": session.result,
                }
            )
        )

    async def _delete(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        self.core.delete(session.id)
        return _json(openai.dump({"session_id": session.id, "deleted": True}))

    async def _close(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        self.core.end(session)
        return _json(openai.dump({"session_id": session.id, "closed": True}))

    async def _turns(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        packed = _wants_packed(request)
        return await _send_list(
            request, "turns", (_turn(turn, packed) for turn in list(session.tree.turns)), {}, packed
        )

    async def _trajectories(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        packed = _wants_packed(request)
        folded: Trajectories = self.core.trajectories(session)
        about = {
            "session_id": session.id,
            "group_id": session.settings.group_id,
            "input_id": session.settings.input_id,
            "metadata": session.settings.metadata,
            "in_flight": session.in_flight,
            "result": session.result,
            "fidelity": msgspec.to_builtins(folded.fidelity),
        }
        return await _send_list(request, "rows", (_row(row, packed) for row in folded.rows), about, packed)

    async def _result(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        raw = await self._body(request)
        self.core.put_result(session, openai.read_json(raw))
        return _json(openai.dump({"session_id": session.id}))

    async def _pause(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.core.pause()
        return await self._health(request)

    async def _resume(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.core.resume()
        return await self._health(request)

    async def _drain(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.core.drain()
        return await self._health(request)

    async def _weights(self, request: web.BaseRequest) -> web.StreamResponse:
        version = openai.read_json(await self._body(request)).get("version")
        if not isinstance(version, (str, int)) or isinstance(version, bool):
            raise invalid("version is neither a text nor a number", param="version")
        self.core.weight_version = str(version)
        return await self._health(request)

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        core = self.core
        log_failures = core.log.failures if core.log is not None else 0
        return _json(
            openai.dump(
                {
                    "status": "paused" if core.paused else "degraded" if log_failures else "ok",
                    "sessions": core.open_sessions,
                    "in_flight": core.in_flight,
                    "weight_version": core.weight_version,
                    "models": core.info.models,
                    "log_failures": log_failures,
                }
            )
        )

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        core = self.core
        lines = [
            f"agentcore_rl_gateway_in_flight {core.in_flight}",
            f"agentcore_rl_gateway_sessions_open {core.open_sessions}",
        ]
        lines += [f"agentcore_rl_gateway_{name}_total {value}" for name, value in sorted(core.totals.items())]
        lines += [
            f'agentcore_rl_gateway_faults_total{{code="{c}"}} {value}' for c, value in sorted(core.faults.items())
        ]
        if core.log is not None:
            lines.append(f"agentcore_rl_gateway_log_bytes {core.log.size}")
            lines.append(f"agentcore_rl_gateway_log_failures_total {core.log.failures}")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _openapi(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json(openai.dump(openapi()))


class _Sender:
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
            last = self._chunks.usage(_usage(answer.outcomes)) if self._with_usage else b""
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


# Answers


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type=_JSON)


def _refusal(fault: Fault) -> web.Response:
    response = _json(openai.error(fault), fault.status)
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(fault.retry_after)))
    if fault.allow:
        response.headers["Allow"] = ", ".join(sorted(fault.allow))
    return response


def _no_route(method: str, path: str, allowed: set[str]) -> Fault:
    if allowed:
        return Fault(405, "method_not_allowed", f"{path} takes {', '.join(sorted(allowed))}", allow=allowed)
    return Fault(404, "not_found", f"there is no {method} {path[:200]}")


def _hidden(path: str) -> str:
    """A path without the session's key."""
    head, found, tail = path.partition("/sessions/")
    if not found:
        return path
    name, slash, rest = tail.partition("/")
    return f"{head}/sessions/{name.partition('.')[0]}{slash}{rest}"


def _usage(outcomes: list[Outcome]) -> dict[str, Any]:
    turns = [outcome.turn for outcome in outcomes]
    return openai.usage(turns[0].prompt_length, sum(len(turn.sampled) for turn in turns), turns[0].keep)


def _wants_packed(request: web.BaseRequest) -> bool:
    return _PACKED in request.headers.get("Accept", "")


async def _send_list(
    request: web.BaseRequest, name: str, items: Iterable[dict[str, Any]], about: dict[str, Any], packed: bool
) -> web.StreamResponse:
    """An object with one long list, sent item by item: a large session holds up nobody else."""
    if packed:
        listed = []
        for item in items:
            listed.append(item)
            await asyncio.sleep(0)
        return web.Response(body=msgspec.msgpack.encode(about | {name: listed}), content_type=_PACKED)
    response = web.StreamResponse(headers={"Content-Type": _JSON})
    await response.prepare(request)
    head = openai.dump(about)[:-1]
    await response.write(head + (b"," if about else b"") + b'"%s":[' % name.encode())
    first = True
    for item in items:
        data = orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
        await response.write(data if first else b"," + data)
        first = False
        await asyncio.sleep(0)
    await response.write(b"]}")
    await response.write_eof()
    return response


def _turn(turn: Turn, packed: bool) -> dict[str, Any]:
    return {
        "index": turn.index,
        "parent": turn.parent.index if turn.parent is not None else None,
        "kept_tokens": turn.keep,
        "prompt_length": turn.prompt_length,
        "new_prompt_ids": _numbers(turn.delta, packed),
        "sampled_ids": _numbers(turn.sampled, packed),
        "logprobs": _numbers(turn.logprobs, packed),
        "finish": turn.finish,
        "weight_versions": turn.versions,
        "masked": turn.masked,
        "origin": turn.origin,
        "parse_failures": turn.parse_failures,
        "started": turn.started,
        "seconds": turn.seconds,
        "id": turn.uid,
    }


def _row(row: Row, packed: bool) -> dict[str, Any]:
    known: dict[str, Any] = {
        "token_ids": _numbers(row.token_ids, packed),
        "loss_mask": _numbers(row.loss_mask, packed),
        "logprobs": _numbers(row.logprobs, packed),
        "weight": row.weight,
        "prompt_length": row.prompt_length,
        "spans": [[span.turn, span.start, span.end, span.trained, span.finish] for span in row.spans],
        "weight_versions": row.versions,
    }
    if row.routes is not None:
        known["routes"] = _numbers(row.routes.data, packed)
        known["routes_known"] = _numbers(row.routes.known, packed)
    return known


def _numbers(values: Any, packed: bool) -> Any:
    """Packed: the bytes as they are, little-endian (ids u32, mask u8, logprobs f32, routes i32). JSON: null for NaN."""
    if packed:
        return values.tobytes()
    return np.frombuffer(values, values.typecode) if hasattr(values, "typecode") and len(values) else np.asarray(values)
