"""The guide's commands of AWS's starter toolkit, as they are, on a new agent: moto emulates AWS, a fake the runtimes.

`make test-starter` installs the toolkit and moto, and names their environment in STARTER_TOOLKIT.
"""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

import boto3

from agentcore_rl_toolkit.deploy.scaffold.new_agent import write_agent
from support.docs import blocks
from support.fake_agentcore_control import FakeAgentCoreControl
from support.process import clean_env, free_port, server

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "deploy.md"
INSTALLED = Path(os.environ["STARTER_TOOLKIT"]).absolute() / "bin"
KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-west-2"}


def test_the_guides_commands_deploy_a_new_agent(tmp_path: Path) -> None:
    write_agent(tmp_path / "my_agent", "strands")
    (tmp_path / "my_agent" / "wheels").mkdir()
    (tmp_path / "my_agent" / "wheels" / "ours.whl").touch()
    (commands,) = [block.code for block in blocks(PAGE) if block.code.startswith("agentcore configure")]
    port, control = free_port(), FakeAgentCoreControl(moving=3)
    command = [str(INSTALLED / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with server(command, port=port, log=tmp_path / "moto.log", ready="/moto-api/"), control.serving():
        env = clean_env(AWS_ENDPOINT_URL=url, BEDROCK_AGENTCORE_CP_ENDPOINT=control.url, **KEYS)
        env["PATH"] = f"{INSTALLED}:{env['PATH']}"
        shell = ["bash", "-e", "-c", commands]
        done = subprocess.run(shell, cwd=tmp_path / "my_agent", env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        s3 = boto3.client("s3", endpoint_url=url, region_name="us-west-2", **keys)
        (bucket,) = [found["Name"] for found in s3.list_buckets()["Buckets"]]
        source = s3.get_object(Bucket=bucket, Key="my_rl_agent/source.zip")["Body"].read()
    (runtime,) = control.runtimes.values()
    assert (runtime["agentRuntimeName"], runtime["status"]) == ("my_rl_agent", "READY")
    assert f"Agent endpoint: {runtime['agentRuntimeArn']}/runtime-endpoint/DEFAULT" in done.stderr
    with zipfile.ZipFile(io.BytesIO(source)) as packed:
        assert packed.read("Dockerfile") == (tmp_path / "my_agent" / "Dockerfile").read_bytes()
        assert {"rl_app.py", "pyproject.toml", "wheels/ours.whl"} <= set(packed.namelist())
