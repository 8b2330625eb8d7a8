"""The one message for an optional dependency that is not installed."""

from __future__ import annotations

from ..errors import ConfigError

HINT = "pip install 'agentcore-rl-toolkit[rewards]'"


def missing_extra(needed_by: str, error: ImportError) -> ConfigError:
    """The error to raise in place of `error`.

    >>> print(missing_extra("MathEquivalence", ImportError("No module named 'math_verify'")))
    MathEquivalence needs a package that is not installed: No module named 'math_verify'
    hint: pip install 'agentcore-rl-toolkit[rewards]'
    """
    return ConfigError(f"{needed_by} needs a package that is not installed: {error}", hint=HINT)
