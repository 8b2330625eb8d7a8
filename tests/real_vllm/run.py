"""Boots a real vLLM on loopback and runs the engines' contract suite against it, and what only it can show.

    python tests/real_vllm/run.py <environment with vLLM>      `make test-vllm` makes that environment

Nothing is skipped: a server that doesn't boot, or an endpoint it doesn't have, is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.process import clean_env, free_port, server  # noqa: E402


def main(environment: Path) -> int:
    python = str(environment.absolute() / "bin" / "python")
    folder = environment.absolute() / "smollm2"
    folder.mkdir(exist_ok=True)
    subprocess.run([python, str(TESTS / "real_vllm" / "make_model.py"), str(folder)], check=True)
    port = free_port()
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(folder / "model"), "--served-model-name", "smollm2", "--dtype", "float32",
        "--max-model-len", "512", "--max-num-seqs", "32", "--enforce-eager",
        "--enable-lora", "--max-lora-rank", "8", "--enable-scale-out", "--enable-log-requests",
    ]  # fmt: skip
    settings = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = environment.absolute() / "server.log"
    started = time.monotonic()
    with server(command, port=port, log=log, env=clean_env(**settings), ready="/health", seconds=400):
        print(f"vLLM booted in {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201
        told = {
            "AGENTCORE_RL_TEST_VLLM": f"http://127.0.0.1:{port}",
            "AGENTCORE_RL_TEST_VLLM_LOG": str(log),
            "AGENTCORE_RL_TEST_VLLM_FOLDER": str(folder),
        }
        tests = [str(TESTS / "contract" / "test_engine.py"), str(TESTS / "real_vllm" / "real_vllm.py")]
        run = [sys.executable, "-m", "pytest", *tests, "-k", "real", "-v", "-s", "--durations=5"]
        code = subprocess.run(run, env={**os.environ, **told}, cwd=TESTS.parent).returncode
    return code or with_images(python, environment.absolute(), settings) or with_trl(python, folder / "model", settings)


def with_images(python: str, environment: Path, settings: dict[str, str]) -> int:
    """A tiny vision model, behind the gateway."""
    folder, port = environment / "vlm", free_port()
    subprocess.run([sys.executable, "-m", "support.vlm", str(folder)], cwd=TESTS, check=True)
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(folder), "--served-model-name", "tiny-vlm", "--dtype", "float32",
        "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager", "--enable-scale-out",
        "--limit-mm-per-prompt", '{"image": 16, "video": 0}',
    ]  # fmt: skip
    log = environment / "vlm.log"
    with server(command, port=port, log=log, env=clean_env(**settings), ready="/health", seconds=400):
        told = {"AGENTCORE_RL_TEST_VLM": f"http://127.0.0.1:{port}", "AGENTCORE_RL_TEST_VLM_FOLDER": str(folder)}
        run = [sys.executable, "-m", "pytest", str(TESTS / "real_vllm" / "real_vlm.py"), "-v", "-s"]
        return subprocess.run(run, env={**os.environ, **told}, cwd=TESTS.parent).returncode


def with_trl(python: str, model: Path, settings: dict[str, str]) -> int:
    """The same suite against vLLM in the process that asks, as TRL's `colocate` has it; and training in both modes."""
    told = {
        "AGENTCORE_RL_TEST_COLOCATED": str(model),
        "PYTHONPATH": str(TESTS.parent / "src"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    suite = str(TESTS / "contract" / "test_engine.py")
    run = [python, "-m", "pytest", suite, "-k", "real-colocated", "-v", "-W", "ignore"]
    code = subprocess.run(run, env=clean_env(**settings, **told), cwd=TESTS.parent).returncode
    for mode in (["colocate"], ["server"], ["colocate", "async"], ["server", "async"]):
        training = [python, "-W", "ignore", str(TESTS / "real_vllm" / "train.py"), *mode]
        code = code or subprocess.run(training, env=clean_env(**settings, **told), cwd=TESTS.parent).returncode
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
