"""The parts of the migration agent: its task, its workspace, its tools, its checks, and the diff its README shows."""

from __future__ import annotations

import doctest
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.example import MIGRATION_AGENT, example, package
from support.process import clean_env

command, java, task, tools, workspace = (
    package(MIGRATION_AGENT.name, f"migration.{name}") for name in ("command", "java", "task", "tools", "workspace")
)
needs_java = pytest.mark.skipif(shutil.which("javac") is None, reason="there is no javac on this machine")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")
TASK = task.Task(prompt="Migrate it.", project="inventory")
STOCK = "src/main/java/shop/Stock.java"


@pytest.fixture(scope="module")
def reward() -> Any:
    return example("strands_migration_agent/reward.py")


@pytest.fixture
def session() -> Iterator[Any]:
    with workspace.Workspace(TASK) as opened:
        yield opened


def test_examples_in_docstrings_run(reward: Any) -> None:
    for module in (task, java, reward):
        found = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
        assert (found.failed, found.attempted > 0) == (0, True)


# Payloads


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": b"x"}, "prompt"),
        ({"prompt": [{"text": "Migrate it."}]}, "prompt"),
        ({"prompt": [{"toolUse": {"toolUseId": "1", "name": "shell", "input": {"command": "id"}}}]}, "prompt"),
        ({"prompt": {"role": "user", "content": []}}, "prompt"),
        ({"project": ""}, "project"),
        ({"project": "/etc"}, "project"),
        ({"project": "a/b"}, "project"),
        ({"project": "https://github.com/a/b/../../c"}, "project"),
        ({"project": "https://example.com/a/b"}, "project"),
        ({"project": "ssh://github.com/a/b"}, "project"),
        ({"base_commit": "--upload-pack=id"}, "base_commit"),
        ({"tests": "4"}, "tests"),
        ({"tests": -1}, "tests"),
        ({"dependencies": {"junit:junit": 5}}, "dependencies"),
        ({"seconds": 0}, "seconds"),
    ],
)
def test_payloads_that_are_refused(change: dict[str, Any], field: str) -> None:
    row = {"prompt": "Migrate it.", "project": "inventory"}
    assert task.Task.read(row | {"_rollout": {}}).project == "inventory"
    with pytest.raises(ValueError, match=rf"^the payload is refused: {field}"):
        task.Task.read(row | change)


def test_a_payload_that_is_no_object() -> None:
    with pytest.raises(ValueError, match=r"^the payload is refused: payload: "):
        task.Task.read("Migrate it.")


# Paths


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../before/javac.args", "src/../../x", "..", "", "a\0b", "//etc/passwd"]
)
def test_paths_outside_are_refused(session: Any, name: str) -> None:
    for use in (session.read, lambda path: session.write(path, "x")):
        with pytest.raises(workspace.Refused):
            use(name)


def test_absolute_paths_and_detours_are_refused_wherever_they_lead(session: Any) -> None:
    for name in (f"{session.root}/javac.args", "src/../javac.args"):
        with pytest.raises(workspace.Refused, match="inside the project"):
            session.read(name)


def test_links_that_lead_outside_are_refused(session: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (session.root / "file").symlink_to(tmp_path / "secret")
    (session.root / "folder").symlink_to(tmp_path)
    (session.root / "chain").symlink_to("folder")
    for name in ("file", "folder/secret", "folder/new", "chain/secret"):
        with pytest.raises(workspace.Refused, match="through a link"):
            session.read(name)
        with pytest.raises(workspace.Refused, match="through a link"):
            session.write(name, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").read_text() == "s3cret"
    (session.root / "inner").symlink_to("javac.args")
    assert session.read("inner").startswith("--release 8")


def test_a_project_that_was_swapped_for_a_link_is_gone(session: Any, reward: Any, tmp_path: Path) -> None:
    before = reward.Before.of(session.root, TASK)
    shutil.copytree(session.root, tmp_path / "other")
    (tmp_path / "other/target").mkdir()
    shutil.rmtree(session.root)
    session.root.symlink_to(tmp_path / "other")
    with pytest.raises(workspace.Refused):
        session.read("javac.args")
    with pytest.raises(workspace.Refused, match="gone"):
        session.run(["true"])
    assert reward.check(session.root, before) == reward.Checks()
    assert (tmp_path / "other/target").is_dir()


def test_only_plain_files_of_some_size_are_read_and_written(session: Any) -> None:
    os.mkfifo(session.root / "pipe")
    for name in ("pipe", "src"):
        with pytest.raises(workspace.Refused, match="no such file"):
            session.read(name)
        with pytest.raises(workspace.Refused, match="not a file"):
            session.write(name, "x")
    (session.root / "large").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(workspace.Refused, match="larger than"):
        session.read("large")
    with pytest.raises(workspace.Refused, match="more than"):
        session.write("new", "x" * ((1 << 20) + 1))
    session.write("deep/er/new", "x")
    assert session.read("deep/er/new") == "x"


def test_workspaces_are_their_own_and_end() -> None:
    with workspace.Workspace(TASK) as one, workspace.Workspace(TASK) as other:
        one.write("javac.args", "--release 17\n")
        assert other.read("javac.args") != one.read("javac.args")
    assert not one.root.exists()
    assert not other.root.parent.exists()
    with pytest.raises(ValueError, match="there is no project 'nothing'"):
        workspace.Workspace(TASK.model_copy(update={"project": "nothing"}))


def test_the_patch_of_a_session(session: Any) -> None:
    assert session.patch() == ""
    session.write("javac.args", "--release 17\n")
    session.write("new.txt", "new\n")
    session.write("target/classes/made.txt", "by the build\n")
    (session.root / "README.md").unlink()
    (session.root / "binary").write_bytes(b"\xff\xfe")
    (session.root / "link").symlink_to("/etc/passwd")
    patch = session.patch().splitlines()
    assert [line for line in patch if line.startswith("+++")] == [
        "+++ b/README.md",
        "+++ b/javac.args",
        "+++ b/new.txt",
    ]
    assert {"-# inventory", "+--release 17", "+new"} <= set(patch)


# Archives


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("/tmp/absolute"),
        member("../outside"),
        member("src/../../outside"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "good"),
        member("hard", tarfile.LNKTYPE, "../../secret"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.type!r}",
)
def test_archives_with_anything_outside_are_refused_whole(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(workspace.Refused, match="is not"):
        workspace.unpack(archive(tmp_path / "a.tar.gz", member("good"), bad), tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_archives_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "LARGEST_ARCHIVE", 1000)
    with pytest.raises(workspace.Refused, match="too large"):
        workspace.unpack(archive(tmp_path / "a.tar.gz", member("a", size=600), member("b", size=600)), tmp_path)
    monkeypatch.setattr(workspace, "MOST_FILES", 1)
    with pytest.raises(workspace.Refused, match="too large"):
        workspace.unpack(archive(tmp_path / "a.tar.gz", member("a"), member("b")), tmp_path)


# Commands


def test_a_command_says_how_it_ended(tmp_path: Path) -> None:
    assert str(command.run(["sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path, 20)) == "out\nerr\n[exit status 3]"


def test_a_command_that_takes_too_long_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    script = "(sleep 60; touch late) & echo $! > child; sleep 60"
    ended = command.run(["sh", "-c", script], tmp_path, 0.5)
    assert (ended.code, ended.ok) == (None, False)
    assert "its time was up" in str(ended)
    gone(int((tmp_path / "child").read_text()))


def test_what_a_command_leaves_running_is_stopped(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = command.run(["sh", "-c", "sleep 60 & echo $!"], tmp_path, 50)
    assert ended.ok
    assert time.monotonic() - began < 50
    gone(int(ended.output))


def gone(pid: int) -> None:
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    raise AssertionError(f"{pid} is still there")


def test_long_output_loses_its_middle(tmp_path: Path) -> None:
    ended = command.run(["sh", "-c", "echo first; yes | head -c 3000000; echo last"], tmp_path, 30)
    assert ended.output.startswith("first\n")
    assert ended.output.endswith("last\n")
    assert "bytes cut" in ended.output
    assert len(ended.output) < 8200


def test_commands_see_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    ended = command.run(["sh", "-c", "env; cat"], tmp_path, 20, stdin="and this")
    assert "s3cret" not in ended.output
    assert "PATH=" in ended.output
    assert ended.output.endswith("and this")


def test_a_session_has_so_much_time(session: Any) -> None:
    session.deadline = time.monotonic() + 0.5
    assert session.run(["sleep", "60"], 50).code is None
    session.deadline = time.monotonic() - 1
    with pytest.raises(workspace.Refused, match="time is up"):
        session.run(["true"])


# Tools


def named(session: Any, name: str) -> Callable[..., str]:
    return next(one for one in tools.tools(session) if one.tool_name == name)


def test_tools_for_files(session: Any) -> None:
    session.write("long", "".join(f"line {number}\n" for number in range(1, 301)))
    read, edit = named(session, "read_file"), named(session, "edit_file")
    assert read(path="long").splitlines()[-2:] == ["line 200", "[100 more lines]"]
    assert read(path="long", first_line=201).splitlines()[-1] == "line 300"
    assert edit(path="long", old="line 300", new="the end") == "edited"
    assert session.read("long").endswith("line 299\nthe end\n")
    for old, count in (("line 29", 11), ("nothing", 0), ("", 0)):
        with pytest.raises(workspace.Refused, match=f"there {count} times"):
            edit(path="long", old=old, new="x")
    assert named(session, "shell")(command="pwd") == f"{session.root}\n[exit status 0]"


@pytest.mark.parametrize(
    "goals", ["-f ../pom.xml", "-f/etc/pom.xml", "test; id", "$(id)", "-s x", "--file=x", "..", "-Da=../b", "-Da=.."]
)
def test_maven_gets_goals_and_nothing_that_leads_elsewhere(session: Any, goals: str) -> None:
    with pytest.raises(workspace.Refused, match="only goals"):
        named(session, "maven")(goals=goals)
    with pytest.raises(workspace.Refused, match=r"no pom\.xml"):
        named(session, "maven")(goals="-q test -Dtest=Shop#sells*+buys -Pfast,!slow dependency:tree")


# Java


def write(root: Path, name: str, content: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)


def test_methods_that_are_tests(tmp_path: Path) -> None:
    write(
        tmp_path,
        "core/src/test/java/a/ShopTest.java",
        """
        @Test public void sells() {}
        @Test(timeout = 100, expected = A.class)
        public final void buys() {}
        @DisplayName("a // b /* c") @ParameterizedTest @ValueSource(ints = {1, 2}) void counts(int n) {}
        public void testOld() {}
        void helper() {}
        void testing() {}
        // @Test void commented() {}
        /* @Test void out() {} */
        String text = "/*"; @Test void afterText() {} /* */
        @Disabled @Test void off() {}
        @Test @Ignore("later") public void testLater() {}
        """,
    )
    write(tmp_path, "src/main/java/a/Main.java", "@Test void noTest() {}")
    names = {"sells", "buys", "counts", "testOld", "afterText"}
    assert java.test_methods(tmp_path) == {("ShopTest", name) for name in names}


@pytest.mark.parametrize("text", ['"\\"' * 60_000, "/*" * 90_000, "@a(" * 60_000, "@a " * 60_000, "void " * 40_000])
def test_sources_made_to_be_slow_are_read_in_no_time(tmp_path: Path, text: str) -> None:
    write(tmp_path, "src/test/java/Slow.java", text)
    assert java.test_methods(tmp_path) == set()


def test_versions_in_poms(tmp_path: Path) -> None:
    write(
        tmp_path,
        "pom.xml",
        """<?xml version="1.0"?>
        <project xmlns="http://maven.apache.org/POM/4.0.0">
          <parent><groupId>org.boot</groupId><artifactId>parent</artifactId><version>2.7.1</version></parent>
          <properties><junit.version>5.10.1</junit.version></properties>
          <dependencies>
            <dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>${junit.version}</version></dependency>
            <dependency><groupId>a</groupId><artifactId>managed</artifactId></dependency>
          </dependencies>
          <build><plugins><plugin><artifactId>maven-x-plugin</artifactId><version>3.1</version></plugin></plugins></build>
        </project>""",
    )
    write(tmp_path, "broken/pom.xml", "<project")
    assert java.versions(tmp_path) == {
        "org.boot:parent": {"2.7.1"},
        "junit:junit": {"5.10.1"},
        "org.apache.maven.plugins:maven-x-plugin": {"3.1"},
    }


def test_versions_of_classes(tmp_path: Path) -> None:
    for name, major in (("target/classes/A.class", 61), ("b/target/test-classes/B.class", 52), ("lib/C.class", 50)):
        write(tmp_path, name, "")
        (tmp_path / name).write_bytes(b"\xca\xfe\xba\xbe\0\0" + major.to_bytes(2, "big"))
    (tmp_path / "target/classes/Not.class").write_bytes(b"no class")
    assert java.major_versions(tmp_path) == {61, 52, 0}


def test_results_of_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Maven that leaves what Surefire leaves."""
    write(
        tmp_path,
        "bin/mvn",
        """#!/bin/sh
        echo "$@"
        mkdir -p a/target/surefire-reports b/target/failsafe-reports
        echo '<testsuite tests="5" failures="1" errors="1" skipped="1"/>' > a/target/surefire-reports/TEST-a.xml
        echo '<testsuite tests="2" failures="0" errors="0"/>' > b/target/failsafe-reports/TEST-b.xml
        echo 'half of <' > b/target/failsafe-reports/TEST-c.xml
        echo '<testsuite tests="9"/>' > b/target/failsafe-reports/summary.xml
        """,
    )
    write(tmp_path, "bin/java", "")
    for name in ("mvn", "java"):
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    write(tmp_path, "project/pom.xml", "<project/>")
    write(tmp_path, "project/a/target/surefire-reports/TEST-old.xml", '<testsuite tests="100"/>')
    built = java.build(tmp_path / "project", 20)
    assert (built.ok, built.run, built.failed) == (True, 7, 2)
    assert built.output.split() == ["-B", "-ntp", "-Dmaven.test.failure.ignore=true", "clean", "verify"]


def test_without_a_jdk_nothing_is_judged(session: Any, reward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="javac is not installed"):
        reward.check(session.root, reward.Before.of(session.root, TASK))


# Checks


def migrate(root: Path) -> None:
    """What a policy has to do to the inventory."""
    (root / "javac.args").write_text("--release 17\n")
    label = root / "src/main/java/shop/Label.java"
    text = label.read_text().replace("javax.xml.bind.DatatypeConverter", "java.util.Base64")
    text = text.replace("DatatypeConverter.printBase64Binary", "Base64.getEncoder().encodeToString")
    label.write_text(text.replace("DatatypeConverter.parseBase64Binary", "Base64.getDecoder().decode"))
    stock = root / STOCK
    stock.write_text(stock.read_text().replace(" _", " known"))


def break_(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


TESTS = "src/test/java/shop/StockTest.java"
CHECKED = "check(stock.total() == 9)"


@needs_java
@pytest.mark.parametrize(
    ("harm", "failing", "value"),
    [
        (lambda root: None, set(), 1.0),
        (lambda root: (root / "javac.args").write_text("--release 11"), {"java_17"}, 0.0),
        (lambda root: (root / "javac.args").unlink(), {"builds", "java_17", "tests_pass", "tests_kept"}, 0.0),
        (lambda root: break_(root, STOCK, "sum += known", "sum -= known"), {"tests_pass"}, 0.5),
        (lambda root: break_(root, TESTS, CHECKED, "System.exit(0)"), {"tests_pass", "tests_kept"}, 0.5),
        (lambda root: (root / TESTS).unlink(), {"tests_kept"}, 0.5),
        (lambda root: break_(root, TESTS, "testTotal", "testOther"), {"tests_kept"}, 0.5),
    ],
    ids=["migrated", "java 11", "no build", "wrong", "exits", "test gone", "test renamed"],
)
def test_what_a_project_is_worth(reward: Any, harm: Callable[[Path], object], failing: set[str], value: float) -> None:
    with workspace.Workspace(TASK) as session:
        before = reward.Before.of(session.root, TASK)
        migrate(session.root)
        harm(session.root)
        checks = reward.check(session.root, before, 100)
    assert {name for name, holds in vars(checks).items() if not holds} == failing
    assert reward.MigrationReward()(checks=checks) == value


@needs_java
def test_checks_are_bounded_in_time(session: Any, reward: Any) -> None:
    before = reward.Before.of(session.root, TASK)
    migrate(session.root)
    waits = 'i < 60 && !new java.io.File("go").exists()'
    waiting = f"for (int i = 0; {waits}; i++) java.util.concurrent.locks.LockSupport.parkNanos(1000000000L)"
    break_(session.root, TESTS, CHECKED, f"System.out.println(1 + 1); {waiting}")
    assert reward.check(session.root, before, 0.01) == reward.Checks(dependencies=True)
    write(session.root, "go", "")
    assert java.build(session.root, 100).ok
    (session.root / "go").unlink()
    classes = os.pathsep.join(str(session.root / "target" / name) for name in ("classes", "test-classes"))
    built = java.run_tests(session.root, classes, [TESTS], 1)
    assert (built.ok, built.run, built.failed) == (True, 0, 1)


def test_dependencies_have_to_be_new_enough(session: Any, reward: Any, tmp_path: Path) -> None:
    pom = "<project><plugin><groupId>j</groupId><artifactId>j</artifactId><version>{}</version></plugin></project>"
    for version, enough in (("4.13.2", False), ("5", True), ("5.0.1", True), ("${unknown}", False)):
        write(tmp_path, "pom.xml", pom.format(version))
        assert reward.is_up_to_date(java.versions(tmp_path), {"j:j": "5", "not:there": "9"}) is enough


def test_a_project_that_is_gone_or_unreadable_passes_no_check(session: Any, reward: Any) -> None:
    before = reward.Before.of(session.root, TASK)
    assert before.tests == 4
    shutil.rmtree(session.root)
    assert reward.check(session.root, before) == reward.Checks()
    session.root.write_text("a file")
    assert reward.check(session.root, before) == reward.Checks()


# Data


def prepare(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MIGRATION_AGENT / "prepare.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, env=clean_env() | {"HF_HUB_OFFLINE": "1"} | env)


def test_the_rows_that_come_with_the_agent() -> None:
    made = prepare("builtin")
    assert made.returncode == 0, made.stderr
    assert made.stdout == (MIGRATION_AGENT / "rows.jsonl").read_text()


@needs_git
def test_repositories_of_migration_bench(tmp_path: Path) -> None:
    """A data set in its form, a repository at a URL of GitHub's, the row it becomes, and the project in its archive."""
    repository = tmp_path / "github/owner/some.name"
    shutil.copytree(MIGRATION_AGENT / "projects/inventory", repository)
    (repository / "link").symlink_to("/etc/passwd")
    git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, env=clean_env())
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    entries = [
        {"repo": "owner/some.name", "base_commit": commit, "num_java_files": 4, "num_test_cases": 4, "license": "MIT"},
        {"repo": "owner/gone", "base_commit": commit, "num_java_files": 4, "num_test_cases": -2, "license": "MIT"},
    ]
    write(tmp_path, "data/test.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))
    write(tmp_path, "versions.json", '{"junit:junit": "4.13.2"}')
    github = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{tmp_path}/github/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "HF_HOME": str(tmp_path / "hf"),
    }
    agent = tmp_path / "agent"
    shutil.copytree(MIGRATION_AGENT, agent, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--dataset", str(tmp_path / "data"), "--dependencies", str(tmp_path / "versions.json")]
    command = [sys.executable, str(agent / "prepare.py"), "migration-bench", *options]
    env = clean_env() | {"HF_HUB_OFFLINE": "1"} | github
    made = subprocess.run(command, capture_output=True, text=True, env=env)
    prompt = "Migrate this project from Java 8 to Java 17."
    shared = {"prompt": prompt, "base_commit": commit, "dependencies": {"junit:junit": "4"}}
    assert [json.loads(line) for line in made.stdout.splitlines()] == [
        shared | {"project": "https://github.com/owner/some.name", "tests": 4},
        shared | {"project": "https://github.com/owner/gone"},
    ], made.stderr
    made = subprocess.run([*command, "--pack"], capture_output=True, text=True, env=env)
    del shared["base_commit"]
    assert [json.loads(line) for line in made.stdout.splitlines()] == [
        shared | {"project": "owner-some-name", "tests": 4}
    ], made.stderr
    assert "left out: https://github.com/owner/gone could not be fetched" in made.stderr
    workspace.unpack(agent / "projects/owner-some-name.tar.gz", tmp_path / "unpacked")
    assert java.test_methods(tmp_path / "unpacked") == java.test_methods(MIGRATION_AGENT / "projects/inventory")
    assert not (tmp_path / "unpacked/link").exists()


def test_a_data_set_that_is_not_there(tmp_path: Path) -> None:
    made = prepare("migration-bench", "--dataset", str(tmp_path / "nothing"), HF_HOME=str(tmp_path))
    assert made.returncode == 1
    assert "can't be loaded" in made.stderr
    assert "hint: --dataset takes a folder" in made.stderr


# README
