"""MkDocs' hook: pages may link to any file of the repository, and find it on the site.

`docs/X` is X there; a file outside of docs (an example's README, a table of figures) is taken along under its own path.
A picture opens at its own size, and on a phone, columns of long text and drawings are wide enough to read, and scroll.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_PICTURE = re.compile(r'<img [^>]*src="([^"]+)"[^>]*>')
_CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
_LONG = 80
"""Characters of a cell whose column is not to be narrow."""
_CODE = {".py": "python", ".json": "json", ".sh": "bash", ".toml": "toml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.extra_css.append("phone.css")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take along what pages link to, and what those link to."""
    files.append(File.generated(config, "phone.css", content=Path(__file__).with_name("phone.css").read_text()))
    waiting = [(file.src_uri, f"docs/{file.src_uri}") for file in files.documentation_pages()]
    while waiting:
        _, source = waiting.pop()
        for link in _LINK.findall((ROOT / source).read_text()) if source.endswith(".md") else []:
            target = _target(source, link)
            if target.startswith("docs/") or files.get_file_from_path(_place(target)) is not None:
                continue
            files.append(File.generated(config, _place(target), content=_content(target)))
            waiting.append((_place(target), target))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their targets are on the site."""
    place = page.file.src_uri
    source = f"docs/{place}" if (ROOT / "docs" / place).exists() else place.removesuffix(".code.md")

    def led(link: re.Match[str]) -> str:
        return posixpath.relpath(_place(_target(source, link[1])), posixpath.dirname(place) or ".")

    return _LINK.sub(led, markdown) if source.endswith(".md") else markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead pictures to themselves, and mark table cells of long text."""

    def marked(cell: re.Match[str]) -> str:
        long = len(re.sub(r"<[^>]*>", "", cell[2])) > _LONG
        return f'<td{cell[1]} class="long">{cell[2]}</td>' if long else cell[0]

    return _CELL.sub(marked, _PICTURE.sub(r'<a class="picture" href="\1">\g<0></a>', html))


def _target(source: str, link: str) -> str:
    """The repository's file that a link on a page leads to; of a folder, its README."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return f"{target}/README.md" if (ROOT / target).is_dir() else target


def _place(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return target if target.endswith(".md") else f"{target}.code.md"


def _content(target: str) -> str:
    text = (ROOT / target).read_text()
    if target.endswith(".md"):
        return text
    fence = "````"
    return f"# {Path(target).name}\n\n`{target}`\n\n{fence}{_CODE.get(Path(target).suffix, '')}\n{text}\n{fence}\n"
