"""The user's variables: AWS's region, and `.env`, the file beside the agent or in the working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError


def aws_region(environ: Mapping[str, str] | None = None) -> str | None:
    """The region in AWS's variables. boto3 reads `AWS_DEFAULT_REGION` alone, so each client needs this one.

    >>> aws_region({"AWS_REGION": "eu-west-3", "AWS_DEFAULT_REGION": "us-west-2"})
    'eu-west-3'
    """
    environ = os.environ if environ is None else environ
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None


def read_env(folder: Path) -> dict[str, str]:
    """The variables of `.env` in the agent's folder, else in the working directory."""
    for path in (folder / ".env", Path(".env")):
        if path.is_file():
            try:
                return parse_env(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} can't be read: {error}", hint="write one NAME=VALUE per line") from None
    return {}


def parse_env(text: str) -> dict[str, str]:
    """One NAME=VALUE per line, as a shell would read them.

    >>> parse_env("# mine\\nexport AWS_REGION='us-west-2'\\nAWS_ACCOUNT=123456789012 # prod\\n\\n")
    {'AWS_REGION': 'us-west-2', 'AWS_ACCOUNT': '123456789012'}
    """
    found = {}
    for line in text.splitlines():
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if separator and name.isidentifier():
            quoted = re.match(r"\s*(['\"])(.*?)\1", value)
            found[name] = quoted[2] if quoted else value.split(" #")[0].strip()
    return found
