"""A gateway at slime's router, a client and a runner, which stay open between slime's calls in one process.

slime calls plain functions by their path, with its arguments and nothing else. The hooks therefore share what they open
here, keyed by what it was opened with, until the process ends. `args.agentcore` holds our settings: the section of that
name in the file that `--custom-config-path` names. Sizes, sampling and the model come from slime's own flags.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from ...errors import ConfigError
from ...gateway.render.tokenizer import load_tokenizer
from ...rollout import UNALTERED, Causes, Rollout, RolloutRunner
from ...rollout.run_folder import RunPart, RunWriter
from ...rollout.run_folder.process_totals import write_totals
from ...rollout.run_folder.run_text import metrics_by_step
from ...rollout.run_folder.run_writer import write_metrics
from ...studio.guards import Guards
from .backend import SlimeSettings
from .convert import Replay
from .router import RouterEngine, router_url

_opened: dict[str, HookResources] = {}
_lock = threading.Lock()


class HookResources:
    """The gateway, client and runner of a run."""

    def __init__(self, args: Any) -> None:
        self.settings = read_settings(args)
        self.replay = replay_shape(args)
        self._part: RunPart | None = None
        self._guards = Guards(self.settings.guard, self.settings.guards_from)
        self._began = False
        self._first_step: int | None = None
        self.causes = Causes()
        """Why rollouts of training rows could not be trained on."""
        with ExitStack() as stack:
            self._run = stack.enter_context(RunWriter(self.settings.folder))
            self._run.describe(**_described(args, self.settings.agent))
            tokenizer = load_tokenizer(args.hf_checkpoint)
            self.decode: Callable[[list[int]], str] = tokenizer.decode
            self.padding = tokenizer.pad_token_id or tokenizer.eos_token_id or 0
            engine = RouterEngine(
                router_url(args), model=args.hf_checkpoint, context_length=args.rollout_max_context_len
            )
            place = self.settings.open_gateway(engine, tokenizer, routes=self.replay is not None)
            gateway = place.__enter__()
            stack.push(place)
            client = stack.enter_context(self.settings.client())
            self._engine, self._transfers = engine, 0
            options = self.settings.rollout_options(None, self._version)
            runner = RolloutRunner(client, gateway, options, on_rollout=self._add_rollout)
            self.runner = stack.enter_context(closing(runner))
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def writing(self, phase: str, step: int) -> Iterator[RunPart]:
        """Write the rollouts that end in the block to the step's file; they replace those of an earlier attempt."""
        self.runner.failures_reset()
        with self._run.part(phase, step) as part:
            self._part = part
            try:
                yield part
            finally:
                self._part = None
                write_totals(self.settings.folder, 0, used=self.runner.used, causes=self.causes)

    def begin_step(self, args: Any, step: int) -> None:
        """Begin the step whose rollouts are trained on after `step` updates: servers may sample with older weights."""
        if self._first_step is None:
            self._first_step = step
        self._transfers = (step - self._first_step) // (getattr(args, "update_weights_interval", None) or 1)

    def _version(self) -> int:
        """The number that the trainer's weights have, or will have when they are sent to the servers."""
        return max(self._engine.version, (self._engine.first_version or 0) + self._transfers)

    def guards_from(self, step: int) -> Guards:
        """The guards of a run whose first step in this process is `step`."""
        if not self._began:
            self._guards.resume(self.settings.folder, step or None)
            self._began = True
        return self._guards

    def keep_figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a step's line of `metrics.jsonl`; it replaces those of an earlier attempt and what came after."""
        before = {at: line for at, line in metrics_by_step(self.settings.folder).items() if at < step}
        write_metrics(self.settings.folder, before | {step: {"step": step, **figures}})

    def _add_rollout(self, rollout: Rollout) -> None:
        if self._part is not None:
            self._part.write(rollout)


def open_resources(args: Any) -> HookResources:
    """The resources of a run in this process; the first call opens them."""
    opened_with = [router_url(args), args.hf_checkpoint, replay_shape(args), getattr(args, "agentcore", None)]
    key = json.dumps(opened_with, default=repr)
    with _lock:
        if key not in _opened:
            _opened[key] = HookResources(args)
        return _opened[key]


@atexit.register
def close_resources() -> None:
    """Stop all sessions, and close everything."""
    with _lock:
        for resources in _opened.values():
            resources.close()
        _opened.clear()


def read_settings(args: Any) -> SlimeSettings:
    """Our settings, from slime's arguments."""
    section = getattr(args, "agentcore", None)
    if not isinstance(section, Mapping):
        hint = "name a YAML file with --custom-config-path, and in it: agentcore: {agent_runtime_arn: …, s3_bucket: …}"
        raise ConfigError("slime's arguments don't name an agent", hint=hint)
    if args.rollout_top_p != 1.0:
        hint = "slime needs the tokens of every nucleus, which the gateway doesn't record"
        raise ConfigError("--rollout-top-p must be 1", hint=hint)
    settings = SlimeSettings.from_mapping(section)
    if not settings.agent:
        raise ConfigError("agent is missing", hint="agentcore: {agent_runtime_arn: …} in the custom configuration")
    return settings


def replay_shape(args: Any) -> Replay | None:
    """The shape of expert routes, if slime replays them."""
    if not getattr(args, "use_rollout_routing_replay", False):
        return None
    return int(args.num_layers), int(args.moe_router_topk)


def _described(args: Any, agent: str) -> dict[str, Any]:
    """What the run is, as far as slime's arguments say it."""
    names = {"steps": "num_rollout", "rows_per_step": "rollout_batch_size", "n": "n_samples_per_prompt"}
    names |= {"model": "hf_checkpoint", "seed": "rollout_seed", "temperature": "rollout_temperature"}
    names |= {"data": "prompt_data", "learning_rate": "lr"}
    known = {name: getattr(args, flag) for name, flag in names.items() if getattr(args, flag, None) is not None}
    return {"kind": "train", "backend": "slime", "started": time.time(), "agent": agent, **known}


def rollout_options(args: Any, **changes: Any) -> dict[str, Any]:
    """Options of the runner: slime's sampling settings, with changes, win over the agent's."""
    sampling = {
        **UNALTERED,
        "temperature": args.rollout_temperature,
        "top_p": args.rollout_top_p,
        "top_k": args.rollout_top_k,
        "max_tokens": args.rollout_max_response_len,
        "stop": args.rollout_stop,
        "stop_token_ids": args.rollout_stop_token_ids,
    }
    sampling |= {name: value for name, value in changes.items() if value is not None}
    enforced = {name: value for name, value in sampling.items() if value is not None}
    return {"enforced": enforced, "context_limit": args.rollout_max_context_len}
