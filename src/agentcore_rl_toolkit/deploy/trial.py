"""The first rollout of a deployed agent: does a session start, run the agent, and store a result that we can read?

Without a model to call, the agent fails at calling one, and its result says so: the road is what is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agent.result import Result
from ..client import RolloutClient
from ..errors import AgentCoreRLError, AwsRefused, ConfigError, RuntimeFault
from ..rows import read_rows
from ..types import Status
from .aws.calls import Aws

NO_MODEL = "http://127.0.0.1:9/sessions/no.model/v1"
"""Port 9 refuses at once. It looks like a session of the gateway, so that clients of every protocol go there."""
EXPERIMENT = "deploy-check"


@dataclass(frozen=True)
class Trial:
    """How it went."""

    status: Status
    error: str | None
    seconds: float
    with_model: bool

    @property
    def text(self) -> str:
        """For people."""
        if self.status is Status.COMPLETED:
            return f"a rollout completed and its result was read in {self.seconds:.1f} s"
        where = "" if self.with_model else ", as expected without a model (--base-url)"
        return f"a session ran and its result was read in {self.seconds:.1f} s: {self.status.value}{where}"


def try_rollout(
    aws: Aws, *, arn: str, store: str, folder: Path, base_url: str | None, model_id: str | None, timeout: float
) -> Trial:
    """Run one rollout on the runtime; its result is removed again."""
    started = time.monotonic()
    payload = first_row(folder)
    try:
        with RolloutClient(
            arn, store, EXPERIMENT, base_url=base_url or NO_MODEL, model_id=model_id or "none"
        ) as client:
            future = client.invoke(payload, str(uuid.uuid4()), "trial")
            document = future.result(timeout)
    except asyncio.TimeoutError:
        raise ConfigError(
            f"the runtime took the test invoke, and no result came within {timeout:g} s",
            hint=f"is the role allowed to write to {store}? The log group: "
            f"/aws/bedrock-agentcore/runtimes/{arn.rpartition('/')[2]}-DEFAULT",
        ) from None
    except RuntimeFault as fault:
        raise ConfigError(f"the test invoke failed: {fault}", hint=_hint(fault, arn)) from fault
    except AgentCoreRLError as error:
        raise ConfigError(f"the test invoke's result could not be read: {error}") from error
    _remove(aws, document)
    result = Result(document)
    reason = None if result.status is Status.COMPLETED else str(document.get("stop_reason"))
    if base_url and reason is not None:
        raise ConfigError(f"the test rollout ended as {result.status.value}: {reason}")
    return Trial(result.status, reason, time.monotonic() - started, base_url is not None)


def first_row(folder: Path) -> dict[str, Any]:
    """The agent's first row, or a greeting if it has no data."""
    with contextlib.suppress(ConfigError):
        return read_rows(str(folder / "rows.jsonl"), 1)[0][0]
    return {"prompt": "Hello"}


def _remove(aws: Aws, document: dict[str, Any]) -> None:
    bucket, _, prefix = str(document["s3_bucket"]).removeprefix("s3://").partition("/")
    key = "/".join(filter(None, (prefix.strip("/"), str(document["result_key"]))))
    with contextlib.suppress(AwsRefused):  # it is a small file in a folder of its own
        aws.change("s3", "delete_object", Bucket=bucket, Key=key)


def _hint(fault: RuntimeFault, arn: str) -> str | None:
    if fault.status == 403:
        return f"allow your credentials bedrock-agentcore:InvokeAgentRuntime on {arn}"
    if fault.status == 424:
        runtime = arn.rpartition("/")[2]
        return f"the container doesn't answer; its log group: /aws/bedrock-agentcore/runtimes/{runtime}-DEFAULT"
    return None
