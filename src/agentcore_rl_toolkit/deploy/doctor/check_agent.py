"""Checks of the agent's code: one rollout on the local runtime, with a scripted model behind a gateway."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...agent.result import Result
from ...client import RolloutClient
from ...engine.scripted import ScriptedEngine
from ...errors import AgentCoreRLError
from ...gateway.gateway import Gateway
from ...gateway.record.trajectory import Trajectories
from ...gateway.render.tokenizer import Tokenizer
from ...runtime.local import AgentSource
from ...types import Status
from .finding import Check, failed, failed_with, ok
from .scripted_policy import Script

_NOT_OWN = ("site-packages/", "/agentcore_rl_toolkit/", "/lib/python", "<")
CONTEXT = 10_000_000
"""The scripted model's context length: no prompt is too long for it."""


@dataclass(frozen=True)
class AgentRun:
    """One rollout: its result, its trajectories, and the prompts of its model calls."""

    document: dict[str, Any]
    trajectories: Trajectories
    prompts: tuple[Sequence[int], ...]


def run_agent(
    agent: AgentSource,
    payload: dict[str, Any],
    script: Script,
    tokenizer: Tokenizer,
    seconds: float,
    protocol: str = "agentcore",
) -> AgentRun:
    """Run the agent once, with `script` as its model; `protocol` is the client's `agent_protocol`."""
    engine = ScriptedEngine(script, context_length=CONTEXT, models=("doctor",))
    with (
        tempfile.TemporaryDirectory() as store,
        Gateway(engine, tokenizer=tokenizer) as gateway,
        RolloutClient(agent, store, "doctor", agent_protocol=protocol) as client,
    ):
        session = gateway.open_session(model="doctor")
        future = client.invoke(payload, input_id="row", base_url=session["base_url"], model_id="doctor")
        try:
            document = future.result(seconds)
        except TimeoutError:
            hint = "allow more time with --timeout"
            raise AgentCoreRLError(f"the rollout took longer than {seconds:g} s", hint=hint) from None
        prompts = tuple(list(request.prompt) for request in engine.requests)
        return AgentRun(document, gateway.trajectories(session["session_id"]), prompts)


def check_agent(
    agent: AgentSource,
    payload: dict[str, Any],
    script: Script,
    tokenizer: Tokenizer,
    seconds: float,
    fix: str,
    *,
    protocol: str = "agentcore",
    reward: str | None = None,
) -> tuple[list[Check], bool]:
    """Whether the app takes rollouts, and how one ends; the bool says whether it ran. `fix` is for a rollout that
    failed without a hint, and `reward` scores rollouts in place of the agent."""
    try:
        run = run_agent(agent, payload, script, tokenizer, seconds, protocol)
    except AgentCoreRLError as error:
        return [failed_with("app", error)], False
    return [ok("app", "it accepted a rollout and stored its result"), _check_rollout(run, fix, reward)], True


def _place(traceback: str) -> str:
    r"""The last line of the agent's own code in a traceback; the packages below it say less.

    >>> _place('File "/app/agent.py", line 7, in ask\n    run()\nFile "/x/site-packages/sdk.py", line 1, in run')
    ' (agent.py, line 7: run())'
    """
    frames = re.findall(r'^ *File "(/.+)", line (\d+), in .+\n *(.+)$', traceback, re.MULTILINE)
    own = [frame for frame in frames if not any(part in frame[0] for part in _NOT_OWN)]
    return " ({}, line {}: {})".format(own[-1][0].removeprefix("/app/"), *own[-1][1:]) if own else ""


def _check_rollout(run: AgentRun, otherwise: str, reward: str | None) -> Check:
    document, fidelity, status = run.document, run.trajectories.fidelity, Result(run.document).status
    if status is not Status.COMPLETED:
        where = _place(str(document.get("traceback") or ""))
        reason, _, hint = str(document.get("stop_reason")).partition("\nhint: ")
        text = f"with a scripted model it ended as {status.value}: {reason}{where}"
        return failed("rollout", text, str(document.get("hint") or hint or otherwise))
    if document.get("rewards") is None and reward is None:
        fix = 'return {"rewards": …} from the entrypoint'
        return failed("rollout", "it completed, but its result has no rewards", fix)
    if not fidelity.turns:
        fix = "create the model's client in the entrypoint, or give it payload['_rollout']['base_url']"
        return failed("rollout", "it completed without calling the model", fix)
    calls = f"{fidelity.turns} model calls and {fidelity.tool_calls} tool calls"
    scored = f"with a reward of {document['rewards']}" if reward is None else f"to be scored by {reward}"
    return ok("rollout", f"completed in {calls}, {scored}")
