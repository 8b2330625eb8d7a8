"""Boots a real server of Tinker's API on loopback, SkyRL's on JAX, and trains the built-in policy with it.

    python tests/real_tinker/run.py <environment with SkyRL>      `make test-tinker` makes that environment

The trainer runs in that environment too, since the server speaks the wire of one version of the SDK. Nothing is
skipped: a server that doesn't boot, or an endpoint it doesn't have, is a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.process import clean_env, free_port, server  # noqa: E402

MODEL = TESTS.parent / "src" / "agentcore_rl_toolkit" / "tiny" / "model"
# Shapes are compiled once each: batches of one size, whatever comes together.
SHAPES = {"max_lora_adapters": 8, "max_lora_rank": 32, "sample_max_num_sequences": 32, "train_micro_batch_size": 16}


def main(environment: Path) -> int:
    folder, port = environment.absolute(), free_port()
    with tempfile.TemporaryDirectory() as state:
        command = [
            str(folder / "bin" / "uv"), "run", "--no-project", "--active", "-m", "skyrl.tinker.api",
            "--base-model", str(MODEL), "--backend", "jax", "--backend-config", json.dumps(SHAPES),
            "--checkpoints-base", state, "--database-url", f"sqlite:///{state}/tinker.db",
            "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        own = {"VIRTUAL_ENV": str(folder), "PATH": f"{folder}/bin:/usr/bin:/bin"}
        offline = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "UV_OFFLINE": "1"}
        env, started = clean_env(**own, **offline), time.monotonic()
        with server(command, port=port, log=folder / "server.log", env=env, ready="/api/v1/healthz", seconds=300):
            print(f"SkyRL booted in {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201
            told = {"TINKER_BASE_URL": f"http://127.0.0.1:{port}", "TINKER_API_KEY": "tml-test"}
            told["TINKER_TELEMETRY"] = "0"
            suite = str(TESTS / "real_tinker" / "real_tinker.py")
            run = [str(folder / "bin" / "python"), "-m", "pytest", suite, "-v", "-s", "-W", "ignore", "--timeout=1800"]
            return subprocess.run(run, env=clean_env(**offline, **told), cwd=TESTS.parent).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
