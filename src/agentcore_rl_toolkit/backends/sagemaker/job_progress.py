"""A job's progress: lines of its log, from CloudWatch, and figures by step, from MLflow."""

from __future__ import annotations

import http.cookiejar
import json
import logging
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...deploy.aws.calls import Aws
from ...errors import AwsRefused

logger = logging.getLogger(__name__)

_LOG_GROUP = "/aws/sagemaker/Job/AgentRFT"
_MOST_PAGES = 50
"""Of a log, at once; the rest comes with the next look."""
_MOST_BYTES = 16 * 1024 * 1024
_SECONDS = 10.0
_METRICS = {
    "rollout/reward/mean": "reward",
    "rollout/turns/mean": "turns",
    "training/total_tokens": "tokens",
    "training/num_trajectories": "rollouts/run",
}
"""The job's figures in MLflow, and their names in metrics.jsonl."""


class JobLog:
    """The lines of a job's log, each once; they are also kept in a file."""

    def __init__(self, aws: Aws, job: str, path: Path) -> None:
        self._aws, self._job, self.path = aws, job, path
        self._since = 0
        self._seen: set[str] = set()
        """The ids of the latest events: their millisecond may have more."""
        self.path.unlink(missing_ok=True)

    def read(self) -> Iterator[str]:
        """New lines; none if the log can't be read."""
        try:
            events = list(self._events())
        except AwsRefused as error:
            logger.warning("the job's log can't be read: %s", error)
            return
        with self.path.open("a") as file:
            for event in events:
                self._remember(event)
                line = str(event.get("message", "")).rstrip()
                file.write(line + "\n")
                yield line

    def _events(self) -> Iterator[dict[str, Any]]:
        asked = {"logGroupName": _LOG_GROUP, "logStreamNamePrefix": self._job, "startTime": self._since}
        more: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            page = self._aws.read("logs", "filter_log_events", missing=("ResourceNotFoundException",), **asked, **more)
            for event in (page or {}).get("events") or []:
                if event["eventId"] not in self._seen:
                    yield event
            if not page or not page.get("nextToken"):
                return
            more = {"nextToken": page["nextToken"]}

    def _remember(self, event: Mapping[str, Any]) -> None:
        moment = int(event.get("timestamp", 0))
        if moment > self._since:
            self._since, self._seen = moment, set()
        if moment == self._since:
            self._seen.add(event["eventId"])


class JobMetrics:
    """The figures of a job's steps, each step once; they are also written to metrics.jsonl."""

    def __init__(self, aws: Aws, mlflow: str | None, path: Path) -> None:
        self._aws, self._mlflow, self._path = aws, mlflow, path
        self._steps = 0
        self.rewards: list[float | None] = []
        path.unlink(missing_ok=True)

    def read(self, output: Mapping[str, Any]) -> Iterator[str]:
        """A line for each new step, with the figures that MLflow has."""
        run = (output.get("MlflowDetails") or {}).get("RunId")
        if self._mlflow is None or not run:
            return
        try:
            steps = self._history(str(run))
        except (AwsRefused, OSError, ValueError) as error:
            logger.warning("the job's figures can't be read: %s", error)
            return
        with self._path.open("a") as file:
            for step in sorted(steps)[self._steps :]:
                self._steps += 1
                figures = steps[step]
                self.rewards.append(figures.get("reward"))
                file.write(json.dumps({"step": step, **figures}) + "\n")
                yield f"step {step}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items())

    def _history(self, run: str) -> dict[int, dict[str, float]]:
        """The figures of every step whose reward is known; a step's other figures come no later."""
        opener, base = self._open()
        steps: dict[int, dict[str, float]] = {}
        for theirs, ours in reversed(_METRICS.items()):
            asked = urllib.parse.urlencode({"run_id": run, "metric_key": theirs})
            answer = _get(opener, f"{base}/api/2.0/mlflow/metrics/get-history?{asked}")
            for point in json.loads(answer).get("metrics") or []:
                steps.setdefault(int(point["step"]), {})[ours] = float(point["value"])
        known = {step: figures for step, figures in steps.items() if "reward" in figures}
        return {step: dict(reversed(figures.items())) for step, figures in known.items()}

    def _open(self) -> tuple[urllib.request.OpenerDirector, str]:
        """A session with MLflow, from a URL that AWS signs, and its address."""
        assert self._mlflow is not None
        name = self._mlflow.rpartition("/")[2]
        if ":mlflow-tracking-server/" in self._mlflow:
            made = self._aws.read("sagemaker", "create_presigned_mlflow_tracking_server_url", TrackingServerName=name)
        else:
            made = self._aws.read("sagemaker", "create_presigned_mlflow_app_url", Arn=self._mlflow)
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        opener = urllib.request.build_opener(cookies)
        with opener.open(made["AuthorizedUrl"].partition("#")[0], timeout=_SECONDS) as response:
            return opener, response.url.partition("#")[0].partition("?")[0].rstrip("/").removesuffix("/auth")


def _get(opener: urllib.request.OpenerDirector, url: str) -> bytes:
    with opener.open(url, timeout=_SECONDS) as response:
        data: bytes = response.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"MLflow gave more than {_MOST_BYTES} bytes")
    return data
