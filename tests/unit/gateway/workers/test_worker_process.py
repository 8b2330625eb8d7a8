"""A worker that is started again when it dies, and not when it can't start."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.workers.worker_process import WorkerProcess, bind_ports


def test_a_worker_with_a_port_that_refuses_to_start_is_not_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    async def run() -> None:
        (port,) = bind_ports("127.0.0.1", 0, 1)
        code = f"open({str(starts)!r}, 'a').write('x'); raise SystemExit(1)"
        worker = WorkerProcess("worker 0", [sys.executable, "-c", code], port=1, keeps=[port.fileno()])
        try:
            with pytest.raises(ConfigError, match="worker 0 ended with 1 before it listened"):
                await worker.listening
        finally:
            await worker.close()
            port.close()

    asyncio.run(run())
    assert starts.read_text() == "x"
