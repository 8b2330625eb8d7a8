"""One multi-turn RL job: uploads its rows to S3, creates and follows it, and writes the summary.

The job's name is in the run's folder before the job exists, so that `--resume` finds it after a kill at any moment, and
creates it only if it doesn't exist.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...deploy.aws.calls import Aws
from ...errors import AgentCoreRLError, ConfigError
from ...rollout.run_folder.run_lock import locked_run
from ...rows import read_rows, row_as_prompt
from .backend import SCHEMA_VERSION, SagemakerSettings, check_locally, check_on_aws, job_document
from .job_progress import JobLog, JobMetrics
from .sagemaker_place import make_group, new_name, output_uri, split_uri

_CATEGORY = "AgentRFT"
_OVER = ("Completed", "Failed", "Stopped", "Deleting", "DeleteFailed")
_MISSING = ("ResourceNotFound", "ResourceNotFoundException")


def train(
    settings: SagemakerSettings, *, say: Callable[[str], None] | None = None, ask: Callable[[str], bool] | None = None
) -> dict[str, Any]:
    """Run a job, or follow the one in `output`, and return the summary, which is also written to `summary.json`.

    `say` shows a line, and `ask` answers a question after Ctrl-C; by default both are the terminal's.
    """
    for note in check_locally(settings):
        if note.startswith("warning: "):
            (say or _say)(note)
    with contextlib.closing(Aws(settings.region)) as aws, locked_run(settings.folder):
        return _JobRun(settings, aws, say or _say, ask or _ask).run()


class _JobRun:
    def __init__(
        self, settings: SagemakerSettings, aws: Aws, say: Callable[[str], None], ask: Callable[[str], bool]
    ) -> None:
        self.settings, self.aws, self.say, self.ask = settings, aws, say, ask
        self.began = time.monotonic()
        self.file = settings.folder / "job.json"
        self.shown = ""
        """What was said of the job last."""

    def run(self) -> dict[str, Any]:
        self.name = self._find_name()
        job = self._describe()
        if job is None:
            self._create()
        self.log = JobLog(self.aws, self.name, self.settings.folder / "job.log")
        self.metrics = JobMetrics(self.aws, self.settings.mlflow, self.settings.folder / "metrics.jsonl")
        interrupted = False
        try:
            job = self._follow()
        except KeyboardInterrupt:
            interrupted = True
            job = self._on_interrupt()
        return self._finish(job, interrupted)

    # --- creating it -------------------------------------------------------------------------------------------------

    def _find_name(self) -> str:
        """The name of the folder's job, or a new one."""
        if self.file.exists():
            if not self.settings.resume:
                hint = "follow it again (--resume), or choose another output"
                raise ConfigError(f"{self.settings.folder} has a job already", hint=hint)
            known: dict[str, str] = json.loads(self.file.read_text())
            return known["name"]
        name = new_name(self.settings.folder.resolve().name)
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        _write(self.file, {"name": name, "region": self.settings.region})
        return name

    def _create(self) -> None:
        settings, place = self.settings, f"{output_uri(self.settings)}/{self.name}"
        document = job_document(settings, check_on_aws(self.aws, settings), place)
        for group in (settings.model_package_group, settings.checkpoint_group):
            make_group(self.aws, group)
        self._upload(f"{place}/data/train.jsonl", read_rows(settings.data)[0])
        if settings.eval_data:
            self._upload(f"{place}/data/validation.jsonl", read_rows(settings.eval_data)[0])
        made = self.aws.change(
            "sagemaker",
            "create_job",
            JobName=self.name,
            RoleArn=settings.role_arn,
            JobCategory=_CATEGORY,
            JobConfigSchemaVersion=SCHEMA_VERSION,
            JobConfigDocument=json.dumps(document, indent=2),
        )
        _write(self.file, {"name": self.name, "region": settings.region, "arn": made["JobArn"]})
        self.say(f"job {made['JobArn']}")

    def _upload(self, uri: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows as the service reads them: of a row, the agent gets its prompt alone."""
        data = "".join(json.dumps({"prompt": row_as_prompt(row)}, ensure_ascii=False) + "\n" for row in rows)
        bucket, key = split_uri(uri)
        self.aws.change("s3", "put_object", Bucket=bucket, Key=key, Body=data.encode())
        self.say(f"uploaded {uri}")

    # --- following it ------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any] | None:
        job = {"JobName": self.name, "JobCategory": _CATEGORY}
        found: dict[str, Any] | None = self.aws.read("sagemaker", "describe_job", missing=_MISSING, **job)
        return found

    def _follow(self) -> dict[str, Any]:
        """Show the job's progress until it is over."""
        while True:
            job = self._describe()
            if job is None:
                raise AgentCoreRLError(f"the job {self.name} was deleted", hint="choose another output")
            self._show(job)
            if job["JobStatus"] in _OVER:
                return job
            time.sleep(self.settings.poll_seconds)

    def _show(self, job: dict[str, Any]) -> None:
        output = service_output(job)
        for line in self.log.read():
            self.say(line)
        for line in self.metrics.read(output):
            self.say(line)
        text = f"{job['JobStatus']} ({job['SecondaryStatus']}){_progress(output)}"
        if text != self.shown:
            self.shown = text
            self.say(text)

    def _on_interrupt(self) -> dict[str, Any]:
        """Ask whether to stop the job; without an answer it continues."""
        if self.ask(f"stop the job {self.name}, which is billed while it runs? [y/N] "):
            self.aws.change("sagemaker", "stop_job", JobName=self.name, JobCategory=_CATEGORY)
            return self._follow()
        self.say(f"the job continues; --resume --output {self.settings.output} follows it again")
        job = self._describe()
        assert job is not None
        return job

    # --- its summary -------------------------------------------------------------------------------------------------

    def _finish(self, job: dict[str, Any], interrupted: bool) -> dict[str, Any]:
        settings, output = self.settings, service_output(job)
        summary: dict[str, Any] = {
            "backend": "sagemaker",
            "model": settings.model,
            "agent": settings.agent,
            "output": str(settings.folder),
            "job": job["JobArn"],
            "status": job["JobStatus"],
            "interrupted": interrupted,
            "seconds": round(time.monotonic() - self.began, 1),
            "steps": int((output.get("ProgressInfo") or {}).get("CurrentStep") or len(self.metrics.rewards)),
            "reward": self.metrics.rewards,
            "model_package": output.get("OutputModelPackageArn"),
            "billed_tokens": output.get("BillableTokenUsage") or {},
            "s3_output": f"{output_uri(settings)}/{self.name}/output",
            "failure": job.get("FailureReason"),
        }
        _write(settings.folder / "summary.json", summary)
        if summary["model_package"]:
            self.say(f"model package {summary['model_package']}")
        if job["JobStatus"] == "Failed":
            why = job.get("FailureReason") or "without a reason"
            raise AgentCoreRLError(f"the job {self.name} failed: {why}", hint=f"its log is in {self.log.path}")
        if job["JobStatus"] == "Stopped" and not interrupted:
            raise AgentCoreRLError(f"the job {self.name} was stopped", hint=f"its log is in {self.log.path}")
        return summary


def service_output(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the service wrote into the job's document: progress, tokens, the model package."""
    try:
        output = json.loads(job.get("JobConfigDocument") or "{}").get("ServiceOutput")
    except ValueError:
        return {}
    return output if isinstance(output, dict) else {}


def _progress(output: Mapping[str, Any]) -> str:
    progress, rollouts = output.get("ProgressInfo") or {}, output.get("RolloutInfo") or {}
    parts = []
    if progress.get("MaxEpoch"):
        parts.append(f"epoch {progress.get('CurrentEpoch', 0)} of {progress['MaxEpoch']}")
    if most := progress.get("StepsPerEpoch") or progress.get("MaxSteps"):
        parts.append(f"step {progress.get('CurrentStep', 0)} of {most}")
    if rollouts.get("Total"):
        parts.append(f"{rollouts.get('Completed', 0)} of {rollouts['Total']} rollouts")
    return f": {', '.join(parts)}" if parts else ""


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _ask(question: str) -> bool:
    """Yes or no, from the terminal; no without a terminal."""
    if not sys.stdin.isatty():
        return False
    sys.stderr.write("\n" + question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
