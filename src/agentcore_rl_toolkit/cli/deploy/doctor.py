"""`agentcore-rl doctor AGENT`: check the whole road before money is spent. Each line is ✓, ✗ with a fix, or – with why.

Data rows, the app's contract with a scripted model on this machine, the model's template and tool parser against this
agent (no weights needed), whether prompts fit; on AWS, by trying: credentials, bucket, queue, role, image, gateway.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from ..terminal.sandbox_arguments import add_sandbox_arguments, variables
from .build import place_settings

PARTS = ("data", "agent", "model", "aws")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("doctor", help="check the whole road of an agent", description=__doc__)
    parser.add_argument("agent", nargs="?", default=".", help="the agent's folder, or its file (default: this folder)")
    parser.add_argument("--data", metavar="FILE", help="JSONL, one payload a line (default: the agent's rows.jsonl)")
    parser.add_argument("--model", help="a folder or a hub id, of which only the tokenizer is read; or `tiny`")
    parser.add_argument("--chat-template", metavar="FILE", help="a Jinja file to use in place of the model's own")
    parser.add_argument("--renderer", default="auto", help="as for the gateway (default: auto)")
    parser.add_argument("--context", type=int, metavar="N", help="the model's context length (default: as it says)")
    parser.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="of a reply (default: 1024)")
    parser.add_argument("--conversation", metavar="FILE", help='recorded: {"messages": […], "tools": […]}')
    parser.add_argument("--gateway", metavar="URL", help="where sessions are to reach the gateway")
    parser.add_argument("--arn", help="the agent's runtime (default: what deploy noted in the folder)")
    parser.add_argument("--aws", action="store_true", help="check AWS although nothing else says that it goes there")
    parser.add_argument("--name", help="the runtime's name (default: the folder's)")
    parser.add_argument("--region", help="default: AWS_REGION, in the environment or in .env")
    parser.add_argument("--bucket", help="where results go")
    parser.add_argument("--prefix", help="under which prefix (default: the runtime's name)")
    parser.add_argument("--queue", metavar="NAME", help="where they are announced")
    parser.add_argument("--role", metavar="ARN", help="the sessions' role")
    parser.add_argument("--repository", help="in ECR")
    add_sandbox_arguments(parser)
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a rollout (default: 120)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each check")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print each check as it is done; exit with 1 if one failed."""
    from ...deploy.doctor.doctor import DoctorOptions, doctor

    args.only = tuple(args.only or PARTS)
    args.env = variables(args.env)
    names = [field.name for field in dataclasses.fields(DoctorOptions)]
    options = DoctorOptions(**{name: getattr(args, name) for name in names})
    given = place_settings(args) | {"queue": args.queue, "role": args.role}
    states = []
    for check in doctor(options, given):
        print(json.dumps(dataclasses.asdict(check), ensure_ascii=False) if args.json else check.line, flush=True)
        states.append(check.state)
    return 1 if "failed" in states else 0
