"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import AgentCoreRLError

_SIGNS = {"ok": "✓", "failed": "✗", "skipped": "–"}


@dataclass(frozen=True)
class Check:
    """One line: `state` is `ok`, `failed` or `skipped`."""

    name: str
    state: str
    text: str
    fix: str | None = None

    @property
    def line(self) -> str:
        """For people.

        >>> print(failed("region", "there is none", "set AWS_REGION").line)
        ✗ region: there is none
          fix: set AWS_REGION
        """
        shown = f"{_SIGNS[self.state]} {self.name}: {self.text}"
        return f"{shown}\n  fix: {self.fix}" if self.fix else shown


def ok(name: str, text: str) -> Check:
    return Check(name, "ok", text)


def failed(name: str, text: str, fix: str | None = None) -> Check:
    return Check(name, "failed", text, fix)


def skipped(name: str, why: str) -> Check:
    return Check(name, "skipped", f"skipped: {why}")


def refused(name: str, error: AgentCoreRLError) -> Check:
    """An error of ours as a check: its hint is the fix."""
    text, _, hint = str(error).partition("\nhint: ")
    return failed(name, text, hint or None)
