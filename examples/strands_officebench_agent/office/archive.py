"""Reading archives that somebody sent: regular files only, with plain relative names, up to a total size."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

_MOST_MEMBERS = 1000


def read_archive(path: Path, most_bytes: int) -> dict[str, bytes]:
    """The files of a zip or tar archive by name; a `ValueError` names the first member that is refused."""
    found: dict[str, bytes] = {}
    left = most_bytes
    try:
        for name, stream in _members(path):
            found[_plain(name)] = data = stream.read(left + 1)
            left -= len(data)
            if left < 0 or len(found) > _MOST_MEMBERS:
                raise ValueError(f"it holds more than {most_bytes >> 20} MB or {_MOST_MEMBERS} files")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, RuntimeError, NotImplementedError, OSError) as error:
        raise ValueError(f"it can't be read ({error})") from None
    return found


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise ValueError(f"{info.filename!r} is a link or a device")
                if not info.is_dir():
                    with archive.open(info) as stream:
                        yield info.orig_filename, stream
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if not (member.isfile() or member.isdir()):
                    raise ValueError(f"{member.name!r} is a link or a device")
                content = archive.extractfile(member)
                if content is not None:
                    yield member.name, content
    else:
        raise ValueError("it is neither a zip nor a tar archive")


def _plain(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise ValueError(f"{name!r} would leave its folder")
    return str(path)


def names(path: Path) -> list[str]:
    """The names of an archive's files."""
    return [name for name, _ in _members(path)]


def write_zip(path: Path, texts: dict[str, str]) -> None:
    """A zip archive of text files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
