"""The control plane of AgentCore Runtime as far as the wire shows, checked by botocore's own service model.

Runtimes pass through CREATING, UPDATING and DELETING, one read each of `moving` times, and their endpoint DEFAULT with
them; `refuse` scripts errors by operation, `fail` the reason of a runtime that can't be made.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.process import http_server
from support.service_model import Refused, check_request

STATUS = {
    "ValidationException": 400,
    "ServiceQuotaExceededException": 402,
    "AccessDeniedException": 403,
    "ResourceNotFoundException": 404,
    "ConflictException": 409,
    "ThrottlingException": 429,
}


class FakeAgentCoreControl:
    """`calls` has (operation, members) of all it was asked; `runtimes` is what there is, by id."""

    def __init__(self, *, account: str = "123456789012", region: str = "us-west-2", moving: int = 1) -> None:
        self.account, self.region, self.moving = account, region, moving
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.runtimes: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.refuse: dict[str, list[tuple[str, str]]] = {}
        """By operation: (code, message) of the answers to come."""
        self.fail: str | None = None
        self.page = 2
        self.url = ""
        self._reads: dict[str, int] = {}
        self.lock = threading.Lock()

    @property
    def changes(self) -> list[str]:
        """The operations that change something, in order."""
        return [name for name, _ in self.calls if name.startswith(("Create", "Update", "Delete"))]

    @property
    def env(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL_BEDROCK_AGENTCORE_CONTROL": self.url}

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if path.startswith("/tags/"):
            return self._tags(unquote(path.removeprefix("/tags/")))
        runtime_id = unquote(path.removeprefix("/runtimes/").strip("/"))
        runtime_id, separator, endpoint = runtime_id.partition("/runtime-endpoints/")
        if separator:
            return self._endpoint(runtime_id, endpoint)
        operation = {
            ("PUT", False): "CreateAgentRuntime",
            ("POST", False): "ListAgentRuntimes",
            ("PUT", True): "UpdateAgentRuntime",
            ("GET", True): "GetAgentRuntime",
            ("DELETE", True): "DeleteAgentRuntime",
        }[method, bool(runtime_id)]
        members = body | query | ({"agentRuntimeId": runtime_id} if runtime_id else {})
        self.calls.append((operation, members))
        if self.refuse.get(operation):
            raise Refused(*self.refuse[operation].pop(0))
        if method == "PUT":
            check_request("bedrock-agentcore-control", operation, members)
        if runtime_id and runtime_id not in self.runtimes:
            raise Refused("ResourceNotFoundException", f"Agent runtime {runtime_id} not found")
        do = getattr(self, "_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower())
        answer: dict[str, Any] = do(members)
        return answer

    def _create_agent_runtime(self, members: dict[str, Any]) -> dict[str, Any]:
        name = members["agentRuntimeName"]
        if any(known["agentRuntimeName"] == name for known in self.runtimes.values()):
            raise Refused("ConflictException", f"Agent runtime {name} already exists")
        alphabet = string.ascii_letters + string.digits
        runtime_id = f"{name}-{''.join(secrets.choice(alphabet) for _ in range(10))}"
        arn = f"arn:aws:bedrock-agentcore:{self.region}:{self.account}:runtime/{runtime_id}"
        known = {"agentRuntimeArn": arn, "agentRuntimeId": runtime_id, "agentRuntimeVersion": "1", "createdAt": _now()}
        self.runtimes[runtime_id] = known
        self.tags[runtime_id] = members.get("tags", {})
        self._set(runtime_id, members, "CREATING")
        return known

    def _update_agent_runtime(self, members: dict[str, Any]) -> dict[str, Any]:
        runtime_id = members["agentRuntimeId"]
        known = self.runtimes[runtime_id]
        if known["status"] not in ("READY", "UPDATE_FAILED"):
            raise Refused("ConflictException", f"{runtime_id} is {known['status']}")
        fixed = ("agentRuntimeArn", "agentRuntimeId", "agentRuntimeName", "createdAt")
        version = str(int(known["agentRuntimeVersion"]) + 1)
        self.runtimes[runtime_id] = {name: known[name] for name in fixed} | {"agentRuntimeVersion": version}
        self._set(runtime_id, members, "UPDATING")
        return self.runtimes[runtime_id]

    def _set(self, runtime_id: str, members: dict[str, Any], status: str) -> None:
        """What is left out becomes its default."""
        lifecycle = {"idleRuntimeSessionTimeout": 900, "maxLifetime": 28800}
        kept = {name: value for name, value in members.items() if name not in ("clientToken", "tags")}
        kept["lifecycleConfiguration"] = lifecycle | members.get("lifecycleConfiguration", {})
        self.runtimes[runtime_id].update(kept, status=status, lastUpdatedAt=_now())
        self._reads[runtime_id] = 0

    def _get_agent_runtime(self, members: dict[str, Any]) -> dict[str, Any]:
        runtime_id = members["agentRuntimeId"]
        known = self.runtimes[runtime_id]
        answer = dict(known)
        self._reads[runtime_id] = self._reads.get(runtime_id, 0) + 1
        if known["status"].endswith("ING") and self._reads[runtime_id] >= self.moving:
            if known["status"] == "DELETING":
                del self.runtimes[runtime_id]
            elif self.fail:
                known |= {"status": known["status"].replace("ING", "E_FAILED"), "failureReason": self.fail}
            else:
                known["status"] = "READY"
        return answer

    def _delete_agent_runtime(self, members: dict[str, Any]) -> dict[str, Any]:
        known = self.runtimes[members["agentRuntimeId"]]
        known["status"] = "DELETING"
        self._reads[members["agentRuntimeId"]] = 0
        return {"status": "DELETING", "agentRuntimeId": members["agentRuntimeId"]}

    def _list_agent_runtimes(self, members: dict[str, Any]) -> dict[str, Any]:
        since = int(members.get("nextToken", 0))
        items = list(self.runtimes.values())[since : since + self.page]
        shown = (
            "agentRuntimeArn",
            "agentRuntimeId",
            "agentRuntimeVersion",
            "agentRuntimeName",
            "lastUpdatedAt",
            "status",
        )
        answer: dict[str, Any] = {
            "agentRuntimes": [{name: item[name] for name in shown} | {"description": "-"} for item in items]
        }
        if since + self.page < len(self.runtimes):
            answer["nextToken"] = str(since + self.page)
        return answer

    def _endpoint(self, runtime_id: str, name: str) -> dict[str, Any]:
        self.calls.append(("GetAgentRuntimeEndpoint", {"agentRuntimeId": runtime_id, "endpointName": name}))
        if runtime_id not in self.runtimes or name != "DEFAULT":
            raise Refused("ResourceNotFoundException", f"endpoint {name} of {runtime_id} not found")
        known = self._get_agent_runtime({"agentRuntimeId": runtime_id})
        shown = ("agentRuntimeArn", "status", "createdAt", "lastUpdatedAt")
        arn = f"{known['agentRuntimeArn']}/runtime-endpoint/{name}"
        return {key: known[key] for key in shown} | {"agentRuntimeEndpointArn": arn, "name": name, "id": name}

    def _tags(self, arn: str) -> dict[str, Any]:
        self.calls.append(("ListTagsForResource", {"resourceArn": arn}))
        for known in self.runtimes.values():
            if known["agentRuntimeArn"] == arn:
                return {"tags": self.tags.get(known["agentRuntimeId"], {})}
        raise Refused("ResourceNotFoundException", f"{arn} not found")

    @contextmanager
    def serving(self) -> Iterator[FakeAgentCoreControl]:
        fake = self

        class Bound(_Handler):
            control = fake

        with http_server(Bound) as self.url:
            yield self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    control: FakeAgentCoreControl

    def _do(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        target = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        try:
            with self.control.lock:
                answer = self.control.answer(self.command, target.path, query, json.loads(data) if data else {})
            self._send(200 if self.command in ("GET", "POST") else 202, answer)
        except Refused as refused:
            code, message = refused.args
            self._send(STATUS[code], {"message": message}, code)

    do_GET = do_PUT = do_POST = do_DELETE = _do

    def _send(self, status: int, value: dict[str, Any], error: str | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if error:
            self.send_header("x-amzn-ErrorType", error)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat()
