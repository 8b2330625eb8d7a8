"""Finds the fenced block with a model's answer."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def last_fenced(text: str, *languages: str) -> str | None:
    """The last block fenced as one of `languages`, else the last without a language, else None.

    A block that was cut off before its closing fence counts.

    >>> text = "Draft:\\n```py\\n1\\n```\\nBetter:\\n```python\\n2\\n```\\nRun it:\\n```sh\\nls\\n```"
    >>> last_fenced(text, "python", "py")
    '2\\n'
    """
    blocks = [(language.lower(), body) for language, body in _FENCE.findall(text)]
    named = [body for language, body in blocks if language in languages]
    plain = [body for language, body in blocks if not language]
    return next(iter(named[::-1] + plain[::-1]), None)
