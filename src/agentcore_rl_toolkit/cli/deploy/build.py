"""Build an agent's container image, for AgentCore Runtime (linux/arm64) or for this machine.

Docker or Podman builds it here. Where neither answers, AWS CodeBuild builds it and pushes it to ECR. The image's name
goes to stdout.
"""

from __future__ import annotations

import argparse
from contextlib import closing

from ...errors import ConfigError
from ..flags import add_agent_folder, add_dry_run, add_place_flags, agent_folder, place_settings, say

HELP = "build an agent's container image"
EXAMPLES = (
    "agentcore-rl build my_agent --local",
    "agentcore-rl build my_agent --builder codebuild --region us-west-2",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_agent_folder(parser)
    parser.add_argument("--local", action="store_true", help="build for this machine's architecture, to run it here")
    parser.add_argument("--tag", help="give the image this name (default: the repository, with a hash of the files)")
    add_builder_flag(parser)
    add_place_flags(parser)
    add_dry_run(parser)


def add_builder_flag(parser: argparse.ArgumentParser) -> None:
    builders = ("auto", "docker", "podman", "codebuild")
    help = "build the image with this (default: auto, the first that answers)"
    parser.add_argument("--builder", choices=builders, default="auto", help=help)


def run(args: argparse.Namespace) -> int:
    from ...deploy.aws.state import State
    from ...deploy.deploy_settings import read_settings
    from ...deploy.deployment import Deployment, DeployOptions
    from ...deploy.image import ARM, add_toolkit, choose_engine, content_tag

    folder = agent_folder(args.agent)
    state = State.load(folder)
    settings = read_settings(folder, state, place_settings(args))
    engine = choose_engine(args.builder)
    if engine is None:
        if args.local or args.tag:
            hint = "install Docker or Podman, and start its service"
            raise ConfigError("--local and --tag need a container engine on this machine", hint=hint)
        options = DeployOptions(engine="codebuild", dry_run=args.dry_run)
        with closing(Deployment(settings, state, options, say)) as deployment:
            print(deployment.build())
        return 0
    add_toolkit(folder, say, dry_run=args.dry_run)
    image = args.tag or f"{settings.repository}:{content_tag(folder)}"
    platform = None if args.local else ARM
    if args.dry_run:
        say(f"$ {' '.join(engine.commands(folder, image, platform)[0])}")
    else:
        engine.build(folder, image, platform)
        if args.local:
            say(f"run it: {engine.name} run --rm --publish 8080:8080 {image}")
    print(image)
    return 0
