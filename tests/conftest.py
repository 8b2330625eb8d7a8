"""Fixtures every suite shares. Servers start once per run, on loopback, and only if a test asks for them."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import signal
import ssl
import sys
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_env, free_port, server
from support.seaweedfs import ACCESS_KEY, SECRET_KEY, seaweedfs

BIN = Path(sys.executable).parent
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-west-2"}

HEAVY = ("accelerate", "datasets", "peft", "ray", "torch", "trl", "vllm")
NEEDS = {
    "ray": ("unit/runtime/test_ray_actor.py",),
    "torch": ("unit/backends/trl", "unit/backends/verl/test_data.py", "unit/engine/transformers"),
    "trl": ("unit/gateway/render/test_families.py",),
}
"""Tests that are left out where a package is missing. Single tests use `pytest.importorskip`."""

# Models here are so small that a second thread of PyTorch mostly waits, and it waits busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Each client of httpx, OpenAI's and Anthropic's included, would read all certificates again, and no test needs them.
ssl.create_default_context = functools.cache(ssl.create_default_context)

with contextlib.suppress(ImportError):  # environments made for one real trainer or engine have none
    from hypothesis import settings

    # Timing decides no test, and chance fails no run. HYPOTHESIS_PROFILE=explore looks for examples not tried yet.
    settings.register_profile("suite", deadline=None, derandomize=True)
    settings.register_profile("explore", deadline=None, max_examples=1000)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--light", action="store_true", help="as if torch, TRL and Ray were not installed (`make check`)")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C reaches the tests and what they start, also where a shell has turned it off, as for background jobs."""
    if config.getoption("--light"):  # tests that need one of them skip themselves with `pytest.importorskip`
        sys.modules.update(dict.fromkeys(HEAVY))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _share_models()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """All tests and what they import stay. Trainers collect garbage again and again, and would look at all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Whether to leave out a file or folder: what it needs is not installed, or hidden by `--light`."""
    here = Path(__file__).parent
    missing = [places for name, places in NEEDS.items() if importlib.util.find_spec(name) is None]
    return True if any(collection_path == here / place for places in missing for place in places) else None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes made while collecting (an archive holds its time) would give each worker other test names."""
    return argname if isinstance(val, bytes) else None


@dataclass
class AwsServers:
    """S3 by SeaweedFS and SQS by moto, both real servers."""

    s3_url: str
    sqs_url: str

    @property
    def env(self) -> dict[str, str]:
        return CREDENTIALS | {
            "AWS_DEFAULT_REGION": "us-west-2",
            "AWS_ENDPOINT_URL_S3": self.s3_url,
            "AWS_ENDPOINT_URL_SQS": self.sqs_url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str) -> Any:
        import boto3

        url = self.s3_url if service == "s3" else self.sqs_url
        return boto3.client(
            service,
            endpoint_url=url,
            region_name="us-west-2",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def new_bucket(self) -> str:
        name = f"results-{uuid.uuid4().hex[:12]}"
        self.client("s3").create_bucket(Bucket=name)
        return name

    def new_queue(self) -> str:
        name = f"announcements-{uuid.uuid4().hex[:12]}"
        return str(self.client("sqs").create_queue(QueueName=name)["QueueUrl"])


@pytest.fixture(scope="session")
def aws_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServers]:
    home = tmp_path_factory.mktemp("aws")
    sqs_port = free_port()
    moto = [str(BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(sqs_port)]
    with (
        server(moto, port=sqs_port, log=home / "moto.log", env=clean_env()),
        seaweedfs(home) as s3_port,
    ):
        yield AwsServers(f"http://127.0.0.1:{s3_port}", f"http://127.0.0.1:{sqs_port}")


def _share_models() -> None:
    """Every session of boto3 would read its services' descriptions again: the largest part of a test's time."""
    import botocore.session

    botocore.session.create_loader = functools.cache(botocore.session.create_loader)


@pytest.fixture
def aws_env(aws_servers: AwsServers, monkeypatch: pytest.MonkeyPatch) -> AwsServers:
    """The servers, with this process's AWS settings pointing at them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in aws_servers.env.items():
        monkeypatch.setenv(name, value)
    return aws_servers


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster of this machine alone, as small as they come."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        import ray

        ray.init(
            address="local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False
        )
    yield
    ray.shutdown()
