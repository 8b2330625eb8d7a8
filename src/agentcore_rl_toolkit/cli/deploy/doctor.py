"""Check an agent before a run costs money. Each line is ✓, ✗ with a fix, or – with the reason it was skipped.

On this machine: the data, how far a reward agrees with gold rows, a rollout with a scripted model, and the model's chat
template and tool parser against this agent, without weights. On AWS, by trying: credentials, bucket, queue, role,
image, gateway. Exits with 1 if one failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex

from ...common.text_table import escape
from ..flags import add_agent_folder, add_place_flags, add_sandbox_flags, place_settings, read_variables, say
from ..terminal.parser import above_zero, count

HELP = "check an agent, its model and its deployment"
EXAMPLES = (
    "agentcore-rl doctor my_agent --model Qwen/Qwen3-0.6B",
    "agentcore-rl doctor my_agent --only data --only agent",
    "agentcore-rl doctor my_agent --gateway-url https://gateway.example.com --json",
    "agentcore-rl doctor my_agent --only aws --sagemaker-role arn:aws:iam::123456789012:role/sagemaker",
)
PARTS = ("data", "judge", "agent", "model", "aws")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_agent_folder(parser)
    parser.add_argument("--data", help="check these rows, in any format of `rollout` (default: the agent's rows.jsonl)")
    parser.add_argument("--model", help="check this model's tokenizer: a folder, a hub id, or `tiny` (default: none)")
    parser.add_argument("--chat-template", metavar="FILE", help="a Jinja file to use instead of the model's own")
    parser.add_argument("--renderer", default="auto", help="render prompts as `gateway serve` does (default: auto)")
    parser.add_argument("--context-limit", type=count, help="tokens that the model takes (default: its config's)")
    parser.add_argument("--max-tokens", type=count, default=1024, help="tokens of a reply (default: 1024)")
    parser.add_argument("--conversation", metavar="FILE", help='replay this one: {"messages": […], "tools": […]}')
    parser.add_argument("--reward", metavar="FILE:NAME", help="compare this reward (a judge, for example) with --gold")
    parser.add_argument("--gold", metavar="FILE", help="rows in JSONL with their right rewards (default: none)")
    help = "invoke the agent as ours, or as a SageMaker multi-turn RL job does (default: agentcore)"
    parser.add_argument("--agent-protocol", default="agentcore", help=help)
    parser.add_argument("--gateway-url", help="check that sessions reach the gateway here (default: none)")
    parser.add_argument("--arn", help="the deployed runtime (default: the one in .agentcore-rl.json)")
    parser.add_argument("--aws", action="store_true", help="check AWS even if the agent is not deployed")
    add_place_flags(parser)
    parser.add_argument("--sqs-url", help="check the SQS queue that announces results, a name or a URL (default: none)")
    parser.add_argument("--role-arn", help="check the role of the sessions (default: the one deploy created)")
    help = "check SageMaker's multi-turn RL jobs and training sessions, and the role they assume (default: none)"
    parser.add_argument("--sagemaker-role", metavar="ARN", help=help)
    add_sandbox_flags(parser)
    parser.add_argument("--only", action="append", choices=PARTS, help="check only this part; may be repeated")
    parser.add_argument("--timeout", type=above_zero, default=120.0, help="seconds for a rollout (default: 120)")
    parser.add_argument("--json", action="store_true", help="print each check as a line of JSON")


def run(args: argparse.Namespace) -> int:
    from ...deploy.doctor.doctor import DoctorOptions, run_checks

    args.only = tuple(args.only or PARTS)
    args.env = read_variables(args.env)
    options = DoctorOptions(**{field.name: getattr(args, field.name) for field in dataclasses.fields(DoctorOptions)})
    states = {}
    for check in run_checks(options, place_settings(args) | {"queue": args.sqs_url, "role": args.role_arn}):
        print(
            json.dumps(dataclasses.asdict(check), ensure_ascii=False) if args.json else escape(check.line), flush=True
        )
        states[check.name] = check.state
    if "failed" in states.values():
        return 1
    if states.get("rollout") == "ok" and not args.json:
        data = ["--data", args.data] if args.data else []
        say(f"\nNext: {shlex.join(['agentcore-rl', 'eval', args.agent, *data, '--model', args.model or 'tiny'])}")
    return 0
