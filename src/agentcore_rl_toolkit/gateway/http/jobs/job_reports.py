"""The reports of SageMaker rollouts, under a session's URL: `/complete-rollout`, `/update-reward`, and reading them.

A session's URL is the endpoint of a Job Runtime for one trajectory, so agents written with AWS's SDK run against the
gateway. The key in the URL decides which trajectory it is; the ids in the body need not be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from ....errors import GatewayFault
from ...call.core import Core
from ...record.session import Session
from ...wire.fields import parse
from ...wire.json_body import dump, read_json
from ..http_server import read_body
from .job_rules import (
    CompleteRolloutRequest,
    JobReport,
    UpdateRewardRequest,
    check_job,
    is_complete,
)

JOB_HEADER = "X-Amzn-SageMaker-Job-Arn"
TRAJECTORY_HEADER = "X-Amzn-SageMaker-Trajectory-Id"
_LONGEST_WAIT = 30.0
R = TypeVar("R", CompleteRolloutRequest, UpdateRewardRequest)


class JobReports:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def complete(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        body = await _read(request, CompleteRolloutRequest)
        return self._put(session, JobReport.read(session.result).complete(body))

    async def reward(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        body = await _read(request, UpdateRewardRequest)
        return self._put(session, JobReport.read(session.result).reward(body))

    async def read(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        """The reports; with `?wait=SECONDS&after=STATUS`, once they differ from that status or the time is over."""
        seen = request.query.get("after", "")
        deadline = asyncio.get_running_loop().time() + _seconds(request.query.get("wait", "0"))
        while _stage(report := JobReport.read(session.result)) == seen and not session.gone:
            session.result_changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(session.result_changed.wait(), left)
        return _json(msgspec.to_builtins(report))

    def check_open(self, session: Session) -> None:
        """Refuse model calls of a rollout that is complete."""
        if is_complete(session.result):
            status = session.result["job_status"]
            raise GatewayFault.invalid(f"Trajectory {session.id} is not in valid status: {status}")

    def _put(self, session: Session, report: JobReport) -> web.StreamResponse:
        self._core.sessions.put_result(session, msgspec.to_builtins(report))
        return _json({})


def _stage(report: JobReport) -> str:
    """How far the reports are, as `after` names it."""
    return report.job_status if report.rewards is None else "rewarded"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise GatewayFault.invalid(f"wait is {text[:40]!r}: send seconds", param="wait")
    return min(seconds, _LONGEST_WAIT)


async def _read(request: web.BaseRequest, kind: type[R]) -> R:
    body = parse(read_json(await read_body(request)), kind)
    check_job(body.job_arn or request.headers.get(JOB_HEADER) or "")
    return body


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=dump(body), content_type="application/json")
