"""Asking a running local runtime about itself."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

from ...errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8800"


def ask(url: str, path: str) -> tuple[bytes, Mapping[str, str]]:
    """GET a path of the runtime; gives body and headers."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=10) as response:
            return response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{url}: {error.read().decode(errors='replace') or error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"no runtime answers at {url}: {error}", hint="start one, or name it with --url") from None
