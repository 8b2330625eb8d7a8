"""`agentcore-rl doctor`: a good road, and what it says of each way in which a road is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.deploy.image import content_tag
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.runtime.local import LocalRuntime
from conftest import AwsServers
from support.container import write_engine
from support.gateway import gateway
from support.iam_simulator import iam_simulator

TEMPLATE = (Path(str(tiny.path())) / "chat_template.jinja").read_text()
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
AGENT = """\
import json, urllib.request
from agentcore_rl_toolkit import AgentCoreRLApp
app = AgentCoreRLApp()
TOOL = {tool}

def ask(cfg, messages):
    body = {{"model": cfg["model_id"], "messages": messages, "tools": [TOOL]}}
    request = urllib.request.Request(
        cfg["base_url"] + "/chat/completions", json.dumps(body).encode(), {{"Content-Type": "application/json"}}
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

@app.rollout_entrypoint
def invoke(payload, context):
    cfg = payload["_rollout"]
    messages = [{{"role": "user", "content": payload["prompt"]}}]
    {body}
"""
LOOP = """while calls := (message := ask(cfg, messages)).get("tool_calls"):
        messages += [message, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "2"}]
    return {"rewards": 1.0}
"""


def agent(folder: Path, body: str = LOOP) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rl_app.py").write_text(AGENT.format(tool=repr(TOOL), body=body))
    (folder / "Dockerfile").write_text("FROM scratch\nENV DOCKER_CONTAINER=1\n")
    (folder / "rows.jsonl").write_text(
        '{"prompt": "1 + 1?", "answer": "2"}\n{"prompt": "What is two and three?", "answer": "5"}\n'
    )
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCOUNT", "ECR_REPO_NAME"):
        monkeypatch.delenv(name, raising=False)


def doctor(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the checks by name."""
    capsys.readouterr()
    code = main(["doctor", *args, "--json"])
    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {check["name"]: check for check in checks}


def test_a_good_road(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = agent(tmp_path / "agent")
    (tmp_path / "said.json").write_text(json.dumps({"messages": conversation(), "tools": [TOOL]}))
    code, checks = doctor(capsys, str(folder), "--model", "tiny", "--conversation", "said.json")
    states = {name: check["state"] for name, check in checks.items()}
    assert states == {
        **dict.fromkeys(["data", "app", "rollout", "tools", "template", "context", "conversation", "container"], "ok"),
        **dict.fromkeys(["credentials, region, bucket, queue, role", "image", "gateway"], "skipped"),
    }
    assert code == 0
    assert checks["app"]["text"] == "it accepted a rollout and stored its result"
    assert "2 model calls and 1 tool calls" in checks["rollout"]["text"]
    assert "of 2048" in checks["context"]["text"]
    assert checks["conversation"]["text"].startswith("2 model calls, every later prompt continues the exact tokens")
    write_engine(tmp_path / "bin", "docker")
    assert main(["doctor", str(folder), "--gateway-url", "http://127.0.0.1:1", "--only", "data", "--only", "aws"]) == 1
    said = capsys.readouterr().out
    assert "✓ data: 2 rows in " in said
    assert "✓ app" not in said
    assert f"✓ image: agent:{content_tag(folder)} is for linux/arm64" in said
    assert "✗ gateway: sessions on AWS can't reach http://127.0.0.1:1\n  fix: serve it at an address" in said
    (folder / "Dockerfile").write_text("FROM scratch\n")
    _, checks = doctor(capsys, str(folder), "--only", "aws")
    assert checks["container"]["fix"] == "write ENV DOCKER_CONTAINER=1 into the Dockerfile"


def conversation() -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    return [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]


@pytest.mark.parametrize(
    ("body", "name", "says", "fix"),
    [
        ("ask(cfg, messages)\n    return {'text': 'x'}", "rollout", "has no rewards", 'return {"rewards": …}'),
        ("return {'rewards': 1.0}", "rollout", "without calling the model", "payload['_rollout']['base_url']"),
        ("return {'rewards': payload['reward']}", "rollout", "agent_error: KeyError: 'reward'", "run it by hand"),
        ("json.loads('{')", "rollout", "(rl_app.py, line 17: json.loads('{'))", "run it by hand"),
        ("ask(cfg, messages)\n    return {'rewards': {}}", "rollout", "rewards is a dict ({}), not", "return a float"),
    ],
)
def test_agents_that_would_not_do(
    body: str, name: str, says: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, checks = doctor(capsys, str(agent(tmp_path / "agent", body)))
    assert (code, checks[name]["state"]) == (1, "failed")
    assert says in checks[name]["text"]
    assert fix in checks[name]["fix"]
    assert checks["template"]["text"] == "skipped: no model is named; give --model"


def test_an_agent_with_several_conversations_and_one_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "ask(cfg, messages)\n    ask(cfg, [{'role': 'user', 'content': 'another'}])\n    return {'rewards': 1.0}"
    code, checks = doctor(capsys, str(agent(tmp_path / "agent", body)), "--model", "tiny")
    assert (code, checks["template"]["state"]) == (0, "ok")
    assert "2 model calls, in 2 rows, because the agent has several conversations" in checks["template"]["text"]
    code, checks = doctor(capsys, str(agent(tmp_path / "agent", "return {'rewards': 1.0}")), "--model", "tiny")
    assert (code, checks["template"]["text"]) == (1, "skipped: the agent called no model")


def test_what_to_run_after_a_failed_rollout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = agent(tmp_path / "agent", "return {'rewards': payload['reward']}")
    (folder / "rows.jsonl").rename(folder / "rows.json")
    _, checks = doctor(capsys, str(folder), "--only", "agent")
    by_hand = f"agentcore-rl rollout {folder} --data {folder}/rows.json --model tiny --limit 1"
    assert by_hand in checks["rollout"]["fix"]
    (folder / "rows.json").unlink()
    _, checks = doctor(capsys, str(folder), "--only", "agent")
    assert checks["rollout"]["fix"].endswith("because no rows are known: give --data FILE")


def test_a_result_that_can_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    from agentcore_rl_toolkit import open_store
    ids = (cfg["exp_id"], cfg["input_id"], context.session_id)
    open_store(cfg["s3_bucket"]).put_if_absent("/".join(ids) + ".json", b"[" * 200_000)
    return {"rewards": 1.0}"""
    code, checks = doctor(capsys, str(agent(tmp_path / "agent", body)))
    assert (code, checks["app"]["state"]) == (1, "failed")
    assert "a result is nested at most 200 levels deep" in checks["app"]["text"]


def test_an_app_of_production_and_one_that_can_not_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = agent(tmp_path / "agent")
    source = (folder / "rl_app.py").read_text()
    plain = source.replace(
        "agentcore_rl_toolkit import AgentCoreRLApp", "bedrock_agentcore.runtime import BedrockAgentCoreApp"
    )
    plain = plain.replace("AgentCoreRLApp()", "BedrockAgentCoreApp()").replace("rollout_entrypoint", "entrypoint")
    (folder / "basic_app.py").write_text(plain.replace("BedrockBedrock", "Bedrock"))
    code, checks = doctor(capsys, str(folder / "basic_app.py"))
    assert (code, checks["app"]["state"]) == (1, "failed")
    assert "it answered" in checks["app"]["text"]
    assert "@app.rollout_entrypoint" in checks["app"]["fix"]
    (folder / "rl_app.py").write_text("import nothing_like_it\n")
    code, checks = doctor(capsys, str(folder), "--model", "tiny")
    assert (code, checks["app"]["state"], checks["template"]["state"]) == (1, "failed", "skipped")
    assert "nothing_like_it" in checks["app"]["text"]
    code, checks = doctor(capsys, "nowhere/at/all")
    assert (code, list(checks)) == (1, ["agent"])


def test_a_template_that_would_not_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = agent(tmp_path / "agent")
    (tmp_path / "said.json").write_text(json.dumps({"messages": conversation(), "tools": [TOOL]}))
    (tmp_path / "counting.jinja").write_text("{{ messages | length }} messages\n" + TEMPLATE)
    given = [
        "--model",
        "tiny",
        "--context-limit",
        "900",
        "--conversation",
        "said.json",
        "--chat-template",
        "counting.jinja",
    ]
    code, checks = doctor(capsys, str(folder), *given)
    assert code == 1
    assert checks["template"]["text"] == "1 of 1 later prompts would be rendered from scratch, so a rollout is 2 rows"
    assert checks["conversation"]["text"] == checks["template"]["text"]
    assert "with 1024 for a reply" in checks["context"]["text"]
    assert (checks["context"]["state"], checks["context"]["fix"][:15]) == ("failed", "shorten prompts")


def test_rows_and_conversations_that_would_not_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = agent(tmp_path / "agent")
    (tmp_path / "bad.jsonl").write_text(
        '{"prompt": "a", "answer": "b"}\n{bad\n{"prompt": "c", "answer": "d"}\n{"prompt": ["e"]}\n'
    )
    (tmp_path / "said.json").write_text("[]")
    given = ["--data", "bad.jsonl", "--model", "tiny", "--conversation", "said.json"]
    code, checks = doctor(capsys, str(folder), *given)
    assert code == 1
    assert checks["data"]["text"].startswith("bad.jsonl: line 2: ")
    assert "row 3 lacks 'answer'" in checks["data"]["text"]
    assert "row 3: prompt is a list, not text" in checks["data"]["text"]
    assert checks["conversation"]["text"] == "said.json holds no reply of a model"
    _, checks = doctor(capsys, str(folder), "--model", "nowhere", "--data", "none.jsonl", "--only", "data")
    assert "none.jsonl can't be read" in checks["data"]["text"]


@pytest.fixture
def aws(aws_env: AwsServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def client(service: str) -> Any:
        return boto3.client(service, endpoint_url=aws_env.sqs_url, region_name="us-west-2")

    with iam_simulator(aws_env.sqs_url, client("iam")) as url:
        for service in ("S3", "ECR", "STS", "SQS"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", aws_env.sqs_url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", url)
        yield client


def put_image(ecr: Any, repository: str, tag: str, architecture: str) -> None:
    kind = "application/vnd.oci.image.index.v1+json"
    manifests = [{"digest": f"sha256:{architecture}", "platform": {"os": "linux", "architecture": architecture}}]
    ecr.put_image(
        repositoryName=repository,
        imageTag=tag,
        imageManifest=json.dumps({"mediaType": kind, "manifests": manifests}),
        imageManifestMediaType=kind,
    )


def test_aws_by_trying(
    tmp_path: Path, aws: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = agent(tmp_path / "doctored")
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    s3, sqs, iam, ecr = (aws(name) for name in ("s3", "sqs", "iam", "ecr"))
    trust = json.dumps(
        {
            "Statement": [
                {
                    "Principal": {"Service": "bedrock-agentcore.amazonaws.com"},
                    "Effect": "Allow",
                    "Action": "sts:AssumeRole",
                }
            ],
            "Version": "2012-10-17",
        }
    )
    arn = iam.create_role(RoleName="doctored", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    given = [
        "--only",
        "aws",
        "--bucket",
        "doctored",
        "--prefix",
        "doctored",
        "--sqs-url",
        "doctored",
        "--role-arn",
        arn,
    ]
    code, checks = doctor(capsys, str(folder), *given)
    assert (code, checks["region"]["text"]) == (1, "us-west-2")
    assert "account 123456789012" in checks["credentials"]["text"]
    assert (checks["bucket"]["text"], checks["bucket"]["fix"]) == (
        "the bucket doctored does not exist",
        "create it; `agentcore-rl deploy` does",
    )
    assert checks["queue"]["text"] == "the queue doctored does not exist"
    assert "doctored may not ecr:BatchGetImage on " in checks["role"]["text"]
    assert checks["image"]["state"] == "skipped"

    s3.create_bucket(Bucket="doctored", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    sqs.create_queue(QueueName="doctored")
    rights = [
        {"Effect": "Allow", "Action": ["ecr:*", "logs:*", "sqs:SendMessage"], "Resource": "*"},
        {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::doctored/doctored/*"},
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": rights})
    iam.put_role_policy(RoleName="doctored", PolicyName="all", PolicyDocument=policy)
    ecr.create_repository(repositoryName="doctored")
    put_image(ecr, "doctored", content_tag(folder), "amd64")
    code, checks = doctor(capsys, str(folder), *given)
    assert [name for name, check in checks.items() if check["state"] == "failed"] == ["image"]
    assert "is for linux/amd64, but AgentCore runs arm64" in checks["image"]["text"]
    assert s3.list_objects_v2(Bucket="doctored")["KeyCount"] == 0
    url = sqs.get_queue_url(QueueName="doctored")["QueueUrl"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    ecr.batch_delete_image(repositoryName="doctored", imageIds=[{"imageTag": content_tag(folder)}])
    put_image(ecr, "doctored", content_tag(folder), "arm64")
    code, checks = doctor(capsys, str(folder), *given)
    assert (code, {check["state"] for check in checks.values()}) == (0, {"ok", "skipped"})
    code, checks = doctor(capsys, str(folder), *given, "--prefix", "elsewhere")
    assert "s3:PutObject on arn:aws:s3:::doctored/elsewhere/doctor" in checks["role"]["text"]
    other = json.loads(trust.replace("bedrock-agentcore", "lambda"))
    iam.update_assume_role_policy(RoleName="doctored", PolicyDocument=json.dumps(other))
    _, checks = doctor(capsys, str(folder), *given)
    assert checks["role"]["text"] == "AgentCore may not assume doctored"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    _, checks = doctor(capsys, str(folder), *given)
    assert checks["credentials"]["state"] == "failed"
    assert checks["credentials"]["fix"].startswith("run `aws configure`")
    assert "bucket" not in checks


def test_the_gateway_is_tried_from_a_session(
    tmp_path: Path, aws: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = agent(tmp_path / "agent", "return {'rewards': 1.0}")
    with gateway([]) as running, LocalRuntime(folder / "rl_app.py", protections=[], spares=1) as runtime:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", runtime.endpoint_url)
        given = [str(folder), "--only", "aws", "--arn", runtime.arn]
        _, checks = doctor(capsys, *given, "--gateway-url", running.url)
        assert checks["gateway"]["text"] == f"a session of the runtime reached {running.url}/health"
        _, checks = doctor(capsys, *given, "--gateway-url", "http://127.0.0.1:1")
        assert "can't reach http://127.0.0.1:1/health" in checks["gateway"]["text"]
        assert "security groups" in checks["gateway"]["fix"]
