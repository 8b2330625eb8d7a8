"""Runs the checks in order: data, judge, agent, model, AWS."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...engine.checkpoints import context_length, resolve_model
from ...errors import AgentCoreRLError, ConfigError
from ...rows import rows_in
from ...runtime.hosting.agent_code import find_agent
from ...runtime.local import AgentSource
from ...runtime.local.agent_source import source_at
from ..aws.calls import Aws
from ..aws.policies import Place, runtime_policy
from ..aws.state import State
from ..deploy_settings import DeploySettings, read_settings
from ..image import content_tag
from .check_aws import check_bucket, check_credentials, check_image, check_queue, check_role
from .check_files import check_dockerfile, check_rows
from .check_gateway import check_gateway
from .check_sagemaker import check_sagemaker
from .finding import Check, failed, failed_with, skipped

_Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What the doctor checks, and how."""

    agent: str
    only: tuple[str, ...]
    """Parts to check, of `data`, `judge`, `agent`, `model` and `aws`."""
    data: str | None = None
    model: str | None = None
    chat_template: str | None = None
    renderer: str = "auto"
    context_limit: int | None = None
    max_tokens: int = 1024
    conversation: str | None = None
    gateway_url: str | None = None
    arn: str | None = None
    reward: str | None = None
    gold: str | None = None
    agent_protocol: str = "agentcore"
    aws: bool = False
    sagemaker_role: str | None = None
    timeout: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict)
    allow: Sequence[str] = ()
    memory_mb: int | None = None


def run_checks(options: DoctorOptions, given: dict[str, Any]) -> Iterator[Check]:
    """Yield each check as it is done; `given` are deployment settings of the command line."""
    try:
        agent = os.path.join(options.agent, "") if os.path.isdir(options.agent) else options.agent
        _, folder, entry = find_agent(agent)
    except ConfigError as error:
        yield failed_with("agent", error)
        return
    data = options.data or rows_in(folder)
    rows: _Rows = []
    check = skipped("data", "no rows are known; give --data FILE")
    if data:
        check, rows = check_rows(data)
    if "data" in options.only:
        yield check
    if "judge" in options.only and (options.reward or options.gold):
        yield _check_judge(options)
    if "agent" in options.only or "model" in options.only:
        try:
            path, memory = os.path.join(folder, entry), options.memory_mb
            source = source_at(path, env=options.env, allow=options.allow, memory_mb=memory)
        except ConfigError as error:
            yield failed_with("app", error)
            return
        yield from _check_locally(options, source, rows, data)
    if "aws" in options.only:
        yield from _check_deployment(options, Path(folder), given)


def _check_judge(options: DoctorOptions) -> Check:
    if options.reward is None or options.gold is None:
        return failed("judge", "a reward is compared with gold rows", "give both --reward and --gold")
    from .check_judge import check_judge

    return check_judge(options.reward, options.gold)


def _check_locally(options: DoctorOptions, agent: AgentSource, rows: _Rows, data: str | None) -> Iterator[Check]:
    """Check the app and the model's template on this machine."""
    for package in ("aiohttp", "renderers", "transformers"):
        if importlib.util.find_spec(package) is None:
            yield skipped("app", f"{package} is not installed: pip install 'agentcore-rl-toolkit[gateway,local]'")
            return
    from ...engine import tiny
    from ...gateway.render.tokenizer import load_tokenizer
    from .check_agent import check_agent
    from .scripted_policy import tiny_script

    fix = f"run it by hand: agentcore-rl rollout {options.agent} --data {data} --model tiny --limit 1"
    if not rows:
        rows, fix = [{"prompt": "Hello"}], 'it ran on {"prompt": "Hello"}, because no rows are known: give --data FILE'
    tokenizer = load_tokenizer(tiny.path())
    script, tools = tiny_script(tokenizer)
    checks, runs = check_agent(
        agent, rows[0], script, tokenizer, options.timeout, fix, protocol=options.agent_protocol, reward=options.reward
    )
    yield from checks
    if "model" in options.only:
        longest = max(rows, key=lambda row: len(str(row)))
        yield from _check_model(options, agent if runs else None, longest, tools)


def _check_model(
    options: DoctorOptions, agent: AgentSource | None, row: dict[str, Any], tools: _Rows
) -> Iterator[Check]:
    """Check the model's template with this agent, and with a recorded conversation."""
    from ...gateway.render.renderer import ChatRenderer
    from ...gateway.render.tokenizer import load_tokenizer
    from .check_model import check_context, check_conversation, check_template, check_tools

    if options.model is None:
        yield skipped("template", "no model is named; give --model")
        return
    try:
        model = resolve_model(options.model)
        renderer = ChatRenderer(load_tokenizer(model, options.chat_template), renderer=options.renderer)
    except AgentCoreRLError as error:
        yield failed_with("template", error)
        return
    if agent is None:
        yield skipped("template", "the agent does not run")
    else:
        yield check_tools(renderer, tools)
        check, longest = check_template(agent, row, tools, renderer, options.timeout, options.agent_protocol)
        yield check
        limits = [limit for limit in (options.context_limit, context_length(model)) if limit]
        yield check_context(longest, min(limits, default=None), options.max_tokens)
    if options.conversation is None:
        yield skipped("conversation", "none is recorded; give --conversation FILE")
    else:
        yield check_conversation(Path(options.conversation), renderer, {"renderer": options.renderer})


def _check_deployment(options: DoctorOptions, folder: Path, given: dict[str, Any]) -> Iterator[Check]:
    """Check the Dockerfile, and AWS if something says that the agent is deployed there or will be."""
    yield check_dockerfile(folder)
    state = State.load(folder)
    if not (options.aws or options.arn or options.sagemaker_role or state.arn or any(given.values())):
        reason = "no deployment found; give --aws, --bucket or --role-arn"
        yield skipped("credentials, region, bucket, queue, role", reason)
        yield check_image(None, None, f"{folder.name.lower().replace('_', '-')}:{content_tag(folder)}")
        yield check_gateway(options.gateway_url, None, vpc=False)
        return
    try:
        settings = read_settings(folder, state, given)
    except ConfigError as error:
        yield failed_with("settings", error)
        return
    with closing(Aws(settings.region)) as aws:
        checks, place = check_credentials(aws)
        yield from checks
        if place is not None:
            yield from _check_resources(aws, place, settings, state)
        arn = options.arn or state.arn
        if place is not None and options.sagemaker_role:
            yield from check_sagemaker(aws, place, options.sagemaker_role, settings.bucket, arn)
        yield check_gateway(options.gateway_url, arn if place else None, vpc=bool(settings.subnets))


def _check_resources(aws: Aws, place: Place, settings: DeploySettings, state: State) -> Iterator[Check]:
    if settings.account and settings.account != place.account:
        text = f"the credentials belong to account {place.account}, not {settings.account}"
        yield failed("account", text, "set AWS_PROFILE")
    yield check_bucket(aws, settings.bucket, settings.prefix)
    yield check_queue(aws, settings.queue)
    role = settings.role or (place.role_arn(f"agentcore-rl-{settings.name}") if state.arn else None)
    needed = runtime_policy(place, replace(settings, policy=None), settings.bucket or "unknown")
    yield check_role(aws, role, needed["Statement"])
    local = f"{settings.repository}:{content_tag(settings.folder)}"
    yield check_image(aws, state.image or f"{place.registry}/{local}", local)
