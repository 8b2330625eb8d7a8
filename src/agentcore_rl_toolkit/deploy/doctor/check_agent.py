"""The app's contract, tried on the local runtime with a scripted model: /ping, /invocations, and a rollout's result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...agent.result import Result, read_result
from ...common.private_loop import PrivateLoop
from ...engine.base import SampleRequest
from ...engine.scripted import ScriptedEngine
from ...errors import AgentCoreRLError, RuntimeFault
from ...gateway.gateway import Gateway
from ...gateway.record.trajectory import Trajectories
from ...gateway.render.tokenizer import Tokenizer
from ...runtime.local import AgentSource
from ...runtime.local.sandbox_hints import refusal_hint
from ...store import open_store
from ...types import Status
from .check import Check, failed, ok, refused

_LONGEST_ANSWER = 1 << 20

Script = Callable[[SampleRequest], Sequence[int]]


@dataclass(frozen=True)
class Rehearsed:
    """One rollout: how /invocations answered, what /ping said meanwhile and at the end, and what came of it."""

    answer: Any
    pings: tuple[str, ...]
    document: dict[str, Any]
    turns: Trajectories
    prompts: tuple[Sequence[int], ...]
    hint: str | None
    """What to do if the sandbox may be why it failed."""

    @property
    def result(self) -> Result:
        return Result(self.document)


def rehearse(
    agent: AgentSource, payload: dict[str, Any], script: Script, tokenizer: Tokenizer, seconds: float
) -> Rehearsed:
    """Run the agent once, with a policy that says what `script` tells it to."""
    engine = ScriptedEngine(script, context_length=10_000_000, models=("doctor",))
    with tempfile.TemporaryDirectory() as place, Gateway(engine, tokenizer=tokenizer) as gateway:
        session = gateway.open_session(model="doctor")
        settings = {
            "exp_id": "doctor",
            "input_id": "row",
            "s3_bucket": place,
            "base_url": session["base_url"],
            "model_id": "doctor",
        }
        loop = PrivateLoop("doctor")
        try:
            answer, pings, protections = loop.run(_follow(agent, payload | {"_rollout": settings}, seconds))
        finally:
            loop.close()
        store = open_store(place)
        try:
            document = read_result(store, answer["result_key"]).document
        finally:
            store.close()
        turns = gateway.trajectories(session["session_id"])
        prompts = tuple(list(request.prompt) for request in engine.requests)
        told = "\n".join(str(document.get(name) or "") for name in ("traceback", "stop_reason"))
        return Rehearsed(answer, pings, document, turns, prompts, refusal_hint(told, agent, protections))


async def _follow(
    agent: AgentSource, payload: dict[str, Any], seconds: float
) -> tuple[Any, tuple[str, ...], list[str]]:
    """Invoke, then ask for /ping until the app is no longer busy: then its result is stored."""
    from ...runtime.local import LocalRuntime

    pings: list[str] = []
    async with LocalRuntime(agent, spares=1, max_sessions=2) as runtime:
        session_id = str(uuid.uuid4())
        try:
            invocation = await runtime.invoke(session_id, json.dumps(payload).encode())
        except RuntimeFault as fault:  # it can't be imported, perhaps for want of a variable
            if hint := refusal_hint(str(fault), agent, runtime.protections):
                raise AgentCoreRLError(str(fault).strip(), hint=hint) from fault
            raise
        body, answer = await _beginning(invocation.body), None
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(body)
        if invocation.status != 200 or not isinstance(answer, dict) or "result_key" not in answer:
            raise AgentCoreRLError(
                f"/invocations answered {invocation.status} {body[:200]!r}, not that a rollout has begun",
                hint="decorate the function with @app.rollout_entrypoint of an AgentCoreRLApp",
            )
        deadline = time.monotonic() + seconds
        session = next(session for session in runtime.sessions if session.id == session_id)
        while (said := await session.app.ping()) == "HealthyBusy":
            pings = [said]
            if time.monotonic() > deadline:
                raise AgentCoreRLError(f"the rollout took longer than {seconds:g} s", hint="give more with --timeout")
            await asyncio.sleep(0.05)
        return answer, (*pings, str(said)), runtime.protections


async def _beginning(chunks: AsyncIterator[bytes]) -> bytes:
    """The agent's answer, as far as an answer to a rollout may go."""
    data = b""
    async for chunk in chunks:
        data += chunk
        if len(data) > _LONGEST_ANSWER:
            break
    return data


def check_contract(
    agent: AgentSource, payload: dict[str, Any], script: Script, tokenizer: Tokenizer, seconds: float
) -> tuple[list[Check], Rehearsed | None]:
    """The checks, and the rollout if there was one."""
    try:
        done = rehearse(agent, payload, script, tokenizer, seconds)
    except AgentCoreRLError as error:
        return [refused("app", error)], None
    checks = [ok("app", f"/invocations took the rollout on, /ping said {', then '.join(done.pings)}")]
    result = done.result
    if result.status is not Status.COMPLETED:
        last = str(done.document.get("traceback") or "").strip().splitlines()[-3:-1]
        where = f" ({' '.join(line.strip() for line in last)})" if last else ""
        text = (
            f"a rollout with a scripted model ended as {result.status.value}: {done.document.get('stop_reason')}{where}"
        )
        fix = done.hint or "run it by hand: agentcore-rl rollout AGENT --data FILE --limit 1"
        checks.append(failed("rollout", text, fix))
    elif done.document.get("rewards") is None:
        fix = 'return {"rewards": …} from the entrypoint'
        checks.append(failed("rollout", "it completed, and its result has no rewards", fix))
    elif not done.turns.fidelity.turns:
        fix = "build the model's client in the entrypoint, or give it payload['_rollout']['base_url']"
        checks.append(failed("rollout", "it completed without calling the model", fix))
    else:
        known = done.turns.fidelity
        calls = f"{known.turns} model calls and {known.tool_calls} tool calls"
        checks.append(ok("rollout", f"completed in {calls}, with a reward of {done.document['rewards']}"))
    return checks, done
