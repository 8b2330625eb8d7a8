"""The first rollout of a deployed agent: does a session start, run the agent, and store a result that we can read?

The trial needs no model. Without one the agent fails at its first model call, and its result says so.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agent.result import Result
from ..client import RolloutClient
from ..errors import AgentCoreRLError, AwsRefused, ConfigError, RuntimeFault
from ..rows import read_rows, rows_of
from ..types import Status
from .aws.calls import Aws

if TYPE_CHECKING:
    from .deployment import DeployOptions

NO_MODEL = "http://127.0.0.1:9/sessions/no.model/v1"
"""Port 9 refuses connections at once. The path is that of a gateway session, so clients of every protocol go there."""
_LONGEST_TRIAL = 300.0


def run_trial(aws: Aws, folder: Path, arn: str, store: str, options: DeployOptions) -> str:
    """Run one rollout on the runtime and delete its result; returns the lines to show."""
    started, base_url, model_id = time.monotonic(), options.base_url or NO_MODEL, options.model_id or "none"
    timeout = min(options.timeout, _LONGEST_TRIAL)
    log = f"/aws/bedrock-agentcore/runtimes/{arn.rpartition('/')[2]}-DEFAULT"
    try:
        with RolloutClient(arn, store, "deploy-check", base_url=base_url, model_id=model_id) as client:
            document = client.invoke(_first_row(folder), input_id="trial").result(timeout)
    except TimeoutError:
        hint = f"check that the role may write to {store}, and read the log group {log}"
        raise ConfigError(f"the trial rollout started, but no result came within {timeout:g} s", hint=hint) from None
    except RuntimeFault as fault:
        hints = {
            403: f"allow your credentials bedrock-agentcore:InvokeAgentRuntime on {arn}",
            424: f"the container does not answer; read its log group {log}",
        }
        raise ConfigError(f"the trial rollout could not start: {fault}", hint=hints.get(fault.status)) from fault
    except AgentCoreRLError as error:
        raise ConfigError(f"the result of the trial rollout could not be read: {error}") from error
    _delete_result(aws, document)
    status, reason = Result(document).status, str(document.get("stop_reason"))
    seconds = f"{time.monotonic() - started:.1f} s"
    if status is Status.COMPLETED:
        return f"✓ a rollout completed and its result was read in {seconds}"
    if options.base_url:
        raise ConfigError(f"the trial rollout ended as {status.value}: {reason}")
    return (
        f"✓ a session ran and its result was read in {seconds}: {status.value}, as expected without a model "
        f"(--base-url)\n  {(reason.splitlines() or [''])[0][:200]}"
    )


def _first_row(folder: Path) -> dict[str, Any]:
    """The agent's first row, or a greeting if it has no data."""
    with contextlib.suppress(ConfigError):
        return read_rows(rows_of(str(folder)), 1)[0][0]
    return {"prompt": "Hello"}


def _delete_result(aws: Aws, document: dict[str, Any]) -> None:
    bucket, _, prefix = str(document["s3_bucket"]).removeprefix("s3://").partition("/")
    key = "/".join(filter(None, (prefix.strip("/"), str(document["result_key"]))))
    with contextlib.suppress(AwsRefused):  # a small file that does no harm
        aws.change("s3", "delete_object", Bucket=bucket, Key=key)
