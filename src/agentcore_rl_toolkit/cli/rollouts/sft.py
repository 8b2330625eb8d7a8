"""Fine-tune a model on the best of stored rollouts, on the tokens that were sampled.

A SOURCE is the output folder of `train`, whose rollouts of training rows are used, or a file of rollouts. Rewards only
train what a policy does now and then: if a small model never calls a tool, let another model with the same tokenizer
run the agent, fine-tune the small one on its best rollouts, and train on with `train --model runs/sft`. The output
folder is one that `train`, `eval`, `serve` and `export` take as a model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

from ...backends.base import require
from ...backends.trl.backend import SftSettings
from ...errors import ConfigError
from ..flags import read_pairs, say
from .train import add_option, field_types

HELP = "fine-tune a model on the best stored rollouts"
EXAMPLES = (
    "agentcore-rl sft runs/train --model tiny --learning-rate 1e-3",
    "agentcore-rl sft runs/big runs/other/rollouts/step-000000.jsonl --model Qwen/Qwen3-0.6B --best 2 --min-reward 0.5",
    "agentcore-rl sft runs/train --model Qwen/Qwen3-0.6B --lora-rank 16 --output runs/warm --resume",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="the output folder of a run, or a .jsonl file")
    parser.add_argument("--dry-run", action="store_true", help="say which rollouts would be trained on, and stop")
    kinds = field_types(SftSettings)
    for spec in dataclasses.fields(SftSettings):
        if spec.name != "sources":
            add_option(parser, spec, kinds[spec.name])


def run(args: argparse.Namespace) -> int:
    """Exits with 130 after an interrupt."""
    names = [spec.name for spec in dataclasses.fields(SftSettings)]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    settings = SftSettings.from_mapping(given | {"options": read_pairs("--options", given.get("options", ()))})
    try:
        module = require("agentcore_rl_toolkit.backends.trl.sft", "trl", "fine-tuning with TRL")
    except ImportError as error:
        raise ConfigError(str(error)) from error
    if args.dry_run:
        module.sft_config(settings)
        for one in module.choose(settings).demonstrations:
            print(json.dumps(one.to_dict()))
        return 0
    summary = module.fine_tune(settings, say)
    if os.environ.get("RANK", "0") == "0":  # one of several processes prints
        print(json.dumps(summary))
        say(f"Next: agentcore-rl train AGENT --data rows.jsonl --model {settings.output}")
    return 130 if summary["interrupted"] else 0
