"""Runs rLLM's own tests of its AgentCore adapter, and ours, from a checkout, against the local runtime.

    python tests/real_rllm/run.py <checkout of rLLM>      `make test-rllm` makes the environment

rLLM's "live" tests want a deployment on AWS: they get the local runtime, through the variables that boto3 reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from agentcore_rl_toolkit.runtime.local import LocalRuntime  # noqa: E402
from support.fake_vllm import MODEL, FakeVllm  # noqa: E402
from support.process import clean_env  # noqa: E402

THEIRS = [f"tests/{name}.py" for name in ("engine/test_remote_runtime", "integration/test_agentcore_runtime")]
ENGINE = "tests/integration/test_remote_engine.py"
OUTDATED = f"{ENGINE}::TestTimeoutProducesErrorEpisode"
"""It wants ERROR for a timeout, where the adapter says TIMEOUT, as its own unit tests want it to."""
OURS = [
    "real_rllm/real_rllm.py",
    "unit/backends/rllm/test_check_overrides.py",
    "unit/backends/rllm/test_data.py",
    "e2e/test_rllm.py",
]
PLAIN = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]


def main(checkout: Path) -> int:
    with (
        tempfile.TemporaryDirectory() as home,
        FakeVllm(context_length=4096).serving() as model,
        LocalRuntime(TESTS / "real_rllm" / "agent", stores=[tempfile.gettempdir()]) as runtime,
    ):
        told = clean_env(
            AWS_ENDPOINT_URL_BEDROCK_AGENTCORE=runtime.endpoint_url,
            AWS_ENDPOINT_URL_S3=runtime.endpoint_url,
            AWS_ACCESS_KEY_ID="local",
            AWS_SECRET_ACCESS_KEY="local",
            AWS_REGION="us-east-1",
            AGENTCORE_AGENT_ARN=runtime.arn,
            AGENTCORE_S3_BUCKET="rollouts",
            AGENTCORE_BASE_URL=f"{model.url}/v1",
            AGENTCORE_MODEL_ID=MODEL,
            RLLM_HOME=home,
            HF_HUB_OFFLINE="1",
            PYTHONPATH=os.pathsep.join([str(checkout), str(TESTS)]),
        )
        command = [sys.executable, "-m", "pytest", *PLAIN]
        theirs = [*command, *THEIRS, ENGINE, "--deselect", OUTDATED]
        ours = [*command, "-c", os.devnull, "--rootdir", str(TESTS), "--import-mode=importlib", "--confcutdir", home]
        ours += [str(TESTS / name) for name in OURS if (TESTS / name).exists()]
        codes = [subprocess.run(theirs, cwd=checkout, env=told).returncode]
        codes.append(subprocess.run(ours, cwd=home, env=told).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
