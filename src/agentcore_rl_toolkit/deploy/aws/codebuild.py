"""Building an agent's image on AWS CodeBuild, on arm64 machines: for when no container engine is at hand.

The agent's folder goes to S3 as a zip; the project, its role and the zip are noted like everything else.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..image import context_files
from .calls import Aws
from .policies import Place, build_policy, build_trust
from .resources import TAG, ensure_role, wait_for
from .state import State

MACHINE = {
    "type": "ARM_CONTAINER",
    "image": "aws/codebuild/amazonlinux-aarch64-standard:3.0",
    "computeType": "BUILD_GENERAL1_SMALL",
    "privilegedMode": True,  # Docker runs inside
}
BUILDSPEC = """\
version: 0.2
phases:
  pre_build:
    commands:
      - aws ecr get-login-password --region $AWS_DEFAULT_REGION | docker login --username AWS --password-stdin $REGISTRY
  build:
    commands:
      - BUILDX_NO_DEFAULT_ATTESTATIONS=1 docker build --platform linux/arm64 --tag $IMAGE .
      - docker push $IMAGE
"""


def build_on_aws(
    aws: Aws,
    state: State,
    place: Place,
    *,
    folder: Path,
    name: str,
    repository: str,
    tag: str,
    bucket: str,
    prefix: str,
    pause: float = 5.0,
    timeout: float = 1800.0,
) -> None:
    """Build the folder's image and push it."""
    project = f"agentcore-rl-{name}"
    key = "/".join(filter(None, (prefix, ".build", "source.zip")))
    aws.change("s3", "put_object", Bucket=bucket, Key=key, Body=_zip(folder))
    if not aws.dry_run:
        state.note("object", f"{bucket}/{key}")
    policy = build_policy(place, project=project, repository=repository, bucket=bucket, key=key)
    role = ensure_role(aws, state, f"{project}-build", build_trust(place, project), policy, place, name)
    source = {"type": "S3", "location": f"{bucket}/{key}", "buildspec": BUILDSPEC}
    known = aws.read("codebuild", "batch_get_projects", names=[project])
    if not known or not known["projects"]:
        _create(aws, project, source, role, name)
        if not aws.dry_run:
            state.note("project", project)
    variables = {"REGISTRY": place.registry, "IMAGE": f"{place.registry}/{repository}:{tag}"}
    started = aws.change(
        "codebuild",
        "start_build",
        projectName=project,
        sourceLocationOverride=source["location"],
        buildspecOverride=BUILDSPEC,
        environmentVariablesOverride=[{"name": n, "value": v, "type": "PLAINTEXT"} for n, v in variables.items()],
    )
    if aws.dry_run:
        return
    id = started["build"]["id"]
    build = wait_for(timeout, pause, lambda: _ended(aws, id), f"the build {id}")
    if build["buildStatus"] != "SUCCEEDED":
        logs = build.get("logs", {}).get("deepLink", "the CodeBuild console")
        raise ConfigError(f"the build {id} ended as {build['buildStatus']}", hint=f"its log: {logs}")


def _create(aws: Aws, project: str, source: dict[str, str], role: str, owner: str) -> None:
    """A role made a moment ago is not known everywhere yet: that refusal is waited out."""

    def create() -> Any:
        try:
            return aws.change(
                "codebuild",
                "create_project",
                name=project,
                source=source,
                artifacts={"type": "NO_ARTIFACTS"},
                environment=MACHINE,
                serviceRole=role,
                timeoutInMinutes=60,
                tags=[{"key": TAG, "value": owner}],
            )
        except ConfigError as error:
            if "AssumeRole" in str(error) or "service role" in str(error).lower():
                return None
            raise

    wait_for(60, 3, create, f"creating the project {project}")


def _ended(aws: Aws, id: str) -> dict[str, Any] | None:
    build: dict[str, Any] = aws.read("codebuild", "batch_get_builds", ids=[id])["builds"][0]
    return None if build["buildStatus"] == "IN_PROGRESS" else build


def _zip(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in context_files(folder):
            archive.write(path, path.relative_to(folder))
    return packed.getvalue()
