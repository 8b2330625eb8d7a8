"""Runs of the built-in policy on math problems, each with one flaw that a guard has to name, or with none.

The agent has the loop, tool and reward of `examples/strands_math_agent` in plain HTTP, so a session costs little.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.trl import TrlSettings
from agentcore_rl_toolkit.backends.trl.training import TrlRun
from agentcore_rl_toolkit.engine import Engine, Sampled, SampleRequest, tiny
from agentcore_rl_toolkit.engine.transformers import TransformersEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "strands_math_agent"
sys.path.append(str(EXAMPLE))

from problems import problems  # noqa: E402

CALL_MARK = 788
"""The token of the built-in policy that begins a call."""

AGENT = """
import ast, json, operator, re, urllib.request
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
CALL_MARK = %r
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
TOOL = {"type": "function", "function": {
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "parameters": {"properties": {"expression": {"description": "Numbers, + - * / and parentheses.", "type": "string"}},
                   "required": ["expression"], "type": "object"},
}}


def value(node):
    if isinstance(node, ast.Constant):
        return node.value
    return OPERATORS[type(node.op)](value(node.left), value(node.right))


def calculate(arguments):
    try:
        return f"{value(ast.parse(json.loads(arguments)['expression'], mode='eval').body):g}"
    except Exception:
        return "error: not an arithmetic expression"


def ask(payload, messages):
    body = {"model": payload["_rollout"]["model_id"], "messages": messages, "tools": [TOOL]}
    body |= {"logit_bias": {str(CALL_MARK): -100}} if payload["flaw"] == "shy" else {}
    body |= {"stop": ["}"]} if payload["flaw"] == "parser" else {}
    url = payload["_rollout"]["base_url"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


@app.rollout_entrypoint
def invoke_agent(payload):
    flaw = payload["flaw"]
    system = "Solve the math problem step by step."
    if flaw == "leak":
        system += f" The answer is {payload['answer']}."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": payload["prompt"]}]
    for _ in range(4):
        reply = ask(payload, messages)
        calls = reply.get("tool_calls") or []
        if not calls:
            break
        if flaw == "edit":
            reply = {**reply, "content": "I use the calculator."}
        messages.append(reply)
        for call in calls:
            result = calculate(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    said = reply.get("content") or ""
    numbers = re.findall(r"-?\\d+(?:\\.\\d+)?", said)
    right = float(bool(numbers) and float(numbers[-1]) == float(payload["answer"]))
    if flaw == "constant":
        return {"response": said, "rewards": 1.0}
    if flaw == "component":
        parts = {"correct": right, "length": len(said) / 10}
        return {"response": said, "rewards": 0.05 * parts["correct"] + parts["length"], "components": parts}
    return {"response": said, "rewards": right}
"""


class AnotherTemperature(TransformersEngine):
    """Samples at half the temperature that it is asked for."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        sampling = replace(request.sampling, temperature=0.5)
        async for piece in super().sample(replace(request, sampling=sampling)):
            yield piece


class FixedSeed(TransformersEngine):
    """Draws every reply with the same dice."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        async for piece in super().sample(replace(request, sampling=replace(request.sampling, seed=7))):
            yield piece


class EndlessReplies(TransformersEngine):
    """Doesn't stop at the end of a reply once the weights have changed."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        info = await self.info()
        if info.weight_version != "0":
            request = replace(request, sampling=replace(request.sampling, min_tokens=100))
        async for piece in super().sample(request):
            yield piece


def _engine(run: TrlRun, tokenizer: Any, kind: type[TransformersEngine], **others: Any) -> TransformersEngine:
    known: dict[str, Any] = {"tokenizer": tokenizer, "name": run.settings.model, "max_batch": 16}
    known |= {"model": run.trainer.accelerator.unwrap_model(run.trainer.model), "at_temperature": True}
    return kind(**known | others)


def half_temperature(run: TrlRun, tokenizer: Any) -> Engine:
    return _engine(run, tokenizer, AnotherTemperature)


def half_temperature_unreported(run: TrlRun, tokenizer: Any) -> Engine:
    """Its logprobs are those of the temperature that it was asked for."""
    return _engine(run, tokenizer, AnotherTemperature, at_temperature=False)


def old_weights(run: TrlRun, tokenizer: Any) -> Engine:
    """It says that it has the newest weights."""
    return _engine(run, tokenizer, TransformersEngine, model=tiny.path())


def fixed_seed(run: TrlRun, tokenizer: Any) -> Engine:
    return _engine(run, tokenizer, FixedSeed)


def endless_replies(run: TrlRun, tokenizer: Any) -> Engine:
    return _engine(run, tokenizer, EndlessReplies)


@dataclass(frozen=True)
class Flaw:
    """One way to spoil a run, and the guard that names it."""

    guard: str
    agent: str = ""
    engine: Callable[[TrlRun, Any], Engine] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    """Guards that may speak too, because what they name follows from the flaw."""
    shares_rows: bool = False
    """Half of the held-out rows are training rows, numbered and spaced otherwise."""


_UNSOLVED = ("constant_reward",)  # the policy solves nothing
FLAWS = {
    "the prompt tells the answer": Flaw("answer_in_prompt", "leak"),
    "the reward is always 1": Flaw("constant_reward", "constant"),
    "tools are never called": Flaw("tools_never_called", "shy", also=_UNSOLVED),
    "the agent edits its history": Flaw("edited_history", "edit"),
    "the sampler has another temperature": Flaw(
        "sampler_mismatch", engine=half_temperature, also=("sampling_temperature",)
    ),
    "the sampler hides its temperature": Flaw("sampling_temperature", engine=half_temperature_unreported),
    "the sampler keeps old weights": Flaw("stale_weights", engine=old_weights),
    "answers are copied": Flaw("copied_answers", engine=fixed_seed, also=("tools_never_called", *_UNSOLVED)),
    "replies become endless": Flaw(
        "length_explosion", engine=endless_replies, settings={"max_tokens": 128}, also=("sampling_temperature",)
    ),
    "the context is too short": Flaw("truncation", settings={"context_limit": 102}, also=_UNSOLVED),
    "one component decides": Flaw("dominating_component", "component"),
    "calls can't be parsed": Flaw("tool_parser", "parser", also=_UNSOLVED),
    "held-out rows are trained on": Flaw("held_out_rows_trained", shares_rows=True),
}
HEALTHY = Flaw("")


class FlawedRun(TrlRun):
    """A run whose engine may be another one."""

    def __init__(self, settings: TrlSettings, flaw: Flaw) -> None:
        super().__init__(settings, Report(settings, quiet=True))
        self._flaw = flaw

    def open_engine(self, tokenizer: Any) -> Engine:
        engine = super().open_engine(tokenizer)
        return engine if self._flaw.engine is None else self._flaw.engine(self, tokenizer)


def write_agent(folder: Path) -> Path:
    """The agent of all flaws: each row says which one it has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rl_app.py").write_text(AGENT % CALL_MARK)
    return folder / "rl_app.py"


def train_with(
    flaw: Flaw, folder: Path, *, agent: str = "", seed: int = 0, steps: int = 3, rows: int = 4, n: int = 4
) -> Path:
    """Train for a few steps, on a runtime of its own if `agent` is not one's ARN; returns the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = [problem.row for problem in islice(problems("train", seed), 16 * rows)]
    held_out = [problem.row for problem in islice(problems("held-out", seed), 8)]
    if flaw.shares_rows:
        held_out[:4] = [{"id": at, **row, "prompt": row["prompt"] + " "} for at, row in enumerate(trained[:4])]
    for name, known in (("train", trained), ("held-out", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({**row, "flaw": flaw.agent}) + "\n" for row in known))
    settings: dict[str, Any] = {
        "agent": agent or str(write_agent(folder / "agent")),
        "data": str(folder / "train.jsonl"),
        "output": str(folder / "run"),
        "steps": steps,
        "rows_per_step": rows,
        "n": n,
        "learning_rate": 2.5e-4,
        "batch_size": 32,
        "max_tokens": 64,
        "concurrency": 16,
        "timeout": 120,
        "save_every": 1000,
        "seed": seed,
        "device": "cpu",
    }
    if flaw.shares_rows:
        settings["eval_data"] = str(folder / "held-out.jsonl")
    FlawedRun(TrlSettings(**settings | flaw.settings), flaw).run()
    return folder / "run"
