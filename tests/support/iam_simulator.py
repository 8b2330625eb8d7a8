"""IAM with `SimulatePrincipalPolicy`, which moto has not, by the role's inline policies; the rest is moto's."""

from __future__ import annotations

import fnmatch
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

from support.process import http_server


def decide(policies: list[dict[str, Any]], action: str, resource: str) -> str:
    """`allowed` or `implicitDeny`."""
    for policy in policies:
        for statement in policy["Statement"]:
            actions, resources = (_list(statement[name]) for name in ("Action", "Resource"))
            if any(fnmatch.fnmatch(action, one) for one in actions) and any(
                fnmatch.fnmatch(resource, one) for one in resources
            ):
                return "allowed"
    return "implicitDeny"


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


@contextmanager
def iam_simulator(moto: str, iam: Any) -> Iterator[str]:
    """Its URL; `iam` is moto's client."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            if form.get("Action") == "SimulatePrincipalPolicy":
                return self._send(200, _simulate(iam, form).encode())
            request = urllib.request.Request(moto, body, dict(self.headers.items()))
            try:
                with urllib.request.urlopen(request) as answer:
                    return self._send(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                return self._send(error.code, error.read())

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "text/xml")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    with http_server(Handler) as url:
        yield url


def _simulate(iam: Any, form: dict[str, str]) -> str:
    name = form["PolicySourceArn"].rpartition("/")[2]
    names = iam.list_role_policies(RoleName=name)["PolicyNames"]
    policies = [iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"] for policy in names]
    members = ""
    for key, action in form.items():
        if key.startswith("ActionNames.member."):
            resource = form["ResourceArns.member.1"]
            decision = decide(json.loads(json.dumps(policies)), action, resource)
            members += (
                f"<member><EvalActionName>{action}</EvalActionName><EvalResourceName>{resource}</EvalResourceName>"
                f"<EvalDecision>{decision}</EvalDecision></member>"
            )
    result = f"<EvaluationResults>{members}</EvaluationResults><IsTruncated>false</IsTruncated>"
    return (
        '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/">'
        f"<SimulatePrincipalPolicyResult>{result}</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
    )
