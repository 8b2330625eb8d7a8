"""The program that a run starts: `python -m agentcore_rl_toolkit.backends.rllm.main … -- OVERRIDE …`.

It registers the rows, starts the local runtime if the agent is a path, and calls rLLM's trainer under Hydra, as rLLM's
own examples do, so rLLM can tell given settings from defaults. `backend.py` writes the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import AgentCoreRLError
from ...runtime.base import TOKEN_VARIABLE
from ...runtime.local.agent_source import resolve_agent
from ...store.base import directory_of
from ..settings import read_env_file
from .data import register

_DUMMY_CREDENTIALS = {"AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}


def main(argv: Sequence[str]) -> int:
    """Train; exit with 130 after a signal, even if rLLM swallows the interrupt."""
    cut = argv.index("--") if "--" in argv else len(argv)
    args = _parser().parse_args(argv[:cut])
    interrupted: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        with _local_runtime(args) if args.agent else contextlib.nullcontext():
            _train(args, argv[cut + 1 :])
    except KeyboardInterrupt:
        return 130
    return 130 if interrupted else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentcore_rl_toolkit.backends.rllm.main", description=__doc__)
    parser.add_argument("--trainer", required=True, choices=("verl", "tinker"))
    parser.add_argument("--dataset", required=True, help="the name of the rows in rLLM")
    parser.add_argument("--data", required=True, help="the JSONL file of the split train")
    parser.add_argument("--eval-data", help="the JSONL file of the split test")
    parser.add_argument("--agent", help="start the local runtime for this agent")
    parser.add_argument("--env-file", type=Path, help="variables for its sessions, as a JSON object")
    parser.add_argument("--allow", action="append", default=[], help="an address that its sessions may reach")
    parser.add_argument("--memory-mb", type=int, help="memory of a session")
    parser.add_argument("--buckets", help="the folder of the local runtime's buckets")
    parser.add_argument("--store", default="", help="the store of results")
    return parser


@contextlib.contextmanager
def _local_runtime(args: argparse.Namespace) -> Iterator[None]:
    """Serve the agent on AWS's wire, and set AWS's variables so that our client finds it, in Ray's workers too."""
    from ...runtime.local import LocalRuntime

    folder = directory_of(args.store)
    env = read_env_file(args.env_file) if args.env_file else None
    agent = resolve_agent(args.agent, env=env, allow=args.allow, memory_mb=args.memory_mb)
    with LocalRuntime(agent, buckets=args.buckets, stores=[folder] if folder else []) as runtime:
        variables = _DUMMY_CREDENTIALS | {"AWS_ACCESS_KEY_ID": runtime.token}
        os.environ.update({name: value for name, value in variables.items() if name not in os.environ})
        os.environ[TOKEN_VARIABLE] = runtime.token
        for service in ("BEDROCK_AGENTCORE", "S3"):
            os.environ[f"AWS_ENDPOINT_URL_{service}"] = runtime.endpoint_url
        yield


def _train(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    import hydra
    from rllm.trainer import AgentTrainer

    train = register(args.data, args.dataset, "train")
    test = register(args.eval_data, args.dataset, "test") if args.eval_data else None

    def run(config: Any) -> None:
        trainer = AgentTrainer(backend=args.trainer, config=config, train_dataset=train, val_dataset=test)
        trainer.train()

    sys.argv = [sys.argv[0], *overrides]  # Hydra reads them there
    hydra.main(config_path="pkg://rllm.trainer.config", config_name="unified", version_base=None)(run)()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AgentCoreRLError as error:
        sys.exit(f"error: {error}")
