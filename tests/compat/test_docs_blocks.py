"""Every block of every page is run, or read by what it is written for, or says above it why not.

`support/docs.py` has the words for that. A page is run from top to bottom, as somebody would paste it, in a folder that
has what a clone has; what a page needs beside it is in `NEEDS` of `support/docs_stage.py`.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml

from agentcore_rl_toolkit.backends.base import GROUP, find
from agentcore_rl_toolkit.backends.slime.backend import SlimeSettings
from agentcore_rl_toolkit.runtime.local import SessionPolicy
from support.docs import MADE, PAGES, ROOT, Block, blocks
from support.docs_commands import importable, objections, sentence_objections
from support.docs_stage import NEEDS, stage

ALL = {str(page.relative_to(ROOT)): blocks(page) for page in PAGES}
NOTES = {
    "bash": {"not run", "run by", "serves"},
    "python": {"not run", "file"},
    "text": {"not run", "run by", "output", "tree"},
    "diff": {"run by"},
    "toml": {"file"},
    "yaml": {"file"},
    "json": {"file"},
}
"""The kinds of blocks there are, and the notes that each may have."""


def of(*labels: str) -> list[Any]:
    found = [block for page in ALL.values() for block in page if block.label in labels]
    return [pytest.param(block, id=block.name) for block in found]


def imported(code: str) -> list[str]:
    """What a piece of Python imports from modules, with their names."""
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return [f"{node.module}.{alias.name}" for node in found for alias in node.names]


def test_every_block_has_a_kind() -> None:
    for block in (block for page in ALL.values() for block in page):
        assert block.label in NOTES, f"{block.name}: label it, with one of {', '.join(NOTES)}"
        assert block.notes.keys() <= NOTES[block.label], block.name
        assert block.notes or block.label != "text", f"{block.name}: is it output, a tree, or what?"
        for note in block.notes.keys() & {"not run", "run by", "serves", "file"}:
            assert block.notes[note], f"{block.name}: {note}: what?"
            assert all((ROOT / path).is_file() for path in re.findall(r"tests/\S+\.py", block.notes[note])), block.name


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page, found in ALL.items() if any(block.runs for block in found)])
def test_a_page_does_what_it_says(page: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with stage(page, tmp_path, lambda: request.getfixturevalue("aws_servers")) as ready:
        done = ready.run(ROOT / page)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_need_is_of_a_page_that_runs() -> None:
    assert NEEDS.keys() <= {page for page, found in ALL.items() if any(block.runs for block in found)}


@pytest.mark.parametrize("page", ALL)
def test_a_flag_in_a_sentence_is_of_the_verb_before_it(page: str) -> None:
    assert sentence_objections(ROOT / page) == []


@pytest.mark.parametrize("page", [page for page, found in ALL.items() if any(b.label == "bash" for b in found)])
def test_commands_are_commands(page: str, tmp_path: Path) -> None:
    homes = [ROOT, (ROOT / page).parent, tmp_path]
    for block in ALL[page]:
        if "file" in block.notes:  # the page's own script
            (tmp_path / block.notes["file"]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.notes["file"]).write_text(block.code)
    for block in ALL[page]:
        if block.label == "bash":
            assert objections(block, homes) == []


@pytest.mark.parametrize("block", [block for block in of(*NOTES) if "run by" in block.values[0].notes])
def test_a_block_that_another_test_runs(block: Block) -> None:
    """The test names the page, or else the block's scripts and verbs."""
    test = (ROOT / block.notes["run by"]).read_text()
    scripts = re.findall(r"\w+\.(?:py|sh)\b", block.code)
    verbs = [f'"{verb}"' for verb in re.findall(r"^agentcore-rl (\w+)", block.code, re.MULTILINE)]
    words = [*scripts, *verbs] if block.label == "bash" else [f"{block.page.parent.name}/"]
    if block.page.name == "README.md" or block.page.name not in test:
        assert words
        assert [word for word in words if word not in test] == []


@pytest.mark.parametrize("page", [page for page, found in ALL.items() if any(b.label == "python" for b in found)])
def test_python_has_no_unknown_names(page: str) -> None:
    """In blocks that aren't run, too: they may use what the page has defined before."""
    if MADE in (ROOT / page).read_text():
        return
    found = [block for block in ALL[page] if block.label == "python"]
    left_out = "\n".join(block.code for block in found if "not run" in block.notes)
    assert [name for name in imported(left_out) if not importable(name)] == []
    code = "\n".join(block.code for block in found)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("block", of("python", "json", "toml", "yaml"))
def test_files_of_the_repository_are_shown_as_they_are(block: Block) -> None:
    file = ROOT / block.notes.get("file", "a file of the page's own")
    assert not file.is_file() or block.code == file.read_text()


@pytest.mark.parametrize("block", of("json", "toml", "yaml"))
def test_settings_are_settings(block: Block) -> None:
    if block.label == "json":
        assert all(isinstance(json.loads(line), dict) for line in block.code.splitlines())
        return
    read: Callable[[str], Any] = tomllib.loads if block.label == "toml" else yaml.safe_load
    values = read(block.code)
    if "agents" in values:
        assert values.keys() <= {"agents", "max_sessions", "buckets"}
        for agent in values["agents"].values():
            assert agent.keys() <= {"entry", "env", "policy", "tps_limit"}
            SessionPolicy.load(agent.get("policy", {}))
    elif "project" in values:
        assert list(values["project"]["entry-points"]) == [GROUP]
    elif "agentcore" in values:
        SlimeSettings.from_mapping(values["agentcore"])
    else:
        backend = values.pop("backend", block.page.stem)
        find(backend).settings.from_mapping(values)


@pytest.mark.parametrize("block", of("diff"))
def test_a_diff_is_one(block: Block) -> None:
    """On an example's page it is the whole difference of its apps; elsewhere both sides are Python that can be."""
    if (block.page.parent / "basic_app.py").exists():
        apps = ("basic_app.py", "rl_app.py")
        before, after = ((block.page.parent / name).read_text().splitlines()[2:] for name in apps)
        real = list(difflib.unified_diff(before, after, n=99, lineterm=""))[3:]
        assert block.code.splitlines() == [line.rstrip() for line in real]
        return
    for other in "+-":
        lines = [line[1:] for line in block.code.splitlines() if not line.startswith(other)]
        names = imported(textwrap.dedent("\n".join(lines)))
        assert [name for name in names if not importable(name)] == []


@pytest.mark.parametrize("block", of("text"))
def test_a_tree_stands(block: Block) -> None:
    """A folder, and under it what is in it; names further right are in the folder, in its own, or at the top."""
    if "tree" not in block.notes:
        return
    top = places = [block.page.parent, ROOT]
    for line in block.code.splitlines():
        name, *rest = line.split()
        places = places if line.startswith(" ") else [place / name for place in top]
        own = [place / name for place in places] if line.startswith(" ") else places
        assert any(path.exists() for path in own), name
        for other in re.findall(r"(?<![\w/])[\w/]+(?:\.py\b|/(?!\w))", " ".join(rest)):
            assert any((place / other).exists() for place in (*own, *places, *top)), other
