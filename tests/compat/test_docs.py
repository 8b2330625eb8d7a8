"""Documentation that can't rot: tables match the code, links lead somewhere. Blocks are in `test_docs_blocks.py`."""

from __future__ import annotations

import dataclasses
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.agent.result import ResultBuilder
from agentcore_rl_toolkit.agent.safe_values.describe import LONGEST_MESSAGE, LONGEST_TRACEBACK
from agentcore_rl_toolkit.agent.safe_values.json_values import DEEPEST
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from agentcore_rl_toolkit.backends.base import find, names
from agentcore_rl_toolkit.config import ENV_PREFIX, AgentCoreConfig
from agentcore_rl_toolkit.gateway.http.openapi import openapi
from agentcore_rl_toolkit.types import LARGEST_RESULT, RolloutId, Status
from support.backends import adapter, adapters
from support.docs import PAGES, ROOT
from support.process import clean_env


def table_after(page: str, marker: str) -> list[list[str]]:
    text = (ROOT / page).read_text().split(f"<!-- {marker}", 1)[1].split("-->", 1)[1].strip()
    lines = text.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")] for line in lines]


def test_reserved_keys() -> None:
    listed = {row[0] for row in table_after("docs/reference/results.md", "reserved keys")}
    builder = ResultBuilder(RolloutId("e", "i", "s"), "bucket", {}, Redactor(), None, 1.0)
    completed = builder.returned({"result_key": "mine"}, 2.0).document
    failed = builder.failed(Status.TIMEOUT, ValueError("x"), 2.0, returned={}).document
    assert listed == {f"`{name}`" for name in (*completed, *failed)}


def test_statuses() -> None:
    expected = [[f"`{s.value}`", str(s.status_code), s.meaning] for s in Status]
    assert table_after("docs/reference/results.md", "statuses") == expected


def test_bounds_of_results() -> None:
    largest, deepest = f"{LARGEST_RESULT // 10**6} MB", f"{DEEPEST} levels"
    promises = {
        "docs/guides/client.md": f"nested more than {deepest} deep or is larger than {largest}",
        "docs/guides/prepare-your-agent.md": f"A result has at most {largest}",
        "docs/reference/results.md": f"| the whole document | {largest} of JSON |",
    }
    assert [page for page, promise in promises.items() if promise not in (ROOT / page).read_text()] == []
    sizes = (ROOT / "docs/reference/results.md").read_text()
    assert f"| `stop_reason`, `error.message` | {LONGEST_MESSAGE:,} characters |" in sizes
    assert f"| `traceback` | {LONGEST_TRACEBACK:,} characters" in sizes


def test_settings() -> None:
    expected = []
    for field in dataclasses.fields(AgentCoreConfig):
        variables = [ENV_PREFIX + field.name.upper(), field.metadata["env"]]
        shown = ", ".join(f"`{v}`" for v in variables if v)
        default = f"{field.default:g}" if isinstance(field.default, float) else ""
        expected.append([f"`{field.name}`", field.metadata["help"], default, shown])
    assert table_after("docs/reference/config.md", "settings") == expected


def test_operations_of_the_gateway() -> None:
    expected = []
    for path, item in openapi()["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                key = "admin" if "security" in operation else "session" if "{session}" in path else ""
                expected.append([method.upper(), f"`{path}`", key, operation["summary"]])
    assert table_after("docs/reference/gateway-api.md", "operations") == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.filterwarnings("ignore")  # of trainers
@pytest.mark.parametrize("script", ["scripts/docs/reference.py", "benchmarks/figures.py"])
def test_the_reference_says_what_the_code_and_the_benchmarks_say(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which imports the trainers for other tests too."""
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    assert runpy.run_path(str(ROOT / script))["main"]() == 0, capsys.readouterr().err


def test_the_python_page_has_every_name_that_pages_import() -> None:
    public: dict[str, set[str]] = {}
    for part in (ROOT / "docs/reference/python.md").read_text().split("\n## ")[1:]:
        module = part.split("\n")[0]
        public[module] = set(re.findall(r"^### (\w+)$", part, re.MULTILINE))
        public.setdefault(module.rpartition(".")[0], set()).add(module.rpartition(".")[2])
    imported = re.compile(r"^from (agentcore_rl_toolkit[\w.]*) import ([\w, ]+)", re.MULTILINE)
    found = [(page, *match) for page in PAGES for match in imported.findall(page.read_text())]
    assert len(found) > 20
    missing = [(str(page.relative_to(ROOT)), module, name) for page, module, several in found
               for name in several.split(", ") if name not in public.get(module, set())]  # fmt: skip
    assert missing == []
    of_backends = {find(name).settings for name in names()}
    assert [one.__name__ for one in of_backends if not any(one.__name__ in found for found in public.values())] == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = clean_env(NO_MKDOCS_2_WARNING="1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / "site" / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    said = (tmp_path / "site" / "guides" / "train.html").read_text()
    assert 'href="../benchmarks/results/engine_cuda.json.code.html"' in said  # what is outside of docs comes along
    assert "https://fonts" not in said


def test_what_each_trainer_gets() -> None:
    """Of the adapters in this environment; the others' are checked in theirs."""
    words = {"several rows": "rollouts of several rows", "logprobs": "the sampler's logprobs"}
    words |= {"routes": "expert routes", "versions": "weight versions"}
    rows = table_after("docs/guides/backends.md", "capabilities")
    header = (ROOT / "docs/guides/backends.md").read_text().split("capabilities")[1].splitlines()[2]
    names = [cell.strip() for cell in header.strip("|").split("|")][1:]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names, start=1)}
    for name in adapters():
        said = {what for what, word in words.items() for row, mark in zip(rows, columns[name], strict=True)
                if row[0].startswith(word) and mark == "✓"}  # fmt: skip
        assert said == adapter(name).PASSES_ON & words.keys(), name


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("<!--")]) <= 150


def test_the_echo_agent_tells_its_story(tmp_path: Path) -> None:
    script = ROOT / "examples" / "echo_agent" / "demo.py"
    out = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, env=clean_env(), cwd=tmp_path
    )
    assert out.returncode == 0, out.stderr
    assert "4 completed and 1 failed, of 5" in out.stdout
    assert "are you there?" in out.stdout
