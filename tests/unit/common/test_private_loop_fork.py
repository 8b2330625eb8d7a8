"""A private loop, in the process that started it and in a fork of that."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.common.private_loop import PrivateLoop
from support.process import clean_env


def test_a_task_that_exits_ends_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def stay() -> str:
        await asyncio.sleep(0.05)
        return "here"

    loop = PrivateLoop("tests")
    staying = loop.submit(stay())
    with pytest.raises(SystemExit):
        loop.run(leave())
    assert staying.result(10) == "here"
    loop.close()
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "tried to end its thread" in said.getMessage()


FORK = """
import asyncio, os, sys
sys.path.insert(0, {tests!r})
from support.own_runtime import OwnRuntime
from agentcore_rl_toolkit import AgentCoreRLError, Gateway, RolloutClient

def attempt(name, call):
    try:
        print(name, "->", call())
    except AgentCoreRLError as error:
        print(name, "->", str(error).replace("\\n", " | "))

client, unused = RolloutClient(OwnRuntime(), {store!r}, "exp"), RolloutClient(OwnRuntime(), {store!r}, "exp")
done, pending = client.invoke({{}}), None
done.result(30)
client.runtime.result = lambda payload: None
pending = client.invoke({{}})
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    pending.cancel()
    client.close()
    print("parent closed", status)
else:
    attempt("invoke", lambda: client.invoke({{}}))
    attempt("invoke_async", lambda: asyncio.run(client.invoke_async({{}})))
    attempt("batch", lambda: list(client.run_batch([{{}}])))
    attempt("pending", lambda: pending.result(60))
    attempt("pending_async", lambda: asyncio.run(pending.result_async(60)))
    attempt("cancel", pending.cancel)
    attempt("done", lambda: done.result(60)["rewards"])
    attempt("unused", lambda: unused.invoke({{}}).result(30)["rewards"])
    attempt("close", client.close)
    sys.stdout.flush()
    os._exit(0)
"""


def test_a_forked_process_is_told_so_instead_of_waiting(tmp_path: Path) -> None:
    code = FORK.format(tests=str(Path(__file__).parents[2]), store=str(tmp_path))
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean_env(), cwd=os.getcwd())
    said = dict(line.split(" -> ", 1) for line in ran.stdout.splitlines() if " -> " in line)
    for name in ("invoke", "invoke_async", "batch", "pending", "pending_async", "cancel"):
        assert "is a fork of" in said[name], (name, ran.stdout, ran.stderr)
        assert "hint: make what uses it after the fork" in said[name]
    assert (said["done"], said["unused"], said["close"]) == ("[1.0]", "[1.0]", "None")
    assert "parent closed 0" in ran.stdout
    assert "never awaited" not in ran.stderr
