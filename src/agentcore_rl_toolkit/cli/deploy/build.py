"""`agentcore-rl build FOLDER`: an agent's container image, for AgentCore Runtime (linux/arm64) or for this machine.

Docker or Podman builds it here; where neither answers, AWS CodeBuild builds it and pushes it to ECR. The image's name
goes to stdout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ENGINES = ("auto", "docker", "podman", "codebuild")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("build", help="build an agent's container image", description=__doc__)
    parser.add_argument("agent", nargs="?", default=".", help="the agent's folder (default: this one)")
    parser.add_argument("--local", action="store_true", help="for this machine's own architecture, to be run here")
    parser.add_argument("--tag", help="the image's name and tag (default: the agent's name, and a tag of its content)")
    add_place_arguments(parser)
    parser.set_defaults(run=run)


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """What `build` and `deploy` have in common."""
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="what builds the image (default: auto)")
    parser.add_argument("--name", help="the runtime's name (default: the folder's)")
    parser.add_argument("--region", help="default: AWS_REGION, in the environment or in .env")
    parser.add_argument("--bucket", help="where results go (default: agentcore-rl-<account>-<region>)")
    parser.add_argument("--prefix", help="under which prefix (default: the runtime's name)")
    parser.add_argument("--repository", help="in ECR (default: ECR_REPO_NAME, or after the runtime's name)")
    parser.add_argument("--dry-run", action="store_true", help="print every call and policy, and change nothing")


def place_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What those arguments say."""
    return {name: getattr(args, name) for name in ("name", "region", "bucket", "prefix", "repository")}


def agent_folder(agent: str) -> Path:
    """The folder of an agent that is named by it, or by its file."""
    path = Path(agent).resolve()
    return path.parent if path.is_file() else path


def say(line: str) -> None:
    """For people: stdout is for data."""
    print(line, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Build, and print the image's name."""
    from ...deploy.aws.state import State
    from ...deploy.deploy_settings import read_settings
    from ...deploy.image import ARM, add_toolkit, choose_engine, content_tag

    folder = agent_folder(args.agent)
    state = State.load(folder)
    settings = read_settings(folder, state, place_settings(args))
    engine = choose_engine(args.engine)
    if engine is None:
        return _on_aws(args, settings, state)
    add_toolkit(folder, say, dry_run=args.dry_run)
    image = args.tag or f"{settings.repository}:{content_tag(folder)}"
    platform = None if args.local else ARM
    if args.dry_run:
        say(f"$ {' '.join(engine.build_command(folder, image, platform))}")
    else:
        engine.build(folder, image, platform)
        if args.local:
            say(f"run it: {engine.name} run --rm --publish 8080:8080 {image}")
    print(image)
    return 0


def _on_aws(args: argparse.Namespace, settings: Any, state: Any) -> int:
    from ...deploy.deployment import Deployment, DeployOptions
    from ...errors import ConfigError

    if args.local or args.tag:
        hint = "install Docker or Podman, and start its service"
        raise ConfigError("without a container engine nothing can be built here", hint=hint)
    deployment = Deployment(settings, state, DeployOptions(engine=lambda: None, dry_run=args.dry_run), say)
    try:
        print(deployment.build())
    finally:
        deployment.close()
    return 0
