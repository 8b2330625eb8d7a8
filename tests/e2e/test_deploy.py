"""`agentcore-rl build`, `deploy` and `destroy`: moto for AWS, a scripted control plane, and the agent's own image."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.deploy.aws.calls import Aws
from agentcore_rl_toolkit.deploy.aws.runtime_control import RuntimeControl, RuntimeSpec
from agentcore_rl_toolkit.deploy.aws.state import State
from agentcore_rl_toolkit.deploy.image import add_toolkit, content_tag
from agentcore_rl_toolkit.store import open_store
from conftest import AwsServers
from support.agent import AgentProcess, rollout
from support.container import Image, Refusing, build, data_plane, write_engine
from support.fake_agentcore_control import FakeAgentCoreControl
from support.process import http_server
from support.scripted_model import ScriptedModel

ROOT = Path(__file__).parents[2]
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
QUICKLY = ["--aws-timeout", "30"]  # AWS is asked every hundredth of it
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}


def deploy(*args: str) -> int:
    return main(["deploy", *args, *QUICKLY])


def destroy(*args: str) -> int:
    return main(["destroy", *args, *QUICKLY])


def manifest(text: str) -> str:
    return json.dumps({"mediaType": MANIFEST, "config": {"digest": text}})


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The toolkit as installed from its own folder, which nobody edits while tests look at it."""
    source, site = tmp_path_factory.mktemp("toolkit"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info")
    )
    info = site / "agentcore_rl_toolkit-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agentcore-rl-toolkit\nVersion: 0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield source


@pytest.fixture(scope="module")
def template(toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent's folder with the toolkit's wheel in it."""
    folder = tmp_path_factory.mktemp("template") / "my-agent"
    assert main(["init", str(folder), "--framework", "openai"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        add_toolkit(folder, lambda line: None)
    return folder


@pytest.fixture(scope="module")
def image(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build(template, tmp_path_factory.mktemp("image"))


@pytest.fixture
def agent(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, under its own name; it is the working directory."""
    folder = tmp_path / f"agent_{tmp_path.name.rpartition('_')[2]}{abs(hash(str(tmp_path))) % 10**8}"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    return folder


@dataclass
class World:
    """AWS as the command line finds it."""

    aws: AwsServers
    control: FakeAgentCoreControl
    agent: Path
    engine_calls: Path
    asked: list[str] = field(default_factory=list)

    def client(self, service: str) -> Any:
        return boto3.client(service, endpoint_url=self.aws.sqs_url, region_name="us-west-2")

    def commands(self) -> list[list[str]]:
        text = self.engine_calls.read_text() if self.engine_calls.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def roles(self) -> set[str]:
        return {role["RoleName"] for role in self.client("iam").list_roles()["Roles"]}

    def repositories(self) -> set[str]:
        return {found["repositoryName"] for found in self.client("ecr").describe_repositories()["repositories"]}

    def buckets(self) -> set[str]:
        return {found["Name"] for found in self.client("s3").list_buckets()["Buckets"]}

    def queues(self) -> set[str]:
        return {url.rpartition("/")[2] for url in self.client("sqs").list_queues().get("QueueUrls", [])}


@pytest.fixture(scope="module")
def container(
    image: Image, aws_servers: AwsServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """The agent's container, running with S3 at hand."""
    env = aws_servers.env | {"AWS_ENDPOINT_URL_S3": aws_servers.sqs_url}
    with image.running(tmp_path_factory.mktemp("container") / "log", **env) as running:
        yield running


@pytest.fixture
def world(
    aws_env: AwsServers, agent: Path, container: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    calls = write_engine(tmp_path / "bin", "docker")
    with FakeAgentCoreControl().serving() as control, data_plane(container) as (url, asked):
        services = ("S3", "ECR", "IAM", "STS", "SQS", "CODEBUILD")
        endpoints = {f"AWS_ENDPOINT_URL_{service}": aws_env.sqs_url for service in services}
        env = OFFLINE | endpoints | control.env | {"AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": url}
        for name, value in (env | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}).items():
            monkeypatch.setenv(name, value)
        yield World(aws_env, control, agent, calls, asked)


def test_the_image_runs_the_agent(image: Image, tmp_path: Path) -> None:
    """The recipe's own filesystem, and CMD in it: /ping, a rollout with a scripted model, a bad request."""
    assert (image.command, image.ports, image.user) == (["python", "rl_app.py"], [8080], "1000")
    assert sorted(path.name for path in image.folder.iterdir() if path.name.startswith(".")) == [
        ".dockerignore",
        ".gitignore",
    ]
    installed = next(image.root.glob("venv/lib/*/site-packages/my_agent-*.dist-info")).joinpath("METADATA").read_text()
    assert "Requires-Dist: agentcore-rl-toolkit" in installed

    def script(body: dict[str, Any]) -> dict[str, Any]:
        if body["messages"][-1]["role"] == "tool":
            return {"content": f"The answer is {body['messages'][-1]['content']}."}
        return {"tool_calls": [("calculator", {"expression": "6*7"})]}

    with ScriptedModel(script).serving() as model, image.running(tmp_path / "log") as running:
        assert running.ping() == "Healthy"
        given = rollout(tmp_path / "store", base_url=model.base_url, model_id="m")
        status, answer = running.invoke({"prompt": "6 times 7?", "answer": "42", "_rollout": given})
        assert (status, answer["status"]) == (200, "processing")
        running.wait_healthy()
        stored = json.loads(open_store(str(tmp_path / "store")).get(answer["result_key"]))
        assert (stored["rewards"], stored["response"]) == (1.0, "The answer is 42.")
        assert [body["model"] for body in model.requests] == ["m", "m"]
        assert running.invoke({"prompt": "x", "_rollout": {"exp_id": "e"}})[0] == 400


def test_deploy_again_and_destroy(world: World, toolkit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (world.roles(), world.repositories(), world.buckets(), world.queues())
    name = world.agent.name
    given = ["--bucket", f"results-{name[6:]}", "--sqs-url", f"{name}-queue"]
    assert deploy(*given, "--env", "STAGE=test") == 0
    said = capsys.readouterr()
    (runtime,) = world.control.runtimes.values()
    assert said.out == f"{runtime['agentRuntimeArn']}\n"
    assert runtime["status"] == "READY"
    image = f"{REGISTRY}/{name.replace('_', '-')}:{content_tag(world.agent)}"
    assert runtime["agentRuntimeArtifact"] == {"containerConfiguration": {"containerUri": image}}
    store = f"s3://results-{name[6:]}"
    environment = dict(runtime["environmentVariables"])
    queue_url = environment.pop("AGENTCORE_RL_SQS_URL")
    assert queue_url.endswith(f"/{name}-queue")
    assert environment == {"STAGE": "test", "AGENTCORE_RL_S3_BUCKET": store, "AGENTCORE_RL_ALLOWED_STORES": store}
    commands = world.commands()
    assert [command[1] for command in commands] == ["info", "build", "image", "login", "push"]
    folder = str(world.agent)
    assert commands[1][2:] == [
        *["--platform", "linux/arm64"],
        *["--tag", image, "--file", f"{folder}/Dockerfile", folder],
    ]
    assert commands[3][2:6] == ["--username", "AWS", "--password-stdin", REGISTRY]
    assert commands[3][6] == "123456789012-auth-token"
    assert world.asked[0].endswith("/invocations")
    assert "engine_error, as expected without a model" in said.err
    assert world.client("s3").list_objects_v2(Bucket=f"results-{name[6:]}")["KeyCount"] == 0
    for snippet in (
        f"agentcore-rl train {runtime['agentRuntimeArn']}",
        "SlimeRunner(",
        "rllm.remote_runtime.enabled=true",
    ):
        assert snippet in said.err
    for line in ("actor_rollout_ref.rollout.agentcore.container_uri=" + image, "--backend tinker"):
        assert line in said.err

    (toolkit / "src" / "__pycache__").mkdir()
    (toolkit / "src" / "__pycache__" / "left.pyc").touch()
    assert deploy("rl_app.py") == 0  # the same again: nothing differs
    assert world.control.changes == ["CreateAgentRuntime"]
    assert len(world.commands()) == 5
    (world.agent / "rl_app.py").write_text((world.agent / "rl_app.py").read_text() + "\n# changed\n")
    assert deploy("--no-trial", "--env", "MORE=1") == 0
    assert world.control.changes == ["CreateAgentRuntime", "UpdateAgentRuntime"]
    (runtime,) = world.control.runtimes.values()
    assert runtime["agentRuntimeVersion"] == "2"
    assert runtime["environmentVariables"]["STAGE"] == "test"
    assert runtime["environmentVariables"]["MORE"] == "1"
    assert deploy("--no-trial", "--env", "MORE=") == 0
    (runtime,) = world.control.runtimes.values()
    assert runtime["environmentVariables"] == environment | {"AGENTCORE_RL_SQS_URL": queue_url}

    assert destroy("--dry-run") == 0
    assert len(world.control.runtimes) == 1
    assert destroy() == 0
    assert world.control.runtimes == {}
    assert (world.roles(), world.repositories(), world.buckets(), world.queues()) == before
    assert not (world.agent / ".agentcore-rl.json").exists()
    assert destroy() == 0


def test_runtimes_on_motos_control_plane(aws_env: AwsServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reading of the same service than ours; its updates never end."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE_CONTROL", aws_env.sqs_url)
    control = RuntimeControl(Aws("us-west-2"), pause=0.01, timeout=10)
    known = {
        "name": "motos",
        "container_uri": f"{REGISTRY}/motos:1",
        "role_arn": "arn:aws:iam::123456789012:role/motos",
    }
    applied = [control.apply(RuntimeSpec(**known)) for _ in range(2)]
    assert [one.change for one in applied] == ["created", "unchanged"]
    assert control.delete(applied[0].id)
    assert control.find("motos") is None


def test_the_role_may_do_no_more_than_the_agent_needs(world: World) -> None:
    name = world.agent.name
    (world.agent / "more.json").write_text(
        '{"Statement": {"Effect": "Allow", "Action": "bedrock:InvokeModel", "Resource": "*"}}'
    )
    given = ["--bucket", f"results-{name[6:]}", "--sqs-url", "announced", "--policy", "more.json", "--no-trial"]
    assert deploy(*given) == 0
    iam = world.client("iam")
    role = iam.get_role(RoleName=f"agentcore-rl-{name}")["Role"]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "bedrock-agentcore.amazonaws.com"}
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}
    policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="agentcore-rl-toolkit")["PolicyDocument"]
    allowed = {
        tuple(s["Action"]) if isinstance(s["Action"], list) else s["Action"]: s["Resource"] for s in policy["Statement"]
    }
    repository = f"arn:aws:ecr:us-west-2:123456789012:repository/{name.replace('_', '-')}"
    logs = f"arn:aws:logs:us-west-2:123456789012:log-group:/aws/bedrock-agentcore/runtimes/{name}-*"
    assert allowed == {
        ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"): repository,
        ("ecr:GetAuthorizationToken",): "*",
        ("logs:CreateLogGroup", "logs:DescribeLogStreams"): logs,
        ("logs:CreateLogStream", "logs:PutLogEvents"): f"{logs}:log-stream:*",
        ("s3:GetObject", "s3:PutObject"): f"arn:aws:s3:::results-{name[6:]}/*",
        ("sqs:SendMessage",): "arn:aws:sqs:us-west-2:123456789012:announced",
        "bedrock:InvokeModel": "*",
    }
    named = {"RoleName": role["RoleName"], "PolicyName": "agentcore-rl-toolkit"}
    iam.put_role_policy(**named, PolicyDocument=json.dumps(policy | {"Statement": policy["Statement"][:1]}))
    assert deploy("--no-trial") == 0  # what somebody changed is put right
    assert iam.get_role_policy(**named)["PolicyDocument"] == policy
    assert destroy() == 0


def test_destroy_leaves_what_others_made_or_put_there(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    name = world.agent.name
    bucket, repository = f"results-{name[6:]}", name.replace("_", "-")
    world.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    assert deploy("--bucket", bucket, "--no-trial") == 0
    ecr = world.client("ecr")
    ecr.put_image(repositoryName=repository, imageManifest=manifest("other"), imageTag="other")
    capsys.readouterr()
    assert destroy() == 1
    assert (
        f"✗ the repository {repository} is left: it has images that were not pushed from here"
        in capsys.readouterr().err
    )
    (left,) = ecr.list_images(repositoryName=repository)["imageIds"]
    assert left["imageTag"] == "other"
    assert bucket in world.buckets()
    assert world.control.runtimes == {}
    ecr.batch_delete_image(repositoryName=repository, imageIds=[{"imageTag": "other"}])
    assert destroy() == 0
    assert repository not in world.repositories()
    assert bucket in world.buckets()
    assert not (world.agent / ".agentcore-rl.json").exists()


def test_a_bucket_with_results_is_kept(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy("--bucket", f"results-{world.agent.name[6:]}", "--no-trial") == 0
    world.client("s3").put_object(Bucket=f"results-{world.agent.name[6:]}", Key="x/y.json", Body=b"{}")
    assert destroy() == 1
    assert "it has results; remove it with: aws s3 rb --force" in capsys.readouterr().err


def test_a_dry_run_prints_every_call_and_changes_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = (world.roles(), world.repositories(), world.buckets(), world.queues())
    assert deploy("--dry-run", "--sqs-url", "announced-dry") == 0
    said = capsys.readouterr().err
    assert (world.roles(), world.repositories(), world.buckets(), world.queues()) == before
    assert world.control.changes == []
    assert [command[1:] for command in world.commands()] == [["info"]]
    assert not (world.agent / ".agentcore-rl.json").exists()
    for call in (
        *["s3 CreateBucket", "s3 PutPublicAccessBlock", "sqs CreateQueue", "ecr CreateRepository", "iam CreateRole"],
        *[
            "iam PutRolePolicy",
            "bedrock-agentcore-control CreateAgentRuntime",
            "$ docker build",
            "$ docker push",
        ],
    ):
        assert call in said
    assert '"s3:PutObject"' in said
    assert "✓" not in said  # nothing is so yet
    assert "→ sessions have the role arn:aws:iam::" in said


def test_a_dry_run_without_credentials(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert deploy("--dry-run") == 1
    assert "no AWS region is set\nhint: set AWS_REGION" in capsys.readouterr().err
    (world.agent / ".env").write_text("AWS_REGION=eu-west-1\nECR_REPO_NAME=mine\n")
    assert deploy("--dry-run") == 1
    assert "no AWS credentials were found\nhint: run `aws configure`" in capsys.readouterr().err
    (world.agent / ".env").write_text("AWS_REGION=eu-west-1\nAWS_ACCOUNT=210987654321\nECR_REPO_NAME=mine\n")
    assert deploy("--dry-run") == 0
    said = capsys.readouterr().err
    assert f"--tag 210987654321.dkr.ecr.eu-west-1.amazonaws.com/mine:{content_tag(world.agent)}" in said
    assert "agentcore-rl-210987654321-eu-west-1" in said
    assert world.control.calls == []


def test_codebuild_builds_where_no_engine_answers(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    write_engine(world.engine_calls.parent, "podman")  # in front of one that this machine may have
    (world.engine_calls.parent / "down").touch()
    name, bucket = world.agent.name, f"results-{world.agent.name[6:]}"
    assert deploy("--bucket", bucket, "--no-trial") == 1
    said = capsys.readouterr().err
    assert "building on AWS CodeBuild" in said
    assert "but ECR does not have it" in said  # moto builds nothing
    codebuild = world.client("codebuild")
    (project,) = codebuild.batch_get_projects(names=[f"agentcore-rl-{name}"])["projects"]
    assert (project["environment"]["type"], project["environment"]["privilegedMode"]) == ("ARM_CONTAINER", True)
    assert project["source"]["location"] == f"{bucket}/.build/source.zip"
    assert len(codebuild.list_builds_for_project(projectName=project["name"])["ids"]) == 1
    role = project["serviceRole"].rpartition("/")[2]
    policy = world.client("iam").get_role_policy(RoleName=role, PolicyName="agentcore-rl-toolkit")["PolicyDocument"]
    resources = {statement["Sid"]: statement["Resource"] for statement in policy["Statement"]}
    assert resources["Source"] == f"arn:aws:s3:::{bucket}/.build/source.zip"
    assert resources["Push"].endswith(f":repository/{name.replace('_', '-')}")
    tag = content_tag(world.agent)
    world.client("ecr").put_image(repositoryName=name.replace("_", "-"), imageManifest=manifest(tag), imageTag=tag)
    assert main(["build", "--builder", "codebuild"]) == 0  # it is there: nothing is built
    assert capsys.readouterr().out == f"{REGISTRY}/{name.replace('_', '-')}:{tag}\n"
    assert len(codebuild.list_builds_for_project(projectName=project["name"])["ids"]) == 1
    world.client("ecr").batch_delete_image(repositoryName=name.replace("_", "-"), imageIds=[{"imageTag": tag}])
    assert destroy() == 0
    assert codebuild.batch_get_projects(names=[project["name"]])["projects"] == []
    assert not {role, f"agentcore-rl-{name}"} & world.roles()
    assert bucket not in world.buckets()


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_building_for_here_and_for_aws(
    name: str, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = write_engine(tmp_path / "bin", name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for key, value in OFFLINE.items():
        monkeypatch.setenv(key, value)
    assert main(["build", ".", "--tag", "mine:1", "--local"]) == 0
    assert main(["build"]) == 0
    assert capsys.readouterr().out == f"mine:1\n{agent.name.replace('_', '-')}:{content_tag(agent)}\n"
    built = [json.loads(line) for line in calls.read_text().splitlines() if '"build"' in line]
    assert [command[0] for command in built] == [name, name]
    assert ["--platform" in command for command in built] == [False, True]
    assert main(["build", "--dry-run"]) == 0
    assert f"$ {name} " in capsys.readouterr().err
    assert len([line for line in calls.read_text().splitlines() if '"build"' in line]) == 2
    monkeypatch.setenv("BUILT_FOR", "linux/amd64")
    assert main(["build"]) == 1
    assert "was built for linux/amd64, not for linux/arm64\nhint: " in capsys.readouterr().err
    monkeypatch.setenv("BUILD_EXIT", "3")
    assert main(["build", "--builder", name]) == 1
    assert "failed with 3" in capsys.readouterr().err
    other = {"docker": "podman", "podman": "docker"}[name]
    assert main(["build", "--builder", other]) == 1
    assert f"{other} does not answer" in capsys.readouterr().err
    assert main(["build", "--builder", "codebuild", "--local"]) == 1
    assert "--local and --tag need a container engine on this machine" in capsys.readouterr().err


def test_what_is_not_ours_is_not_touched(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    name = world.agent.name
    world.client("iam").create_role(
        RoleName=f"agentcore-rl-{name}", AssumeRolePolicyDocument='{"Version": "2012-10-17"}'
    )
    assert deploy("--no-trial") == 1
    arn = f"arn:aws:iam::123456789012:role/agentcore-rl-{name}"
    assert f"did not create it\nhint: use it as it is with --role-arn {arn}" in capsys.readouterr().err
    assert deploy("--no-trial", "--role-arn", arn) == 0
    (runtime_id,) = world.control.runtimes
    assert world.control.runtimes[runtime_id]["roleArn"] == arn
    (world.agent / ".agentcore-rl.json").unlink()  # another copy of the folder: the tag says whose it is
    assert deploy("--no-trial", "--role-arn", arn) == 0
    assert json.loads((world.agent / ".agentcore-rl.json").read_text())["made"][-1]["name"] == runtime_id
    (world.agent / ".agentcore-rl.json").unlink()
    world.control.tags.clear()
    assert deploy("--no-trial", "--role-arn", arn, "--env", "A=1") == 1
    assert f"the runtime {name} exists, and this toolkit did not create it" in capsys.readouterr().err
    assert deploy("--no-trial", "--role-arn", arn, "--env", "A=1", "--adopt") == 0
    assert world.control.changes == ["CreateAgentRuntime", "UpdateAgentRuntime"]
    destroy()
    assert runtime_id in world.control.runtimes
    assert f"agentcore-rl-{name}" in world.roles()


def test_every_failure_says_what_was_missing(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, container: AgentProcess
) -> None:
    world.control.refuse["CreateAgentRuntime"] = [("AccessDeniedException", "User is not authorized")]
    assert deploy("--no-trial") == 1
    said = capsys.readouterr().err
    role = f"arn:aws:iam::123456789012:role/agentcore-rl-{world.agent.name}"
    allowed = f"bedrock-agentcore:CreateAgentRuntime on {world.agent.name}, and iam:PassRole on {role}"
    assert f"hint: allow your credentials {allowed}" in said
    assert [item["kind"] for item in json.loads((world.agent / ".agentcore-rl.json").read_text())["made"]][-1] == "role"
    with data_plane(container, status=403) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", url)
        assert deploy() == 1  # goes on where it broke off
    (runtime,) = world.control.runtimes.values()
    expected = f"hint: allow your credentials bedrock-agentcore:InvokeAgentRuntime on {runtime['agentRuntimeArn']}"
    assert expected in capsys.readouterr().err
    monkeypatch.setenv("AWS_ACCOUNT", "999999999999")
    assert deploy() == 1
    assert "the credentials belong to account 123456789012, not 999999999999" in capsys.readouterr().err
    monkeypatch.delenv("AWS_ACCOUNT")
    assert deploy("--region", "eu-west-1") == 1
    assert "is deployed in us-west-2, account 123456789012; not in eu-west-1" in capsys.readouterr().err
    assert destroy() == 0


def test_every_service_that_refuses_is_named_with_its_permission(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, bucket = world.agent.name, f"results-{world.agent.name[6:]}"
    repository, given = name.replace("_", "-"), ["--bucket", bucket, "--sqs-url", bucket, "--no-trial"]
    refusals = {
        "STS": "hint: allow your credentials sts:GetCallerIdentity",
        "S3": f"hint: allow your credentials s3:ListBucket on {bucket}, or choose another --bucket",
        "SQS": f"hint: allow your credentials sqs:GetQueueUrl on {bucket}",
        "ECR": f"hint: allow your credentials ecr:DescribeRepositories on {repository}",
        "IAM": f"hint: allow your credentials iam:GetRole on agentcore-rl-{name}",
    }
    with http_server(Refusing) as url:
        for service, hint in refusals.items():
            with monkeypatch.context() as patch:
                patch.setenv(f"AWS_ENDPOINT_URL_{service}", url)
                assert deploy(*given) == 1
            assert hint in capsys.readouterr().err
        assert deploy("--no-trial") == 0  # each time it came further, and what it was told is kept
        (runtime,) = world.control.runtimes.values()
        assert runtime["environmentVariables"]["AGENTCORE_RL_S3_BUCKET"] == f"s3://{bucket}"
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL_ECR", url)
            assert destroy() == 1
    said = capsys.readouterr().err
    assert f"✗ the repository {repository} is left: ecr DeleteRepository: not allowed" in said
    assert f"hint: allow your credentials ecr:DeleteRepository on {repository}" in said
    assert {item["kind"] for item in State.load(world.agent).made} == {"image", "repository"}  # the rest could go
    assert bucket not in world.buckets() | world.queues()
    assert destroy() == 0
    assert repository not in world.repositories()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["deploy", "/nowhere"], "/nowhere has no Dockerfile"),
        (["deploy", "--name", "my-agent"], "'my-agent' is not a valid runtime name"),
        (["deploy", "--repository", "Mine"], "'Mine' is not a valid ECR repository name"),
        (["deploy", "--bucket", "No_Bucket"], "'No_Bucket' is not a valid bucket name"),
        (["deploy", "--env", "A"], "--env A: the variable is not set in this shell"),
        (["deploy", "--policy", "nowhere.json", "--dry-run"], "hint: write an IAM policy"),
        (["deploy", "--subnet", "subnet-1", "--dry-run"], "a VPC needs both"),
    ],
)
def test_bad_arguments(world: World, args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 1
    assert says in capsys.readouterr().err
    assert world.control.changes == []
