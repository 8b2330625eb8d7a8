"""What is known of a Java project: whether it builds, what its tests say, and which Java its classes are for.

A project with a pom.xml is built by Maven. One without is built by `javac @javac.args`, from src/main/java and
src/test/java, and its tests are run by `RunTests.java`. Builds are bounded in time; nothing in here raises for a
project that is broken.
"""

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from .command import run

_RUNNER = (Path(__file__).parent / "RunTests.java").read_text()  # now: a session could change the file later
_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")
_MAVEN = ("mvn", "-B", "-ntp", "-Dmaven.test.failure.ignore=true", "clean", "verify")
_LARGEST_SOURCE = 200_000
_LARGEST_REPORT = 16 << 20
# Each alternative takes what it began: a file made to be slow to read is read once, and not from every quote again.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|(\"(?:\\.|[^\"\\\n])*(?:\"|(?=\n)|\Z))", re.DOTALL)
_METHOD = re.compile(
    r"((?:@[\w.]+(?:\s{0,99}\([^()]{0,500}\))?\s{0,99}){0,9})((?:(?:public|final)\s{1,99}){0,2})void\s+(\w+)\s*\("
)


@dataclass(frozen=True)
class Built:
    """A build, and the tests that ran in it."""

    ok: bool = False
    run: int = 0
    failed: int = 0
    output: str = ""

    def __str__(self) -> str:
        verdict = "build succeeded" if self.ok else "build failed"
        return f"{self.output.strip()}\n[{verdict}; {self.run} tests run, {self.failed} of them failed]".lstrip()


def is_maven(root: Path) -> bool:
    return (root / "pom.xml").is_file()


def build(root: Path, seconds: float) -> Built:
    """Build from scratch and run the tests."""
    for program in ("mvn", "java") if is_maven(root) else ("javac", "java"):
        if shutil.which(program) is None:
            raise RuntimeError(f"{program} is not installed here: the agent needs a JDK of Java 17 or newer, and Maven")
    for folder in [path for path in _walk(root) if path.name == "target" and path.is_dir()]:
        shutil.rmtree(folder, ignore_errors=True)
    return _build_with_maven(root, seconds) if is_maven(root) else _build_with_javac(root, seconds)


def _build_with_maven(root: Path, seconds: float) -> Built:
    ended = run(_MAVEN, root, seconds)
    counts = [_counts(path) for path in _walk(root) if re.fullmatch(r".*-reports/TEST-[^/]*\.xml", path.as_posix())]
    return Built(ended.ok, sum(ran for ran, _ in counts), sum(failed for _, failed in counts), ended.output)


def _counts(report: Path) -> tuple[int, int]:
    """Tests that ran and tests that failed, as Surefire and Failsafe report them."""
    try:
        if report.stat().st_size > _LARGEST_REPORT:
            return 0, 0
        suite = ElementTree.parse(report).getroot()
        number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors")}
    except (ElementTree.ParseError, ValueError, OSError):
        return 0, 0
    return number["tests"], number["failures"] + number["errors"]


def _build_with_javac(root: Path, seconds: float) -> Built:
    deadline = time.monotonic() + seconds
    classes, test_classes = root / "target/classes", root / "target/test-classes"
    mains, tests = ([str(path.relative_to(root)) for path in _sources(root, kind)] for kind in ("main", "test"))
    if not mains:
        return Built(output="there is nothing in src/main/java")
    compiler = ["javac", *(f"-J{option}" for option in _QUICK), "@javac.args"]
    compiled = run([*compiler, "-d", str(classes), *mains], root, seconds)
    if not compiled.ok or not tests:
        return Built(compiled.ok, output=str(compiled))
    with tempfile.TemporaryDirectory() as folder:
        runner = Path(folder, "RunTests.java")
        runner.write_text(_RUNNER)
        command = [*compiler, "-cp", str(classes), "-d", str(test_classes), str(runner), *tests]
        compiled = run(command, root, deadline - time.monotonic())
    if not compiled.ok:
        return Built(output=str(compiled))
    return run_tests(root, f"{classes}{os.pathsep}{test_classes}", tests, deadline - time.monotonic())


def run_tests(root: Path, classes: str, tests: list[str], seconds: float) -> Built:
    """Run compiled tests, given the class path and the tests' files.

    Only the runner knows the word that its last line begins with; a test that ends the JVM is in its way.
    """
    names = [test.rpartition("src/test/java/")[2].removesuffix(".java").replace("/", ".") for test in tests]
    word = secrets.token_hex(16)
    ended = run(["java", *_QUICK, "-cp", classes, "RunTests", *names], root, seconds, stdin=f"{word}\n")
    said = ended.output.replace(word, "tests:")
    last = re.search(rf"^{word} (\d+) (\d+)$", ended.output, re.MULTILINE)
    if last is None:
        return Built(True, failed=1, output=f"{said}\nthe tests didn't run to their end")
    return Built(True, int(last[1]), int(last[2]), said)


def major_versions(root: Path) -> set[int]:
    """Of all classes that the build made: 52 is Java 8, 61 is Java 17."""
    found = set[int]()
    for path in _walk(root):
        if path.suffix == ".class" and {"classes", "test-classes"} & set(path.parts) and path.is_file():
            with path.open("rb") as file:
                head = file.read(8)
            found.add(int.from_bytes(head[6:], "big") if head[:4] == b"\xca\xfe\xba\xbe" else 0)
    return found


def test_methods(root: Path) -> set[tuple[str, str]]:
    """Class and method of each test in the sources, whatever folder they are in; a comment is no test."""
    found = set[tuple[str, str]]()
    for path in _sources(root, "test"):
        if path.stat().st_size <= _LARGEST_SOURCE:
            text = _COMMENT.sub(lambda match: match[1] or " ", path.read_text(errors="replace"))
            found |= {(path.stem, method[3]) for method in _METHOD.finditer(text) if _is_test(*method.groups())}
    return found


def _is_test(annotations: str, modifiers: str, name: str) -> bool:
    """JUnit 4 and 5 annotate tests, JUnit 3 knows them by their names. One that is switched off is none."""
    if re.search(r"@(Disabled|Ignore)\b", annotations):
        return False
    return bool(re.search(r"Test\b", annotations)) or (name.startswith("test") and "public" in modifiers)


def versions(root: Path) -> dict[str, set[str]]:
    """The versions that the project's poms ask for, by `group:artifact`; properties of the same pom are filled in."""
    found: dict[str, set[str]] = {}
    for path in _walk(root):
        if path.name != "pom.xml" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            continue
        try:
            pom = ElementTree.fromstring(re.sub(rb"<project\b[^>]*>", b"<project>", path.read_bytes(), count=1))
        except ElementTree.ParseError:
            continue
        properties = {f"${{{one.tag}}}": one.text or "" for one in pom.findall("properties/*")}
        for tag in ("parent", "dependency", "plugin"):
            for one in pom.iter(tag):
                name = f"{one.findtext('groupId', 'org.apache.maven.plugins')}:{one.findtext('artifactId', '')}".strip()
                version = one.findtext("version", "").strip()
                if version:
                    found.setdefault(name, set()).add(properties.get(version, version).strip())
    return found


def at_least(version: str, least: str) -> bool:
    """Whether a version is the other or newer, by its numbers.

    >>> at_least("5.10.1", "5.9"), at_least("4.13.2", "5"), at_least("${junit}", "5")
    (True, False, False)
    """
    have, want = ([int(number) for number in re.findall(r"\d+", text)] for text in (version, least))
    return bool(have) and have + [0] * (len(want) - len(have)) >= want


def _sources(root: Path, kind: str) -> Iterator[Path]:
    """The Java files of the project and its modules."""
    wanted = f"src/{kind}/java"
    for path in _walk(root):
        if path.suffix == ".java" and f"/{wanted}/" in f"/{path.relative_to(root).as_posix()}" and path.is_file():
            yield path


def _walk(root: Path) -> Iterator[Path]:
    """Everything in the project, in order, following no link."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != ".git" and not os.path.islink(f"{folder}/{name}"))
        yield from (Path(folder, name) for name in [*folders, *sorted(files)] if not os.path.islink(f"{folder}/{name}"))
