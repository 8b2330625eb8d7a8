"""What a session's first model call imports is found by a warm-up call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import clean_env

WARM_UP = """
import asyncio, json, sys
import {sdk}
from agentcore_rl_toolkit.runtime.local.template.preload import warm_up_sdks
before = set(sys.modules)
asyncio.run(warm_up_sdks())
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize(
    ("sdk", "brought"),
    [
        ("openai", {"openai.resources.chat.completions", "openai.resources.responses", "anyio._backends._asyncio"}),
        ("anthropic", {"anyio._backends._asyncio"}),
        ("google.genai", {"google.auth.aio", "httpcore2._sync.http11"}),
        ("json", set[str]()),
    ],
)
def test_each_imported_sdk_is_warmed_up(sdk: str, brought: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WARM_UP.format(sdk=sdk)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_env(), cwd=tmp_path)
    found = set(json.loads(out.stdout))
    assert brought <= found, sorted(found)[:50]
    assert not {"openai", "anthropic", "boto3"} & found
