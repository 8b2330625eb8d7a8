"""Write a trained model as a folder that Transformers, vLLM and Bedrock Custom Model Import load.

RUN is the output folder of `train`, which stands for its newest checkpoint, a checkpoint's folder, or an adapter's,
which is merged into its base model. The folder gets the tokenizer with its chat template, and the temperature of the
training as the default. It is loaded, and its logprobs are compared with the policy's, before it appears. stdout gets
its path.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from ...errors import ConfigError
from ..flags import say

HELP = "write a trained model for production"
EXAMPLES = (
    "agentcore-rl export runs/first",
    "agentcore-rl export runs/lora --step 40 --dtype bfloat16 --output exported/my_agent",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trained", metavar="RUN", help="the folder of a run, a checkpoint or an adapter")
    parser.add_argument("--output", help="write the model to this new folder (default: exported/NAME)")
    parser.add_argument("--step", type=int, help="export the checkpoint of this step (default: the newest)")
    help = "write the weights as float32, bfloat16 or float16 (default: as the model was before training)"
    parser.add_argument("--dtype", help=help)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    try:
        from ...deploy.model_export import export_model
    except ImportError as error:
        hint = "pip install 'agentcore-rl-toolkit[transformers]'"
        raise ConfigError(f"exporting needs {error.name}, which is not installed", hint=hint) from error
    output = Path(args.output or Path("exported", Path(args.trained).resolve().name))
    report = export_model(args.trained, output, step=args.step, dtype=args.dtype)
    say(
        f"{report.model} in {report.dtype}{', its adapter merged' if report.merged_adapter else ''}; loaded again, "
        f"{report.compared_tokens} logprobs differ from the policy's by {report.mean_difference:.2g} on average and "
        f"{report.largest_difference:.2g} at most"
    )
    print(json.dumps(asdict(report)) if args.json else report.output)
    if not args.json:
        say(f"Next: agentcore-rl serve {report.output}")
    return 0
