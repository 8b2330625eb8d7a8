"""The Hub of Hugging Face as far as `datasets` asks it: what a data set is, its tree, and its files.

The paths, headers and error codes are those of the Hub's API; `datasets` itself speaks to it, where HF_ENDPOINT says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.process import http_server

_PATH = re.compile(r"/(?:api/)?datasets/([\w.-]+/[\w.-]+)(?:/(revision|tree|resolve)/([^/]+)(?:/(.*))?)?")


class FakeHub:
    """The data sets in a folder, `owner/name`, for who has the token."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder, self.token = folder, token
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[FakeHub]:
        class Bound(_Handler):
            hub = self

        with http_server(Bound) as self.url:
            yield self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_GET(self) -> None:
        match = _PATH.fullmatch(unquote(urlsplit(self.path).path))
        home = self.hub.folder / match[1] if match is not None else None
        if match is None or home is None:
            self._refuse(404, "EntryNotFound")
        elif not home.is_dir() or self.headers.get("authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "RepoNotFound")
        elif match[3] not in (None, "main", _commit(home)):
            self._refuse(404, "RevisionNotFound")
        elif match[2] in (None, "revision"):
            self._json({"id": match[1], "sha": _commit(home)})
        elif not (place := home / (match[4] or "")).exists():
            self._refuse(404, "EntryNotFound")
        elif match[2] == "tree":
            self._json([_entry(path, home) for path in sorted(place.iterdir())])
        else:
            self._answer(200, place.read_bytes(), {"ETag": f'"{_blob(place)}"', "X-Repo-Commit": _commit(home)})

    do_HEAD = do_GET

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _entry(path: Path, home: Path) -> dict[str, Any]:
    """A file or a folder in a listing."""
    name = str(path.relative_to(home))
    if path.is_dir():
        return {"type": "directory", "oid": _commit(path), "size": 0, "path": name}
    return {"type": "file", "oid": _blob(path), "size": path.stat().st_size, "path": name}


def _commit(home: Path) -> str:
    """It changes with the names and contents of files."""
    files = [(str(path), _blob(path)) for path in sorted(home.rglob("*")) if path.is_file()]
    return hashlib.sha1(json.dumps(files).encode()).hexdigest()


def _blob(path: Path) -> str:
    """A file's name in git."""
    data = path.read_bytes()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
