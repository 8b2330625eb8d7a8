"""The tutorial's commands, typed into a fresh shell: all of them, with fewer rows and steps than its reader has."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytest.importorskip("langgraph")

from support.container import PUBLISH
from support.docs import ROOT
from support.process import free_port

sys.path.append(str(ROOT / "benchmarks"))

from tutorial import SHORT, clean_env, type_page, verdict


@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_works_in_a_fresh_shell(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(PUBLISH)
    model, agent = str(free_port()), str(free_port())
    swaps = SHORT | {"--port 8000": f"--port {model}", "127.0.0.1:8000": f"127.0.0.1:{model}"}
    swaps |= {
        "127.0.0.1:8080": f"127.0.0.1:{agent}",
        "python stock_agent/rl_app.py": "PYTHONPATH=site python stock_agent/rl_app.py",
    }
    env = clean_env(tmp_path) | {"PUBLISHED": agent, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    typed = type_page(tmp_path, swaps, env)
    assert typed.code == 0, typed.output[-3000:]
    assert verdict(typed.output).startswith("a is tiny, b is runs/stock: ")
    report = json.loads((tmp_path / "exported" / "stock" / "export.json").read_text())
    assert report["largest_difference"] <= 1e-4
    assert re.search(r'^"[^"]+"', typed.output, re.MULTILINE)  # the agent's answer to the production request, as JSON
    for old in SHORT:
        assert old in (ROOT / "docs" / "tutorial.md").read_text()
