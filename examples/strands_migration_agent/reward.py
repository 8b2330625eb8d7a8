"""The agent's reward: does the project build for Java 17, with all of its tests, and by the rules?

| reward | the project |
|---|---|
| 0.0 | is gone, doesn't build, or was built for another Java |
| 0.5 | builds for Java 17; but a test fails or is gone, or a dependency is behind |
| 1.0 | is migrated |
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migration import java
from migration.task import Task

from agentcore_rl_toolkit import RewardFunction

_JAVA_17 = 61
_SECONDS = 600


@dataclass(frozen=True)
class Before:
    """What is known of a project before the agent begins; the agent can't change it."""

    methods: frozenset[tuple[str, str]]
    tests: int
    dependencies: dict[str, str]

    @classmethod
    def of(cls, root: Path, task: Task) -> "Before":
        methods = frozenset(java.test_methods(root))
        return cls(methods, len(methods) if task.tests is None else task.tests, task.dependencies)


@dataclass(frozen=True)
class Checks:
    """What was found after the agent ended."""

    builds: bool = False
    java_17: bool = False
    """All classes are for Java 17."""
    tests_pass: bool = False
    tests_kept: bool = False
    """No fewer tests run than before, and no test method is gone."""
    dependencies: bool = False
    """Each is as new as the task wants it."""


def check(root: Path, before: Before, seconds: float = _SECONDS) -> Checks:
    """Build the project and look at it. One that is gone, or that can't be read, passes no check."""
    if root.is_symlink() or not root.is_dir():
        return Checks()
    try:
        built = java.build(root, seconds)
        return Checks(
            builds=built.ok,
            java_17=java.major_versions(root) == {_JAVA_17},
            tests_pass=built.ok and built.failed == 0,
            tests_kept=built.run >= before.tests and before.methods <= java.test_methods(root),
            dependencies=is_up_to_date(java.versions(root), before.dependencies),
        )
    except OSError:
        return Checks()


def is_up_to_date(known: dict[str, set[str]], wanted: dict[str, str]) -> bool:
    """A dependency that the project no longer has is no dependency behind."""
    return all(java.at_least(version, least) for name, least in wanted.items() for version in known.get(name, ()))


class MigrationReward(RewardFunction):
    """From what was found to a number.

    >>> reward_fn = MigrationReward()
    >>> reward_fn(checks=Checks(builds=True, java_17=True, tests_pass=True, tests_kept=True, dependencies=True))
    1.0
    >>> reward_fn(checks=Checks(builds=True, java_17=True, tests_kept=True)), reward_fn(checks=Checks(builds=True))
    (0.5, 0.0)
    """

    def __call__(self, *, checks: Checks, **kwargs: Any) -> float:
        if not (checks.builds and checks.java_17):
            return 0.0
        return 1.0 if checks.tests_pass and checks.tests_kept and checks.dependencies else 0.5
