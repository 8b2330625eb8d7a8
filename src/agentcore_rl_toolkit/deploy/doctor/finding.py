"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import AgentCoreRLError

_SIGNS = {"ok": "✓", "failed": "✗", "skipped": "–"}


@dataclass(frozen=True)
class Check:
    """One line of the doctor; `state` is `ok`, `failed` or `skipped`.

    >>> print(failed("region", "no AWS region is set", "set AWS_REGION").line)
    ✗ region: no AWS region is set
      fix: set AWS_REGION
    """

    name: str
    state: str
    text: str
    fix: str | None = None

    @property
    def line(self) -> str:
        shown = f"{_SIGNS[self.state]} {self.name}: {self.text}"
        return f"{shown}\n  fix: {self.fix}" if self.fix else shown


def ok(name: str, text: str) -> Check:
    return Check(name, "ok", text)


def failed(name: str, text: str, fix: str | None = None) -> Check:
    return Check(name, "failed", text, fix)


def failed_with(name: str, error: AgentCoreRLError) -> Check:
    """A failed check from an error, whose hint is the fix."""
    text, _, hint = str(error).partition("\nhint: ")
    return failed(name, text, hint or None)


def skipped(name: str, reason: str) -> Check:
    return Check(name, "skipped", f"skipped: {reason}")
