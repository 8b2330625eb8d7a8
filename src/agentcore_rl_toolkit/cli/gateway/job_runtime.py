"""Serve a SageMaker Job Runtime on this machine, until Ctrl-C.

An agent written for SageMaker's multi-turn RL runs against it unchanged: set RFT_RUNTIME_ENDPOINT, or the endpoint in
the request's metadata, to the printed address. It answers model calls with the engine and records every token under
the job and the trajectory; `/complete-rollout` and `/update-reward` follow the service's rules.

On loopback, your own processes need no key. All other callers send the admin key as AWS_ACCESS_KEY_ID.
"""

from __future__ import annotations

import argparse
from typing import Any

from ...errors import ConfigError
from . import serve

HELP = "serve a SageMaker Job Runtime on this machine"
EXTRA = "gateway,local"
EXAMPLES = (
    "agentcore-rl sagemaker serve --engine transformers=tiny --tokenizer tiny",
    "agentcore-rl sagemaker serve --engine vllm=http://127.0.0.1:8000 --tokenizer Qwen/Qwen3-8B --log runs/job",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    serve.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.workers > 1:
        hint = "give agents session URLs of `gateway serve --workers` instead: each is a Job Runtime's endpoint"
        raise ConfigError("a Job Runtime has one worker: requests don't name their session in the URL", hint=hint)
    args.make_app = _make_app
    return serve.run(args)


def _make_app(*args: Any, **kwargs: Any) -> Any:
    from ...gateway.http.jobs.job_runtime_app import JobRuntimeApp

    return JobRuntimeApp(*args, **kwargs)
