"""The checks in the order of the road: data, agent, model, then AWS. What can't be checked says why."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.checkpoints import resolve_model
from ...errors import AgentCoreRLError, ConfigError
from ...runtime.hosting.agent_code import find_agent
from ...runtime.local import AgentSource
from ...runtime.local_agent import agent_source
from ..aws.calls import Aws
from ..aws.policies import Place, runtime_policy
from ..aws.state import State
from ..deploy_settings import DeploySettings, read_settings
from ..image import content_tag
from . import check_aws as cloud
from .check import Check, failed, refused, skipped
from .check_data import check_rows
from .check_dockerfile import check_recipe


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What is known of the road."""

    agent: str
    data: str | None = None
    model: str | None = None
    chat_template: str | None = None
    renderer: str = "auto"
    context: int | None = None
    max_tokens: int = 1024
    conversation: str | None = None
    gateway: str | None = None
    arn: str | None = None
    aws: bool = False
    only: tuple[str, ...] = ("data", "agent", "model", "aws")
    """The parts of the road."""
    timeout: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that sessions get beside those of `.env`."""
    allow: Sequence[str] = ()
    memory_mb: int | None = None


def doctor(options: DoctorOptions, given: dict[str, Any]) -> Iterator[Check]:
    """Check everything; `given` are settings of a deployment, as `deploy` takes them."""
    try:
        _, folder, entry = find_agent(_path(options.agent))
    except ConfigError as error:
        yield refused("agent", error)
        return
    source = options.data or str(Path(folder) / "rows.jsonl")
    rows: list[dict[str, Any]] = []
    check = skipped("data", "no rows are known; give --data FILE")
    if options.data or os.path.isfile(source):
        check, rows = check_rows(source)
    if "data" in options.only:
        yield check
    if "agent" in options.only or "model" in options.only:
        try:
            agent = agent_source(
                os.path.join(folder, entry), env=options.env, allow=options.allow, memory_mb=options.memory_mb
            )
        except ConfigError as error:
            yield refused("app", error)
            return
        yield from _local(options, agent, rows)
    if "aws" in options.only:
        yield from _aws(options, Path(folder), given)


def _path(agent: str) -> str:
    return os.path.join(agent, "") if os.path.isdir(agent) else agent


def _local(options: DoctorOptions, agent: AgentSource, rows: list[dict[str, Any]]) -> Iterator[Check]:
    """What this machine can tell: the app, and the model's template."""
    missing = [name for name in ("aiohttp", "renderers", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        yield skipped("app", f"{missing[0]} is not installed: pip install 'agentcore-rl-toolkit[gateway,local]'")
        return
    from ...engine import tiny
    from ...gateway.render.tokenizer import load_tokenizer
    from .check_agent import check_contract
    from .check_model import first_script

    payload = rows[0] if rows else {"prompt": "Hello"}
    tokenizer = load_tokenizer(tiny.path())
    script, tools = first_script(tokenizer)
    checks, done = check_contract(agent, payload, script, tokenizer, options.timeout)
    yield from checks
    if "model" in options.only:
        longest = max(rows, key=lambda row: len(str(row))) if rows else payload
        yield from _model(options, agent if done is not None else None, longest, tools)


def _model(
    options: DoctorOptions, agent: AgentSource | None, payload: dict[str, Any], tools: list[dict[str, Any]]
) -> Iterator[Check]:
    """The model's template against this agent, and against a recorded conversation."""
    from ...gateway.render.renderer import ChatRenderer
    from ...gateway.render.tokenizer import load_tokenizer
    from .check_model import check_context, check_conversation, check_model, check_tools, context_length

    if options.model is None:
        yield skipped("template", "no model is named; give --model")
        return
    model = resolve_model(options.model)
    try:
        tokenizer = load_tokenizer(model, options.chat_template)
        renderer = ChatRenderer(tokenizer, renderer=options.renderer)
    except AgentCoreRLError as error:
        yield refused("template", error)
        return
    if agent is None:
        yield skipped("template", "the agent does not run")
    else:
        yield check_tools(renderer, tools)
        checks, longest = check_model(agent, payload, tools, renderer, options.timeout)
        yield from checks
        yield check_context(longest, options.context or context_length(model), options.max_tokens)
    if options.conversation is None:
        yield skipped("conversation", "none is recorded; give --conversation FILE")
    else:
        yield check_conversation(Path(options.conversation), tokenizer, {"renderer": options.renderer})


def _aws(options: DoctorOptions, folder: Path, given: dict[str, Any]) -> Iterator[Check]:
    """What AWS can tell, if anything says that the agent goes there."""
    yield check_recipe(folder)
    state = State.load(folder)
    if not (options.aws or options.arn or state.arn or any(given.values())):
        yield skipped("credentials, region, bucket, queue, role", "nothing says where; give --aws, --bucket or --role")
        yield cloud.check_image(None, None, f"{folder.name.lower().replace('_', '-')}:{content_tag(folder)}")
        yield cloud.check_gateway(options.gateway, None, vpc=False)
        return
    try:
        settings = read_settings(folder, state, given)
    except ConfigError as error:
        yield refused("settings", error)
        return
    aws = Aws(settings.region)
    try:
        checks, place = cloud.check_credentials(aws)
        yield from checks
        if place is not None:
            yield from _resources(aws, place, settings, state)
        arn = options.arn or state.arn
        yield cloud.check_gateway(options.gateway, arn if place else None, vpc=bool(settings.subnets))
    finally:
        aws.close()


def _resources(aws: Aws, place: Place, settings: DeploySettings, state: State) -> Iterator[Check]:
    if settings.account and settings.account != place.account:
        yield failed("account", f"the credentials are for {place.account}, not {settings.account}", "set AWS_PROFILE")
    yield cloud.check_bucket(aws, settings.bucket, settings.prefix)
    yield cloud.check_queue(aws, settings.queue)
    role = settings.role or (cloud.role_arn(place, settings.name) if state.arn else None)
    needed = runtime_policy(
        place,
        name=settings.name,
        repository=settings.repository,
        bucket=settings.bucket or "unknown",
        prefix=settings.prefix,
        queue=settings.queue,
    )
    yield cloud.check_role(aws, role, needed["Statement"])
    image = state.image or f"{place.registry}/{settings.repository}:{content_tag(settings.folder)}"
    yield cloud.check_image(aws, image, f"{settings.repository}:{content_tag(settings.folder)}")
