"""Judging a workspace by a request's checks."""

from __future__ import annotations

from typing import Any

from agentcore_rl_toolkit.errors import ConfigError

from .checks import Evidence, run_check
from .payload import OfficeRequest
from .workspace import Workspace


def evaluate(request: OfficeRequest, workspace: Workspace) -> list[dict[str, Any]]:
    """For each check, whether it passed and if not why: `[{"check": "contain", "passed": False, "why": …}]`."""
    if not request.checks:
        raise ConfigError("payload.checks is empty, so that there is nothing to reward", hint="see rows.jsonl")
    with Workspace(request.files) as before, Workspace(request.references) as references:
        evidence = Evidence(workspace.root, before.root, references.root)
        outcomes = []
        for check in request.checks:
            why = run_check(check, evidence)
            outcomes.append({"check": check.check, "passed": not why} | ({"why": why} if why else {}))
    return outcomes
