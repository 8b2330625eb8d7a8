"""`Workspace`: one session's folder, and the only way to a file. No name leads out of it, whatever the model writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .archive import read_archive
from .content import encode, parse_content, write_content

_MOST_BYTES = 64 << 20


class OfficeError(ValueError):
    """Something the model asked for can't be done; the message is for the model."""


class Workspace:
    """A folder with the user's `calendar/`, `emails/` and `data/`, removed at the end of its `with` block.

    >>> with Workspace({"data/note.txt": "hello"}) as workspace:
    ...     workspace.files()
    ['data/note.txt']
    """

    def __init__(self, files: Mapping[str, Any] | None = None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="office-")).resolve()
        try:
            for name, content in (files or {}).items():
                write_content(self.new(name), parse_content(name, content))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def path(self, name: str) -> Path:
        """The path of a name in the workspace; a name that leads out of it is refused, and so is every link."""
        relative = Path(name)
        if not name or "\0" in name or "\\" in name or relative.is_absolute() or ".." in relative.parts:
            raise OfficeError(f"{name!r} is not a path inside the workspace")
        path = self.root
        for part in relative.parts:
            path = path / part
            if path.is_symlink():
                raise OfficeError(f"{name!r} leads through a symbolic link")
        return path

    def existing(self, name: str) -> Path:
        """The path of a file that is there."""
        path = self.path(name)
        if not path.is_file():
            raise OfficeError(f"there is no file {name!r}; there is: {', '.join(self.files()) or 'none'}")
        return path

    def new(self, name: str, suffix: str = "") -> Path:
        """The path of a file to be written, in a folder that is there; with the suffix of its kind."""
        path = self.path(name)
        if suffix and path.suffix != suffix:
            raise OfficeError(f"{name!r} has to end in {suffix}")
        if path == self.root or path.is_dir():
            raise OfficeError(f"{name!r} is a folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise OfficeError(f"{name!r}: a file is where a folder would have to be") from None
        return path

    def files(self) -> list[str]:
        """The names of all files, sorted."""
        found = [
            os.path.relpath(os.path.join(folder, name), self.root)
            for folder, _, names in os.walk(self.root)
            for name in names
        ]
        return sorted(found)

    def extract(self, archive: str, folder: str) -> list[str]:
        """Unpack a zip or tar archive into a folder: all of it, or nothing if any member isn't to be trusted."""
        try:
            members = read_archive(self.existing(archive), _MOST_BYTES)
        except ValueError as error:
            raise OfficeError(f"{archive!r} is refused: {error}") from None
        names = [f"{folder.rstrip('/')}/{name}" for name in members]
        for name in names:
            self.path(name)
        for name, data in zip(names, members.values(), strict=True):
            self.new(name).write_bytes(data)
        return names

    def contents(self) -> dict[str, Any]:
        """All files, as a payload or a result carries them."""
        return {name: encode(self.path(name).read_bytes()) for name in self.files()}
