"""Deploying an agent, in order: bucket, queue, repository, image, role, runtime, a first rollout. And the way back.

Each step looks first and changes only what differs. What it made is noted before the next step begins, so that a
deployment that broke off can be continued, or destroyed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import AwsRefused, ConfigError, RuntimeFault
from ..runtime.aws_control import RuntimeControl, RuntimeSpec
from .aws.calls import Aws
from .aws.codebuild import build_on_aws
from .aws.policies import Place, runtime_policy, runtime_trust
from .aws.resources import TAG, ensure_bucket, ensure_queue, ensure_repository, ensure_role, has_image, remove
from .aws.state import State
from .deploy_settings import DeploySettings
from .image import ARM, Engine, add_toolkit, content_tag
from .snippets import Deployed
from .trial import try_rollout

Say = Callable[[str], object]
_ORDER = ("runtime", "project", "role", "image", "repository", "object", "queue", "bucket")


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """How a deployment is carried out."""

    engine: Callable[[], Engine | None]
    """Chosen when an image has to be built; None is CodeBuild."""
    dry_run: bool = False
    adopt: bool = False
    trial: bool = True
    base_url: str | None = None
    model_id: str | None = None
    pause: float = 3.0
    timeout: float = 900.0


class Deployment:
    """One agent's way to a runtime."""

    def __init__(self, settings: DeploySettings, state: State, options: DeployOptions, say: Say) -> None:
        self.settings, self.state, self.options, self.say = settings, state, options, say
        self.aws = Aws(settings.region, dry_run=options.dry_run, show=say)
        self.control = RuntimeControl(region=settings.region, pause=options.pause, timeout=options.timeout)

    def close(self) -> None:
        self.aws.close()
        self.control.close()

    def deploy(self) -> Deployed | None:
        """Everything; None after a dry run."""
        settings = self.settings
        place, bucket = self._begin()
        store = f"s3://{bucket}/{settings.prefix}".rstrip("/")
        ensure_bucket(self.aws, self.state, bucket, place)
        self._is(f"results go to {store}")
        queue_url = None
        if settings.queue:
            queue_url = ensure_queue(self.aws, self.state, settings.queue, settings.name)
            self._is(f"and are announced on {queue_url}")
        image = self.image(place, bucket)
        role = settings.role or self._role(place, bucket)
        self._is(f"sessions have the role {role}")
        arn = self._runtime(self._spec(image, role, store, queue_url))
        if arn is None:
            return None
        self.state.settings = settings.kept() | {"bucket": bucket}
        self.state.arn, self.state.image = arn, image
        self.state.save()
        if self.options.trial:
            self._trial(arn, store)
        return Deployed(settings.name, arn, store, image, queue_url)

    def build(self) -> str:
        """Only the image, with what it takes to build it on AWS; gives its name in ECR."""
        place, bucket = self._begin()
        ensure_bucket(self.aws, self.state, bucket, place)
        return self.image(place, bucket)

    def _begin(self) -> tuple[Place, str]:
        """Where it goes, and the bucket. A first attempt's settings are kept: should it break off, the next goes on."""
        place = find_place(self.aws, self.settings, dry_run=self.options.dry_run)
        self.state.check_place(place.account, place.region)
        bucket = self.settings.bucket or default_bucket(place)
        if self.state.arn is None:
            self.state.settings = self.settings.kept() | {"bucket": bucket}
        return place, bucket

    def image(self, place: Place, bucket: str) -> str:
        """The agent's image in ECR, built and pushed if it isn't there."""
        settings, repository = self.settings, self.settings.repository
        known = ensure_repository(self.aws, self.state, repository, settings.name)
        add_toolkit(settings.folder, self.say, dry_run=self.options.dry_run)
        tag = content_tag(settings.folder)
        image = f"{place.registry}/{repository}:{tag}"
        if known and has_image(self.aws, repository, tag):
            self.say(f"✓ the image is there: {image}")
            return image
        engine = self.options.engine()
        if engine is None:
            self._build_on_aws(place, bucket, tag)
        else:
            self._build_here(engine, image)
        if not self.options.dry_run:
            if not has_image(self.aws, repository, tag):
                raise ConfigError(f"{image} was pushed, and is not there", hint="look at what the build says above")
            self.state.note("image", f"{repository}:{tag}")
            self.say(f"✓ pushed {image}")
        return image

    def _is(self, text: str) -> None:
        """Something is as it should be; after the calls of a dry run, it would be."""
        self.say(f"{'→' if self.options.dry_run else '✓'} {text}")

    def _build_here(self, engine: Engine, image: str) -> None:
        folder = self.settings.folder
        if self.options.dry_run:
            for command in (
                engine.build_command(folder, image, ARM),
                engine.login_command(image.partition("/")[0]),
                engine.push_command(image),
            ):
                self.say(f"$ {' '.join(command)}")
            return
        engine.build(folder, image, ARM)
        token = self.aws.read("ecr", "get_authorization_token")["authorizationData"][0]["authorizationToken"]
        engine.push(image, base64.b64decode(token).decode().partition(":")[2])

    def _build_on_aws(self, place: Place, bucket: str, tag: str) -> None:
        settings = self.settings
        self.say("building on AWS CodeBuild, without a container engine here")
        build_on_aws(
            self.aws,
            self.state,
            place,
            folder=settings.folder,
            name=settings.name,
            repository=settings.repository,
            tag=tag,
            bucket=bucket,
            prefix=settings.prefix,
            pause=self.options.pause,
        )

    def _role(self, place: Place, bucket: str) -> str:
        settings = self.settings
        policy = runtime_policy(
            place,
            name=settings.name,
            repository=settings.repository,
            bucket=bucket,
            prefix=settings.prefix,
            queue=settings.queue,
            further=settings.statements(),
        )
        name = f"agentcore-rl-{settings.name}"
        return ensure_role(self.aws, self.state, name, runtime_trust(place), policy, place, settings.name)

    def _spec(self, image: str, role: str, store: str, queue_url: str | None) -> RuntimeSpec:
        settings = self.settings
        ours = {"AGENTCORE_RL_S3_BUCKET": store, "AGENTCORE_RL_ALLOWED_STORES": store}
        if queue_url:
            ours["AGENTCORE_RL_SQS_URL"] = queue_url
        return RuntimeSpec(
            name=settings.name,
            container_uri=image,
            role_arn=role,
            environment=ours | dict(settings.environment),
            description=f"{settings.name}, deployed with agentcore-rl",
            subnets=tuple(settings.subnets),
            security_groups=tuple(settings.security_groups),
            idle_seconds=settings.idle_seconds,
            lifetime_seconds=settings.lifetime_seconds,
            tags={TAG: settings.name},
        )

    def _runtime(self, spec: RuntimeSpec) -> str | None:
        known = None if self.aws.offline else self.control.find(spec.name)
        ours = known is None or self._owned(known, spec.name)
        if self.options.dry_run:
            call = self.control.plan(spec, known)
            if call is None:
                self._is("the runtime is as it should be")
            else:
                self.aws.would("bedrock-agentcore-control", *call)
            return None
        applied = self.control.apply(spec, say=self.say)
        if ours:
            self.state.note("runtime", applied.id)
        self.say(f"✓ the runtime is ready, version {applied.version} ({applied.change})")
        return applied.arn

    def _owned(self, known: dict[str, Any], name: str) -> bool:
        """Whether a runtime is ours; one that isn't is only touched if the user says so."""
        ours = self.state.has("runtime", known["agentRuntimeId"])
        if ours or self.control.tags(known["agentRuntimeArn"]).get(TAG) == name:
            return True
        if self.options.adopt:
            return False
        hint = "choose another --name, or take it over with --adopt (destroy will leave it)"
        raise ConfigError(f"there is a runtime {name} that this toolkit didn't make", hint=hint)

    def _trial(self, arn: str, store: str) -> None:
        options = self.options
        trial = try_rollout(
            self.aws,
            arn=arn,
            store=store,
            folder=self.settings.folder,
            base_url=options.base_url,
            model_id=options.model_id,
            timeout=min(options.timeout, 300.0),
        )
        self.say(f"✓ {trial.text}")
        if trial.error:
            self.say(f"  {trial.error.splitlines()[0][:200]}")


def default_bucket(place: Place) -> str:
    """Where results go if nobody says."""
    return f"agentcore-rl-{place.account}-{place.region}"


def find_place(aws: Aws, settings: DeploySettings, *, dry_run: bool = False) -> Place:
    """The account and the region; a dry run without credentials takes the account's word from the settings."""
    if not aws.region:
        raise ConfigError("there is no region", hint="set AWS_REGION (in .env too), or give --region")
    try:
        account = str(aws.identity()["Account"])
    except AwsRefused:
        if not dry_run or not settings.account:
            raise
        aws.offline = True
        aws.note("there are no valid credentials: nothing is looked up, as if nothing existed")
        return Place(settings.account, aws.region)
    if settings.account and settings.account != account:
        hint = "change AWS_ACCOUNT (in .env too), or AWS_PROFILE"
        raise ConfigError(f"the credentials are for account {account}, not {settings.account}", hint=hint)
    return Place(account, aws.region)


def destroy(state: State, *, dry_run: bool, say: Say, pause: float = 3.0, timeout: float = 900.0) -> bool:
    """Remove what deployments of this folder made, the runtime first; False if something had to be left."""
    aws = Aws(state.region, dry_run=dry_run, show=say)
    control = RuntimeControl(region=state.region, pause=pause, timeout=timeout)
    whole = True
    try:
        if not dry_run and state.made:
            account = str(aws.identity()["Account"])
            if account != state.account:
                raise ConfigError(
                    f"the credentials are for account {account}, not {state.account}", hint="set AWS_PROFILE"
                )
        for item in sorted(state.made, key=lambda item: _ORDER.index(item["kind"])):
            try:
                left = _destroy_one(aws, control, item)
            except ConfigError as error:
                if item["kind"] == "runtime":  # the rest is still in use
                    raise
                left = str(error)
            what = f"{item['kind']} {item['name']}"
            if left is not None:
                whole = False
                say(f"✗ the {what} is left: {left}")
            elif not dry_run:
                state.forget(item["kind"], item["name"])
                say(f"✓ removed the {what}")
        if not dry_run and whole:
            state.arn = None
            state.save()
    finally:
        aws.close()
        control.close()
    return whole


def _destroy_one(aws: Aws, control: RuntimeControl, item: dict[str, str]) -> str | None:
    if item["kind"] != "runtime":
        return remove(aws, item)
    if aws.dry_run:
        aws.would("bedrock-agentcore-control", "delete_agent_runtime", {"agentRuntimeId": item["name"]})
        return None
    try:
        control.delete(item["name"])
    except RuntimeFault as fault:
        raise ConfigError(f"the runtime {item['name']} could not be deleted: {fault}") from fault
    return None
