"""`UnitTestFraction`: the share of tests that the response's code passes. POSIX only.

**Not a security sandbox.** The code runs as you, with your network and files; the session around it must isolate it (on
AgentCore Runtime, a microVM does). Every test runs in a fresh `python -I` with its own temporary directory and process
group, without the parent's environment, and with limits on time, CPU, memory and file size. A test passes when the
child sends a random token over a pipe after the test's last line: exit status and output don't count. This defeats
accidents and easy tricks, not code that searches its own interpreter for the token or redefines equality.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..agent.reward import RewardFunction
from ..errors import ConfigError
from ._fence import last_fenced
from ._process import passes


class UnitTestFraction(RewardFunction):
    """The share of `tests` that pass against the response's code: passed / total.

    The code is the last ```python block of the response, else its last block without a language, else all of it. A
    test is a piece of Python, usually one `assert`, that sees the names the code defines; it passes if it runs to its
    end. Give the tests here, or per example as the keyword argument `tests`, which wins.

    A test that runs longer than `timeout_seconds` fails, and so does one that has not finished after `total_seconds`.
    The interpreter is this one with its installed packages, but without `PYTHONPATH`; `if __name__ == "__main__"`
    blocks don't run.

    >>> response = "Here you go:\\n```python\\ndef double(x):\\n    return x + x\\n```"
    >>> reward_fn = UnitTestFraction()
    >>> reward_fn(response_text=response, tests=["assert double(2) == 4", "assert double('a') == 'b'"])
    0.5
    """

    def __init__(
        self,
        tests: Sequence[str] | None = None,
        *,
        timeout_seconds: float = 5.0,
        total_seconds: float = 60.0,
        memory_mb: int = 1024,
    ) -> None:
        self.tests = None if tests is None else _checked(tests)
        self.timeout_seconds = timeout_seconds
        self.total_seconds = total_seconds
        self.memory_mb = memory_mb

    def __call__(self, *, response_text: str, tests: Sequence[str] | None = None, **kwargs: Any) -> float:
        todo = self.tests if tests is None else _checked(tests)
        if todo is None:
            raise ConfigError(
                "UnitTestFraction has no tests", hint="pass tests=[...] to the constructor or to the call"
            )
        code = last_fenced(response_text, "python", "py", "python3")
        code = response_text if code is None else code
        deadline = time.monotonic() + self.total_seconds
        return sum(self._passes(code, test, deadline) for test in todo) / len(todo)

    def _passes(self, code: str, test: str, deadline: float) -> bool:
        seconds = min(self.timeout_seconds, deadline - time.monotonic())
        job = {"task": "unit_test", "code": code, "test": test}
        return seconds > 0 and passes(job, timeout_seconds=seconds, memory_mb=self.memory_mb)


def _checked(tests: Sequence[str]) -> list[str]:
    """The tests as a list; raises for one that is not Python, because every response would fail it."""
    if isinstance(tests, str) or not tests or not all(isinstance(test, str) for test in tests):
        raise ConfigError(f"tests is {tests!r:.60}, not a list of strings", hint='give ["assert f(1) == 2", ...]')
    for test in tests:
        try:
            compile(test, "<test>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"the test {test[:60]!r} is not valid Python: {error}") from error
    return list(tests)
