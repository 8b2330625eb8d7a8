"""Asking a running local runtime about itself."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping

from ...errors import ConfigError
from ...runtime.base import TOKEN_VARIABLE

DEFAULT_URL = "http://127.0.0.1:8800"


def ask(url: str, path: str) -> tuple[bytes, Mapping[str, str]]:
    """GET a path of the runtime, with its token if there is one in the environment; gives body and headers."""
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url.rstrip("/") + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{url}: {_said(error) or error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"no runtime answers at {url}: {error}", hint="start one, or name it with --url") from None


def _said(error: urllib.error.HTTPError) -> str:
    """What the runtime says of a request that it didn't serve."""
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
