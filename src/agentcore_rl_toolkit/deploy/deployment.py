"""Deploying an agent, in order: bucket, queue, repository, image, role, runtime, trial rollout. And destroying it.

Each step changes only what differs, and records what it created before the next step starts. So an interrupted
deployment can be continued, or destroyed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from ..errors import AwsRefused, ConfigError, RuntimeFault
from .aws.calls import Aws
from .aws.codebuild import build_on_aws
from .aws.policies import Place, runtime_policy, runtime_trust
from .aws.resources import TAG, Resources, delete_resource
from .aws.runtime_control import CONTROL, RuntimeControl, RuntimeSpec
from .aws.state import State
from .deploy_settings import DeploySettings
from .image import ARM, ContainerEngine, add_toolkit, choose_engine, content_tag
from .trial import run_trial

Say = Callable[[str], object]
_DELETE_ORDER = ("runtime", "project", "role", "image", "repository", "object", "queue", "bucket")


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """How to carry out a deployment."""

    engine: str = "auto"
    dry_run: bool = False
    adopt: bool = False
    trial: bool = True
    base_url: str | None = None
    model_id: str | None = None
    pause: float = 3.0
    timeout: float = 900.0


@dataclass(frozen=True)
class Deployed:
    """What a trainer has to know of a deployed agent."""

    name: str
    arn: str
    store: str
    image: str
    queue_url: str | None = None

    def trainer_commands(self) -> str:
        """How each trainer takes the ARN. The model, the data and the gateway's address are examples."""
        template = Template((Path(__file__).parent / "templates" / "trainers.txt").read_text(encoding="utf-8"))
        return template.substitute(vars(self), sqs=f" --sqs-url {self.queue_url}" if self.queue_url else "")


class Deployment:
    """Deploys one agent. `bucket`, the results' bucket, defaults to one that all agents of the account share."""

    def __init__(self, settings: DeploySettings, state: State, options: DeployOptions, say: Say) -> None:
        self._settings, self._state, self._options, self._say = settings, state, options, say
        self._aws = Aws(settings.region, dry_run=options.dry_run, say=say)
        self._control = RuntimeControl(self._aws, pause=options.pause, timeout=options.timeout)

    def close(self) -> None:
        self._aws.close()

    def deploy(self) -> Deployed | None:
        """Take every step; None after a dry run."""
        settings, (resources, bucket) = self._settings, self._start()
        store = f"s3://{bucket}/{settings.prefix}".rstrip("/")
        resources.ensure_bucket(bucket)
        self._report(f"results go to {store}")
        queue_url = resources.ensure_queue(settings.queue) if settings.queue else None
        if queue_url:
            self._report(f"each result is announced on {queue_url}")
        image = self._ensure_image(resources, bucket)
        role = settings.role or resources.ensure_role(
            f"agentcore-rl-{settings.name}",
            runtime_trust(resources.place),
            runtime_policy(resources.place, settings, bucket),
        )
        self._report(f"sessions have the role {role}")
        arn = self._ensure_runtime(self._spec(image, role, store, queue_url))
        if arn is None:
            return None
        self._state.settings = settings.to_keep() | {"bucket": bucket}
        self._state.arn, self._state.image = arn, image
        self._state.save()
        if self._options.trial:
            self._say(run_trial(self._aws, settings.folder, arn, store, self._options))
        return Deployed(settings.name, arn, store, image, queue_url)

    def build(self) -> str:
        """Only build the image and push it; returns its name in ECR."""
        resources, bucket = self._start()
        resources.ensure_bucket(bucket)
        return self._ensure_image(resources, bucket)

    def _start(self) -> tuple[Resources, str]:
        """The resources and the bucket. A first deploy keeps its settings now, so that a second one can continue it."""
        place = self._find_place()
        self._state.bind(place.account, place.region)
        bucket = self._settings.bucket or f"agentcore-rl-{place.account}-{place.region}"
        if self._state.arn is None:
            self._state.settings = self._settings.to_keep() | {"bucket": bucket}
        return Resources(self._aws, self._state, place, self._settings.name), bucket

    def _find_place(self) -> Place:
        """The account and region; a dry run without credentials takes the account from the settings."""
        expected, region = self._settings.account, self._aws.region
        if not region:
            raise ConfigError("no AWS region is set", hint="set AWS_REGION (in .env too), or give --region")
        try:
            account = self._aws.account()
        except AwsRefused:
            if not self._options.dry_run or not expected:
                raise
            self._aws.offline = True
            self._say("no valid credentials: this dry run looks nothing up, as if nothing existed")
            return Place(expected, region)
        _check_account(account, expected, "change AWS_ACCOUNT (in .env too), or AWS_PROFILE")
        return Place(account, region)

    def _report(self, text: str) -> None:
        """Report a state that is reached, or after a dry run would be."""
        self._say(f"{'→' if self._options.dry_run else '✓'} {text}")

    def _ensure_image(self, resources: Resources, bucket: str) -> str:
        """Build and push the agent's image unless ECR has it."""
        settings, dry_run = self._settings, self._options.dry_run
        existed = resources.ensure_repository(settings.repository)
        add_toolkit(settings.folder, self._say, dry_run=dry_run)
        tag = content_tag(settings.folder)
        image = f"{resources.place.registry}/{settings.repository}:{tag}"
        if existed and resources.has_image(settings.repository, tag):
            self._say(f"✓ ECR has the image already: {image}")
            return image
        engine = choose_engine(self._options.engine)
        if engine is None:
            self._say("building on AWS CodeBuild, without a container engine on this machine")
            build_on_aws(resources, settings, bucket, tag, self._options.pause)
        else:
            self._build_here(engine, image)
        if not dry_run:
            if not resources.has_image(settings.repository, tag):
                raise ConfigError(f"the build pushed {image}, but ECR does not have it", hint="read the build's output")
            self._state.add("image", f"{settings.repository}:{tag}")
            self._say(f"✓ pushed {image}")
        return image

    def _build_here(self, engine: ContainerEngine, image: str) -> None:
        if self._options.dry_run:
            for command in engine.commands(self._settings.folder, image):
                self._say(f"$ {' '.join(command)}")
            return
        engine.build(self._settings.folder, image, ARM)
        token = self._aws.read("ecr", "get_authorization_token")["authorizationData"][0]["authorizationToken"]
        engine.push(image, base64.b64decode(token).decode().partition(":")[2])

    def _spec(self, image: str, role: str, store: str, queue_url: str | None) -> RuntimeSpec:
        settings = self._settings
        environment = {"AGENTCORE_RL_S3_BUCKET": store, "AGENTCORE_RL_ALLOWED_STORES": store}
        if queue_url:
            environment["AGENTCORE_RL_SQS_URL"] = queue_url
        return RuntimeSpec(
            name=settings.name,
            container_uri=image,
            role_arn=role,
            environment=environment | dict(settings.environment),
            description=f"{settings.name}, deployed with agentcore-rl",
            subnets=settings.subnets,
            security_groups=settings.security_groups,
            idle_seconds=settings.idle_seconds,
            lifetime_seconds=settings.lifetime_seconds,
            tags={TAG: settings.name},
        )

    def _ensure_runtime(self, spec: RuntimeSpec) -> str | None:
        """The ARN of the runtime, created or updated; None after a dry run."""
        existing = None if self._aws.offline else self._control.find(spec.name)
        owned = existing is None or self._check_owner(existing, spec.name)
        if self._options.dry_run:
            call = self._control.plan(spec, existing)
            if call is None:
                self._report("the runtime needs no change")
            else:
                self._aws.print_call(CONTROL, *call)
            return None
        applied = self._control.apply(spec, role_seconds=0 if self._settings.role else 60, say=self._say)
        if owned:
            self._state.add("runtime", applied.id)
        self._say(f"✓ the runtime is ready, version {applied.version} ({applied.change})")
        return applied.arn

    def _check_owner(self, existing: dict[str, Any], name: str) -> bool:
        """Whether the toolkit created a runtime; one that it did not create needs `adopt`."""
        if self._state.has("runtime", existing["agentRuntimeId"]):
            return True
        if self._control.tags(existing["agentRuntimeArn"]).get(TAG) == name:
            return True
        if self._options.adopt:
            return False
        hint = "choose another --name, or take it over with --adopt (destroy will leave it)"
        raise ConfigError(f"the runtime {name} exists, and this toolkit did not create it", hint=hint)


def destroy(state: State, *, dry_run: bool, say: Say, pause: float = 3.0, timeout: float = 900.0) -> bool:
    """Delete what deployments of this folder created, the runtime first; False if something had to be left."""
    complete = True
    with closing(Aws(state.region, dry_run=dry_run, say=say)) as aws:
        control = RuntimeControl(aws, pause=pause, timeout=timeout)
        if state.made and not dry_run:
            _check_account(aws.account(), state.account, "set AWS_PROFILE")
        for item in sorted(state.made, key=lambda item: _DELETE_ORDER.index(item["kind"])):
            kind, name = item["kind"], item["name"]
            reason = _delete_one(aws, control, kind, name)
            if reason is not None:
                complete = False
                say(f"✗ the {kind} {name} is left: {reason}")
            elif not dry_run:
                state.remove(kind, name)
                say(f"✓ removed the {kind} {name}")
    if complete and not dry_run:
        state.arn = None
        state.save()
    return complete


def _delete_one(aws: Aws, control: RuntimeControl, kind: str, name: str) -> str | None:
    """Delete a resource; returns why it was left, if so. A runtime that can't be deleted still uses the rest."""
    if kind != "runtime":
        try:
            return delete_resource(aws, kind, name)
        except AwsRefused as refused:
            return str(refused)
    if aws.dry_run:
        aws.print_call(CONTROL, "delete_agent_runtime", {"agentRuntimeId": name})
        return None
    try:
        control.delete(name)
    except (AwsRefused, RuntimeFault) as error:
        raise ConfigError(f"the runtime {name} could not be deleted: {error}") from error
    return None


def _check_account(account: str, expected: str | None, hint: str) -> None:
    if expected and account != expected:
        raise ConfigError(f"the credentials belong to account {account}, not {expected}", hint=hint)
