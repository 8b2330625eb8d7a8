"""What stays open between slime's calls in one process: a gateway at slime's router, a client, a runner.

slime calls plain functions by their path, with its arguments and nothing else. So what they share is kept here, by what
it was opened with, until the process ends. `args.agentcore` has our settings: the section of that name in the file that
`--custom-config-path` names. Whatever slime has a flag for is slime's: sizes, sampling, the model.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...gateway.gateway import Gateway
from ...gateway.render.tokenizer import load_tokenizer
from ...rollout import UNALTERED, Rollout, RolloutRunner, RolloutWriter
from .backend import SlimeSettings
from .convert import Replay
from .router import RouterEngine, router_url

_open: dict[str, Plug] = {}
_lock = threading.Lock()


class Plug:
    """The gateway, client and runner of a run."""

    def __init__(self, args: Any) -> None:
        self.settings = settings_of(args)
        self.replay = replay_of(args)
        self._newest = 0
        self._writing: RolloutWriter | None = None
        with ExitStack() as stack:
            tokenizer = load_tokenizer(args.hf_checkpoint)
            self.decode: Callable[[list[int]], str] = tokenizer.decode
            self.padding = tokenizer.pad_token_id or tokenizer.eos_token_id or 0
            engine = RouterEngine(
                router_url(args), model=args.hf_checkpoint, context_length=args.rollout_max_context_len
            )
            routes = self.replay is not None
            self.gateway = stack.enter_context(
                Gateway(engine, tokenizer=tokenizer, routes=routes, **self.settings.gateway)
            )
            client = stack.enter_context(self.settings.client())
            options = self.settings.rollout_options(None, lambda: self._newest)
            self.runner = stack.enter_context(
                closing(RolloutRunner(client, self.gateway, options, on_rollout=self._ended))
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def writing(self, kind: str, step: int) -> Iterator[None]:
        """Keep all rollouts that end meanwhile in a file of the step; one of an earlier try is replaced."""
        path = Path(self.settings.output) / kind / f"step-{step:06d}.jsonl"
        path.unlink(missing_ok=True)
        self.runner.failures_reset()
        with RolloutWriter(path) as writer:
            self._writing = writer
            try:
                yield
            finally:
                self._writing = None

    def _ended(self, rollout: Rollout) -> None:
        if self._writing is not None:
            self._writing.write(rollout)
        for version in (version for row in rollout.rows for version, _, _ in row.versions):
            if version.isdecimal():  # slime counts its weights; before its first update SGLang has a word of its own
                self._newest = max(self._newest, int(version))


def plug_for(args: Any) -> Plug:
    """The plug of this process for a run; the first call opens it."""
    known = [router_url(args), args.hf_checkpoint, replay_of(args), getattr(args, "agentcore", None)]
    key = json.dumps(known, default=repr)
    with _lock:
        if key not in _open:
            _open[key] = Plug(args)
        return _open[key]


@atexit.register
def close_plugs() -> None:
    """Stop what still runs, and close everything."""
    with _lock:
        for plug in _open.values():
            plug.close()
        _open.clear()


def settings_of(args: Any) -> SlimeSettings:
    """Our settings, from slime's arguments."""
    known = getattr(args, "agentcore", None)
    if not isinstance(known, Mapping):
        hint = "name a YAML file with --custom-config-path, and in it: agentcore: {agent_runtime_arn: …, s3_bucket: …}"
        raise ConfigError("slime was told nothing of the agent", hint=hint)
    if args.rollout_top_p != 1.0:
        hint = "leave --rollout-top-p at 1"
        raise ConfigError("slime replays the tokens of a nucleus, which the gateway doesn't record", hint=hint)
    settings = SlimeSettings.from_mapping(known)
    if not settings.agent:
        raise ConfigError("agent is missing", hint="agentcore: {agent_runtime_arn: …} in the custom configuration")
    return settings


def replay_of(args: Any) -> Replay | None:
    """How routes are shaped, if slime replays them."""
    if not getattr(args, "use_rollout_routing_replay", False):
        return None
    return int(args.num_layers), int(args.moe_router_topk)


def options_of(args: Any, **changes: Any) -> dict[str, Any]:
    """How slime wants rollouts to be run, whatever an agent asks for; changes to how tokens are sampled."""
    asked = {
        **UNALTERED,
        "temperature": args.rollout_temperature,
        "top_p": args.rollout_top_p,
        "top_k": args.rollout_top_k,
        "max_tokens": args.rollout_max_response_len,
        "stop": args.rollout_stop,
        "stop_token_ids": args.rollout_stop_token_ids,
    }
    asked |= {name: value for name, value in changes.items() if value is not None}
    enforced = {name: value for name, value in asked.items() if value is not None}
    return {"enforced": enforced, "context_limit": args.rollout_max_context_len}
