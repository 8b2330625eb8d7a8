"""Building an agent's image on AWS CodeBuild, on an arm64 machine, where no container engine is available.

The agent's folder goes to S3 as a zip. The project, its role and the zip are recorded like every other resource.
"""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import Any

from ...errors import AwsRefused, ConfigError
from ..deploy_settings import DeploySettings
from ..image import context_files
from .calls import Aws
from .policies import build_policy, build_trust
from .resources import TAG, Resources

_MACHINE = {
    "type": "ARM_CONTAINER",
    "image": "aws/codebuild/amazonlinux-aarch64-standard:3.0",
    "computeType": "BUILD_GENERAL1_SMALL",
    "privilegedMode": True,  # Docker runs inside
}
_BUILDSPEC = (Path(__file__).parents[1] / "templates" / "buildspec.yml").read_text(encoding="utf-8")
_BUILD_SECONDS = 1800.0
_NEW_ROLE_SECONDS = 60.0


def build_on_aws(resources: Resources, settings: DeploySettings, bucket: str, tag: str, pause: float) -> None:
    """Build the image of the agent's folder and push it."""
    aws, place, project = resources.aws, resources.place, f"agentcore-rl-{settings.name}"
    key = "/".join(filter(None, (settings.prefix, ".build", "source.zip")))
    location = f"{bucket}/{key}"
    aws.change("s3", "put_object", Bucket=bucket, Key=key, Body=_zip(settings.folder))
    resources.record("object", location)
    policy = build_policy(place, project=project, repository=settings.repository, source=location)
    role = resources.ensure_role(f"{project}-build", build_trust(place, project), policy)
    existing = aws.read("codebuild", "batch_get_projects", names=[project])
    if not existing or not existing["projects"]:
        source = {"type": "S3", "location": location, "buildspec": _BUILDSPEC}
        _create_project(aws, project, source, role, settings.name)
        resources.record("project", project)
    variables = {"REGISTRY": place.registry, "IMAGE": f"{place.registry}/{settings.repository}:{tag}"}
    started = aws.change(
        "codebuild",
        "start_build",
        projectName=project,
        sourceLocationOverride=location,
        buildspecOverride=_BUILDSPEC,
        environmentVariablesOverride=[{"name": n, "value": v, "type": "PLAINTEXT"} for n, v in variables.items()],
    )
    if not aws.dry_run:
        _wait_for_build(aws, started["build"]["id"], pause)


def _create_project(aws: Aws, project: str, source: dict[str, str], role: str, owner: str) -> None:
    """CodeBuild refuses a role created a moment ago as invalid input, until IAM has spread it."""
    deadline = time.monotonic() + _NEW_ROLE_SECONDS
    while True:
        try:
            aws.change(
                "codebuild",
                "create_project",
                name=project,
                source=source,
                artifacts={"type": "NO_ARTIFACTS"},
                environment=_MACHINE,
                serviceRole=role,
                timeoutInMinutes=60,
                tags=[{"key": TAG, "value": owner}],
            )
            return
        except AwsRefused as refused:
            if refused.code != "InvalidInputException" or time.monotonic() > deadline:
                raise
        time.sleep(3)


def _wait_for_build(aws: Aws, id: str, pause: float) -> None:
    deadline = time.monotonic() + _BUILD_SECONDS
    build: dict[str, Any] = {"buildStatus": "IN_PROGRESS"}
    while build["buildStatus"] == "IN_PROGRESS":
        if time.monotonic() > deadline:
            hint = "look at it in the AWS console; then run the command again"
            raise ConfigError(f"the build {id} took longer than {_BUILD_SECONDS:g} s", hint=hint)
        time.sleep(pause)
        build = aws.read("codebuild", "batch_get_builds", ids=[id])["builds"][0]
    if build["buildStatus"] != "SUCCEEDED":
        logs = build.get("logs", {}).get("deepLink", "the CodeBuild console")
        raise ConfigError(f"the build {id} ended as {build['buildStatus']}", hint=f"read its log: {logs}")


def _zip(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in context_files(folder):
            archive.write(path, path.relative_to(folder))
    return packed.getvalue()
