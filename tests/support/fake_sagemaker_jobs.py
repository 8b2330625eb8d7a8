"""SageMaker's control plane for jobs as far as the wire shows, with what jobs need around them: the hub, the runtime,
groups of model packages, S3, CloudWatch's log, MLflow. Requests are checked by botocore's service models.

`story` has what the service says of a job at each look: its status and what it wrote into the job's document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .process import http_server
from .service_model import Refused, check_request

AGENT = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-abcdefghij"
MODEL = "openai-reasoning-gpt-oss-20b"
HUB_ARN = f"arn:aws:sagemaker:us-west-2:aws:hub-content/SageMakerPublicHub/Model/{MODEL}/2.1.0"
ROLE = "arn:aws:iam::123456789012:role/job"
MLFLOW = "arn:aws:sagemaker:us-west-2:123456789012:mlflow-app/app-1"
PACKAGE = "arn:aws:sagemaker:us-west-2:123456789012:model-package/agentcore-rl/7"
_PREFIX = "arn:aws:sagemaker:us-west-2:123456789012"
_SERVICES = {"SageMaker": "sagemaker", "Logs_20140328": "logs"}

Look = tuple[str, str, dict[str, Any]]
"""A job's status, its secondary status, and the service's output."""


class FakeSagemakerJobs:
    """`jobs` has the requests that made them, `objects` what is in S3 by bucket and key, `calls` all that was asked."""

    def __init__(self, story: list[Look] | None = None) -> None:
        done = {"OutputModelPackageArn": PACKAGE, "BillableTokenUsage": {"TrainTokenCount": 11}}
        self.story = story or [
            ("InProgress", "Starting", {}),
            ("InProgress", "Training", {"ProgressInfo": {"MaxSteps": 2, "CurrentStep": 1}}),
            ("Completed", "Completed", {"ProgressInfo": {"MaxSteps": 2, "CurrentStep": 2}, **done}),
        ]
        self.jobs: dict[str, dict[str, Any]] = {}
        self.looks: dict[str, int] = {}
        self.objects: dict[tuple[str, str], bytes] = {}
        self.groups: set[str] = set()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.log: list[str] = []
        self.history: dict[str, list[tuple[int, float]]] = {}
        """MLflow's figures by key: step and value."""
        self.runtime_status = "READY"
        self.failure: str | None = None
        self.refuse: dict[str, tuple[str, str]] = {}
        """By operation: code and message."""
        self.url = ""

    @property
    def env(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-west-2"}
        keys["AWS_EC2_METADATA_DISABLED"] = "true"
        keys["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"  # it would send objects in chunks with checksums
        names = ("SAGEMAKER", "S3", "BEDROCK_AGENTCORE_CONTROL", "CLOUDWATCH_LOGS")
        return keys | {f"AWS_ENDPOINT_URL_{name}": self.url for name in names}

    def of(self, operation: str) -> list[dict[str, Any]]:
        return [members for name, members in self.calls if name == operation]

    def answer(self, service: str, operation: str, members: dict[str, Any]) -> Any:
        self.calls.append((operation, members))
        if operation in self.refuse:
            raise Refused(*self.refuse[operation])
        check_request(service, operation, members)
        return getattr(self, f"_{operation}")(members)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _CreateJob(self, members: dict[str, Any]) -> Any:
        if members["JobName"] in self.jobs:
            raise Refused("ResourceInUse", "the job exists")
        self.jobs[members["JobName"]] = members
        return {"JobArn": f"{_PREFIX}:job/AgentRFT/{members['JobName']}"}

    def _DescribeJob(self, members: dict[str, Any]) -> Any:
        name = members["JobName"]
        if name not in self.jobs:
            raise Refused("ResourceNotFound", f"no job {name}")
        look = self.looks[name] = self.looks.get(name, -1) + 1
        status, secondary, output = self.story[min(look, len(self.story) - 1)]
        document = json.loads(self.jobs[name]["JobConfigDocument"]) | {"ServiceOutput": output}
        known = {"JobName": name, "JobArn": f"{_PREFIX}:job/AgentRFT/{name}", "JobStatus": status}
        known |= {"SecondaryStatus": secondary, "JobConfigDocument": json.dumps(document)}
        return known | ({"FailureReason": self.failure} if self.failure else {})

    def _StopJob(self, members: dict[str, Any]) -> Any:
        self.story = [("Stopping", "Stopping", {}), ("Stopped", "Stopped", {})]
        self.looks[members["JobName"]] = -1
        return {}

    def _ListJobs(self, members: dict[str, Any]) -> Any:
        return {"JobSummaries": []}

    def _ListTrainingSessions(self, members: dict[str, Any]) -> Any:
        return {"TrainingSessionSummaries": []}

    # --- around them -------------------------------------------------------------------------------------------------

    def _DescribeHubContent(self, members: dict[str, Any]) -> Any:
        if members["HubContentName"] != MODEL:
            raise Refused("ResourceNotFound", "no such model")
        return {"HubContentName": MODEL, "HubContentArn": HUB_ARN}

    def _DescribeModelPackageGroup(self, members: dict[str, Any]) -> Any:
        if members["ModelPackageGroupName"] not in self.groups:
            raise Refused("ValidationException", "the group does not exist")
        return {"ModelPackageGroupArn": f"{_PREFIX}:model-package-group/{members['ModelPackageGroupName']}"}

    def _CreateModelPackageGroup(self, members: dict[str, Any]) -> Any:
        self.groups.add(members["ModelPackageGroupName"])
        return self._DescribeModelPackageGroup(members)

    def _CreatePresignedMlflowAppUrl(self, members: dict[str, Any]) -> Any:
        return {"AuthorizedUrl": f"{self.url}/mlflow/auth?authToken=secret#/experiments"}

    def _FilterLogEvents(self, members: dict[str, Any]) -> Any:
        if not self.log:
            raise Refused("ResourceNotFoundException", "no such log group")
        since = members.get("startTime", 0)
        events = [{"eventId": str(i), "timestamp": 1000 + i // 2, "message": text} for i, text in enumerate(self.log)]
        events = [event for event in events if event["timestamp"] >= since]
        at = int(members.get("nextToken", 0))
        page: dict[str, Any] = {"events": events[at : at + 2]}
        return page | ({"nextToken": str(at + 2)} if at + 2 < len(events) else {})

    @contextmanager
    def serving(self) -> Iterator[FakeSagemakerJobs]:
        fake = self

        class Bound(_Handler):
            jobs = fake

        with http_server(Bound) as self.url:
            yield self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    jobs: FakeSagemakerJobs

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        prefix, _, operation = self.headers["X-Amz-Target"].partition(".")
        try:
            self._send(200, self.jobs.answer(_SERVICES[prefix], operation, json.loads(data)))
        except Refused as refused:
            code, message = refused.args
            self._send(400, {"__type": code, "message": message})

    def do_PUT(self) -> None:
        """An object."""
        bucket, _, key = unquote(urlsplit(self.path).path)[1:].partition("/")
        self.jobs.objects[bucket, key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, None)

    def do_GET(self) -> None:
        """The runtime, or MLflow behind a cookie."""
        parts = urlsplit(self.path)
        if parts.path.startswith("/runtimes/"):
            self._send(200, {"agentRuntimeArn": AGENT, "status": self.jobs.runtime_status})
        elif parts.path == "/mlflow/auth":
            self._send(200, {}, {"Set-Cookie": "mlflow=yes; Path=/"})
        elif "mlflow=yes" not in (self.headers.get("Cookie") or ""):
            self._send(403, {})
        else:
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            points = self.jobs.history.get(asked["metric_key"], [])
            self._send(200, {"metrics": [{"step": step, "value": value, "timestamp": 1} for step, value in points]})

    def _send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass
