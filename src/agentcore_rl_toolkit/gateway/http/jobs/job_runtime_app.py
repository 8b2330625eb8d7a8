"""A Job Runtime at the gateway's own address, as SageMaker's is: the job and the trajectory are named by headers.

A trajectory is a session, opened by its first call. Callers need the admin key, as AWS access key id or as a bearer
token; on loopback, processes of the gateway's own user need none. Everything else is as in `App`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Any

from aiohttp import web

from ....errors import GatewayFault
from ...record.session import Session, SessionSettings
from ...wire.json_body import read_json
from ..gateway_app import App, no_route
from ..http_server import read_body
from .job_reports import JOB_HEADER, TRAJECTORY_HEADER
from .job_rules import check_job

_CALLS = ("v1/chat/completions", "sample", "sample-with-response-stream")
_REPORTS = ("complete-rollout", "update-reward")
_CREDENTIAL = re.compile(r"\bCredential=([^/,\s&%]+)")
_SDK_TOKEN = "sagemaker-api-key-"
_LONGEST_ID = 256


class JobRuntimeApp(App):
    """Routes requests of agents in SageMaker rollouts to a `Core`."""

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path.strip("/")
        if path not in (*_CALLS, *_REPORTS):
            return await super()._route(request)
        if request.method != "POST":
            raise no_route(request.method, request.path, {"POST"})
        self._check_caller(request)
        job_arn, trajectory_id = await self._named(request, path)
        return await self._route_agent(request, self._session(job_arn, trajectory_id, opens=path in _CALLS), path)

    async def _named(self, request: web.BaseRequest, path: str) -> tuple[str, str]:
        """The job and the trajectory, from headers; in reports, the body names the trajectory, and may name the job."""
        body = read_json(await read_body(request)) if path in _REPORTS else {}
        job_arn = request.headers.get(JOB_HEADER) or body.get("JobArn")
        trajectory_id = body.get("TrajectoryId") if path in _REPORTS else request.headers.get(TRAJECTORY_HEADER)
        for name, value in (("JobArn", job_arn), ("TrajectoryId", trajectory_id)):
            if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_ID:
                raise GatewayFault.invalid(
                    f"{name} is missing or not a text of 1 to {_LONGEST_ID} characters", param=name
                )
        check_job(str(job_arn))
        return str(job_arn), str(trajectory_id)

    def _session(self, job_arn: str, trajectory_id: str, *, opens: bool) -> Session:
        session_id = trajectory_session(job_arn, trajectory_id)
        try:
            session = self.core.sessions.get(session_id)
        except GatewayFault as fault:
            if not opens or fault.status != 404:
                text = f"trajectory {trajectory_id!r} of this job does not exist"
                raise GatewayFault(
                    text, status=404, code="trajectory_unknown", hint="its first model call opens it"
                ) from None
            metadata = {"job_arn": job_arn, "trajectory_id": trajectory_id}
            settings = SessionSettings(
                session_id=session_id, input_id=trajectory_id, group_id=job_arn, metadata=metadata
            )
            session = self.core.sessions.open(settings)
        return self.core.sessions.for_agent(session_id, session.key)

    def _check_caller(self, request: web.BaseRequest) -> None:
        if self._is_trusted(request) or hmac.compare_digest(_key_in(request.headers), self._admin_key):
            return
        raise GatewayFault(
            "this operation needs the gateway's admin key",
            status=401,
            code="invalid_admin_key",
            hint="set it as AWS_ACCESS_KEY_ID, or send Authorization: Bearer <admin key>",
        )


def trajectory_session(job_arn: str, trajectory_id: str) -> str:
    return hashlib.sha256(f"{job_arn}\n{trajectory_id}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _key_in(headers: Any) -> bytes:
    """The key in a request: a bearer token, or the access key id of a signature or of the token of AWS's SDK."""
    authorization = headers.get("Authorization", "")
    scheme, _, rest = authorization.partition(" ")
    token = rest.strip()
    if scheme.lower() == "bearer" and not token.startswith(_SDK_TOKEN):
        return str(token).encode("utf-8", "surrogateescape")
    text = authorization
    if token.startswith(_SDK_TOKEN):
        try:
            text = base64.b64decode(token[len(_SDK_TOKEN) :], validate=True).decode()
        except (binascii.Error, ValueError):
            return b""
    found = _CREDENTIAL.search(text)
    return found[1].encode() if found else b""
